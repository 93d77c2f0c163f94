"""DINOv2's models for depth, as transformers' `DPTForDepthEstimation`.

`vit_jax.families.dinov2` has their encoder, and `models.dpt` their head. The
encoder's configuration is a section of config.json, `backbone_config`.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from vit_jax.pretrained.formats.architecture import section
from vit_jax.pretrained.formats.mapping import SAME, Rule, Shapes
from vit_jax.runtime.checks import COUNT, checked
from vit_jax.runtime.printable import quoted
from vit_jax.tasks.dense_regression.settings import (
  DINOV2,
  DenseRegressionSettings,
)

TYPE = "dpt"
PARTS = ("neck.", "head.")
"""Beginnings of the names of the head's arrays."""
NOTE = (
  "its numbers are taken for metres, as in DINOv2's published models for "
  "depth: its files name no unit"
)
_DEPTH = "DPTForDepthEstimation"
_ENCODER = "backbone_config"
_LAST = 3  # The number of the last of the four maps.
_STAGE = "neck.reassemble_stage.layers.{}.resize."
# Beginnings of the names of the transposed convolutions' arrays.
_TRANSPOSED = tuple(map(_STAGE.format, (0, 1)))
# The first map to be fused has none before it, so this part is never used.
_UNUSED = "neck.fusion_stage.layers.0.residual_layer1."
_CONV = "O I p q -> p q I O"
# Key that decides what the head computes -> its value in DINOv2's models, and
# the value that a missing key has.
_NEEDED = {
  "is_hybrid": (False, False),
  "add_projection": (True, False),
  "readout_type": ("project", "project"),
  "use_batch_norm_in_fusion_residual": (False, False),
  "head_in_index": (-1, -1),
  "hidden_act": ("gelu", "gelu"),
  "reassemble_factors": ([4, 2, 1, 0.5], [4, 2, 1, 0.5]),
}
_OF_BACKBONE = {"apply_layernorm": (False, True)}
_OF_BACKBONE |= {"reshape_hidden_states": (False, True)}


def is_depth(config: Mapping[str, Any]) -> bool:
  """Whether config.json is that of a DPT."""
  return config.get("model_type") == TYPE


def of_encoder(config: Mapping[str, Any]) -> dict[str, Any]:
  """The configuration of a DPT's encoder, from that of the whole DPT.

  Any other configuration is returned as it is. Raises ValueError if a DPT's
  encoder is not a DINOv2, or the configuration does not describe it.
  """
  if not is_depth(config):
    return {**config}
  encoder = section(_ENCODER, config.get(_ENCODER))
  if config.get("is_hybrid") or encoder.get("model_type") != "dinov2":
    raise ValueError(
      f"its config.json is of a DPT whose {_ENCODER} is no dinov2: of DPTs, "
      "only DINOv2's models for depth are read."
    )
  return {**encoder}


def settings(
  config: Mapping[str, Any], num_layers: int
) -> DenseRegressionSettings:
  """The settings of a DPT's head, on an encoder of `num_layers` layers.

  Raises ValueError if it is not the head of DINOv2's models for depth.
  """
  if (kinds := config.get("architectures")) not in (None, [_DEPTH]):
    raise _refusal("architectures", kinds, f"only {_DEPTH} is read")
  encoder = section(_ENCODER, config.get(_ENCODER))
  for values, needed in ((config, _NEEDED), (encoder, _OF_BACKBONE)):
    for key, (value, default) in needed.items():
      if (found := values.get(key, default)) != value:
        needs = f"DINOv2's models for depth have {value!r}"
        raise _refusal(key, found, needs)
  layers = encoder.get("out_indices")
  layers = checked("out_indices", tuple[int, ...], layers)
  # 0 would be the embeddings, and a number below 0 counts from the last.
  layers = tuple(k + num_layers + 1 if k < 0 else k for k in layers)
  if not all(1 <= k <= num_layers for k in layers):
    raise _refusal("out_indices", layers, f"layers are 1 to {num_layers}")
  width = config.get("fusion_hidden_size", 256)
  return DenseRegressionSettings(
    head=DINOV2,
    layers=layers,
    head_size=checked("fusion_hidden_size", int, width, COUNT),
    unit="m",
  )


def _refusal(key: str, value: Any, why: str) -> ValueError:
  """The error for a value of config.json that is not supported."""
  return ValueError(f"its config.json says {key}={quoted(value)}: {why}.")


def names(stored: Iterable[str]) -> list[str]:
  """The names of the head's arrays that are used."""
  return [
    name
    for name in stored
    if name.startswith(PARTS) and not name.startswith(_UNUSED)
  ]


def rules(shapes: Shapes) -> list[Rule]:
  """The rules for the arrays of `Converted`; `shapes` are those of our head."""
  return [_rule(path) for path in shapes]


def _rule(path: str) -> Rule:
  """The rule of one of our parameters, such as "dpt/fusion0/conv1/kernel"."""
  _, module, *inside, kind = path.split("/")
  place = module.rstrip("0123")
  number = module[-1]
  # transformers numbers its fusions from that of the last map on.
  fusion = (
    f"neck.fusion_stage.layers.{_LAST - int(number)}."
    if number.isdigit()
    else ""
  )
  theirs = {
    "readout": f"neck.reassemble_stage.readout_projects.{number}.0",
    "reassemble": f"neck.reassemble_stage.layers.{number}.projection",
    "resize": f"neck.reassemble_stage.layers.{number}.resize",
    "conv": f"neck.convs.{number}",
    "beside": f"{fusion}residual_layer1",
    "fusion": f"{fusion}residual_layer2",
    "fused": f"{fusion}projection",
    "project": "head.projection",
    "conv_half": "head.head.0",
    "conv_last": "head.head.2",
    "outputs": "head.head.4",
  }[place]
  for conv in inside:
    theirs += f".convolution{conv[-1]}"
  if kind == "bias":
    return Rule(f"{theirs}.bias", (path,), SAME)
  pattern = _CONV
  if place == "readout":
    pattern = "O I -> I O"
  elif place == "reassemble":
    pattern = "O I 1 1 -> I O"
  elif f"{theirs}." in _TRANSPOSED:
    pattern = SAME  # `Converted` has it as we need it.
  return Rule(f"{theirs}.weight", (path,), pattern)


class Converted(Mapping[str, np.ndarray]):
  """A file's arrays, with its transposed convolutions turned into dense layers.

  The stride of these convolutions is their size, s x s, so each input makes s^2
  outputs by itself: kernels (I, O, s, s) become (I, s s O), and the bias (O,)
  is repeated s^2 times.
  """

  def __init__(self, arrays: Mapping[str, np.ndarray]):
    self._arrays = arrays

  def __getitem__(self, name: str) -> np.ndarray:
    array = self._arrays[name]
    if not name.startswith(_TRANSPOSED):
      return array
    if array.ndim == 1:
      return np.tile(array, _copies(name))
    return array.transpose(0, 2, 3, 1).reshape(len(array), -1)

  def __iter__(self) -> Iterator[str]:
    return iter(self._arrays)

  def __len__(self) -> int:
    return len(self._arrays)


def _copies(name: str) -> int:
  """How many outputs an input of a transposed convolution makes."""
  return 16 if name.startswith(_TRANSPOSED[0]) else 4


def shapes(stored: Shapes) -> dict[str, tuple[int, ...]]:
  """The shapes of the arrays of `Converted`, from those in the file."""
  found = {**stored}
  for name, shape in stored.items():
    if not name.startswith(_TRANSPOSED):
      continue
    if len(shape) == 1:
      found[name] = (shape[0] * _copies(name),)
    elif len(shape) == 4 and shape[2] * shape[3] == _copies(name):
      found[name] = (shape[0], shape[1] * _copies(name))
  return found
