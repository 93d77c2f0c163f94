"""Probes a published checkpoint, or a run's: few-shot, k-NN and linear."""

import contextlib
import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

from vit_jax.data.example import Source
from vit_jax.data.reading.sources import (
  check_classes,
  check_same_classes,
  open_source,
)
from vit_jax.evaluation import PROBES
from vit_jax.evaluation.few_shot import FewShot, Outcome
from vit_jax.evaluation.representations import make_represent
from vit_jax.evaluation.whole_set import Score, linear, nearest_neighbours
from vit_jax.models.model import represent
from vit_jax.pretrained.load import open_checkpoint
from vit_jax.run import build
from vit_jax.run.settings import ProbeSettings
from vit_jax.runtime.display import Display, Track, untracked
from vit_jax.tasks.outcome import Stream


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
  if probe not in PROBES:
    raise ValueError(f"probe={probe!r}; give one of {', '.join(PROBES)}.")
  if neighbours < 1:
    raise ValueError(f"neighbours={neighbours} must be 1 or more.")
  if probe == "few_shot":
    options: Any = {"pre_logits": pre_logits, "display": display, **overrides}
    found = probe_shots(checkpoint, settings, (shots,), seeds=seeds, **options)
    return found[0]
  splits = _open_splits(settings)
  check_classes(splits[0], "a probe")
  names = [split.class_names for split in splits]
  check_same_classes(
    names[0], "the training split", names[1], "the evaluation split"
  )
  score, most = partial(linear, train_examples=len(splits[0])), len(splits[0])
  if probe == "knn":
    score = partial(nearest_neighbours, k=neighbours)
    if neighbours > most:
      raise ValueError(
        f"neighbours={neighbours} is more than the {most:,} training images: "
        "give fewer."
      )
  opened = _Opened(checkpoint, settings, splits, overrides)
  rows = min(opened.batch_size, max(map(len, splits)))
  parts = opened.mesh, opened.preprocessing
  train, test = (Stream(s, *parts, opened.loader, rows) for s in splits)
  read = make_represent(
    partial(represent, opened.model, pre_logits=pre_logits), *parts
  )
  params, track = opened.params(most, display)
  with contextlib.closing(train), contextlib.closing(test):
    return score(
      read(params, train, "reading the training split", track),
      read(params, test, "reading the evaluation split", track),
      len(names[0]),
    )


def probe_shots(
  checkpoint: str,
  settings: ProbeSettings,
  shots: Sequence[int],
  *,
  seeds: int = 3,
  pre_logits: bool = True,
  display: Display | None = None,
  **overrides: Any,
) -> list[Outcome]:
  """Few-shot evaluation for several numbers of shots, which share all passes.

  The arguments are those of `probe_checkpoint`, and so are the errors.
  """
  splits = _open_splits(settings)
  opened = _Opened(checkpoint, settings, splits, overrides)
  few_shot = FewShot(
    opened.model,
    opened.mesh,
    *splits,
    opened.preprocessing,
    loader=opened.loader,
    batch_size=opened.batch_size,
    shots=max(shots),
    seeds=seeds,
    pre_logits=pre_logits,
  )
  params, track = opened.params(few_shot.num_shots, display)
  return few_shot.measure_each(params, shots, track)


def _open_splits(settings: ProbeSettings) -> tuple[Source, Source]:
  return open_source("train", settings.data), open_source("eval", settings.data)


class _Opened:
  """A checkpoint, and how its model reads the two splits of the data."""

  def __init__(
    self,
    checkpoint: str,
    settings: ProbeSettings,
    splits: tuple[Source, Source],
    overrides: dict[str, Any],
  ):
    self._checkpoint, self._splits = checkpoint, splits
    self.mesh = build.make_mesh(settings)
    overrides["interpolation"] = settings.transfer.interpolation
    self._loaded = open_checkpoint(checkpoint, **overrides)
    self.model = self._loaded.task.probed(self._loaded.model)[""]
    given = {k: v for k, v in vars(settings.eval_transform).items() if v}
    own = self._loaded.preprocessing
    crop = dataclasses.replace(own.crop, **given)
    self.preprocessing = dataclasses.replace(own, crop=crop)
    self.loader = build.open_loader(settings, self.preprocessing)
    self.batch_size = build.eval_batch_size(settings)

  def params(self, used: int, display: Display | None) -> tuple[Any, Track]:
    """The parameters, after the header that says what is measured."""
    if display is not None:
      if self.model is not self._loaded.model:
        display.note(self._loaded.task.probe_note)
      train, test = self._splits
      height, width = self.preprocessing.image_size
      classes = f"{len(train.class_names):,} classes"
      display.header(
        [
          ("model", f"{self._checkpoint} at {height} x {width}"),
          ("data", f"{train.name}, {classes}, {len(test):,} test images"),
          ("probe", f"fitted to {used:,} training images"),
        ]
      )
    params = self._loaded.params_on(self.mesh)
    return params, display.track if display else untracked
