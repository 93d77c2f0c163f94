"""Probes a published checkpoint, or a run's: few-shot, k-NN and linear."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from vit_jax.data.example import Source
from vit_jax.data.reading.sources import (
  check_classes,
  check_same_classes,
  open_source,
)
from vit_jax.evaluation.few_shot import FewShot, Outcome
from vit_jax.evaluation.representations import make_represent
from vit_jax.evaluation.whole_set import Score, linear, nearest_neighbours
from vit_jax.models.model import represent
from vit_jax.pretrained.load import open_checkpoint
from vit_jax.run import build
from vit_jax.run.settings import ProbeSettings
from vit_jax.runtime.display import Display, Track, untracked
from vit_jax.tasks.stream import Stream

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
  opened = _Opened(checkpoint, settings, probe, neighbours, overrides)
  if probe == "few_shot":
    return opened.few_shot((shots,), seeds, pre_logits, display)[0]
  score = functools.partial(nearest_neighbours, k=neighbours)
  if probe == "linear":
    score = functools.partial(linear, train_examples=len(opened.train))
  return opened.whole_split(score, pre_logits, display)


def probe_shots(
  checkpoint: str,
  settings: ProbeSettings,
  shots: Sequence[int],
  *,
  seeds: int = 3,
  **overrides: Any,
) -> list[Outcome]:
  """Few-shot evaluation for several numbers of shots, which share all passes.

  The arguments are those of `probe_checkpoint`, and so are the errors.
  """
  opened = _Opened(checkpoint, settings, "few_shot", 1, overrides)
  return opened.few_shot(shots, seeds, pre_logits=True, display=None)


class _Opened:
  """A checkpoint, its preprocessing, and the two splits of the data."""

  def __init__(
    self,
    checkpoint: str,
    settings: ProbeSettings,
    probe: str,
    neighbours: int,
    overrides: dict[str, Any],
  ):
    self._checkpoint = checkpoint
    self.train, self.test = _sources(settings, probe, neighbours)
    self._mesh = build.make_mesh(settings)
    overrides["interpolation"] = settings.transfer.interpolation
    self._loaded = open_checkpoint(checkpoint, **overrides)
    given = {k: v for k, v in vars(settings.eval_transform).items() if v}
    own = self._loaded.preprocessing
    crop = dataclasses.replace(own.crop, **given)
    self._preprocessing = dataclasses.replace(own, crop=crop)
    self._loader = build.open_loader(settings, self._preprocessing)
    self._batch_size = build.eval_batch_size(settings)
    self._model = self._loaded.task.probed(self._loaded.model)[""]
    self._reads_patches = self._model is not self._loaded.model

  def few_shot(
    self,
    shots: Sequence[int],
    seeds: int,
    pre_logits: bool,
    display: Display | None,
  ) -> list[Outcome]:
    """Few-shot evaluation for each number of shots."""
    few_shot = FewShot(
      self._model,
      self._mesh,
      self.train,
      self.test,
      self._preprocessing,
      loader=self._loader,
      batch_size=self._batch_size,
      shots=max(shots),
      seeds=seeds,
      pre_logits=pre_logits,
    )
    params, track = self._params(few_shot.num_shots, display)
    return few_shot.measure_each(params, shots, track)

  def whole_split(
    self,
    score: Callable[..., Score],
    pre_logits: bool,
    display: Display | None,
  ) -> Score:
    """Scores a probe on all images of both splits."""
    most = max(len(self.train), len(self.test))
    rows = min(self._batch_size, most)
    parts = self._mesh, self._preprocessing
    train, test = (
      Stream(source, *parts, self._loader, rows)
      for source in (self.train, self.test)
    )
    read = make_represent(
      functools.partial(represent, self._model, pre_logits=pre_logits), *parts
    )
    params, track = self._params(len(self.train), display)
    with contextlib.closing(train), contextlib.closing(test):
      return score(
        read(params, train, "reading the training split", track),
        read(params, test, "reading the evaluation split", track),
        len(self.train.class_names),
      )

  def _params(self, used: int, display: Display | None) -> tuple[Any, Track]:
    """The parameters, after the header that says what is measured."""
    if display is not None:
      if self._reads_patches:
        display.note(
          "The probe reads the mean of the patches: masked patches did not "
          "train the class token's output."
        )
      size = self._preprocessing.image_size
      display.header(
        _header(self._checkpoint, size, used, self.train, self.test)
      )
    params = self._loaded.params_on(self._mesh)
    return params, display.track if display else untracked


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
