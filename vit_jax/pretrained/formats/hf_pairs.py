"""Writes pairs of towers as transformers saves them.

The classes are `CLIPModel`, `MetaClip2Model`, `SiglipModel` and `Tipsv2Model`.
`pretrained.save` calls these functions.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from vit_jax.data.preprocessing import Preprocessing
from vit_jax.families.clip import CLIP
from vit_jax.families.family import Transformers
from vit_jax.families.siglip import SIGLIP
from vit_jax.families.tipsv2 import TIPS
from vit_jax.models.grid import param_shapes
from vit_jax.models.text import TextTower
from vit_jax.models.two_towers import BIAS, LOG_SCALE, SHARED, TEXT, TwoTowers
from vit_jax.pretrained.formats import hf_encoders, hf_text, processor
from vit_jax.pretrained.formats.hf_family import table_of
from vit_jax.pretrained.formats.mapping import Rule, axis_sizes
from vit_jax.pretrained.formats.text_family import ACTIVATIONS, TextFamily

_WRONG_END = hf_text.WRONG_END


@dataclasses.dataclass(frozen=True)
class _Kind:
  """One of the library's classes, and what its files have."""

  image: Transformers
  text: TextFamily
  bases: tuple[str, str]  # Prefixes of the names of the towers' arrays.
  name: str  # The beginning of the classes' names.
  model_type: str
  scale: str = "logit_scale"
  bias: str = ""  # "" if the class has none.
  axes: str = ""  # The axes of the scale and the bias, each of length 1.


_CLIP = _Kind(
  CLIP,
  hf_text.CLIP,
  ("vision_model.", "text_model."),
  "CLIP",
  "clip",
)
_METACLIP = dataclasses.replace(
  _CLIP, name="MetaClip2", model_type="metaclip_2"
)
_SIGLIP = _Kind(
  SIGLIP,
  hf_text.SIGLIP,
  ("vision_model.", "text_model."),
  "Siglip",
  "siglip",
  bias="logit_bias",
  axes="1",
)
_TIPS = _Kind(
  TIPS,
  hf_text.TIPS,
  ("vision_encoder.", "text_encoder."),
  "Tipsv2",
  "tipsv2",
  scale="temperature",
)


def _kind(text: TextTower) -> _Kind:
  """The class whose text tower is most like this one."""
  if text.pooling == "mean":
    return _TIPS
  if text.pooling == "last":
    return _SIGLIP
  return _METACLIP if text.end_token == _WRONG_END else _CLIP


def _towers(model: TwoTowers) -> tuple[Any, TextTower]:
  """The image tower and the text tower of a pair."""
  assert model.text is not None
  return model.trunk, model.text


def is_encoder(model: Any) -> bool:
  """True: a pair has to be written as another class than the paper's ViT."""
  return True


def equivalent(model: Any) -> Any:
  """The model to write instead of `model`; it gives the same answers."""
  trunk = model.trunk
  written = hf_encoders.equivalent(trunk)
  names = (field.name for field in dataclasses.fields(type(written)))
  changed = {
    name: getattr(written, name)
    for name in names
    if name not in ("parent", "name")
    and getattr(written, name) != getattr(trunk, name, None)
  }
  return model.clone(**changed)


def reasons(model: Any) -> list[str]:
  """Why no class of the library can express a pair; [] if one can."""
  image, text = _towers(model)
  kind = _kind(text)
  against = [*hf_encoders.reasons(image)]
  family = hf_encoders.family_of(hf_encoders.equivalent(image))
  if not against and family is not kind.image:
    against.append(
      f"its image tower is of {family.types[0]}, and its text tower like that "
      f"of {kind.model_type}"
    )
  against += _changes(kind, text)
  if model.first_bias is not None and not kind.bias:
    against.append(f"{kind.name}Model has no bias of the similarities")
  projected = (image.representation_size, text.representation_size)
  if kind.image is CLIP and None in projected:
    against.append(f"{kind.name}Model projects the outputs of both towers")
  return against


def _changes(kind: _Kind, text: TextTower) -> Iterator[str]:
  """Lines on how a text tower would change if it were read back."""
  base = kind.bases[1]
  rules = kind.text.table.rules(text, base)
  sizes = axis_sizes(text)
  ours = param_shapes(text, (1, 1))
  if lost := [*(ours.keys() - {path for rule in rules for path in rule.ours})]:
    yield f"its text tower's {sorted(lost)[0]} has no place in {kind.name}Model"
    return
  shapes = {rule.theirs: rule.needs(ours, sizes) for rule in rules}
  try:
    read = kind.text.layout(base, shapes, _text_config(kind, text)).tower
  except ValueError as error:
    yield f"as {kind.name}Model, {str(error).removesuffix('.')}"
    return
  for field in dataclasses.fields(TextTower):
    old = getattr(text, field.name)
    new = getattr(read, field.name)
    if field.name in (*SHARED, "parent", "name") or old == new:
      continue
    yield (
      f"as {kind.name}Model, its text tower's {field.name}={old!r} would "
      f"become {new!r}"
    )


def rules(model: Any) -> list[Rule]:
  """The rules for all arrays of a pair to write."""
  image, text = _towers(model)
  kind = _kind(text)
  image_base, text_base = kind.bases
  pair_rules = table_of(kind.image).rules(image, image_base)
  for rule in kind.text.table.rules(text, text_base):
    ours = tuple(f"{TEXT}/{path}" for path in rule.ours)
    pair_rules.append(dataclasses.replace(rule, ours=ours))
  pattern = f"{kind.axes} -> "
  pair_rules.append(Rule(kind.scale, (LOG_SCALE,), pattern))
  if kind.bias and model.first_bias is not None:
    pair_rules.append(Rule(kind.bias, (BIAS,), pattern))
  return pair_rules


def stored(model: Any, params: dict[str, Any]) -> dict[str, Any]:
  """The parameters as the library stores them.

  TIPSv2 stores a temperature instead of the logarithm of the scale.
  """
  _, text = _towers(model)
  if _kind(text).scale != "temperature":
    return params
  temperature = np.asarray(np.exp(-params[LOG_SCALE]), np.float32)
  return {**params, LOG_SCALE: temperature}


def constants(model: Any) -> dict[str, np.ndarray]:
  """Arrays of the format that are no parameters of ours, as zeros.

  They are a mask token, if the class has one, and the bias of the similarities,
  if the class has one and the model has none.
  """
  image, text = _towers(model)
  kind = _kind(text)
  arrays = {}
  if kind.image.mask_token:
    shape = (*(1,) * kind.image.mask_axes, image.hidden_size)
    name = kind.bases[0] + kind.image.mask_token
    arrays[name] = np.zeros(shape, np.float32)
  if kind.bias and model.first_bias is None:
    arrays[kind.bias] = np.zeros(1, np.float32)
  return arrays


def files(
  model: Any, preprocessing: Preprocessing, task: Any
) -> dict[str, Any]:
  """The JSON files that the library reads beside the weights, by name."""
  image, text = _towers(model)
  kind = _kind(text)
  image_files = hf_encoders.files(image, preprocessing, task)
  vision = image_files["config.json"]
  for name in ("architectures", "id2label", "label2id", "problem_type"):
    vision.pop(name, None)
  vision["model_type"] = f"{kind.model_type}_vision_model"
  config = {
    "model_type": kind.model_type,
    "architectures": [class_name(model)],
    "vision_config": vision,
    "text_config": _text_config(kind, text),
  }
  if text.representation_size is not None:
    config["projection_dim"] = text.representation_size
  return {"config.json": config, processor.FILE: image_files[processor.FILE]}


def keeps_proportions(model: Any) -> bool:
  """Whether a pair's files can record that images keep their proportions."""
  image, _ = _towers(model)
  return hf_encoders.keeps_proportions(image)


def class_name(model: Any) -> str:
  """The library's class that loads a pair, once it is written."""
  _, text = _towers(model)
  return f"{_kind(text).name}Model"


def not_kept(model: Any) -> Iterator[str]:
  """Lines on what the format does not keep."""
  image, _ = _towers(model)
  yield from hf_encoders.not_kept(image)


def _text_config(kind: _Kind, text: TextTower) -> dict[str, Any]:
  """The section `text_config` of the library's configuration."""
  names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
  config = {
    "model_type": f"{kind.model_type}_text_model",
    "vocab_size": text.vocabulary,
    "max_position_embeddings": text.length,
    "hidden_size": text.hidden_size,
    "intermediate_size": text.mlp_size,
    "num_hidden_layers": text.num_layers,
    "num_attention_heads": text.num_heads,
    "hidden_act": names[text.gelu],
    "layer_norm_eps": text.layer_norm_epsilon,
  }
  last = text.vocabulary - 1
  if kind is _TIPS:
    scaled = text.embedding_scale != 1
    ends = {"bos_token_id": None, "eos_token_id": None}
    pad = {"pad_token_id": text.pad_token, "scale_sqrt_depth": scaled}
    return {**config, **ends, **pad}
  if kind is _SIGLIP:
    size = text.representation_size
    ends = {"bos_token_id": 0, "eos_token_id": min(1, last)}
    return {**config, **ends, "pad_token_id": 1, "projection_size": size}
  end = _WRONG_END if text.end_token is None else text.end_token
  ends = {"bos_token_id": 0, "eos_token_id": end, "pad_token_id": min(1, last)}
  return {**config, **ends, "projection_dim": text.representation_size}
