"""Collects a report's facts: a run's folder, and its checkpoint evaluated."""

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath
from jaxtyping import Float

from vit_jax.inspection import attention_maps, embedding_maps
from vit_jax.inspection.eval_pictures import chosen_examples
from vit_jax.inspection.photograph import Photograph, seen_part
from vit_jax.report.dataset import Dataset, look_at
from vit_jax.run.saved import SavedRun, open_saved_run
from vit_jax.run.settings import Settings
from vit_jax.runtime.display import Split, Track, parse, untracked
from vit_jax.runtime.settings import flat, to_dict
from vit_jax.tasks import choose
from vit_jax.tasks.outcome import Example, Outcome
from vit_jax.tasks.pictures import to_draw
from vit_jax.tasks.scores import kept_folds
from vit_jax.tasks.task import Task, class_names
from vit_jax.workdir.checkpoint import latest_description, open_run
from vit_jax.workdir.records import METRICS, STARTS, read_metrics, read_starts

_PANELS = 6  # Examples that a task may draw in its own way.
Draw = Callable[[Any, Sequence[tuple]], Sequence[Photograph]]
"""As `tasks.pictures.Draw`."""


@dataclasses.dataclass(frozen=True)
class ShownExample:
  """A telling example of the eval split, with its attention rollout.

  Attributes:
    name: The file's path relative to the root of the data, or the example's id.
    example: The answer in words.
    photograph: The part that the model sees, at the photograph's resolution.
    rollout: The attention rollout; None for a model without attention, or if
      the task draws the example itself.
    drawn: The picture that the task draws of it, in place of a rollout.
  """

  name: str
  example: Example
  photograph: Photograph
  rollout: Float[np.ndarray, "h w"] | None
  drawn: Photograph | None = None


class ExampleGroup(NamedTuple):
  """Telling examples of one kind, with a heading and a sentence on them."""

  title: str
  text: str
  examples: list[ShownExample]


@dataclasses.dataclass(frozen=True)
class Measured:
  """Measurements of a checkpoint on the eval split of its run.

  Attributes:
    groups: The telling examples of each kind.
    filters, positions: From `embedding_maps.filters_and_positions`; None if the
      model has none or its parameters are not finite.
    panels: Pictures that the task draws of examples, if it does.
    total_steps: Number of steps of the whole run, if known.
    dataset: Facts about the data; None if the training split cannot be read.
    data_problem: Why it cannot be read, or None.
  """

  step: int
  data_name: str
  num_parameters: int
  task: Task
  outcome: Outcome
  metrics: dict[str, Any]
  class_names: Sequence[str]
  groups: Sequence[ExampleGroup]
  filters: Float[np.ndarray, "n P P C"] | None
  positions: Float[np.ndarray, "h w h w"] | None
  panels: Sequence[Photograph] = ()
  total_steps: int | None = None
  dataset: Dataset | None = None
  data_problem: str | None = None


@dataclasses.dataclass(frozen=True)
class RunFacts:
  """The facts about a run that its folder and its checkpoint give.

  Attributes:
    rows: Rows of `metrics.jsonl`.
    starts: Rows of `starts.jsonl`.
    config: Every configuration key and its value; empty without a checkpoint.
    task: The task of the run, or None if nothing tells it.
    measured: The checkpoint's measurements; None if it could not be evaluated.
    problem: Why the checkpoint could not be evaluated, or None.
    best: Step and score of the checkpoint that `--best` chooses, if known.
    notes: Lines on broken rows, which are left out, and on the images.
  """

  workdir: str
  rows: list[dict[str, Any]]
  starts: list[dict[str, Any]]
  config: dict[str, Any]
  task: Task | None = None
  measured: Measured | None = None
  problem: str | None = None
  best: tuple[int, str] | None = None
  notes: Sequence[str] = ()

  def curve(self, key: str) -> tuple[list[int], list[float]]:
    """Steps and values of a metric; both are empty if it was never written.

    A value of training is a mean over the steps since the last value. A mean
    over less than half the usual number of steps is averaged with the value
    before it.
    """
    points = {
      row["step"]: row[key] for row in self.rows if row.get(key) is not None
    }
    steps = [*points]
    values = [*points.values()]
    split, metric = parse(key)
    if split is Split.TRAIN and metric != "learning_rate" and steps:
      counts = np.diff(steps, prepend=0)
      short = np.flatnonzero(counts[1:] < np.median(counts) / 2) + 1
      for n in reversed(short):
        both = slice(n - 1, n + 1)
        mean = np.average(values[both], weights=counts[both])
        steps[both] = [steps[n]]
        values[both] = [float(mean)]
        counts[n - 1] += counts[n]
    return steps, values

  @property
  def scores(self) -> dict[str, Any]:
    """Metrics of the checkpoint, or else of the last evaluation in training."""
    if self.measured is not None:
      folds = kept_folds(self.rows)
      return self.measured.metrics | folds | {"step": self.measured.step}
    examples = Split.EVAL.key("examples")
    evaluations = (
      row for row in reversed(self.rows) if row.get(examples) is not None
    )
    return next(evaluations, {})

  @property
  def score(self) -> float | None:
    """The score of the task in `scores`, if known."""
    return self.task and self.scores.get(self.task.scores.key)


def read_run(
  workdir: str,
  track: Track = untracked,
  *,
  num_workers: int | None = None,
  **options: Any,
) -> RunFacts:
  """Reads a run's folder and evaluates its checkpoint if that is possible.

  Raises ValueError if the folder holds no run, or if options are given and the
  run cannot be evaluated with them. The options are those of
  `run.saved.open_saved_run`.
  """
  if "://" in workdir:
    # Fails with a clear message if the address cannot be read.
    open_run(workdir).close()
  folder = epath.Path(workdir).expanduser()
  metrics = read_metrics(folder)
  rows = metrics.rows
  starts = read_starts(folder)
  notes = [*metrics.note(METRICS), *starts.note(STARTS)]
  config: dict[str, Any] = {}
  task = choose.by_metrics(key for row in rows for key in row)
  measured = problem = best = None
  try:
    if (description := latest_description(workdir)) is not None:
      config = _plain(description["config"])
    with open_saved_run(workdir, num_workers=num_workers, **options) as run:
      # The checkpoint that was opened need not be the latest.
      config = _plain(to_dict(run.settings))
      task = run.task
      best = _best(workdir, task, rows)
      measured = _measure(run, track)
      notes += run.notes
  except (ValueError, OSError) as error:
    if not rows or options:
      raise
    problem = str(error)
  return RunFacts(
    workdir=workdir,
    rows=rows,
    starts=starts.rows,
    config=config,
    task=task,
    measured=measured,
    problem=problem,
    best=best,
    notes=notes,
  )


def defaults() -> dict[str, Any]:
  """Every configuration key and its default."""
  return _plain(to_dict(Settings()))


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
  """A configuration by dotted keys, with values as JSON would return them."""
  return json.loads(json.dumps(flat(config)))


def _best(
  workdir: str, task: Task, rows: Sequence[Mapping[str, Any]]
) -> tuple[int, str] | None:
  """Step and score of the best checkpoint; None if the score is not known."""
  metric = task.scores.metric
  with contextlib.closing(open_run(workdir, choose.score_key)) as saved:
    step = saved.best_step
  texts = [metric.text(row) for row in rows if row["step"] == step]
  text = next(filter(None, reversed(texts)), None)
  return (step, text) if step and text else None


def _measure(run: SavedRun, track: Track) -> Measured:
  """Evaluates the checkpoint of a run, and collects what a report shows."""
  model = run.loaded.model
  preprocessing = run.loaded.preprocessing
  outcome = run.evaluator(run.params, track, detail=True)
  panels: Sequence[Photograph] = ()
  groups = outcome.telling()
  draw, task_panels = None, run.task.panels
  # A task draws images of one size only.
  if task_panels is not None and preprocessing.patches is None:
    draw = task_panels.make(model, run.task.objective(model, preprocessing))
  if draw and not groups:  # Else it draws the telling examples.
    chosen = chosen_examples(run.source, preprocessing, _PANELS)
    panels = draw(run.params, chosen)
  filters = positions = None
  if model.num_layers:
    # If training has diverged, the report has numbers but no embeddings.
    with contextlib.suppress(ValueError):
      filters, positions = embedding_maps.filters_and_positions(
        model, run.params, preprocessing.image_size
      )
  dataset = problem = total = None
  try:
    dataset = look_at(run)
    settings = run.settings
    total = settings.total.in_steps(settings.batch_size, dataset.train.examples)
  except (ValueError, OSError) as error:
    problem = str(error)
  assert run.loaded.step is not None
  return Measured(
    step=run.loaded.step,
    data_name=run.source.name,
    num_parameters=sum(x.size for x in jax.tree.leaves(run.params)),
    task=run.task,
    outcome=outcome,
    metrics=outcome.metrics | outcome.by_class(),
    class_names=class_names(run.source.class_names, model.num_classes),
    groups=[
      ExampleGroup(
        title=group.title,
        text=group.text,
        examples=[_show_example(run, one, draw) for one in group.examples],
      )
      for group in groups
    ],
    filters=filters,
    positions=positions,
    panels=panels,
    total_steps=total,
    dataset=dataset,
    data_problem=problem,
  )


def _show_example(
  run: SavedRun, example: Example, draw: Draw | None
) -> ShownExample:
  """An example with its picture by `draw`, or its rollout if that is None."""
  source_example = run.source[example.index]
  preprocessing = run.loaded.preprocessing
  rollout = drawn = None
  arrays = preprocessing.transform().row(source_example)
  if draw is None:
    rollout = attention_maps.image_rollout(
      run.loaded.model, run.params, arrays, **preprocessing.normalization
    )
  else:
    label = source_example["label"]
    (drawn,) = draw(run.params, [to_draw(example.index, arrays, label)])
  root = os.path.join(run.settings.data.root or "", "")
  return ShownExample(
    name=source_example["id"].removeprefix(root),
    example=example,
    photograph=seen_part(source_example["image"], preprocessing),
    rollout=rollout,
    drawn=drawn,
  )
