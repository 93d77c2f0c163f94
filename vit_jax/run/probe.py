"""Probes a published checkpoint, or a run's: few-shot, k-NN and linear."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from vit_jax.data.example import Source
from vit_jax.data.sources import (
  check_classes,
  check_same_classes,
  open_source,
)
from vit_jax.evaluation.few_shot import FewShot, Outcome
from vit_jax.evaluation.representations import Representations
from vit_jax.evaluation.whole_set import Score, linear, nearest_neighbours
from vit_jax.models.masked_vit import masked
from vit_jax.pretrained.load import open_pretrained
from vit_jax.pretrained.loaded import Loaded
from vit_jax.run import build
from vit_jax.run.evaluators import make_mesh, open_loader
from vit_jax.run.settings import ProbeSettings
from vit_jax.runtime.display import Display, Track, untracked
from vit_jax.training import sharding
from vit_jax.training.state import make_params_init

PROBES = ("few_shot", "knn", "linear")


def probe_checkpoint(
  checkpoint: str,
  settings: ProbeSettings,
  *,
  probe: str = "few_shot",
  shots: int = 5,
  seeds: int = 3,
  neighbours: int = 20,
  pre_logits: bool = True,
  display: Display | None = None,
  **overrides: Any,
) -> Outcome | Score:
  """Classifies by the representations of a published checkpoint, or of a run.

  The arguments are those of the command.

  Args:
    settings: Data, crop, loader and mesh.
    display: Display for the header and the progress; nothing is shown without
      one.
    **overrides: Keywords of `load_pretrained`.

  Raises:
    ValueError: if the checkpoint, the data and the settings do not fit
      together.
  """
  train, test = _sources(settings, probe, neighbours)
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
  loader = open_loader(settings, preprocessing)
  batch_size = build.eval_batch_size(settings)
  few_shot = None
  if probe == "few_shot":
    few_shot = FewShot(
      model,
      mesh,
      train,
      test,
      preprocessing,
      loader=loader,
      batch_size=batch_size,
      shots=shots,
      seeds=seeds,
      pre_logits=pre_logits,
    )
  used = few_shot.num_shots if few_shot else len(train)
  if display is not None:
    if reads_patches:
      display.note(
        "The probe reads the mean of the patches: masked patches did not train "
        "the class token's output."
      )
    display.header(
      _header(checkpoint, preprocessing.image_size, used, train, test)
    )
  init = make_params_init(loaded.model, preprocessing.image_shape)
  params = loaded.params(sharding.array_shapes(init, mesh))
  track = display.track if display else untracked
  if few_shot:
    return few_shot.measure(params, track)
  most = max(len(train), len(test))
  padded = sharding.padded_batch_size(batch_size, mesh, most)
  represent = Representations(
    model, mesh, preprocessing, loader, padded, pre_logits
  )
  score = functools.partial(nearest_neighbours, k=neighbours)
  if probe == "linear":
    score = functools.partial(linear, train_examples=len(train))
  return _whole_split(score, represent, params, train, test, track)


def _whole_split(
  score: Callable[..., Score],
  represent: Representations,
  params: Any,
  train: Source,
  test: Source,
  track: Track,
) -> Score:
  """Scores a probe on all images of both splits."""
  with represent.open(train) as train_passes, represent.open(test) as passes:
    return score(
      represent(params, train_passes, "reading the training split", track),
      represent(params, passes, "reading the evaluation split", track),
      len(train.class_names),
    )


def _sources(
  settings: ProbeSettings, probe: str, neighbours: int
) -> tuple[Source, Source]:
  """The training and the evaluation split; ValueError if they do not fit."""
  if probe not in PROBES:
    raise ValueError(f"probe={probe!r}; give one of {', '.join(PROBES)}.")
  if neighbours < 1:
    raise ValueError(f"neighbours={neighbours} must be 1 or more.")
  train = open_source("train", settings.data)
  test = open_source("eval", settings.data)
  if probe != "few_shot":  # `FewShot` checks them itself.
    check_classes(train, "a probe")
    check_same_classes(
      train.class_names,
      "the training split",
      test.class_names,
      "the evaluation split",
    )
  if probe == "knn" and neighbours > len(train):
    raise ValueError(
      f"neighbours={neighbours} is more than the {len(train):,} training "
      "images: give fewer."
    )
  return train, test


def _trained_by_masks(loaded: Loaded) -> bool:
  """Whether a run on masked patches trained it, and it has a class token."""
  config = (loaded.description or {}).get("config", {})
  rate = config.get("masked", {}).get("rate", 0)
  return bool(rate) and getattr(loaded.model, "pooling", None) == "token"


def _header(
  checkpoint: str,
  image_size: tuple[int, int],
  used: int,
  train: Source,
  test: Source,
) -> list[tuple[str, str]]:
  height, width = image_size
  classes = f"{len(train.class_names):,} classes"
  return [
    ("model", f"{checkpoint} at {height} x {width}"),
    ("data", f"{train.name}, {classes}, {len(test):,} test images"),
    ("probe", f"fitted to {used:,} training images"),
  ]
