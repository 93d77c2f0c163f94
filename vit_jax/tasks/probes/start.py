"""Whether features are still like those that a run began with, without labels.

The nearest neighbours of an image, by the cosine of features, are compared with
those by the encoder as it was at the start.
"""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from jax.sharding import Mesh

from vit_jax.data.batching.loader import Loader
from vit_jax.data.example import Source
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.models import Model
from vit_jax.models.model import represent
from vit_jax.runtime.display import Split, Track, untracked
from vit_jax.tasks.outcome import Stream, check_readable
from vit_jax.tasks.probes.nearest import neighbours, unit
from vit_jax.tasks.probes.neighbours import draw_examples
from vit_jax.tasks.probes.whole_set import Readable, make_represent


class KeptNeighbours:
  """The share of an image's nearest neighbours that it had at the start.

  The images are the same at each evaluation, and so are their neighbours at the
  start, which are found at the first evaluation.

  Args:
    model: The encoder.
    source: The split whose images are compared with each other.
    start: Opens the encoder of the start, as its model and its parameters.
    k: Number of neighbours of an image, at most a quarter of the images.
    most: The most images to read.
    pre_logits: Whether a representation layer is kept.
  """

  def __init__(
    self,
    model: Model,
    mesh: Mesh,
    source: Source,
    preprocessing: Preprocessing,
    *,
    start: Callable[[], tuple[Model, Any]],
    loader: Loader,
    batch_size: int,
    k: int,
    most: int,
    pre_logits: bool = True,
  ):
    source = draw_examples(source, most)
    self._model, self._start = model, start
    self._k = max(1, min(k, len(source) // 4))
    self._represent = lambda model: make_represent(
      partial(represent, model, pre_logits=pre_logits), mesh, preprocessing
    )
    self._read = self._represent(model)
    rows = min(batch_size, len(source))
    self._stream = Stream(source, mesh, preprocessing, loader, rows)
    self._first: np.ndarray | None = None

  def __call__(self, params: Any, track: Track = untracked) -> dict[str, Any]:
    """Returns "start/kept", and the number of neighbours of each image."""
    if self._first is None:
      model, first = self._start()
      read = self._read if model == self._model else self._represent(model)
      self._first = self._neighbours(read, first, "reading the start", track)
    now = self._neighbours(self._read, params, "finding neighbours", track)
    return Split.START.keyed(
      {"kept": kept(self._first, now), "neighbours": now.shape[1]}
    )

  def _neighbours(
    self, read: Any, params: Any, what: str, track: Track
  ) -> np.ndarray:
    """The places of the neighbours of each image, (N, k)."""
    with contextlib.closing(self._stream):
      rows = Readable(read(params, self._stream, what, track))
      y = np.concatenate([y for y, _ in rows])
    check_readable(len(y))
    return neighbours(unit(y), self._k).place


def kept(before: np.ndarray, now: np.ndarray) -> float:
  """The share of each image's neighbours, places (N, k), that it keeps.

  >>> import numpy as np
  >>> from vit_jax.tasks.probes.start import kept
  >>> kept(np.array([[1, 2], [0, 3]]), np.array([[2, 1], [0, 2]]))
  0.75
  """
  shared = (before[:, :, None] == now[:, None]).any(axis=2)
  return float(shared.mean())
