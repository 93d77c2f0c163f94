"""A model that was opened, from wherever, with all that using it takes."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from vit_jax.data.preprocessing import Preprocessing
from vit_jax.models import Origin, ResNet, Vit

Leaves = Iterable[tuple[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Loaded:
  """A model whose parameters are read when they are asked for.

  Published weights and our own workdirs both come as one. It iterates as
  (model, params), so `model, params = load_pretrained(...)` reads them.

  Attributes:
    model: Built as the checkpoint is; `model.origin` has the same facts.
    preprocessing: What has to be done to a picture before the model sees it.
    loss: The loss it was trained with, one of `training.settings.LOSSES`; it
      decides whether logits become probabilities by softmax or by sigmoid.
    shapes: Shapes of the parameters, by path, as "block_0/mlp/expand/kernel".
    read: Gives (path, array), one array at a time in memory.
    step: The checkpoint's step; None for published weights.
    description: The checkpoint's own description; None for published weights.
    held: The parameters, where they were read already.
  """

  model: Vit | ResNet
  preprocessing: Preprocessing
  loss: str
  shapes: Mapping[str, tuple[int, ...]]
  read: Callable[[], Leaves]
  step: int | None = None
  description: Mapping[str, Any] | None = None
  held: dict[str, Any] | None = dataclasses.field(default=None, repr=False)

  @property
  def origin(self) -> Origin:
    """Where the weights came from."""
    assert self.model.origin is not None
    return self.model.origin

  @property
  def class_names(self) -> tuple[str, ...]:
    """One name a class, where the source names them."""
    return self.origin.class_names

  def params(self, shapes: Any = None) -> dict[str, Any]:
    """Reads the parameters, for `model.apply({"params": params}, images)`.

    Args:
      shapes: A tree of their shapes with shardings to lay them out by; by
        default they go to the default device.
    """
    if self.held is not None and shapes is None:
      return self.held
    flat: dict[str, Any] = {}
    wanted: dict[str, Any] = {}
    if shapes is not None:
      wanted = traverse_util.flatten_dict(nn.unbox(shapes), sep="/")
    for path, array in self.read():
      flat[path] = (
        jax.device_put(array, wanted[path].sharding)
        if wanted
        else jnp.asarray(array)
      )
    return traverse_util.unflatten_dict(flat, sep="/")

  def __iter__(self) -> Iterator[Any]:
    yield self.model
    yield self.params()


def with_preprocessing(loaded: Loaded, **changes: Any) -> Loaded:
  """The same model with another `size`, `mean` or `std` of its images."""
  preprocessing = dataclasses.replace(loaded.preprocessing, **changes)
  origin = dataclasses.replace(
    loaded.origin,
    image_size=preprocessing.size,
    mean=preprocessing.mean,
    std=preprocessing.std,
  )
  model = loaded.model.clone(origin=origin)
  return dataclasses.replace(loaded, model=model, preprocessing=preprocessing)
