"""From files to batches: `open_source`, a transform, then `*_batches`.

Nothing here imports JAX, so the worker processes leave the accelerators alone.
"""

from vit_jax.data.batches import batch_ids
from vit_jax.data.decode import UnreadableImageError, decode_rgb
from vit_jax.data.example import Example, Source
from vit_jax.data.pipeline import (
  check_train_batches,
  eval_batches,
  train_batches,
)
from vit_jax.data.sources import open_source
from vit_jax.data.transforms import make_eval_transform, make_train_transform
from vit_jax.data.workers import BatchIterator

__all__ = [
  "BatchIterator",
  "Example",
  "Source",
  "UnreadableImageError",
  "batch_ids",
  "check_train_batches",
  "decode_rgb",
  "eval_batches",
  "make_eval_transform",
  "make_train_transform",
  "open_source",
  "train_batches",
]
