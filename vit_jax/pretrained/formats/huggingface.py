"""Hugging Face's `ViTForImageClassification` and `ViTModel`.

Kernels are transposed; query, key and value are separate layers. `ViTModel`'s
pooler is the paper's representation layer (dense, tanh). `config.json` holds
the activation and the epsilon, `preprocessor_config.json` the preprocessing.
Files have the names that `save_pretrained` writes; since release 5,
`state_dict()` has others.
"""

import re
from collections.abc import Mapping
from typing import Any

from vit_jax.data.preprocessing import Preprocessing
from vit_jax.models import Vit
from vit_jax.pretrained.formats import processor
from vit_jax.pretrained.formats.architecture import (
  Architecture,
  count_layers,
  guess_num_heads,
  guessed_heads,
  length,
  need,
  one_or_both,
  section,
)
from vit_jax.pretrained.formats.mapping import Rule, Shapes
from vit_jax.pretrained.formats.table import (
  Table,
  attention,
  dense,
  heads_out,
  layer_norm,
  patches,
  rows,
)
from vit_jax.runtime.checks import (
  COUNT,
  POSITIVE,
  SIDES,
  Sides,
  checked,
)
from vit_jax.runtime.printable import quoted

# `hidden_act` -> `Vit.gelu`.
ACTIVATIONS = {
  "gelu": "exact",
  "gelu_python": "exact",
  "gelu_new": "tanh",
  "gelu_fast": "tanh",
  "gelu_pytorch_tanh": "tanh",
}
_POSITION = "embeddings.position_embeddings"
# The rows that DeiT has as well.
BASE = rows(
  patches("embeddings.patch_embeddings.projection."),
  Rule("embeddings.cls_token", ("x_class",), "1 1 D -> D"),
  Rule(_POSITION, ("position/E_pos",), "1 S D -> S D"),
  layer_norm("layernorm.", "norm"),
)
LAYERS: dict[str, Any] = dict(
  layers="encoder.layer.{}.",
  layer=rows(
    layer_norm("layernorm_before.", "norm_msa"),
    layer_norm("layernorm_after.", "norm_mlp"),
    attention("attention.attention.", "query", "key", "value"),
    heads_out("attention.output.dense."),
  ),
  mlp=rows(
    dense("intermediate.dense.", "mlp/expand"),
    dense("output.dense.", "mlp/contract"),
  ),
)
_TABLE = Table(
  root=rows(dense("classifier.", "head")),
  base=rows(*BASE, dense("pooler.dense.", "pre_logits")),
  **LAYERS,
)
# `state_dict()` since release 5 -> what `save_pretrained` writes.
_SAVED = {
  "attention.q_proj.": "attention.attention.query.",
  "attention.k_proj.": "attention.attention.key.",
  "attention.v_proj.": "attention.attention.value.",
  "attention.o_proj.": "attention.output.dense.",
}
_SAVED_MLP = {"mlp.fc1.": "intermediate.dense.", "mlp.fc2.": "output.dense."}


def saved_name(name: str) -> str:
  """The name that `save_pretrained` gives to an array of `state_dict()`.

  The two differ since release 5, in ViT, MAE, DeiT, DINOv2 and DINOv3. Names of
  other formats stay as they are.
  """
  found = re.sub(r"^model\.(layer\.\d+\.)", r"\1", name)
  found = re.sub(r"^((?:vit|deit)\.)?layers\.", r"\1encoder.layer.", found)
  parts = dict(_SAVED_MLP) if found != name else {}
  if "encoder.layer." in found:
    for new, saved in (parts | _SAVED).items():
      found = found.replace(new, saved)
  return found


def prefix(shapes: Shapes) -> str | None:
  """The empty prefix; None for other formats. `_base` belongs to the names."""
  patch = f"{_base(shapes)}embeddings.patch_embeddings.projection.weight"
  return "" if patch in shapes else None


def unused(shapes: Shapes) -> list[str]:
  """Names of the arrays of a masked autoencoder's decoder (MAE)."""
  if "decoder.decoder_embed.weight" not in shapes:
    return []
  return [name for name in shapes if name.startswith("decoder.")]


def infer(shapes: Shapes, config: dict[str, Any] | None = None) -> Architecture:
  """Infers the model that these arrays are the parameters of.

  Args:
    shapes: Shapes of the arrays.
    config: `config.json`; without it, the library's defaults hold.

  Raises:
    ValueError: if the configuration is invalid or describes another kind of
      model, or if an array that a size is read from is missing or has another
      number of axes.
  """
  config = config or {}
  activation = _activation(config)
  base = _base(shapes)
  patch = need(
    shapes, f"{base}embeddings.patch_embeddings.projection.weight", 4
  )
  positions = need(shapes, f"{base}{_POSITION}", 3)[1]
  D = patch[0]
  num_heads = config.get("num_attention_heads", guess_num_heads(D))
  fields: dict[str, Any] = dict(
    num_classes=length(shapes, "classifier.bias", 0),
    patch_size=patch[2],
    hidden_size=D,
    num_layers=count_layers(shapes, f"{base}encoder.layer."),
    mlp_size=need(
      shapes, f"{base}encoder.layer.0.intermediate.dense.weight", 2
    )[0],
    num_heads=checked("num_attention_heads", int | None, num_heads, COUNT),
    representation_size=length(shapes, f"{base}pooler.dense.bias", None),
    gelu=activation,
    layer_norm_epsilon=checked(
      "layer_norm_eps", float, config.get("layer_norm_eps", 1e-12), POSITIVE
    ),
  )
  pooler = config.get("pooler_act", "tanh")
  if fields["representation_size"] and pooler != "tanh":
    raise ValueError(
      f"its config.json says pooler_act={quoted(pooler)}; only 'tanh' is the "
      "paper's."
    )
  given = "num_attention_heads" in config
  return Architecture(
    "hf",
    fields,
    positions - 1,
    image_size=checked(
      "image_size", Sides | None, config.get("image_size"), SIDES
    ),
    class_names=class_names(config),
    loss=loss(config, fields["num_classes"]),
    interpolation="bicubic" if _is_mae(config) else "linear",
    guesses={} if given else guessed_heads(num_heads),
  )


def _is_mae(config: Mapping[str, Any]) -> bool:
  return config.get("model_type") == "vit_mae"


def loss(config: Mapping[str, Any], num_classes: int) -> str:
  """The loss that the library infers, and its pipeline takes for granted."""
  kind = config.get("problem_type")
  several = kind == "multi_label_classification"
  return "sigmoid" if several or num_classes == 1 else "softmax"


def _activation(config: Mapping[str, Any]) -> str:
  """The value of `Vit.gelu`; ValueError if this is another architecture."""
  model_type = config.get("model_type", "vit")
  if model_type != "vit" and not _is_mae(config):
    raise ValueError(
      f"its config.json says model_type={quoted(model_type)}, and its arrays "
      "are named as those of 'vit', which has the paper's architecture."
    )
  activation = config.get("hidden_act", "gelu")
  if not isinstance(activation, str) or activation not in ACTIVATIONS:
    raise ValueError(
      f"its config.json says hidden_act={quoted(activation)}; the known ones "
      f"are {', '.join(ACTIVATIONS)}."
    )
  return ACTIVATIONS[activation]


def class_names(config: Mapping[str, Any]) -> tuple[str, ...]:
  """The names in `id2label`, unless they are the library's placeholders.

  Raises:
    ValueError: if its keys are not numbers.
  """
  labels = section("id2label", config.get("id2label"))
  strange = [key for key in labels if not re.fullmatch(r"\d{1,9}", key)]
  if strange:
    raise ValueError(
      f"id2label has the key {quoted(strange[0])}; all must be the numbers of "
      "classes: correct it."
    )
  names = tuple(str(labels[key]) for key in sorted(labels, key=int))
  placeholders = (f"LABEL_{i}" for i in range(len(names)))
  return () if names == tuple(placeholders) else names


def rules(vit: Vit, shapes: Shapes | None = None) -> list[Rule]:
  """The rules for all arrays of a checkpoint to read, or of one to write."""
  return _TABLE.rules(vit, "vit." if shapes is None else _base(shapes))


def _base(shapes: Shapes) -> str:
  return "vit." if any(name.startswith("vit.") for name in shapes) else ""


def files(vit: Vit, preprocessing: Preprocessing, loss: str) -> dict[str, Any]:
  """The JSON files that the library reads beside the weights, by name."""
  config = _config(vit) | problem(loss)
  return {"config.json": config, processor.FILE: processor.write(preprocessing)}


def problem(loss: str) -> dict[str, str]:
  """The part of a configuration that tells the loss."""
  several = {"problem_type": "multi_label_classification"}
  return several if loss == "sigmoid" else {}


def labels(vit: Vit) -> dict[str, Any]:
  """The names of the classes, as configurations have them."""
  names = vit.origin.class_names if vit.origin else ()
  # The head may have more classes than the data.
  rest = range(len(names), vit.num_classes)
  found = [*names, *(f"LABEL_{i}" for i in rest)]
  return {
    "id2label": {str(i): label for i, label in enumerate(found)},
    "label2id": {label: i for i, label in enumerate(found)},
  }


def _config(vit: Vit) -> dict[str, Any]:
  name = "ViTForImageClassification" if vit.num_classes else "ViTModel"
  return {
    "architectures": [name],
    "model_type": "vit",
    "hidden_size": vit.hidden_size,
    "num_hidden_layers": vit.num_layers,
    "num_attention_heads": vit.num_heads,
    "intermediate_size": vit.mlp_size,
    "hidden_act": {"exact": "gelu", "tanh": "gelu_pytorch_tanh"}[vit.gelu],
    "hidden_dropout_prob": vit.dropout_rate,
    "attention_probs_dropout_prob": vit.attention_dropout_rate,
    "layer_norm_eps": vit.layer_norm_epsilon,
    "image_size": one_or_both(vit),
    "patch_size": vit.patch_size,
    "num_channels": 3,
    "qkv_bias": True,
    **labels(vit),
  }
