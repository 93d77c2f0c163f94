"""Text towers as open_clip saves them, beside an image tower.

Those of its own Transformers, which CLIP's, CLIPA's, PE's and SigLIP's models
have. `open_clip_config.json` tells what the arrays do not.
"""

from collections.abc import Mapping
from typing import Any

from vit_jax.pretrained.formats.architecture import need, section
from vit_jax.pretrained.formats.mapping import Shapes
from vit_jax.pretrained.formats.table import Config, Layers, Table
from vit_jax.pretrained.formats.text_family import TextFamily, width
from vit_jax.runtime.checks import COUNT, checked
from vit_jax.runtime.printable import quoted

NAME = "open_clip"
CONFIG = "open_clip_config.json"
WEIGHTS = "open_clip_model.safetensors"
_POOLINGS = {"argmax": "end", "eos": "end", "last": "last"}
# Keys that name a tower or a tokenizer of another kind, and the values under
# which it is ours.
_OTHERS = {
  "hf_model_name": (None, ""),
  "text_arch": (None, "clip"),
  **dict.fromkeys(("tokenizer_mode", "tokenizer_type"), (None, "")),
}
CLEANINGS = ("", "whitespace", "lower", "canonicalize")


def text_config(content: Mapping[str, Any]) -> dict[str, Any]:
  """The keys of a text tower's configuration, named as transformers' are.

  `content` is that of `CONFIG`. Raises ValueError if it tells of another
  network, or a value is not supported.
  """
  model = section("model_cfg", content.get("model_cfg"))
  text = section("text_cfg", model.get("text_cfg"))
  for key, ours in _OTHERS.items():
    if text.get(key) not in ours:
      raise ValueError(
        f"its {CONFIG} says {key}={quoted(text[key])}: that text tower is not "
        "supported; those of open_clip's own Transformer are."
      )
  norm = section("norm_kwargs", text.get("norm_kwargs"))
  act = section("act_kwargs", text.get("act_kwargs"))
  quick = checked("quick_gelu", bool, model.get("quick_gelu", False))
  plain = "gelu_pytorch_tanh" if act.get("approximate") == "tanh" else "gelu"
  pool = text.get("pool_type", "argmax")
  options = section("tokenizer_kwargs", text.get("tokenizer_kwargs"))
  for key in options.keys() - {"clean"}:
    raise ValueError(
      f"its {CONFIG} says {key}={quoted(options[key])} of the tokenizer, which "
      "is not supported."
    )
  clean = options.get("clean", "")
  return {
    "num_attention_heads": text.get("heads", 8),
    "hidden_act": "quick_gelu" if quick else plain,
    "layer_norm_eps": norm.get("eps", 1e-5),
    "pool_type": checked("pool_type", str, pool, choices=(*_POOLINGS,)),
    "causal": not checked(
      "no_causal_mask", bool, text.get("no_causal_mask", False)
    ),
    "eos_token_id": text.get("eos_id") if pool == "eos" else None,
    "clean": checked("clean", str, clean, choices=CLEANINGS),
  }


def _fields(local: Shapes, _: Shapes, config: Config) -> dict[str, Any]:
  if "pool_type" not in config:
    raise ValueError(
      f"{CONFIG} is not beside it, which tells how its text tower works: get "
      "it from where the weights came from."
    )
  size = width(local, "text_projection.weight")
  if size is None:
    size = need(local, "text_projection", 2)[1]
  end = checked("eos_id", int | None, config["eos_token_id"], COUNT)
  return dict(
    pooling=_POOLINGS[config["pool_type"]],
    causal=config["causal"],
    end_token=end,
    representation_size=size,
    projection_bias="text_projection.bias" in local,
  )


def _family(signature: str, table: str) -> TextFamily:
  layers = (Layers("transformer.resblocks.{}."),)
  return TextFamily(
    name=NAME,
    signature=signature,
    table=Table(table, layers, shared="open_text"),
    bases=("", "text."),
    defaults={
      "hidden_act": "gelu",
      "layer_norm_eps": 1e-5,
      "num_attention_heads": 8,
    },
    fields=_fields,
    others=("visual.",),
  )


# CLIP's projection is a matrix, and SigLIP's a layer.
FAMILIES = (
  _family("text_projection", "open_clip_text"),
  _family("text_projection.weight", "open_siglip_text"),
)
