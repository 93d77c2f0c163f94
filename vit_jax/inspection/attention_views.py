"""Computes the arrays of images' figures: attention, rollout, relevance."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vit_jax.inference.features import features, layer_number
from vit_jax.inference.reading import Pictures, each_picture
from vit_jax.inspection import attention_maps as maps
from vit_jax.inspection.attention_capture import capture_with_gradients
from vit_jax.inspection.embedding_maps import check_vit
from vit_jax.models import BaseVit, Origin
from vit_jax.models.grid import grid_of
from vit_jax.models.model import normalize
from vit_jax.pretrained.loaded import Loaded
from vit_jax.tasks.answers import answers_of
from vit_jax.tasks.finite import check_finite
from vit_jax.tasks.task import Task

Arrays = dict[str, Any]
_MOST_IMAGES = 8
_MEMORY = 2**29  # Most bytes of attention weights and their gradients.


@dataclasses.dataclass(frozen=True)
class Options:
  """Options for the figures of each image, as the flags of `visualize`."""

  top: int = 5
  head_fusion: str = "mean"
  discard: float = 0.0
  layer: int | None = None
  class_name: str | None = None
  pca: bool = False
  foreground: float | None = None
  leave_out: bool = False

  def __post_init__(self):
    share = self.foreground
    if share is not None and not (self.pca and 0 < share < 1):
      raise ValueError(
        f"--foreground={share} needs --pca, and lies between 0 and 1."
      )


@dataclasses.dataclass(frozen=True)
class _Choice:
  """Chooses the class to draw and computes the predictions, in one pass.

  Equal choices have the same hash, so they are compiled once.
  """

  task: Task
  top: int
  index: int | None

  def __call__(self, logits: Array, _: Any) -> tuple[Array, Any]:
    answers = answers_of(self.task).outputs(logits, self.top)
    index = self.index
    if index is None:
      index = answers["index"][:, 0] if "index" in answers else 0
    classes = jnp.full(len(logits), index)
    return classes, answers | {"relevance_index": classes}


def make_look(
  model: BaseVit, params: Any, options: Options, task: Task
) -> Callable[[np.ndarray], list[Arrays]]:
  """Makes a function from images, (B, H, W, 3), to the arrays of their figures.

  Raises ValueError if the model does not have the requested layer or class.
  """
  origin = model.origin
  assert origin is not None
  layer = _layer(model, options.layer)
  index = _class_index(model, origin, options.class_name)
  choose = _Choice(task, options.top, index)
  normalization: Any = {"mean": origin.mean, "std": origin.std}

  def look(images: np.ndarray) -> list[Arrays]:
    x = normalize(jnp.asarray(images), **normalization)
    arrays: Arrays = {}
    if model.num_classes:
      A, dA, answers = capture_with_gradients(model, params, x, choose, None)
      arrays |= jax.device_get(answers)
    else:
      A = maps.attention_weights(model, params, x)
      dA = None
    if options.leave_out:
      last = {"layers": [model.num_layers], "as_maps": True, "norm": False}
      (tokens,) = features(model, params, x, **last)
      norms = np.linalg.norm(np.asarray(tokens, np.float32), axis=-1)
      arrays["left_out"] = maps.outliers(A, norms)
      A = A.without(arrays["left_out"])
    if dA is not None:
      arrays["relevance"] = maps.relevance(A, dA)
    arrays["rollout"] = maps.rollout(A, options.head_fusion, options.discard)
    arrays["attention"] = maps.output_attention(A, layer - 1)
    arrays["attention_layer"] = np.full(len(images), layer)
    by_layer = [
      maps.output_attention(A, n).mean(axis=1) for n in range(len(A.layers))
    ]
    arrays["layers"] = np.stack(by_layer, axis=1)
    arrays["distance"] = maps.mean_attention_distance(A).swapaxes(0, 1)
    if options.pca:
      (patches,) = features(model, params, x, layers=[layer], as_maps=True)
      arrays["patches"] = np.asarray(patches, np.float32)
    check_finite(arrays, "the model outputs NaN")
    return [
      {key: array[b] for key, array in arrays.items()}
      for b in range(len(images))
    ]

  return look


def attention_of(
  loaded: Loaded, images: Pictures, layer: int | None
) -> Float[np.ndarray, "B k h w"]:
  """The attention maps of a layer's heads; see `Loaded.attention_maps`.

  Raises ValueError if there is no image, or the model has no such layer.
  """
  model = check_vit(loaded.model)
  number = _layer(model, layer)
  params: Any = loaded.params
  pictures = [*each_picture(images)]
  step = batch_size(model, len(pictures), loaded.image_size)
  parts = []
  for first in range(0, len(pictures), step):
    x: Any = loaded.preprocess(pictures[first : first + step])
    A = maps.attention_weights(model, params, x)
    parts.append(maps.output_attention(A, number - 1))
  if not parts:
    raise ValueError("there are no images: give at least one.")
  return np.concatenate(parts)


def batch_size(model: BaseVit, images: int, size: tuple[int, int]) -> int:
  """Images per batch, such that their attention takes `_MEMORY` at most."""
  h, w = grid_of(model, size)
  heads = model.num_layers * model.num_heads
  each = 4 * heads * (h * w + model.prefix) ** 2  # Bytes of the weights.
  # The gradients take as many bytes again.
  most = max(1, min(images, _MOST_IMAGES, _MEMORY // (2 * each)))
  # The size whose last batch wastes the fewest rows.
  return min(range(most, most // 2, -1), key=lambda size: -images % size)


def _layer(model: BaseVit, layer: int | None) -> int:
  """The number of the requested layer, counted from 1; by default the last."""
  L = model.num_layers
  number = L if layer is None else layer_number(layer, L)
  if not number:
    raise ValueError(
      f"layer={layer}: the model's layers are 1 to {L}; leave it out for the "
      "last."
    )
  return number


def _class_index(
  model: BaseVit, origin: Origin, name: str | None
) -> int | None:
  """The number of the class with this name or number; None if none is given."""
  if name is None:
    return None
  if name in origin.class_names:
    return origin.class_names.index(name)
  number = name.removeprefix("class ")
  if number.isdecimal() and int(number) < model.num_classes:
    return int(number)
  raise ValueError(
    f"--class_name={name!r} is none of the {model.num_classes} classes of the "
    "model: give a name as `predict` prints it, or a number, counted from 0."
  )
