"""From files to batches: `open_source`, a transform, then `Loader`.

Nothing here imports JAX, so the worker processes leave the accelerators alone.
Names are imported when first used.
"""

from etils import epy

with epy.lazy_api_imports(globals()):
  from vit_jax.data.batching.batches import batch_ids
  from vit_jax.data.batching.grain_dataset import as_grain
  from vit_jax.data.batching.loader import Loader
  from vit_jax.data.batching.workers import BatchIterator
  from vit_jax.data.decoding.decode import decode_rgb, image_size
  from vit_jax.data.example import (
    Example,
    ImageSpec,
    Source,
    UnreadableImageError,
  )
  from vit_jax.data.preprocessing import Preprocessing
  from vit_jax.data.reading.sources import open_source
  from vit_jax.data.settings import DataSettings
  from vit_jax.data.transforming.transforms import (
    make_eval_transform,
    make_train_transform,
  )

__all__ = [
  "BatchIterator",
  "DataSettings",
  "Example",
  "ImageSpec",
  "Loader",
  "Preprocessing",
  "Source",
  "UnreadableImageError",
  "as_grain",
  "batch_ids",
  "decode_rgb",
  "image_size",
  "make_eval_transform",
  "make_train_transform",
  "open_source",
]
