"""Runs the rows of a study, and collects what they found."""

import functools
import io
import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from vit_jax.data.settings import EVALUATED_FIELDS
from vit_jax.run import build
from vit_jax.run.experiments.study_file import (
  Study,
  changed,
  csv_text,
  open_study,
)
from vit_jax.runtime import extras, restarts
from vit_jax.runtime.display import Display, Split, parse
from vit_jax.runtime.files import read_regular
from vit_jax.runtime.meter import DIVERGED
from vit_jax.runtime.settings import flat, to_dict
from vit_jax.tasks.finite import comparable
from vit_jax.tasks.task import Task
from vit_jax.workdir.records import read_metrics
from vit_jax.workdir.rows import replace

_RATE = "optimizer.peak_lr"  # The key that `select` chooses.
_RESTARTS = 1  # The most restarts of a run without a new checkpoint.
_MOST_RESULT = 2**24  # Bytes of a row's settings and metrics.
_STOPPED = (130, 143)  # Exit codes after Ctrl-C and SIGTERM.
_FOLDERS = ("data.root", "data.dir")  # They may have moved, or be others.
# The settings that do not change a run's result begin with these.
_PLACES = (
  *_FOLDERS,
  "data.data_dir",
  "loader.",
  "fewshot.data.data_dir",
)
# The splits whose scores are collected, and their names in figures.
_SAID = {
  Split.EVAL: "",
  Split.FEW_SHOT: "few-shot ",
  Split.NEIGHBOURS: "k-NN ",
  Split.FOLDS: "folds ",
  Split.TEST: "test ",
}


class _Stopped(Exception):
  """Raised when a row was told to stop; `args` holds its exit code."""


def run_study(
  file: str,
  workdir: str,
  *,
  changes: Sequence[str] = (),
  index: int | None = None,
  select: bool = False,
) -> int:
  """Runs a study's rows, writes `study.csv` and figures, and shows the scores.

  The arguments are those of the command. Returns the exit code: 1 if a row
  failed, 128 + signal if the study was told to stop. Raises ValueError if the
  file, a row's settings or the arguments are invalid.
  """
  study = open_study(file, workdir, changes)
  display = Display()
  names = [*study.rows]
  if index is not None and not 1 <= index <= len(names):
    raise ValueError(f"--index={index}: the rows are 1 to {len(names)}.")
  failed, finished = [], []
  for number, name in enumerate(names, start=1):
    if index not in (None, number):
      continue
    display.note(f"Row {number} of {len(names)}: {name}")
    try:
      result = (_select_rate if select else _run)(study, name, display)
    except _Stopped as stopped:
      display.note("Stopped; the same command goes on with this row.")
      return stopped.args[0]
    if result is None:
      failed.append(name)
    finished = collect(study, display)
  _show_best(study, finished, display)
  if failed:
    display.note(f"Failed: {', '.join(failed)}. The same command tries again.")
  return 1 if failed else 0


def collect(study: Study, display: Display) -> list[dict[str, Any]]:
  """Writes `study.csv` and the figures; returns the finished rows.

  A row has its name as "row", its values in the study, and its metrics by key.
  If no row is finished, nothing is written.
  """
  rows = []
  for row, values in study.rows.items():
    result = _read(study.workdir / row)
    if result is not None:
      rows.append({"row": row, **values, **result["metrics"]})
  if not rows:
    return rows
  path = study.workdir / "study.csv"
  replace(path, csv_text([*rows, *means(study, rows)]).encode())
  display.note(f"{len(rows)} of {len(study.rows)} rows are in {path}.")
  paper = getattr(study.module, "PAPER", {})
  figures = getattr(study.module, "FIGURES", {})
  shown = {n: f for n, f in figures.items() if any(f["y"] in r for r in rows)}
  try:
    chart = extras.load("vit_jax.inspection.study_chart", "figures")
  except ValueError as error:
    if shown:
      display.note(f"No picture: {error}.")
    return rows
  about = (study.module.__doc__ or "").strip().partition("\n")[0]
  metrics = build.task_of(next(iter(study.settings.values()))).scores.metrics
  labels = {
    split.key(metric.key): prefix + metric.label
    for split, prefix in _SAID.items()
    for metric in metrics
  }
  for name, columns in shown.items():
    picture = io.BytesIO()
    options = {"title": about.removesuffix("."), **columns}
    options["names"] = labels | options.get("names", {})
    figure = chart.study_figure(rows, paper, **options)
    figure.savefig(picture, format="png")
    replace(study.workdir / f"{name}.png", picture.getvalue())
  return rows


def _show_best(study: Study, rows: Sequence[Any], display: Display) -> None:
  """Shows the score of each row, and which row is best, if one stands out."""
  task = build.task_of(next(iter(study.settings.values())))
  metric, key = task.scores.metric, task.scores.key
  if scored := [row for row in rows if comparable(row.get(key)) > -math.inf]:
    texts = [(row["row"], metric.format.format(row[key])) for row in scored]
    display.table(("row", metric.label), texts)
    if len({_evaluated_on(study, row) for row in scored}) > 1:
      display.note(
        "The rows were evaluated on different images or labels: compare only "
        "those of the same data."
      )
      return
    scored.sort(key=lambda row: -row[key])
    alike = task.scores.alike([(row["row"], row) for row in scored])
    best = f"Best: {scored[0]['row']} with {metric.text(scored[0])}."
    display.note(alike or best)


def _evaluated_on(study: Study, row: Mapping[str, Any]) -> tuple[Any, ...]:
  """The data on which a row was evaluated, equal for comparable rows."""
  data = study.settings[row["row"]].data
  values = [getattr(data, field) for field in EVALUATED_FIELDS]
  return (*values, row.get(Split.EVAL.key("examples")))


def means(study: Study, rows: Sequence[Mapping]) -> list[dict[str, Any]]:
  """Rows with the means over groups of rows, if `MEANS` asks for them.

  `MEANS` is explained in `study_file`. A group that lacks a row has no mean.
  """
  columns = getattr(study.module, "MEANS", None)
  if columns is None:
    return []
  key = columns["of"]
  varying = (columns["over"], columns["groups"])
  scores = {row["row"]: row[key] for row in rows if row.get(key) is not None}
  # The names of rows, by their group and by the values that they share.
  members: dict[tuple, list[str]] = {}
  for name, values in study.rows.items():
    same = tuple((k, v) for k, v in values.items() if k not in varying)
    for group in (values[columns["groups"]], "all"):
      members.setdefault((group, same), []).append(name)
  return [
    {
      "row": f"mean of {len(names)}",
      columns["groups"]: group,
      **dict(same),
      key: sum(scores[name] for name in names) / len(names),
    }
    for (group, same), names in members.items()
    if all(name in scores for name in names)
  ]


def held_out(split: str, share: float) -> tuple[str, str]:
  """The two parts of a training split, to train and to choose on.

  The last examples of each whole TFDS split, such as "train" or
  "train+validation", are held out. Raises ValueError for a part of a split, or
  a share that is not a number of whole percents from 1 to 99.
  """
  percent = round(100 * share)
  if "[" in split or not 0 < percent < 100 or abs(percent - 100 * share) > 1e-6:
    raise ValueError(
      f"--select cannot hold out a share of {share:g} of "
      f"train_split={split!r}: the split must be whole, such as train or "
      "train+validation, and the share a whole number of percent, such as 0.1."
    )
  names = split.split("+")
  training = "+".join(f"{name}[:{100 - percent}%]" for name in names)
  return training, "+".join(f"{name}[{100 - percent}%:]" for name in names)


def _select_rate(study: Study, row: str, display: Display) -> dict | None:
  """Tries a row's learning rates, then trains with the best.

  Returns the result of the last training; None if a training failed, or no
  rate gives a score.
  """
  rates, parts = _choices(study, row)
  task = build.task_of(study.settings[row])
  found = {}
  for rate in rates:
    changes = {
      _RATE: rate,
      "data.train_split": parts[0],
      "data.eval_split": parts[1],
    }
    result = _run(study, row, display, changes, f"{row}.select_{rate:g}")
    if result is None:
      return None
    found[rate] = result["metrics"]
  scores = {
    rate: comparable(m.get(task.scores.key)) for rate, m in found.items()
  }
  if all(map(math.isinf, scores.values())):
    display.note(f"{row}: none of its learning rates gives a score.")
    return None
  best, *others = sorted(rates, key=lambda rate: -scores[rate])
  tried = ", ".join(
    f"{rate:g}: {task.scores.metric.format.format(value)}"
    for rate, value in scores.items()
  )
  alike = others and task.scores.verdict(found[best]).is_like(
    task.scores.verdict(found[others[0]])
  )
  says = "is best"
  if alike:
    says = f"is taken, though {others[0]:g} cannot be told apart from it"
  display.note(f"Learning rate {best:g} {says} on {parts[1]} ({tried}).")
  return _run(study, row, display, {_RATE: best})


def _choices(study: Study, row: str) -> tuple[list[float], tuple[str, str]]:
  """A row's learning rates to try, and its splits to train and to choose on.

  Raises ValueError if the study does not give them, if the images are in a
  folder, if a rate is set for all rows, or as `held_out` does.
  """
  get = getattr(study.module, "get_choices", None)
  if get is None:
    raise ValueError(
      f"--select: {study.file} has no get_choices(row), which returns the "
      "learning rates and the share to hold out."
    )
  if _RATE in study.changes:
    raise ValueError(
      f"--set={_RATE} has no effect with --select, which chooses the rate: "
      "leave out one of the two."
    )
  _, _, argument = study.configs[row].partition(":")
  rates, share = get(argument)
  data = study.settings[row].data
  if data.root:
    raise ValueError(
      f"--select takes its images from a TFDS split or the digits, not from "
      f"the folder {data.root}: run the study on a part of it instead."
    )
  return rates, held_out(data.train_split, share)


def _run(
  study: Study,
  row: str,
  display: Display,
  changes: Mapping[str, Any] | None = None,
  folder: str | None = None,
) -> dict | None:
  """Trains a row unless it is finished; its result, or None if it failed.

  `changes` are values of further keys, and `folder` is the run's folder in that
  of the study, by default the row's name. Raises _Stopped if the run was told
  to stop, and ValueError if it is finished, with other settings.
  """
  workdir = study.workdir / (folder or row)
  changes = {**study.changes, **(changes or {})}
  settings = flat(to_dict(changed(study.settings[row], changes)))
  fixed = {k: v for k, v in settings.items() if not k.startswith(_PLACES)}
  current = json.loads(json.dumps(fixed))  # As `_read` returns it.
  folders = {key: settings[key] for key in _FOLDERS}
  result = _read(workdir)
  if result is None:
    command = (
      sys.executable,
      "-m",
      "vit_jax.train",
      f"--config={study.configs[row]}",
      f"--workdir={workdir}",
      *(f"--config.{key}={value}" for key, value in changes.items()),
    )
    newest = functools.partial(restarts.newest_step, str(workdir))
    code = restarts.supervise(_RESTARTS, newest, command)
    if code in _STOPPED:
      raise _Stopped(code)
    if code == DIVERGED:  # Its metrics are a result, too.
      display.note(f"{workdir.name} has diverged.")
    elif code:
      display.note(f"{workdir.name} failed with exit code {code}.")
      return None
    metrics = _metrics(workdir, build.task_of(study.settings[row]))
    result = {"settings": current, "folders": folders, "metrics": metrics}
    replace(workdir / "row.json", json.dumps(result, indent=1).encode())
    return result
  old = result["settings"]
  differing = (k for k, v in current.items() if old.get(k, v) != v)
  if key := next(differing, ""):
    raise ValueError(
      f"{workdir} is finished, with {key}={old[key]!r}, and the row now has "
      f"{current[key]!r}: remove that folder or give another --workdir."
    )
  text = f"{workdir.name} is finished."
  for key, folder_now in folders.items():
    before = result["folders"].get(key, folder_now)
    if before != folder_now:
      text += (
        f" Its images were those of {key}={before}, and {folder_now} was not "
        f"read: if it has other images, remove {workdir}."
      )
  display.note(text)
  return result


def _read(workdir: epath.Path) -> dict | None:
  """The result of a row that is finished; None if it is not.

  Raises ValueError if its file holds something else.
  """
  path = workdir / "row.json"
  if not path.exists():
    return None
  try:
    # Results of earlier versions have no "folders".
    result = {"folders": {}} | json.loads(read_regular(path, _MOST_RESULT))
    parts = ("settings", "folders", "metrics")
    if all(isinstance(result[key], dict) for key in parts):
      return result
  except (ValueError, LookupError, TypeError, RecursionError):
    pass
  raise ValueError(
    f"{path} does not hold a row's result: remove it, and the result is read "
    "from the run again."
  )


def _metrics(workdir: epath.Path, task: Task) -> dict[str, Any]:
  """The latest loss and scores of a run by key, and its last step as "step"."""
  measured = ("loss", *(metric.key for metric in task.scores.metrics))

  def is_kept(key: str) -> bool:
    """Whether the study shows the metric of this key."""
    split, metric = parse(key)
    if split is Split.TRAIN:
      return metric.startswith(measured)
    return split in _SAID

  metrics: dict[str, Any] = {}
  for row in read_metrics(workdir).rows:
    scores = {k: v for k, v in row.items() if is_kept(k)}
    metrics |= {"step": row["step"], **scores}
  # If the last score is NaN, the row has no score: no earlier one replaces it.
  return {k: v for k, v in metrics.items() if isinstance(v, int | float)}
