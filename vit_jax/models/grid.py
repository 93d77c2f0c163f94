"""A model's grid of patches, and the shapes of its parameters."""

import functools
from typing import Any, cast

import flax.linen as nn
import jax
from flax import traverse_util

from vit_jax.models.model import Model

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
  """Raises ValueError for more layers, of all towers, than a real model has."""
  stages = model.resnet_layers
  stacks = (part.stack for part in model.parts())
  layers = sum(stages) + sum(stack.num_layers for stack in stacks if stack)
  if layers > _MOST_LAYERS or len(stages) > _MOST_STAGES:
    raise ValueError(
      f"it would have {layers} layers, in {len(stages)} stages of a ResNet and "
      f"a Transformer; at most {_MOST_LAYERS} and {_MOST_STAGES} are built."
    )


def param_shapes(
  model: Model, grid: Grid, channels: int | None = None
) -> dict[str, tuple[int, ...]]:
  """The shape of every parameter, by its path, for images of a grid of patches.

  By default, the images have the channels of the model's origin, or 3. Raises
  ValueError for more layers than any real model has.
  """
  check_depth(model)
  size = grid[0] * model.stride, grid[1] * model.stride
  channels = channels or (len(model.origin.mean) if model.origin else 3)
  # Reading a checkpoint asks several times for the same model.
  traced = _param_shapes if _hashable(model) else _param_shapes.__wrapped__
  return dict(traced(cast(Any, model), (*size, channels)))


@functools.lru_cache(maxsize=64)
def _param_shapes(
  model: Any, image_shape: tuple[int, int, int]
) -> dict[str, tuple[int, ...]]:
  inputs = model.inputs(image_shape)
  shapes = jax.eval_shape(model.init, jax.random.key(0), inputs)["params"]
  flat: dict[str, Any] = traverse_util.flatten_dict(nn.unbox(shapes), sep="/")
  return {path: leaf.shape for path, leaf in flat.items()}


def _hashable(model: Any) -> bool:
  """Whether a model can be hashed; a user's own may have an array field."""
  try:
    hash(model)
  except TypeError:
    return False
  return True
