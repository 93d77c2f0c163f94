"""The tables of a report."""

import dataclasses
import json
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from vit_jax.report.dataset import Sizes
from vit_jax.report.headline import scores_of, top1_of
from vit_jax.report.measure import Measured, RunFacts, defaults
from vit_jax.runtime.display import clock
from vit_jax.workdir.goodput import shares, time_spent

_MOST_ROWS = 100  # Most classes in the table of scores.
_CONFUSED = 10  # Most pairs of classes in the table of mistakes.
_ABSENT = "–"
_SCORES = (
  "top1",
  "colours_right",
  "commonest_colour",
  "map",
  "f1",
  "threshold",
  "mae",
  "r2",
)
# Columns of the table of results: name, form, and which value is the best.
_RESULTS: Sequence[tuple[str, str, Callable | None]] = (
  ("at step", "{:,}", None),
  ("top-1", "{:.2%}", max),
  ("colours right", "{:.2%}", max),
  ("commonest colour", "{:.2%}", None),
  ("mAP", "{:.2%}", max),
  ("F1", "{:.2%}", max),
  ("threshold", "{:.3g}", None),
  ("MAE", "{:.4g}", min),
  ("R2", "{:.4f}", max),
  ("macro-F1", "{:.2%}", max),
  ("top-5", "{:.2%}", max),
  ("loss", "{:.4f}", min),
  ("calibration error", "{:.2%}", min),
  ("parameters", "{:,}", None),
  ("images/s (median)", "{:,.0f}", None),
)


@dataclasses.dataclass(frozen=True)
class Table:
  """A table of texts.

  The columns in `numbers` are aligned right, and the (row, column) pairs in
  `best` are marked.
  """

  caption: str
  columns: Sequence[str]
  rows: Sequence[Sequence[str]]
  numbers: Sequence[int] = ()
  best: Collection[tuple[int, int]] = ()

  def tiles(self) -> list[tuple[str, str]]:
    """Column and value of the first row, without its name and what it lacks."""
    pairs = zip(self.columns[1:], self.rows[0][1:], strict=True)
    return [(name, value) for name, value in pairs if value != _ABSENT]


def results(names: list[str], runs: Sequence[RunFacts]) -> Table:
  """The table that compares the runs, with a row for each."""
  columns, cells, best = ["run"], [names], set()
  every = zip(_RESULTS, zip(*map(_results, runs), strict=True), strict=True)
  for (title, form, choose), values in every:
    known = [value for value in values if _is_number(value)]
    if not known:
      continue
    if choose and len({*known}) > 1:
      chosen = choose(known)
      best |= {(n, len(columns)) for n, v in enumerate(values) if v == chosen}
    columns.append(title)
    cells.append([_text(value, form) for value in values])
  rows = [*zip(*cells, strict=True)]
  numbers = range(1, len(columns))
  return Table("Results on the evaluation split", columns, rows, numbers, best)


def _results(run: RunFacts) -> list[Any]:
  """Values of the columns of `_RESULTS`; None where they are unknown."""
  measured, found = run.measured, scores_of(run)
  rates = run.curve("train/images_per_second")[1]
  return [
    found.get("step"),
    *(found.get(f"eval/{name}") for name in _SCORES),
    measured and measured.tally.macro_f1(),
    found.get("eval/top5"),
    found.get("eval/loss"),
    measured and measured.tally.calibration_error(),
    measured and measured.num_parameters,
    float(np.median(rates)) if rates else None,
  ]


def differences(names: list[str], runs: Sequence[RunFacts]) -> Table | None:
  """The configuration keys that differ between the runs, or None."""
  known = [(n, r) for n, r in zip(names, runs, strict=True) if r.config]
  # A key that was added after a run has, for that run, its default value.
  configs = [defaults() | run.config for _, run in known]
  keys = sorted({key for config in configs for key in config})
  rows = [
    [
      key,
      *(
        _value(config[key]) if key in config else _ABSENT for config in configs
      ),
    ]
    for key in keys
  ]
  different = [row for row in rows if len({*row[1:]}) > 1]
  if not different:
    return None
  top1 = [top1_of(run) for _, run in known]
  rates = [rate for rate in top1 if rate is not None]
  best = {
    (0, column)
    for column, rate in enumerate(top1, 1)
    if len({*rates}) > 1 and rate == max(rates)
  }
  different.insert(0, ["top-1", *(_text(rate, "{:.2%}") for rate in top1)])
  columns = ["key", *(name for name, _ in known)]
  return Table("What differs between the runs", columns, different, best=best)


def starts(run: RunFacts) -> Table | None:
  """When and on which machine the run was started, or None if not recorded."""

  def row(start: dict[str, Any]) -> list[str]:
    versions = [f"{k} {v}" for k, v in start["packages"].items() if v]
    hosts = start["hosts"]
    return [
      start["time"].replace("T", " ").replace("+00:00", " UTC"),
      f"{start['step']:,}",
      start["devices"] + (f" on {hosts} hosts" if hosts > 1 else ""),
      f"{start['system']}, {start['cores']} cores",
      ", ".join([f"Python {start['python']}", *versions]),
    ]

  rows = [row(start) for start in run.starts]
  columns = ["time", "from step", "devices", "system", "software"]
  return Table("Starts of the run", columns, rows, [1]) if rows else None


def time(run: RunFacts) -> Table | None:
  """Where the time since the first start went, or None if not recorded."""
  spent = time_spent(run.rows, run.starts)
  if spent is None:
    return None
  rows = [
    [what, clock(share * sum(spent.values())), f"{share:.1%}"]
    for what, share in shares(spent)
  ]
  return Table("Where the time went", ["work", "time", "share"], rows, [1, 2])


def config(caption: str, values: dict[str, Any]) -> Table | None:
  """Keys and their values, or None if there are none."""
  rows = [[key, _value(value)] for key, value in values.items()]
  return Table(caption, ["key", "value"], rows) if rows else None


def classes(measured: Measured) -> Table | None:
  """The scores of each class, or those with the lowest F1 if there are many.

  None if the run predicts no classes.
  """
  if measured.masked:
    return None
  if measured.scores is not None:
    columns, rows = measured.scores
    numbers = range(1, len(columns))
    return Table(f"Scores of each {columns[0]}", columns, rows, numbers)
  dataset = measured.dataset
  counts = dataset.counts if dataset else None
  scores = measured.tally.class_scores()
  caption = "Scores of each class"
  shown = [*scores]
  if len(shown) > _MOST_ROWS:
    caption = f"The {_MOST_ROWS} classes with the lowest F1"
    shown = sorted(shown, key=lambda k: scores[k].f1)[:_MOST_ROWS]
  rows = [
    [
      measured.class_names[k],
      f"{counts[k]:,}" if counts is not None and k < len(counts) else _ABSENT,
      f"{score.examples:,}",
      *(f"{x:.2%}" for x in (score.precision, score.recall, score.f1)),
    ]
    for k, score in ((k, scores[k]) for k in shown)
  ]
  columns = ["class", "to train on", "evaluated", "precision", "recall", "F1"]
  return Table(caption, columns, rows, range(1, 6))


def sizes(measured: Measured) -> Table | None:
  """Sizes of the photographs of both splits, or None if they are unknown."""
  if measured.dataset is None:
    return None

  def row(name: str, split: Sizes) -> list[str]:
    by_area = sorted(split.sides, key=math.prod)
    told = [f"{w:,} x {h:,}" for w, h in by_area] or [_ABSENT]
    weight = float(np.median(split.weights)) / 1000 if split.weights else None
    looked_at = f"{len(split.sides):,}"
    middle = told[len(told) // 2]
    return [
      *(name, f"{split.examples:,}", looked_at),
      *(told[0], middle, told[-1], _text(weight, "{:,.0f} kB")),
    ]

  columns = ["split", "images", "looked at"]
  columns += ["smallest", "median", "largest", "median file"]
  rows = [
    row("training", measured.dataset.train),
    row("evaluation", measured.dataset.evaluation),
  ]
  return Table("Photographs, in pixels", columns, rows, range(1, 7))


def confused(measured: Measured) -> Table | None:
  """The most frequent mistakes, or None if there are none."""
  names = measured.class_names
  rows = [
    [names[label], names[answer], f"{count:,}"]
    for label, answer, count in measured.tally.most_confused(_CONFUSED)
  ]
  columns = ["class", "answer", "times"]
  return Table("Most frequent mistakes", columns, rows, [2]) if rows else None


def _text(value: Any, form: str) -> str:
  return form.format(value) if _is_number(value) else _ABSENT


def _is_number(value: Any) -> bool:
  return value is not None and not math.isnan(value)


def _value(value: Any) -> str:
  """A configuration value as text: strings unchanged, all else as JSON."""
  if value is None:
    return "not set"
  return value if isinstance(value, str) else json.dumps(value)
