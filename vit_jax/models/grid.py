"""A model's grid of patches, and the shapes of its parameters for a grid."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import traverse_util

from vit_jax.models.model import Model

Grid = tuple[int, int]  # Patches along height and width.

# Every layer takes time to trace, and a file may claim any number of layers.
_MOST_LAYERS = 300
_MOST_STAGES = 8  # Each stage of a ResNet halves the image.


def grid_of(model: Model, size: tuple[int, int]) -> Grid:
  """The grid of patches of images of (height, width) pixels.

  Raises:
    ValueError: if the patches do not fill the images.
  """
  stride = model.stride
  if min(size) < stride or size[0] % stride or size[1] % stride:
    fits = [max(stride, round(side / stride) * stride) for side in size]
    raise ValueError(
      f"image_size={tuple(size)} does not divide by the model's stride of "
      f"{stride} pixels; ({fits[0]}, {fits[1]}) does."
    )
  return size[0] // stride, size[1] // stride


def param_shapes(
  model: Model, grid: Grid, channels: int | None = None
) -> dict[str, tuple[int, ...]]:
  """The shape of every parameter, by its path.

  Args:
    model: The model, from images to logits.
    grid: The grid of patches of its images.
    channels: Channels of its images; by default those of its origin, or 3.
  """
  _check_depth(model)
  size = grid[0] * model.stride, grid[1] * model.stride
  channels = channels or (len(model.origin.mean) if model.origin else 3)
  image = jax.ShapeDtypeStruct((1, *size, channels), jnp.float32)
  shapes = jax.eval_shape(model.init, jax.random.key(0), image)["params"]
  flat: dict[str, Any] = traverse_util.flatten_dict(nn.unbox(shapes), sep="/")
  return {path: leaf.shape for path, leaf in flat.items()}


def _check_depth(model: Model) -> None:
  """Raises ValueError for more layers than any real model has."""
  stages = model.resnet_layers
  layers = sum(stages) + model.num_layers
  if layers > _MOST_LAYERS or len(stages) > _MOST_STAGES:
    raise ValueError(
      f"it would have {layers} layers, in {len(stages)} stages of a ResNet and "
      f"a Transformer; at most {_MOST_LAYERS} and {_MOST_STAGES} are built."
    )
