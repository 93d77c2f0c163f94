"""Representations of the images of a split, batch by batch."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array

from vit_jax.data.batching.loader import EvalPasses, Loader
from vit_jax.data.example import Source
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.models import Model
from vit_jax.models.model import represent
from vit_jax.models.normalize import normalize
from vit_jax.runtime.display import Track, untracked
from vit_jax.training import sharding

_BATCHES_AHEAD = 2


class Representations:
  """Reads the representations that probes see; every device gets all of them.

  Args:
    model: The model, with or without a head.
    batch_size: Examples per step; a multiple of the devices.
    pre_logits: Whether a representation layer is kept, as big_vision does.
  """

  def __init__(
    self,
    model: Model,
    mesh: Mesh,
    preprocessing: Preprocessing,
    loader: Loader,
    batch_size: int,
    pre_logits: bool,
  ):
    self._mesh, self._loader, self._batch_size = mesh, loader, batch_size
    self._transform = preprocessing.transform()
    normalization = preprocessing.normalization

    def read(params: Any, batch: dict[str, Array]):
      images = normalize(batch["image"], **normalization)
      y = represent(model, params, images, pre_logits=pre_logits)
      rest = {k: batch[k] for k in ("label", "mask", "skipped")}
      return y.astype(jnp.float32), rest

    self._represent = jax.jit(
      sharding.on_mesh(read, mesh), out_shardings=sharding.replicated(mesh)
    )

  def open(self, source: Source) -> EvalPasses:
    """Opens the batches of a split; its workers start with the first pass."""
    return self._loader.evaluate(source, self._transform, self._batch_size)

  def __call__(
    self, params: Any, opened: EvalPasses, what: str, track: Track = untracked
  ) -> Iterator[tuple[Array, dict[str, Array]]]:
    """Yields (y, rest) of each batch: (B, D) and its label, mask and skipped.

    The mask is 0 for padding and for unreadable images.

    Args:
      opened: The batches, from `open`.
      what: The name of the work, for the display.
    """
    rows = sharding.batch_sharding(self._mesh)
    batches = sharding.to_device(opened, rows, _BATCHES_AHEAD)
    for batch in track(batches, what, len(opened)):
      yield self._represent(params, batch)
