"""The parts of a model that lists none, by the names of its parameters."""

import re
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax

from vit_jax.models.part import (
  DECODER,
  ENCODER,
  HEAD,
  INPUT,
  OURS,
  LayerNames,
  Part,
  Stack,
  heads,
)

# Names that a model which lists no parts may have for its layers, such as
# "encoderblock_0" or "layers_3".
_LAYER = re.compile(r"(?i)(.*(?:block|layer)s?_?)(\d+)")
_GUESSED_MASKS = ("mask", "mask_token")


def guess_parts(params: Any) -> tuple[Part, ...]:
  """The parts of a model that lists none, by the names of its parameters.

  Modules `block_0`, `block_1` and so on, or `blocks`, are layers, and so are
  others whose names end in "block" or "layer" and a number. Layers are of a
  decoder, for its own task alone, if the module around them is called so, and
  else of an encoder. `head`, `head_dist` and `pre_logits` are heads, and
  `mask` and `mask_token` are for the model's own task. Of all else, `norm` and
  `map_head` beside layers come after them, and the rest comes before.

  Args:
    params: Parameters or their shapes, as a tree or by their paths.
  """
  layers: dict[tuple[str, LayerNames], int] = {}
  masks = {name: Part(name, INPUT, own_task=True) for name in _GUESSED_MASKS}
  parts = [*heads(), Part("head_dist", HEAD, own_task=True)]
  paths = dict(_leaves(params))
  for path, shape in paths.items():
    if path in masks:
      parts.append(masks[path])
    for prefix, names, count in _layers_of(path, shape):
      key = prefix, names
      layers[key] = max(layers.get(key, 0), count)
  for (prefix, names), count in layers.items():
    in_decoder = "decoder" in prefix.lower()
    place = DECODER if in_decoder else ENCODER
    stack = Stack(count, names)
    parts.append(Part(prefix, place, stack, own_task=in_decoder))
  return tuple(parts)


def _layers_of(
  path: str, shape: tuple[int, ...]
) -> Iterator[tuple[str, LayerNames, int]]:
  """The stack that a path's outermost layer is of, and its least length."""
  modules = path.split("/")[:-1]
  for i, name in enumerate(modules):
    prefix = "/".join(modules[:i])
    if name == OURS.stacked:
      yield prefix, OURS, shape[0] if shape else 0
      return
    if match := _LAYER.fullmatch(name):
      yield prefix, LayerNames(f"{match[1]}{{}}"), int(match[2]) + 1
      return


def _leaves(params: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
  """The path and shape of every parameter of a tree."""
  flat = jax.tree_util.tree_leaves_with_path(
    nn.unbox(params), is_leaf=lambda x: isinstance(x, tuple)
  )
  for path, leaf in flat:
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    yield name, tuple(getattr(leaf, "shape", leaf))
