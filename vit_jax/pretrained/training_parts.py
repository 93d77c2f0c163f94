"""Published weights with the parts that only their pre-training needs.

These are MAE's decoder, the text tower beside an image tower, or the head of a
DINOv2 that answers with depth.
"""

import dataclasses
import pathlib
from collections.abc import Iterator

import numpy as np

from vit_jax.models.autoencoder import Autoencoder, autoencoder
from vit_jax.models.grid import Grid, param_shapes
from vit_jax.models.paths import within
from vit_jax.pretrained.arrays import open_arrays
from vit_jax.pretrained.folder import Files, open_folder
from vit_jax.pretrained.formats import hf_dpt, hf_mae
from vit_jax.pretrained.formats.mapping import check, read_all
from vit_jax.pretrained.loaded import Loaded
from vit_jax.pretrained.quantised import check_floats
from vit_jax.tasks.autoencoder.task import AutoencoderTask
from vit_jax.tasks.dense_regression.task import DenseRegressionTask

OTHERS = (
  "decoder.",
  "text",
  "logit_",
  "temperature",
  "transformer.",
  "token_embedding.",
  "positional_embedding",
  "ln_final.",
  *hf_dpt.PARTS,
)
"""Beginnings of the names of arrays that only `as_trained` reads."""
_NO_POSITIONS = (
  "its decoder_pos_embed is zero, as in new models of transformers 5, so its "
  "decoder does not know where patches are; the decoder of a run does"
)


def as_trained(loaded: Loaded, grid: Grid, path: pathlib.Path) -> Loaded:
  """A masked autoencoder with its decoder, a DPT, or a pair of two towers.

  `loaded` is the encoder, opened from `path`, with positions for `grid`. Raises
  ValueError if the file holds none of these parts, or if they cannot be
  expressed here.
  """
  files = open_folder(path)
  if hf_dpt.is_depth(files.config):
    return _with_depth_head(loaded, grid, files)
  with open_arrays(files.weights) as arrays:
    names = hf_mae.names(arrays.shapes)
    if hf_mae.POSITIONS not in names:
      from vit_jax.pretrained.pair import with_text

      return with_text(loaded, path)
    stored_shapes = {
      short: arrays.shapes[name] for short, name in names.items()
    }
    sizes = hf_mae.sizes(stored_shapes, files.config)
    model: Autoencoder = autoencoder(loaded.model, **sizes)
    stored_positions = arrays.renamed(names)[hf_mae.POSITIONS]
    has_positions = hf_mae.has_positions(stored_positions, model)
    model = model.clone(decoder_positions=has_positions)
    notes = [] if has_positions else [_NO_POSITIONS]
    del stored_shapes[hf_mae.POSITIONS]
    model_shapes = param_shapes(model, grid)
    rules = hf_mae.rules(model)
    decoder_shapes = {
      leaf: shape
      for leaf, shape in model_shapes.items()
      if within(leaf, "decoder")
    }
    check_floats(arrays, (names[short] for short in stored_shapes))
    problem = f"{loaded.origin.source} has another decoder"
    check(rules, stored_shapes, decoder_shapes, model, problem)

  def read() -> Iterator[tuple[str, np.ndarray]]:
    yield from loaded.read()
    with open_arrays(files.weights) as arrays:
      for leaf, array in read_all(rules, arrays.renamed(names), model):
        yield leaf, array.astype(np.float32, copy=False)

  settings = hf_mae.objective(files.config)
  return dataclasses.replace(
    loaded,
    model=model,
    open_task=lambda: AutoencoderTask(autoencoder=settings),
    shapes=model_shapes,
    read=read,
    notes=(*loaded.notes, *notes),
  )


def _with_depth_head(loaded: Loaded, grid: Grid, files: Files) -> Loaded:
  """The encoder of a `DPTForDepthEstimation`, and its head.

  Raises ValueError if the head cannot be expressed here, or its arrays are not
  those that the configuration describes.
  """
  settings = hf_dpt.settings(files.config, loaded.model.num_layers)
  task = DenseRegressionTask(dense_regression=settings)
  model = task.adapted(loaded.model)
  model_shapes = param_shapes(model, grid)
  head_shapes = {k: v for k, v in model_shapes.items() if within(k, "dpt")}
  rules = hf_dpt.rules(head_shapes)
  with open_arrays(files.weights) as arrays:
    names = hf_dpt.names(arrays.shapes)
    check_floats(arrays, names)
    stored_shapes = hf_dpt.shapes({name: arrays.shapes[name] for name in names})
  problem = f"{loaded.origin.source} has another head"
  check(rules, stored_shapes, head_shapes, model, problem)

  def read() -> Iterator[tuple[str, np.ndarray]]:
    yield from loaded.read()
    with open_arrays(files.weights) as arrays:
      converted = hf_dpt.Converted(arrays)
      for leaf, array in read_all(rules, converted, model):
        yield leaf, array.astype(np.float32, copy=False)

  return dataclasses.replace(
    loaded,
    model=model,
    open_task=lambda: task,
    shapes=model_shapes,
    read=read,
    notes=(*loaded.notes, f"{loaded.origin.source}: {hf_dpt.NOTE}."),
  )
