"""Published weights with what only their pre-training needs: MAE's decoder."""

import dataclasses
import pathlib
from collections.abc import Iterator

import numpy as np

from vit_jax.models.autoencoder import Autoencoder, autoencoder
from vit_jax.models.grid import Grid, param_shapes
from vit_jax.models.paths import within
from vit_jax.pretrained.arrays import open_arrays
from vit_jax.pretrained.folder import open_folder
from vit_jax.pretrained.formats import hf_mae
from vit_jax.pretrained.formats.mapping import check, read_all
from vit_jax.pretrained.loaded import Loaded


def with_decoder(loaded: Loaded, grid: Grid, path: pathlib.Path) -> Loaded:
  """A masked autoencoder of transformers, with its decoder.

  `loaded` is its encoder, opened from `path`, with positions for `grid`. Raises
  ValueError if there is no decoder, or one that we cannot express.
  """
  files = open_folder(path)
  with open_arrays(files.weights) as arrays:
    stored = arrays.shapes
  names = hf_mae.names(stored)
  source = loaded.origin.source
  if hf_mae.POSITIONS not in names:
    raise ValueError(
      f"{source} has no decoder: as_trained=True is for workdirs, and for "
      "transformers' ViTMAEForPreTraining."
    )
  shapes = {short: stored[name] for short, name in names.items()}
  sizes = hf_mae.sizes(shapes, files.config)
  model: Autoencoder = autoencoder(loaded.model, **sizes)
  del shapes[hf_mae.POSITIONS]
  ours = param_shapes(model, grid)
  rules = hf_mae.rules(model)
  own = {k: v for k, v in ours.items() if within(k, "decoder")}
  check(rules, shapes, own, model, f"{source} has another decoder")

  def read() -> Iterator[tuple[str, np.ndarray]]:
    yield from loaded.read()
    with open_arrays(files.weights) as opened:
      arrays = opened.renamed(names)
      hf_mae.check_positions(arrays[hf_mae.POSITIONS], model)
      for leaf, array in read_all(rules, arrays, model):
        yield leaf, array.astype(np.float32, copy=False)

  return dataclasses.replace(loaded, model=model, shapes=ours, read=read)
