"""A model's grid of patches, and the shapes of its parameters."""

import functools
from typing import Any, cast

import flax.linen as nn
import jax
from flax import traverse_util

from vit_jax.models.model import Model
from vit_jax.models.parts import OURS
from vit_jax.models.paths import below, within
from vit_jax.models.vit import BaseVit

Grid = tuple[int, int]  # Patches along height and width.

# Every layer takes time to trace, and an untrusted file may claim any number.
_MOST_LAYERS = 300
_MOST_STAGES = 8  # Each stage of a ResNet halves the image.


def grid_of(model: Model, size: tuple[int, int]) -> Grid:
  """The grid of patches of images of (height, width) pixels.

  Raises ValueError if the patches do not fill the images.
  """
  stride = model.stride
  if min(size) < stride or size[0] % stride or size[1] % stride:
    fits = [max(stride, round(side / stride) * stride) for side in size]
    raise ValueError(
      f"image_size={tuple(size)} does not divide by the model's stride of "
      f"{stride} pixels; ({fits[0]}, {fits[1]}) does."
    )
  return size[0] // stride, size[1] // stride


def check_depth(model: Model) -> None:
  """Raises ValueError for more layers or stages than any real model has.

  The layers of all towers count, and the units of a ResNet. Stages are those of
  the ResNet.
  """
  stages = model.resnet_layers
  stacks = (part.stack for part in model.parts())
  layers = sum(stages) + sum(stack.num_layers for stack in stacks if stack)
  if layers > _MOST_LAYERS or len(stages) > _MOST_STAGES:
    raise ValueError(
      f"it would have {layers} layers, in {len(stages)} stages of a ResNet and "
      f"a Transformer; at most {_MOST_LAYERS} layers and {_MOST_STAGES} stages "
      "are built."
    )


def param_shapes(
  model: Model, grid: Grid, channels: int | None = None
) -> dict[str, tuple[int, ...]]:
  """The shape of every parameter, by its path, for images of a grid of patches.

  By default, the images have the channels of the model's origin, or 3. Raises
  ValueError as `check_depth` does.
  """
  check_depth(model)
  size = grid[0] * model.stride, grid[1] * model.stride
  channels = channels or (len(model.origin.mean) if model.origin else 3)
  asked = cast(Any, model)
  if model.origin:
    asked = asked.clone(origin=None)  # It changes no shape.
  equal = _has_equal_layers(asked)
  if equal:
    asked = asked.clone(num_layers=1)  # As each layer takes time to trace.
  # Reading a checkpoint asks several times for the same model.
  traced = _param_shapes if _hashable(asked) else _param_shapes.__wrapped__
  shapes = dict(traced(asked, (*size, channels)))
  return _repeat_layer(shapes, model.num_layers) if equal else shapes


@functools.lru_cache(maxsize=64)
def _param_shapes(
  model: Any, image_shape: tuple[int, int, int]
) -> dict[str, tuple[int, ...]]:
  """The shape of every parameter, by its path, for images (H, W, C)."""
  inputs = model.inputs(image_shape)
  key = jax.eval_shape(jax.random.key, 0)  # Without compiling a program.
  shapes = jax.eval_shape(model.init, key, inputs)["params"]
  flat: dict[str, Any] = traverse_util.flatten_dict(nn.unbox(shapes), sep="/")
  return {path: leaf.shape for path, leaf in flat.items()}


def _has_equal_layers(model: Any) -> bool:
  """Whether each layer has the parameters that a single one would have.

  It is False for fewer than two layers, for scanned layers, for tables of
  positions of each layer, and for classes of a user, whose layers may differ.
  """
  if not isinstance(model, BaseVit) or model.scan or model.num_layers < 2:
    return False
  classes = type(model), getattr(model, "block", None) or type(model)
  are_ours = all(each.__module__.startswith("vit_jax.") for each in classes)
  each_layer = getattr(model, "position_at", "input") == "every_layer"
  return are_ours and not each_layer and model.position != "relative"


def _repeat_layer(
  shapes: dict[str, tuple[int, ...]], num_layers: int
) -> dict[str, tuple[int, ...]]:
  """The shapes with `num_layers` equal layers, from those with one layer."""
  first = OURS.of(0)
  repeated: dict[str, tuple[int, ...]] = {}
  for path, shape in shapes.items():
    if within(path, first):
      in_layer = below(path, first)
      names = [f"{OURS.of(i)}/{in_layer}" for i in range(num_layers)]
      repeated |= dict.fromkeys(names, shape)
    else:
      repeated[path] = shape
  return {path: repeated[path] for path in sorted(repeated, key=_in_order)}


def _in_order(path: str) -> list[str]:
  """The key that sorts paths as JAX orders nested dictionaries."""
  return path.split("/")


def _hashable(model: Any) -> bool:
  """Whether a model can be hashed; a user's own may have an array field."""
  try:
    hash(model)
  except TypeError:
    return False
  return True
