"""Computes the arrays of images' figures: attention, rollout, relevance."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vit_jax.data.preprocessing import Preprocessing
from vit_jax.inference.features import features, layer_number
from vit_jax.inference.reading import Pictures, each_picture
from vit_jax.inspection import attention_maps as maps
from vit_jax.inspection.attention_capture import (
  Attention,
  capture_with_gradients,
  captured,
  grids_of,
)
from vit_jax.inspection.embedding_maps import check_vit
from vit_jax.models import BaseVit, Origin
from vit_jax.models.grid import grid_of
from vit_jax.pretrained.loaded import Loaded
from vit_jax.runtime.checks import BELOW_1, COUNT, checked
from vit_jax.runtime.hints import near_names
from vit_jax.tasks.answers import answers_of
from vit_jax.tasks.finite import check_finite
from vit_jax.tasks.task import Task
from vit_jax.training.inputs import inputs_of

Arrays = dict[str, Any]
_MOST_IMAGES = 8
_MEMORY = 2**29  # The most bytes of attention weights and their gradients.


@dataclasses.dataclass(frozen=True)
class Options:
  """Options for the figures of each image, as the flags of `visualize`.

  Raises ValueError if a value is of another type or out of range, or
  `foreground` is given without `pca`.

  Attributes:
    top: Number of the likeliest classes to show.
    head_fusion, discard: As in `attention_maps.rollout`.
    layer: Number of the layer whose attention is drawn, from 1, or from the
      end, as -1; None takes the last.
    class_name: Name or number of the class whose supporting patches are drawn;
      None takes the likeliest.
    pca: Whether to draw principal components of the patches' features.
    foreground: As in `embedding_maps.patch_colours`.
    leave_out: Whether outlier patches are left out of the maps.
  """

  top: int = 5
  head_fusion: str = "mean"
  discard: float = 0.0
  layer: int | None = None
  class_name: str | int | None = None
  pca: bool = False
  foreground: float | None = None
  leave_out: bool = False

  @property
  def given(self) -> list[str]:
    """The names of the options that differ from their defaults."""
    fields = dataclasses.fields(self)
    return [f.name for f in fields if getattr(self, f.name) != f.default]

  def __post_init__(self):
    checked("top", int, self.top, COUNT)
    checked("head_fusion", str, self.head_fusion, choices=(*maps.FUSIONS,))
    checked("discard", float, self.discard, BELOW_1)
    checked("foreground", float | None, self.foreground)
    share = self.foreground
    if share is not None and not (self.pca and 0 < share < 1):
      raise ValueError(
        f"--foreground={share}: give a number between 0 and 1, and --pca=True."
      )


@dataclasses.dataclass(frozen=True)
class _Choice:
  """Chooses the class to draw and computes the predictions, in one pass.

  `index` is that class, None for the likeliest, and `top` the number of classes
  predicted. Equal choices have the same hash, so they are compiled once.
  """

  task: Task
  top: int
  index: int | None

  def __call__(self, logits: Array, _: Any) -> tuple[Array, Any]:
    """The class of each image to draw, (B,), and the answers by name."""
    answers = answers_of(self.task).outputs(logits, self.top)
    index = self.index
    if index is None:
      index = answers["index"][:, 0] if "index" in answers else 0
    classes = jnp.full(len(logits), index)
    return classes, answers | {"relevance_index": classes}


def make_look(
  model: BaseVit, params: Any, options: Options, task: Task
) -> Callable[[Mapping[str, np.ndarray]], list[Arrays]]:
  """Makes a function from a batch to the arrays of each image's figures.

  The batch has the arrays of the model's transform, such as `image`, uint8 (B,
  H, W, 3). The function returns a dictionary for each image: the answers of the
  model, the maps of `_arrays`, and with `options.pca` the features `patches`,
  (h, w, D). Raises ValueError if the model does not have the requested layer or
  class, or no classes to show.
  """
  origin = model.origin
  assert origin is not None
  layer = _layer(model, options.layer)
  index = _class_index(model, origin, options.class_name)
  has_classes = model.num_classes > 0 and answers_of(task).are_ranked
  if "top" in options.given and not has_classes:
    raise ValueError(
      f"--top={options.top} is for classes, and the model gives none: leave it "
      "out."
    )
  choose = _Choice(task, options.top, index)
  normalization: Any = {"mean": origin.mean, "std": origin.std}

  def look(batch: Mapping[str, np.ndarray]) -> list[Arrays]:
    """The arrays of each image; raises NotFiniteError if one is not finite."""
    x = inputs_of(jax.tree.map(jnp.asarray, dict(batch)), **normalization)
    answers: Arrays = {}
    if model.num_classes:
      A, dA, answers = capture_with_gradients(model, params, x, choose, None)
      answers = jax.device_get(answers)
    else:
      A = captured(model, params, x)
      dA = None
    tokens = patches = None
    if options.leave_out:
      last = {"layers": [model.num_layers], "as_maps": True, "norm": False}
      (tokens,) = jax.device_get(features(model, params, x, **last))
    if options.pca:
      (patches,) = features(model, params, x, layers=[layer], as_maps=True)
      patches = np.asarray(patches, np.float32)
    found = []
    for row, grid in enumerate(grids_of(model, x)):
      arrays = {key: array[row] for key, array in answers.items()}
      arrays["attention_layer"] = np.int64(layer)
      norms = None
      if tokens is not None:
        tokens_of = _map(np.asarray(tokens[row], np.float32), grid)
        norms = np.linalg.norm(tokens_of, axis=-1)
      of_class = None if dA is None else dA.of_image(row, grid)
      seen = _arrays(A.of_image(row, grid), of_class, norms, options, layer - 1)
      arrays |= {key: array[0] for key, array in seen.items()}
      if patches is not None:
        arrays["patches"] = _map(patches[row], grid)
      check_finite(arrays, "the model outputs NaN")
      found.append(arrays)
    return found

  return look


def _arrays(
  A: Attention,
  dA: Attention | None,
  norms: Float[np.ndarray, "h w"] | None,
  options: Options,
  layer: int,
) -> Arrays:
  """The arrays of the maps of one image, each with a first axis of length 1.

  They are `rollout`, `attention` by head, `layers` (the mean over heads by
  layer) and the `distance` of each head; with the gradients `dA` also
  `relevance`, and with `norms` also `left_out`. `layer` counts from 0. Outlier
  patches are left out if there are the `norms` of the tokens, by which they are
  found.
  """
  arrays: Arrays = {}
  if norms is not None:
    arrays["left_out"] = maps.outliers(A, norms[None])
    A = A.without(arrays["left_out"])
  if dA is not None:
    arrays["relevance"] = maps.relevance(A, dA)
  arrays["rollout"] = maps.rollout(A, options.head_fusion, options.discard)
  arrays["attention"] = maps.output_attention(A, layer)
  by_layer = [
    maps.output_attention(A, n).mean(axis=1) for n in range(A.num_layers)
  ]
  arrays["layers"] = np.stack(by_layer, axis=1)
  arrays["distance"] = maps.mean_attention_distance(A).swapaxes(0, 1)
  return arrays


def _map(
  tokens: Float[np.ndarray, "*axes D"], grid: tuple[int, int]
) -> Float[np.ndarray, "h w D"]:
  """The tokens of an image's patches as a map, without those of padding."""
  tokens = tokens.reshape(-1, tokens.shape[-1])
  h, w = grid
  return tokens[: h * w].reshape(h, w, -1)


def attention_of(loaded: Loaded, images: Pictures, layer: int | None) -> Any:
  """The attention maps of a layer's heads, as `Loaded.attention_maps` has them.

  They are an array (B, k, h, w), or for images that keep their proportions a
  list of arrays (k, h, w). `layer` counts from 1; None takes the last.
  Raises ValueError if there is no image, or the model has no such layer.
  """
  model = check_vit(loaded.model)
  number = _layer(model, layer)
  params: Any = loaded.params
  pictures = [*each_picture(images)]
  step = batch_size(model, len(pictures), loaded.preprocessing)
  parts = []
  for first in range(0, len(pictures), step):
    x: Any = loaded.preprocess(pictures[first : first + step])
    found: Any = maps.attention_weights(model, params, x)
    several = found if isinstance(found, list) else [found]
    parts += [maps.output_attention(A, number - 1) for A in several]
  if not parts:
    raise ValueError("there are no images: give at least one.")
  if loaded.preprocessing.patches is None:
    return np.concatenate(parts)
  return [part[0] for part in parts]


def batch_size(
  model: BaseVit, images: int, preprocessing: Preprocessing
) -> int:
  """Images per batch, such that their attention takes `_MEMORY` at most."""
  if preprocessing.patches is None:
    h, w = grid_of(model, preprocessing.image_size)
    patches = h * w
    if model.channel_tokens:
      patches *= preprocessing.channels
  else:
    patches = preprocessing.patches.tokens
  heads = model.num_layers * model.num_heads
  each = 4 * heads * (patches + model.prefix) ** 2  # Bytes of the weights.
  # The gradients take as many bytes again.
  most = max(1, min(images, _MOST_IMAGES, _MEMORY // (2 * each)))
  # The size whose last batch wastes the fewest rows.
  return min(range(most, most // 2, -1), key=lambda size: -images % size)


def _layer(model: BaseVit, layer: int | None) -> int:
  """The number of the requested layer, counted from 1; by default the last.

  Raises ValueError if there is no such layer.
  """
  L = model.num_layers
  number = L if layer is None else layer_number(layer, L)
  if not number:
    raise ValueError(
      f"layer={layer}: the model's layers are 1 to {L}; leave it out for the "
      "last."
    )
  return number


def _class_index(
  model: BaseVit, origin: Origin, name: str | int | None
) -> int | None:
  """The number of the class with this name or number; None without a name.

  Raises ValueError if there is no such class.
  """
  if name is None:
    return None
  name = str(name)
  if name in origin.class_names:
    return origin.class_names.index(name)
  number = name.removeprefix("class ")
  if number.isdecimal() and int(number) < model.num_classes:
    return int(number)
  near = near_names(name, origin.class_names)
  hint = f" Did you mean {near[0]!r}?" if near else ""
  raise ValueError(
    f"--class_name={name!r} is none of the {model.num_classes} classes of the "
    "model: give a name as `predict` prints it, or a number, counted from 0."
    f"{hint}"
  )
