"""The tables of a report."""

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from vit_jax.report.dataset import Sizes
from vit_jax.report.measure import Measured, RunFacts, defaults
from vit_jax.runtime.display import Split, clock, speed
from vit_jax.runtime.meter import shares, time_spent

_ABSENT = "–"


class Column(NamedTuple):
  """A column of the table of results.

  Attributes:
    title: Its heading.
    form: The format of its numbers, or a function that writes one.
    choose: `max` or `min`, the function that chooses the best; None if there is
      no better or worse.
  """

  title: str
  form: str | Callable[[float], str]
  choose: Callable | None = None


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
    """Names and values of the first row, without the run's name.

    Columns without a value are left out.
    """
    pairs = zip(self.columns[1:], self.rows[0][1:], strict=True)
    return [(name, value) for name, value in pairs if value != _ABSENT]


def results(
  names: list[str], runs: Sequence[RunFacts], *, mark: bool = True
) -> Table:
  """The table that compares the runs, with a row for each.

  The best values are marked only if `mark`.
  """
  columns = ["run"]
  cells = [names]
  best = set()
  results_of_runs = [_results(run) for run in runs]
  all_columns = itertools.chain.from_iterable(results_of_runs)
  for column in dict.fromkeys(all_columns):
    values = [one.get(column) for one in results_of_runs]
    numbers = [value for value in values if _is_number(value)]
    if not numbers:
      continue
    if mark and column.choose and len({*numbers}) > 1:
      chosen = column.choose(numbers)
      best |= {(n, len(columns)) for n, v in enumerate(values) if v == chosen}
    columns.append(column.title)
    cells.append([_text(value, column.form) for value in values])
  rows = [*zip(*cells, strict=True)]
  return Table(
    caption="Results on the evaluation split",
    columns=columns,
    rows=rows,
    numbers=range(1, len(columns)),
    best=best,
  )


def _results(run: RunFacts) -> dict[Column, Any]:
  """The value of each column; None where it is unknown."""
  measured = run.measured
  scores = run.scores
  details = measured.outcome.details if measured else {}
  values = Split.EVAL.scores({**scores, **details})
  _, rates = run.curve(Split.TRAIN.key("images_per_second"))
  columns: dict[Column, Any] = {}
  for metric in run.task.scores.metrics if run.task else ():
    choose = {True: max, False: min, None: None}[metric.higher_is_better]
    column = Column(metric.label, metric.format, choose)
    columns[column] = values.get(metric.key)
  best_step, _ = run.best or (None, "")
  rate = float(np.median(rates)) if rates else None
  num_parameters = measured.num_parameters if measured else None
  return columns | {
    Column("at step", "{:,}"): scores.get("step"),
    Column("best step", "{:,}"): best_step,
    Column("loss", "{:z.4f}", min): values.get("loss"),
    Column("parameters", "{:,}"): num_parameters,
    Column("images/s (median)", speed): rate,
  }


def differences(
  names: list[str], runs: Sequence[RunFacts], *, mark: bool = True
) -> Table | None:
  """The configuration keys that differ between the runs; None if none do.

  The best score is marked only if `mark`.
  """
  named_runs = zip(names, runs, strict=True)
  pairs = [(name, run) for name, run in named_runs if run.config]
  # A key that was added after a run has, for that run, its default value.
  configs = [defaults() | run.config for _, run in pairs]
  keys = sorted({key for config in configs for key in config})
  rows = [
    [key, *(_value(config.get(key, _ABSENT)) for config in configs)]
    for key in keys
  ]
  different = [row for row in rows if len({*row[1:]}) > 1]
  if not different:
    return None
  best = set()
  metrics = {run.task.scores.metric for _, run in pairs if run.task}
  if len(metrics) == 1:
    (metric,) = metrics
    scores = [run.score for _, run in pairs]
    known = {score for score in scores if score is not None}
    if mark and len(known) > 1:
      highest = max(known)
      best = {(0, n) for n, score in enumerate(scores, 1) if score == highest}
    row = [_text(score, metric.format) for score in scores]
    different.insert(0, [metric.label, *row])
  columns = ["key", *(name for name, _ in pairs)]
  return Table("What differs between the runs", columns, different, best=best)


def starts(run: RunFacts) -> Table | None:
  """A table of when and where the run was started; None if not recorded."""

  def row(start: dict[str, Any]) -> list[str]:
    """The cells for a row of `starts.jsonl`."""
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
  """A table of what took the time since the first start; None if unknown."""
  spent = time_spent(run.rows, run.starts)
  if spent is None:
    return None
  total = sum(spent.values())
  rows = [
    [work, clock(share * total), f"{share:.1%}"]
    for work, share in shares(spent)
  ]
  return Table("Where the time went", ["work", "time", "share"], rows, [1, 2])


def facts(run: RunFacts) -> list[Table]:
  """How the run was started and configured, as far as it is known."""
  default = defaults()
  changed = {k: v for k, v in run.config.items() if v != default.get(k)}
  differs = "Keys that differ from their defaults", changed
  tables = [starts(run), time(run)]
  for name, keys in (differs, ("Every key of the configuration", run.config)):
    rows = [[key, _value(value)] for key, value in keys.items()]
    tables.append(Table(name, ["key", "value"], rows) if rows else None)
  return [table for table in tables if table]


def evaluation(measured: Measured) -> list[Table]:
  """The scores of each class or target, and what else the task has."""
  counts = measured.dataset.counts if measured.dataset else None
  return [
    Table(caption, columns, rows, _numbers(rows))
    for caption, (columns, rows) in measured.outcome.tables(counts)
  ]


def _numbers(rows: Sequence[Sequence[str]]) -> list[int]:
  """The columns, except the first, whose cells are all numbers or dashes."""
  number = re.compile(r"-?[\d,.]+%?|[-–]|nan|inf")
  columns = enumerate(zip(*rows, strict=True))
  return [n for n, cells in columns if n and all(map(number.fullmatch, cells))]


def sizes(measured: Measured) -> Table | None:
  """Sizes of the photographs of both splits, or None if they are unknown."""
  if measured.dataset is None:
    return None

  def row(name: str, split: Sizes) -> list[str]:
    """The cells for a split, under the columns below."""
    by_area = sorted(split.sides, key=math.prod)
    texts = [f"{w:,} x {h:,}" for w, h in by_area] or [_ABSENT]
    weight = float(np.median(split.weights)) if split.weights else None
    return [
      name,
      f"{split.examples:,}",
      f"{len(split.sides):,}",
      texts[0],
      texts[len(texts) // 2],
      texts[-1],
      _text(weight, _weight),
    ]

  columns = ["split", "images", "looked at"]
  columns += ["smallest", "median", "largest", "median file"]
  data = measured.dataset
  rows = [row("training", data.train), row("evaluation", data.evaluation)]
  return Table("Photographs, in pixels", columns, rows, range(1, 7))


def _weight(size: float) -> str:
  """A number of bytes in words."""
  return f"{size:,.0f} bytes" if size < 1000 else f"{size / 1000:,.0f} kB"


def _text(value: Any, form: str | Callable[[float], str]) -> str:
  """A number as text, or a dash in place of None and NaN."""
  if not _is_number(value):
    return _ABSENT
  return form.format(value) if isinstance(form, str) else form(value)


def _is_number(value: Any) -> bool:
  return value is not None and not math.isnan(value)


def _value(value: Any) -> str:
  """A configuration value as text: strings unchanged, all else as JSON."""
  if value is None:
    return "not set"
  return value if isinstance(value, str) else json.dumps(value)
