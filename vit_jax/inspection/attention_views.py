"""Attention, rollout and relevance of one image: the arrays of its figures."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.inference.features import features
from vit_jax.inference.predictor import make_predict_step
from vit_jax.inspection import attention_maps as maps
from vit_jax.models import BaseVit, Origin
from vit_jax.models.normalize import normalize
from vit_jax.tasks.task import Task

Arrays = dict[str, Any]


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

  def __post_init__(self):
    share = self.foreground
    if share is not None and not (self.pca and 0 < share < 1):
      raise ValueError(
        f"--foreground={share} needs --pca, and lies between 0 and 1."
      )


def make_look(
  model: BaseVit, params: Any, options: Options, task: Task
) -> Callable[[np.ndarray], Arrays]:
  """Makes a function from an image, (H, W, 3), to the arrays of its figures.

  Raises:
    ValueError: if the model does not have the requested layer or class.
  """
  origin = model.origin
  assert origin is not None
  layer = _layer(model, options.layer)
  chosen = _class_index(model, origin, options.class_name)
  normalization: Any = {"mean": origin.mean, "std": origin.std}
  predict_step = jax.jit(
    make_predict_step(model, **normalization, task=task, top=options.top)
  )

  def look(image: np.ndarray) -> Arrays:
    x = normalize(jnp.asarray(image[None]), **normalization)
    found: Arrays = {}
    if model.num_classes:
      best = jax.device_get(predict_step(params, image[None]))
      found = {key: array[0] for key, array in best.items()}
      first = found["index"][0] if "index" in found else 0
      index = first if chosen is None else chosen
      A, dA = maps.attention_gradients(model, params, x, np.array([index]))
      relevance = maps.relevance(A, dA)[0]
      found |= {"relevance": relevance, "relevance_index": index}
    else:
      A = maps.attention_weights(model, params, x)
    found["rollout"] = maps.rollout(A, options.head_fusion, options.discard)[0]
    found["attention"] = maps.output_attention(A, layer - 1)[0]
    found["attention_layer"] = layer
    by_layer = (maps.output_attention(A, n)[0] for n in range(len(A.layers)))
    found["layers"] = np.stack([heads.mean(axis=0) for heads in by_layer])
    found["distance"] = maps.mean_attention_distance(A)[:, 0]
    if options.pca:
      (maps_of,) = features(model, params, x, layers=[layer], as_maps=True)
      found["patches"] = np.asarray(maps_of[0], np.float32)
    if not all(np.isfinite(array).all() for array in found.values()):
      raise ValueError(
        "the model outputs NaN: its parameters are damaged, or its training "
        "has diverged."
      )
    return found

  return look


def _layer(model: BaseVit, layer: int | None) -> int:
  """The number of the requested layer, counted from 1; by default the last."""
  L = model.num_layers
  if layer is not None and not 1 <= layer <= L:
    raise ValueError(f"--layer={layer}: the model's layers are 1 to {L}.")
  return layer or L


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
