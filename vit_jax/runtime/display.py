"""Metrics by their keys, and how a run shows them and its progress.

A key, such as "eval/top1", is the split and the metric's name. Files, charts
and users' own tasks have the keys as text. Only this module knows how a key is
written; all others make and read keys through it.
"""

import contextlib
import dataclasses
import enum
import errno
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich import progress
from rich.cells import cell_len
from rich.console import Console
from rich.table import Column

from vit_jax.runtime.printable import counted, fit, printable_lines

Track = Callable[[Iterable[Any], str, int], Iterable[Any]]
"""A function from items, words on the work and their number to the items.

It may show how many of them are done, as `Display.track` does.
"""

# The end of the name of a score that is measured without averaged parameters.
_PLAIN = "_not_averaged"
_NARROW = 100  # Terminals of fewer characters have no room for a bar.
_BETWEEN = "/"


class Split(enum.StrEnum):
  """The data that a metric was measured on."""

  TRAIN = "train"  # The steps of training since the last row.
  EVAL = "eval"
  TEST = "test"
  FEW_SHOT = "fewshot"  # A linear classifier on few examples of each class.
  NEIGHBOURS = "knn"  # The classes of the nearest training examples.
  START = "start"  # The features at the start of the run, without labels.
  FOLDS = "folds"  # Training examples, by probes that were fitted to others.

  def key(self, metric: str) -> str:
    """The key of a metric of this split: "eval/top1" for "top1"."""
    return f"{self.value}{_BETWEEN}{metric}"

  def keyed(self, scores: Mapping[str, Any]) -> dict[str, Any]:
    """A new row of `scores`, which are by metric, by the keys of this split."""
    return {self.key(metric): value for metric, value in scores.items()}

  def scores(self, row: Mapping[str, Any]) -> dict[str, Any]:
    """The scores of this split in a row, by metric: "top1" for "eval/top1"."""
    keys = ((parse(key), value) for key, value in row.items())
    return {key.metric: value for key, value in keys if key.split is self}


_SPLITS = {split.value: split for split in Split}


class MetricKey(NamedTuple):
  """A key in its two parts.

  If a key is no metric of a split, such as "step", `split` is None and `metric`
  is the whole key.
  """

  split: Split | None
  metric: str


def parse(key: str) -> MetricKey:
  """The split and the metric of a key; the split may be None."""
  name, between, metric = key.partition(_BETWEEN)
  split = _SPLITS.get(name) if between else None
  return MetricKey(None, key) if split is None else MetricKey(split, metric)


def move_split(
  row: Mapping[str, Any], old: Split, new: Split
) -> dict[str, Any]:
  """A new row, with the metrics of one split as those of another.

  All other keys stay as they are.
  """
  pairs = ((key, parse(key), value) for key, value in row.items())
  return {
    new.key(parsed.metric) if parsed.split is old else key: value
    for key, parsed, value in pairs
  }


def untracked(items: Iterable[Any], what: str, total: int) -> Iterable[Any]:
  """Returns the items: a `Display.track` that shows nothing."""
  del what, total
  return items


@dataclasses.dataclass(frozen=True)
class Metric:
  """A metric of a task: how it is named and shown."""

  key: str  # Its name; `Split.key` puts the split before it.
  label: str
  format: str = "{:.2%}"
  higher_is_better: bool | None = True  # None if it is neither good nor bad.
  # The text before the value in a line; the label by default.
  words: str | None = None
  # Whether it is the share of the examples that were answered correctly.
  of_examples: bool = False
  # Whether each example counts once, so that a value on few examples is
  # uncertain. It is False if pixels or patches are counted.
  by_example: bool = False
  # The meaning of a value below 0, for metrics that may have one.
  below_zero: str = ""
  # Why a value may be NaN although the model's answers are numbers, and what to
  # do about it.
  undefined: str = ""

  def __post_init__(self):
    if self.of_examples:
      object.__setattr__(self, "by_example", True)

  @property
  def is_percentage(self) -> bool:
    """Whether it is shown in percent."""
    return "%" in self.format

  def text(
    self, values: Mapping[str, Any], kind: str = Split.EVAL
  ) -> str | None:
    """The metric in words, as "top-1 98.33%"; None if it was not measured.

    `kind` is the split whose value is taken from `values`.
    """
    value = values.get(Split(kind).key(self.key))
    if value is None:
      return None
    return f"{self.words or self.label} {self.format.format(value)}"


class _Console(Console):
  """A console that raises BrokenPipeError, for `command.until_closed`."""

  def on_broken_pipe(self) -> None:
    raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


class Display:
  """A header, live progress, evaluation rows and a closing summary.

  On a terminal, progress is one line that is updated; elsewhere it is a plain
  line for each report. Only the first host is `active`; the others print
  nothing.
  """

  def __init__(self, active: bool = True):
    terminal = sys.stdout.isatty()
    self._console = _Console(
      quiet=not active,
      highlight=False,
      markup=False,  # A path may contain brackets.
      # Notebooks get plain lines, though their kernels ask for colours.
      force_terminal=terminal,
      force_jupyter=False,
      width=None if terminal else 120,
    )
    self._active, self._live = active, active and terminal
    self._progress: progress.Progress | None = None
    self._copy: Callable[[str], None] | None = None
    # The reports since the last evaluation, with their number of steps.
    self._trained: list[tuple[int, dict[str, float]]] = []

  def copy_to(self, write: Callable[[str], None]) -> None:
    """Passes every line to `write`, as for a log file, and ignores OSError."""
    self._copy = write if self._active else None

  @property
  def width(self) -> int:
    """Characters in a line of the terminal."""
    return self._console.width

  def header(self, rows: Iterable[tuple[str, str]]) -> None:
    """Shows what is about to run, with one name and value per line."""
    for name, value in rows:
      self.note(f"{name:<8} {value}")

  def table(self, names: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Shows rows below the names of their columns, as an aligned table."""
    for line in table_lines([names, *rows]):
      self.note(line)

  def expect(
    self, last_step: int, epoch_steps: float = 0, metrics: Sequence[Metric] = ()
  ) -> None:
    """Sets the run's last step and the metrics, before anything is shown.

    With `epoch_steps`, the steps of an epoch, evaluations show the epoch.
    """
    self._metrics, self._epoch_steps = metrics, epoch_steps
    self._last_step = last_step

  def start(self, first_step: int) -> None:
    """Starts showing the progress of the steps after `first_step`."""
    self._reported = first_step
    # Step and time of the first report, after which nothing is compiled.
    self._first: tuple[int, float] | None = None
    if self._live:
      self._progress = self._bars(transient=False)
      self._progress.add_task(
        "step",
        total=self._last_step,
        completed=first_step,
        report="compiling ...",
      )
      self._progress.start()
    else:
      self.note("compiling ...")

  def step(self, step: int) -> None:
    """Advances the bar without a report."""
    if self._progress is not None:
      _advance(self._progress, step)

  def report(
    self, step: int, metrics: dict[str, float], *, early: bool = False
  ) -> None:
    """Shows the latest training metrics, means since the last report.

    If the report is `early`, the next one is of these steps as well.
    """
    if not early:
      self._trained.append((step - self._reported, metrics))
      self._reported = step
    values = Split.TRAIN.scores(metrics)
    text = f"loss {values['loss']:z.4f}{self._first_of(metrics, Split.TRAIN)}"
    text += f"  lr {values['learning_rate']:.2e}"
    if "images_per_second" in values:
      text += f"  {speed(values['images_per_second'])} images/s"
    if images := values["skipped_images"]:
      text += f"  {counted(images, 'unreadable image')} replaced"
    if steps := values["skipped_steps"]:
      text += f"  {counted(steps, 'step')} not finite, not applied"
    line = f"step {step:>7,}/{self._last_step:,}  {text}{self._time_left(step)}"
    if self._progress is None:
      self.note(line)
    else:
      _advance(self._progress, step, report=text)
      self._copy_line(line)

  def evaluation(self, step: int, metrics: dict[str, float]) -> None:
    """Shows an evaluation and the training since the last one in a line."""
    line = f"eval {step:>7,}/{self._last_step:,}  "
    if self._epoch_steps:
      line += f"epoch {step / self._epoch_steps:,.1f}  "
    line += evaluation_text(metrics, self._metrics)
    if self._trained:
      line += f"  in training: {self._training_text()}"
    self.note(line)
    self._trained.clear()

  def _training_text(self) -> str:
    """The mean loss and score since the last evaluation, as text."""
    total = sum(steps for steps, _ in self._trained)
    names = ("loss", *(metric.key for metric in self._metrics))
    means = {
      key: sum(steps * row[key] for steps, row in self._trained) / total
      for key in map(Split.TRAIN.key, names)
      if key in self._trained[0][1]
    }
    loss = means[Split.TRAIN.key("loss")]
    return f"loss {loss:z.4f}{self._first_of(means, Split.TRAIN)}"

  def _first_of(self, values: Mapping[str, float], split: Split) -> str:
    """The first metric that a split has, in words, after a gap; "" for none."""
    texts = (metric.text(values, split) for metric in self._metrics)
    return next((f"  {text}" for text in texts if text), "")

  def note(self, text: str, whole: bool = False) -> None:
    """Prints a line, or several, on standard output.

    On a terminal, lines that are too wide are wrapped, unless `whole` is set.
    """
    text = printable_lines(text)
    shown = text if whole else fit(text, sys.stdout)
    self._console.print(shown, soft_wrap=True)
    self._copy_line(text)

  def track(self, items: Iterable[Any], what: str, total: int) -> Iterable[Any]:
    """Yields the items, and shows on a terminal how many of them are done.

    `what` is what is done with them, such as "evaluating".
    """
    return self._track_live(items, what, total) if self._live else items

  def _track_live(
    self, items: Iterable[Any], what: str, total: int
  ) -> Iterator:
    """Yields the items, with a progress line for them."""
    bars = self._progress or self._bars(transient=True)
    if self._progress is None:
      bars.start()
    task = bars.add_task(what, total=total, report="")
    try:
      for item in items:
        yield item
        bars.advance(task)
    finally:
      bars.remove_task(task)
      if self._progress is None:
        bars.stop()

  def stop(self) -> None:
    """Stops showing the progress, and restores the terminal."""
    if self._progress is not None:
      self._progress.stop()
      self._progress = None

  def _bars(self, transient: bool) -> progress.Progress:
    """Progress lines, which are cut off rather than wrapped."""
    bar = [] if self.width < _NARROW else [progress.BarColumn(bar_width=20)]
    report = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    bars = progress.Progress(
      console=self._console, expand=True, transient=transient
    )
    bars.columns = (
      progress.TextColumn(
        "{task.description} {task.completed:,.0f}/{task.total:,.0f}"
      ),
      *bar,
      progress.TimeRemainingColumn(),
      progress.TextColumn("{task.fields[report]}", table_column=report),
    )
    return bars

  def _copy_line(self, line: str) -> None:
    """Passes a line to the function that `copy_to` was given, if any."""
    if self._copy is not None:
      with contextlib.suppress(OSError):
        self._copy(line)

  def _time_left(self, step: int) -> str:
    """The time left; nothing at the first report, which has no speed yet."""
    now = time.perf_counter()
    if self._first is None:
      self._first = step, now
      return ""
    first, start = self._first
    seconds = (now - start) / max(1, step - first) * (self._last_step - step)
    return f"  {clock(seconds)} left"


def _advance(bars: progress.Progress, step: int, **fields: Any) -> None:
  """Sets the bar of the steps, which is the first."""
  bars.update(bars.task_ids[0], completed=step, **fields)


def table_lines(rows: Sequence[Sequence[str]]) -> list[str]:
  """Rows as lines whose columns are aligned."""
  widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]

  def line(row: Sequence[str]) -> str:
    cells = zip(row, widths, strict=True)
    return "  ".join(c + " " * (width - cell_len(c)) for c, width in cells)

  return [line(row).rstrip() for row in rows]


def evaluation_text(
  values: Mapping[str, float], metrics: Sequence[Metric]
) -> str:
  """An evaluation in one line; `values` are its metrics, by their keys."""
  scores = Split.EVAL.scores(values)
  few_shot = Split.FEW_SHOT.scores(values)
  skipped = scores["skipped_images"]
  unreadable = ""
  if skipped:
    unreadable = f", {counted(skipped, 'unreadable image')} skipped"
  parts = [f"loss {scores['loss']:z.4f}"]
  parts += [text for metric in metrics if (text := metric.text(values))]
  parts.append(f"({counted(scores['examples'], 'example')}{unreadable})")
  for metric in metrics:
    plain = dataclasses.replace(metric, key=f"{metric.key}{_PLAIN}")
    if text := plain.text(values):
      parts.append(f"weights not averaged: {text}")
  if (top1 := few_shot.get("top1")) is not None:
    parts.append(f"few-shot top-1 {top1:.2%}")
  if (token := few_shot.get("top1_class_token")) is not None:
    parts.append(f"(by the class token {token:.2%})")
  if (nearest := values.get(Split.NEIGHBOURS.key("top1"))) is not None:
    parts.append(f"k-NN top-1 {nearest:.2%}")
  if (kept := values.get(Split.START.key("kept"))) is not None:
    count = values[Split.START.key("neighbours")]
    parts.append(f"neighbours kept {kept:.2%} (of {count} of each image)")
  return "  ".join(parts)


def clock(seconds: float) -> str:
  """Formats a duration as hours, minutes and seconds: 1:02:03 or 2:03."""
  minutes, seconds = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  start = f"{hours}:{minutes:02}" if hours else f"{minutes}"
  return f"{start}:{seconds:02}"


def speed(images_per_second: float) -> str:
  """Formats images per second, with two digits if they are few.

  >>> from vit_jax.runtime.display import speed
  >>> speed(1234.5), speed(9.37), speed(0.272)
  ('1,234', '9.4', '0.27')
  """
  form = ",.0f" if images_per_second >= 10 else ".2g"
  return format(images_per_second, form)
