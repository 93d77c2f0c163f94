"""The batches of a split on the devices, for as many passes as are wanted."""

from collections.abc import Iterator

import jax
from jax.sharding import Mesh

from vit_jax.data.batching.loader import Loader
from vit_jax.data.example import Source
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.runtime.display import Track, untracked
from vit_jax.training import sharding

_BATCHES_AHEAD = 2  # Batches sent to the device while one is evaluated.


class Stream:
  """Every example of a split once per pass; `close` ends its processes.

  Args:
    source: The split.
    mesh: The mesh of devices.
    preprocessing: The preprocessing that the model expects.
    loader: Makes the batches.
    batch_size: Examples per batch, rounded up to split over the mesh.
  """

  def __init__(
    self,
    source: Source,
    mesh: Mesh,
    preprocessing: Preprocessing,
    loader: Loader,
    batch_size: int,
  ):
    self.source, self.mesh, self.preprocessing = source, mesh, preprocessing
    rows = sharding.padded_batch_size(batch_size, mesh)
    self._batches = loader.evaluate(source, preprocessing.transform(), rows)

  @property
  def unreadable(self) -> dict[str, None]:
    """Unreadable images that were skipped, as in `BatchIterator`."""
    return self._batches.unreadable

  def start(self) -> None:
    """Starts the worker processes, so that the first pass need not wait."""
    self._batches.start()

  def __call__(
    self, track: Track = untracked, what: str = "evaluating"
  ) -> Iterator[dict[str, jax.Array]]:
    """The batches of one pass, on the devices; `what` names it as it runs."""
    on_device = sharding.to_device(
      self._batches, sharding.batch_sharding(self.mesh), _BATCHES_AHEAD
    )
    return iter(track(on_device, what, len(self._batches)))

  def close(self) -> None:
    """Ends the worker processes."""
    self._batches.close()
