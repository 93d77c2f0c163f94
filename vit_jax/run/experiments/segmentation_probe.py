"""Probes what the patches of a checkpoint know of the class of each pixel."""

import contextlib
import dataclasses
from typing import Any

from vit_jax.data.reading.segmentation import SegmentationFolder
from vit_jax.evaluation.representations import make_represent
from vit_jax.evaluation.segmentation import Segmentation, segment
from vit_jax.inference.features import features
from vit_jax.pretrained.load import open_checkpoint
from vit_jax.run import build
from vit_jax.run.settings import ProbeSettings
from vit_jax.runtime.display import Display, untracked
from vit_jax.tasks.outcome import Stream


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
  rows = min(build.eval_batch_size(settings), max(map(len, splits)))
  params = loaded.params_on(mesh)

  def last_layer(params: Any, x: Any) -> Any:
    layers = (model.num_layers,)
    return features(model, params, x, layers=layers, as_maps=True)[0]

  represent = make_represent(last_layer, mesh, preprocessing)
  track = display.track if display else untracked
  loader = build.open_loader(settings, preprocessing)
  with contextlib.ExitStack() as stack:
    train, test = (
      stack.enter_context(
        contextlib.closing(Stream(split, mesh, preprocessing, loader, rows))
      )
      for split in splits
    )
    return segment(
      represent(params, train, "reading the training split", track),
      represent(params, test, "reading the evaluation split", track),
      num_classes,
    )
