"""Measures few-shot accuracy of a published checkpoint or of a run's."""

import dataclasses
from typing import Any

from vit_jax.data.example import Source
from vit_jax.data.sources import open_source
from vit_jax.evaluation.few_shot import FewShot, Outcome
from vit_jax.models.masked_vit import masked
from vit_jax.pretrained.load import open_pretrained
from vit_jax.pretrained.loaded import Loaded
from vit_jax.run import build
from vit_jax.run.evaluators import make_mesh, open_loader
from vit_jax.run.settings import ProbeSettings
from vit_jax.runtime.display import Display, untracked
from vit_jax.training import sharding
from vit_jax.training.state import make_params_init


def probe_checkpoint(
  checkpoint: str,
  settings: ProbeSettings,
  *,
  shots: int,
  seeds: int,
  pre_logits: bool = True,
  display: Display | None = None,
  **overrides: Any,
) -> Outcome:
  """Measures few-shot accuracy of a published checkpoint, or of a run of ours.

  Args:
    checkpoint: Any source that `load_pretrained` takes.
    settings: Data, crop, loader and mesh.
    shots: Training images per class.
    seeds: Number of random draws of the training images.
    pre_logits: Whether to probe the output of the representation layer, where
      the model has one.
    display: Display for the header and the progress; nothing is shown without
      one.
    **overrides: Keywords of `load_pretrained`.

  Raises:
    ValueError: if the checkpoint, the data and the settings do not fit
      together.
  """
  train = open_source("train", settings.data)
  test = open_source("eval", settings.data)
  mesh = make_mesh(settings)
  overrides["interpolation"] = settings.transfer.interpolation
  loaded = open_pretrained(checkpoint, **overrides)
  given = {k: v for k, v in vars(settings.eval_transform).items() if v}
  preprocessing = dataclasses.replace(
    loaded.preprocessing,
    crop=dataclasses.replace(loaded.preprocessing.crop, **given),
  )
  model = loaded.model
  if reads_patches := _trained_by_masks(loaded):
    model = masked(model, 0)
  few_shot = FewShot(
    model,
    mesh,
    train,
    test,
    preprocessing,
    loader=open_loader(settings, preprocessing),
    batch_size=build.eval_batch_size(settings),
    shots=shots,
    seeds=seeds,
    pre_logits=pre_logits,
  )
  if display is not None:
    if reads_patches:
      display.note(
        "The probe reads the mean of the patches: masked patches did not train "
        "the class token's output."
      )
    display.header(
      _header(checkpoint, preprocessing.image_size, few_shot, train, test)
    )
  init = make_params_init(loaded.model, (*preprocessing.image_size, 3))
  params = loaded.params(sharding.array_shapes(init, mesh))
  return few_shot.measure(params, display.track if display else untracked)


def _trained_by_masks(loaded: Loaded) -> bool:
  """Whether a run on masked patches trained it, and it has a class token."""
  config = (loaded.description or {}).get("config", {})
  rate = config.get("masked", {}).get("rate", 0)
  return bool(rate) and getattr(loaded.model, "pooling", None) == "token"


def _header(
  checkpoint: str,
  image_size: tuple[int, int],
  few_shot: FewShot,
  train: Source,
  test: Source,
) -> list[tuple[str, str]]:
  height, width = image_size
  classes = f"{len(train.class_names):,} classes"
  return [
    ("model", f"{checkpoint} at {height} x {width}"),
    ("data", f"{train.name}, {classes}, {len(test):,} test images"),
    ("shots", f"{few_shot.num_shots:,} images over all draws"),
  ]
