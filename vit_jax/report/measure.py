"""Collects a report's facts: a run's folder, and its checkpoint evaluated."""

import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath
from jaxtyping import Float

from vit_jax.evaluation.confusion import Answered, Tally
from vit_jax.evaluation.targets import Outputs, Table, TargetEvaluator
from vit_jax.inference.predictor import class_name
from vit_jax.inference.printing import label_text
from vit_jax.inspection import attention_maps, embedding_maps
from vit_jax.inspection.masked_pictures import make_sheets
from vit_jax.inspection.photograph import Photograph, seen_part
from vit_jax.models.masked_vit import MaskedVit
from vit_jax.report.dataset import Dataset, look_at
from vit_jax.run.masked import make_masking
from vit_jax.run.saved import SavedRun, opened
from vit_jax.run.settings import Settings
from vit_jax.runtime.display import Track, untracked
from vit_jax.runtime.settings import flat, to_dict
from vit_jax.workdir.checkpoint import latest_description, open_run
from vit_jax.workdir.metrics import read_rows
from vit_jax.workdir.starts import read_starts

_WORST = 6  # Examples of the highest loss, of several labels or numbers.
_MASKED = 6  # Examples of masked patches to draw.


@dataclasses.dataclass(frozen=True)
class Example:
  """A telling example of the eval split, with its attention rollout.

  Attributes:
    name: The file's name below the root of the data, or what names it there.
    answered: The model's answer, or label and answer in words.
    photograph: The part that the model sees, at the photograph's resolution.
    rollout: The attention rollout; None for a model without attention.
  """

  name: str
  answered: Answered | str
  photograph: Photograph
  rollout: Float[np.ndarray, "h w"] | None


@dataclasses.dataclass(frozen=True)
class Measured:
  """Measurements of a checkpoint on the eval split of its run.

  `filters` and `positions` come from `embedding_maps.learned`, and are None if
  the model has none or its parameters are not finite. `masked` has pictures of
  masked patches if the run predicts these; then there are no answers in
  `tally`, and neither are there of several labels or numbers, which have
  `outputs` and a table of `scores`. `dataset` is None if the training split
  cannot be read, for the reason `data_problem`.
  """

  step: int
  data_name: str
  num_parameters: int
  metrics: dict[str, Any]
  tally: Tally
  class_names: tuple[str, ...]
  examples: dict[str, list[Example]]
  filters: Float[np.ndarray, "n P P 3"] | None
  positions: Float[np.ndarray, "h w h w"] | None
  masked: Sequence[Photograph] = ()
  loss: str = "softmax"
  outputs: Outputs | None = None
  scores: Table | None = None
  dataset: Dataset | None = None
  data_problem: str | None = None


@dataclasses.dataclass(frozen=True)
class RunFacts:
  """The facts about a run that its folder and its checkpoint give.

  Attributes:
    rows: Rows of `metrics.jsonl`.
    starts: Rows of `starts.jsonl`.
    config: Every configuration key and its value; empty without a checkpoint.
    measured: The checkpoint's measurements; None if it could not be evaluated.
    problem: Why the checkpoint could not be evaluated, or None.
  """

  workdir: str
  rows: list[dict[str, Any]]
  starts: list[dict[str, Any]]
  config: dict[str, Any]
  measured: Measured | None = None
  problem: str | None = None

  def curve(self, key: str) -> tuple[list[int], list[float]]:
    """Steps and values of a metric; both are empty if it was never written."""
    found = [(r["step"], r[key]) for r in self.rows if r.get(key) is not None]
    steps, values = zip(*found, strict=True) if found else ((), ())
    return list(steps), list(values)


def read_run(
  workdir: str, track: Track = untracked, **options: Any
) -> RunFacts:
  """Reads a run's folder and evaluates its checkpoint if that is possible.

  Args:
    **options: Options of `run.saved.opened`.

  Raises:
    ValueError: if the folder holds no run, or if options are given and the run
      cannot be evaluated with them.
  """
  if "://" in workdir:
    # Fails with a clear message if the address cannot be read.
    open_run(workdir).close()
  folder = epath.Path(workdir).expanduser()
  metrics = folder / "metrics.jsonl"
  rows = read_rows(metrics) if metrics.exists() else []
  config: dict[str, Any] = {}
  measured = problem = None
  try:
    if (description := latest_description(workdir)) is not None:
      config = _plain(description["config"])
    with opened(workdir, **options) as run:
      config = _plain(to_dict(run.settings))  # The opened checkpoint's own.
      measured = _measure(run, track)
  except (ValueError, OSError) as error:
    if not rows or options:
      raise
    problem = str(error)
  return RunFacts(workdir, rows, read_starts(folder), config, measured, problem)


def changed_keys(config: dict[str, Any]) -> dict[str, Any]:
  """The keys whose values are not the defaults."""
  known = defaults()
  return {k: v for k, v in config.items() if v != known.get(k)}


def defaults() -> dict[str, Any]:
  """Every configuration key and its default."""
  return _plain(to_dict(Settings()))


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
  """Dotted keys and values as JSON would return them."""
  return json.loads(json.dumps(flat(config)))


def _measure(run: SavedRun, track: Track) -> Measured:
  tally = Tally()
  names = tuple(
    class_name(run.class_names, k) for k in range(run.model.num_classes)
  )
  outputs = scores = None
  if isinstance(run.evaluator, TargetEvaluator):
    outputs = run.evaluator.outputs(run.params, track)
    metrics = run.evaluator.metrics(outputs, each=True)
    scores = run.evaluator.table(outputs)
    examples = {
      **{kind: [] for kind in tally.kinds},
      "worst": _worst(run, outputs, metrics),
    }
  else:
    metrics = run.evaluator(run.params, run.class_names, tally.add, track)
    examples = {
      kind: [_example(run, one.index, one) for one in kept]
      for kind, kept in tally.kinds.items()
    }
  masked: Sequence[Photograph] = ()
  if masking := make_masking(run.settings, run.model):
    assert isinstance(run.model, MaskedVit)
    draw = make_sheets(
      run.model, run.source, run.preprocessing, masking, _MASKED
    )
    masked, names = draw(run.params), run.class_names
  filters = positions = None
  if run.model.num_layers:
    size = run.preprocessing.image_size
    # If training has diverged, the report has numbers but no embeddings.
    with contextlib.suppress(ValueError):
      filters, positions = embedding_maps.learned(run.model, run.params, size)
  dataset = problem = None
  try:
    dataset = look_at(run)
  except (ValueError, OSError) as error:
    problem = str(error)
  return Measured(
    step=run.step,
    data_name=run.source.name,
    num_parameters=sum(x.size for x in jax.tree.leaves(run.params)),
    metrics=metrics,
    tally=tally,
    class_names=names,
    examples=examples,
    filters=filters,
    positions=positions,
    masked=masked,
    loss=run.settings.loss.kind,
    outputs=outputs,
    scores=scores,
    dataset=dataset,
    data_problem=problem,
  )


def _worst(
  run: SavedRun, outputs: Outputs, metrics: Mapping[str, Any]
) -> list[Example]:
  """The examples of the highest loss, of several labels or numbers."""
  names, loss = run.class_names, run.settings.loss.kind
  examples = []
  for row in np.argsort(-outputs.loss, kind="stable")[:_WORST]:
    answer = outputs.output[row]
    if loss != "mse":
      answer = answer >= metrics["eval/threshold"]
    true, answered = (
      label_text(names, label, loss) for label in (outputs.label[row], answer)
    )
    said = f"{true}; answer: {answered}"
    examples.append(_example(run, int(outputs.index[row]), said))
  return examples


def _example(run: SavedRun, index: int, answered: Answered | str) -> Example:
  found = run.source[index]
  rollout = attention_maps.image_rollout(
    run.model,
    run.params,
    run.preprocessing.transform()(found["image"]),
    **run.preprocessing.normalization,
  )
  root = os.path.join(run.settings.data.root or "", "")
  return Example(
    name=found["id"].removeprefix(root),
    answered=answered,
    photograph=seen_part(found["image"], run.preprocessing),
    rollout=rollout,
  )
