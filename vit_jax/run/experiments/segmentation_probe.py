"""Probes what the patches of a checkpoint know of the class of each pixel."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array

from vit_jax.data.batching.loader import EvalPasses
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading.segmentation import SegmentationFolder
from vit_jax.evaluation.segmentation import Segmentation, segment
from vit_jax.inference.features import features
from vit_jax.models import BaseVit
from vit_jax.models.normalize import normalize
from vit_jax.pretrained.load import open_checkpoint
from vit_jax.run import build
from vit_jax.run.settings import ProbeSettings
from vit_jax.runtime.display import Display, untracked
from vit_jax.training import sharding

_BATCHES_AHEAD = 2


def probe_segmentation(
  checkpoint: str,
  settings: ProbeSettings,
  display: Display | None = None,
  **overrides: Any,
) -> Segmentation:
  """Fits a linear probe to the patches after the last layer.

  Whole images are resized to the model's size, whatever its crop is, so that
  masks and images fit.

  Args:
    checkpoint: Any source that `load_pretrained` takes.
    settings: Data, loader and mesh; `data.root` holds images and masks.
    **overrides: Keywords of `load_pretrained`.

  Raises:
    ValueError: if the checkpoint is no ViT, or the folder no such data.
  """
  if not settings.data.root or settings.data.labels_file:
    raise ValueError(
      "--probe=segment takes --config.data.root, a folder that holds images "
      "and masks."
    )
  overrides["interpolation"] = settings.transfer.interpolation
  loaded = open_checkpoint(checkpoint, **overrides)
  model: Any = loaded.model
  if not model.num_layers:
    raise ValueError("a ResNet has no patches to probe: give a ViT.")
  crop = dataclasses.replace(loaded.preprocessing.crop, crop="resize")
  preprocessing = dataclasses.replace(loaded.preprocessing, crop=crop)
  size = preprocessing.image_size
  splits = [
    SegmentationFolder(settings.data, s, size) for s in ("train", "val")
  ]
  num_classes, mesh = splits[0].num_classes(), build.make_mesh(settings)
  if num_classes < 2:
    raise ValueError("the training masks have one class: give two or more.")
  if display is not None:
    counts = " + ".join(f"{len(split):,}" for split in splits)
    names = f"{splits[0].name} + {splits[1].split}"
    data = f"{names}: {counts} images, {num_classes:,} classes"
    at = f"{checkpoint} at {size[0]} x {size[1]}"
    display.header([("model", at), ("data", data)])
  rows = sharding.padded_batch_size(
    build.eval_batch_size(settings), mesh, max(map(len, splits))
  )
  params = loaded.params_on(mesh)
  step = _make_step(model, preprocessing, mesh)
  track = display.track if display else untracked

  def batches(passes: EvalPasses, what: str) -> Iterator[Any]:
    on_device = sharding.to_device(
      passes, sharding.batch_sharding(mesh), _BATCHES_AHEAD
    )
    for batch in track(on_device, what, len(passes)):
      yield step(params, batch)

  loader = build.open_loader(settings, preprocessing)
  with contextlib.ExitStack() as stack:
    train, test = (
      stack.enter_context(
        loader.evaluate(split, preprocessing.transform(), rows)
      )
      for split in splits
    )
    return segment(
      batches(train, "reading the training split"),
      batches(test, "reading the evaluation split"),
      num_classes,
    )


def _make_step(
  model: BaseVit, preprocessing: Preprocessing, mesh: Mesh
) -> Callable[[Any, dict[str, Array]], tuple[Array, dict[str, Array]]]:
  """Returns a function from (params, batch) to maps (B, h, w, D) and masks."""

  def represent(
    params: Any, batch: dict[str, Array]
  ) -> tuple[Array, dict[str, Array]]:
    x = normalize(batch["image"], **preprocessing.normalization)
    layers = (model.num_layers,)
    (maps,) = features(model, params, x, layers=layers, as_maps=True)
    rest = {k: batch[k] for k in ("label", "mask", "skipped")}
    return maps.astype(jnp.float32), rest

  return jax.jit(
    sharding.on_mesh(represent, mesh), out_shardings=sharding.replicated(mesh)
  )
