"""Representations of batches of images, as probes read them."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array

from vit_jax.data.preprocessing import Preprocessing
from vit_jax.models.normalize import normalize
from vit_jax.runtime.display import Track, untracked
from vit_jax.tasks.outcome import Stream
from vit_jax.training import sharding

Represented = Iterable[tuple[Array, dict[str, Array]]]
"""Representations (B, ...) of each batch, and its label, mask and skipped."""


def make_represent(
  represent: Callable[[Any, Array], Array],
  mesh: Mesh,
  preprocessing: Preprocessing,
) -> Callable[..., Iterator[tuple[Array, dict[str, Array]]]]:
  """Returns a function from (params, stream, what, track) to `Represented`.

  It makes one pass over a `Stream`, which `track` shows as `what`. Every device
  gets all of a batch, whose mask is 0 for padding and for unreadable images.

  Args:
    represent: From parameters and normalised images to representations.
  """

  def represent_batch(params: Any, batch: dict[str, Array]):
    images = normalize(batch["image"], **preprocessing.normalization)
    rest = {k: batch[k] for k in ("label", "mask", "skipped")}
    return represent(params, images).astype(jnp.float32), rest

  step = jax.jit(
    sharding.on_mesh(represent_batch, mesh),
    out_shardings=sharding.replicated(mesh),
  )

  def read(params: Any, stream: Stream, what: str, track: Track = untracked):
    for batch in stream(track, what):
      yield step(params, batch)

  return read


class Readable:
  """Iterates over batches on the host, without images that cannot be read.

  Attributes:
    examples: Number of images that were readable so far.
    skipped: Number of those that were not.
  """

  def __init__(self, batches: Represented):
    self._batches, self.examples, self.skipped = batches, 0, 0

  def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for both in self._batches:
      y, rest = jax.device_get(both)
      readable = rest["mask"] > 0
      self.examples += int(readable.sum())
      self.skipped += int(rest["skipped"].sum())
      yield y[readable], rest["label"][readable]
