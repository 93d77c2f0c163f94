"""The page of a report: one HTML file that needs nothing else, not even a net.

`report.html.jinja` is its layout. Every picture is in the file, with a text
that stands for it; what is a table is a table.
"""

import datetime
import json
import math
from collections.abc import Sequence
from typing import Any

import jinja2
import numpy as np

from vit_jax import charts, report_pictures
from vit_jax.report_pictures import Picture
from vit_jax.report_run import Measured, RunFacts, changed_keys, defaults

MOST_BYTES = 5_000_000
_MOST_ROWS = 100  # Of the table of classes.
_CONFUSED = 10  # Pairs of classes listed.
_ABSENT = "–"
_KINDS = {
  "surest": (
    "Surest right answers",
    "The highest probabilities that were given to what is true.",
  ),
  "nearest": (
    "Nearest misses",
    "Mistakes of the lowest loss: the true class came close.",
  ),
  "worst": (
    "Worst mistakes",
    "The highest losses. Look for wrong labels here first.",
  ),
}
# Metric, title, and how the chart is drawn.
_CURVES: Sequence[tuple[str, str, dict[str, bool]]] = (
  ("train/loss", "Training loss", {}),
  ("eval/loss", "Evaluation loss", {}),
  ("eval/top1", "Evaluation top-1", {"percent": True}),
  ("fewshot/top1", "Few-shot top-1", {"percent": True}),
  ("train/learning_rate", "Learning rate", {}),
  ("train/images_per_second", "Images a second", {}),
  ("train/gradient_norm", "Gradient norm", {"logarithmic": True}),
)


def page(runs: Sequence[RunFacts]) -> str:
  """The HTML of a report on some runs.

  Where it has more than `MOST_BYTES`, pictures of examples and embeddings are
  left out, from the last run on, until it fits; charts and tables never are.
  """
  names = _names([run.workdir for run in runs])
  environment = jinja2.Environment(
    loader=jinja2.PackageLoader("vit_jax", ""),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  template = environment.get_template("report.html.jinja")
  now = datetime.datetime.now().astimezone()
  several = len(runs) > 1
  context = {
    "title": f"{len(runs)} runs compared" if several else f"Run {names[0]}",
    "date": f"{now:%Y-%m-%d %H:%M}",
    "results": _results(names, runs),
    "curves": _curves(names, runs),
    "differences": _differences(names, runs) if several else None,
  }
  sections = [_section(n, run) for n, run in zip(names, runs, strict=True)]
  html = template.render(**context, runs=sections)
  last = len(sections)
  while len(html.encode()) > MOST_BYTES and last:
    last -= 1
    sections[last] = _without_pictures(sections[last], alone=not several)
    html = template.render(**context, runs=sections)
  return html


def _names(workdirs: Sequence[str]) -> list[str]:
  """What tells workdirs apart: their last parts, or as many as it takes."""
  parts = [w.rstrip("/").split("/") for w in workdirs]
  for count in range(1, max(map(len, parts)) + 1):
    names = ["/".join(part[-count:]) for part in parts]
    if len({*names}) == len(names):
      return names
  return [f"{number}: {w}" for number, w in enumerate(workdirs, 1)]


def _results(names: list[str], runs: Sequence[RunFacts]) -> dict[str, Any]:
  """The table that compares the runs."""

  def row(name: str, run: RunFacts) -> list[str]:
    measured = run.measured
    scores = _last_evaluation(run)
    if measured is not None:
      scores = measured.metrics | {"step": measured.step}
    rates = run.curve("train/images_per_second")[1]
    return [
      name,
      _text(scores.get("step"), "{:,}"),
      _text(scores.get("eval/top1"), "{:.2%}"),
      _text(scores.get("eval/top5"), "{:.2%}"),
      _text(scores.get("eval/loss"), "{:.4f}"),
      _text(measured and measured.tally.calibration_error(), "{:.2%}"),
      _text(measured and measured.num_parameters, "{:,}"),
      _text(float(np.median(rates)) if rates else None, "{:,.0f}"),
    ]

  columns = ["run", "at step", "top-1", "top-5", "loss", "calibration error"]
  columns += ["parameters", "images/s (median)"]
  return {
    "caption": "Results on the evaluation split",
    "columns": columns,
    "rows": [row(n, run) for n, run in zip(names, runs, strict=True)],
    "numbers": range(1, len(columns)),
  }


def _last_evaluation(run: RunFacts) -> dict[str, Any]:
  evaluated = [row for row in run.rows if "eval/top1" in row]
  return evaluated[-1] if evaluated else {}


def _curves(names: list[str], runs: Sequence[RunFacts]) -> list[Picture]:
  pictures = []
  for key, title, how in _CURVES:
    curves = {n: run.curve(key) for n, run in zip(names, runs, strict=True)}
    curves = {name: curve for name, curve in curves.items() if curve[0]}
    if not curves:
      continue
    form = "{:.2%}" if how.get("percent") else "{:.4g}"
    ends = "; ".join(
      f"{name}: from {form.format(values[0])} at step {steps[0]:,} to "
      f"{form.format(values[-1])} at step {steps[-1]:,}"
      for name, (steps, values) in curves.items()
    )
    figure = charts.curves_figure(curves, title, **how)
    pictures.append(report_pictures.svg(figure, f"{title} by step. {ends}."))
  return pictures


def _differences(
  names: list[str], runs: Sequence[RunFacts]
) -> dict[str, Any] | None:
  """The table of configuration keys that are not the same in all runs."""
  known = [(n, r) for n, r in zip(names, runs, strict=True) if r.config]
  # A key that is younger than a run was then what its default is.
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
  return {
    "caption": "Configuration keys that differ",
    "columns": ["key", *(name for name, _ in known)],
    "rows": different,
  }


def _section(name: str, run: RunFacts) -> dict[str, Any]:
  """What the template shows of one run."""
  commands = dict.fromkeys(s["command"] for s in run.starts if s["command"])
  section: dict[str, Any] = {
    "name": name,
    "commands": [*commands],
    "starts": _starts(run.starts) if run.starts else None,
    "changed": _config(
      "Keys that are not the defaults", changed_keys(run.config)
    ),
    "config": _config("Every key of the configuration", run.config),
    "problem": run.problem,
    "metrics": None,
    "left_out": None,
  }
  if run.measured is not None:
    section |= _evaluation(run.measured)
  return section


def _starts(starts: list[dict[str, Any]]) -> dict[str, Any]:
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

  return {
    "caption": "Starts of the run",
    "columns": ["time", "from step", "devices", "system", "software"],
    "rows": [row(start) for start in starts],
    "numbers": [1],
  }


def _config(caption: str, config: dict[str, Any]) -> dict[str, Any] | None:
  if not config:
    return None
  rows = [[key, _value(value)] for key, value in config.items()]
  return {"caption": caption, "columns": ["key", "value"], "rows": rows}


def _evaluation(measured: Measured) -> dict[str, Any]:
  tally, names = measured.tally, measured.class_names
  groups = [
    {
      "title": title,
      "text": text,
      "examples": [
        report_pictures.example(one, names) for one in measured.examples[kind]
      ],
    }
    for kind, (title, text) in _KINDS.items()
    if measured.examples[kind]
  ]
  confused = [
    [names[label], names[answer], f"{count:,}"]
    for label, answer, count in tally.most_confused(_CONFUSED)
  ]
  return {
    "metrics": _metrics(measured),
    "charts": [
      *report_pictures.confusion(measured),
      *report_pictures.calibration(measured),
    ],
    "classes": _classes(measured),
    "confused": {
      "caption": "Commonest mistakes",
      "columns": ["class", "answer", "times"],
      "rows": confused,
      "numbers": [2],
    }
    if confused
    else None,
    "examples": groups,
    "embeddings": report_pictures.embeddings(measured),
  }


def _metrics(measured: Measured) -> dict[str, Any]:
  tally, scores = measured.tally, measured.metrics
  rows = [
    ["checkpoint", f"step {measured.step:,}"],
    ["data", measured.data_name],
    ["examples", f"{scores['eval/examples']:,}"],
    ["top-1", f"{scores['eval/top1']:.2%}"],
    ["top-5", f"{scores['eval/top5']:.2%}"],
    ["loss", f"{scores['eval/loss']:.4f}"],
    [
      "expected calibration error",
      _text(tally.calibration_error(), "{:.2%}"),
    ],
  ]
  if scores["eval/skipped_images"]:
    rows.append(["unreadable images", f"{scores['eval/skipped_images']:,}"])
  if tally.unanswered:
    rows.append(["answers that are NaN", f"{tally.unanswered:,}"])
  return {
    "caption": "Evaluation of the checkpoint",
    "columns": ["measure", "value"],
    "rows": rows,
    "numbers": [1],
  }


def _classes(measured: Measured) -> dict[str, Any]:
  """Each class's accuracy; the lowest where there are many."""
  confusion = measured.tally.pairs
  count, right = (np.zeros(len(measured.class_names), int) for _ in range(2))
  for (label, answer), times in confusion.items():
    count[label] += times
    right[label] += times if label == answer else 0
  seen = np.flatnonzero(count)
  accuracy = right / np.maximum(count, 1)
  caption = "Accuracy of each class"
  if len(seen) > _MOST_ROWS:
    caption = f"The {_MOST_ROWS} classes of the lowest accuracy"
    seen = seen[np.argsort(accuracy[seen], kind="stable")][:_MOST_ROWS]
  rows = [
    [measured.class_names[k], f"{count[k]:,}", f"{accuracy[k]:.2%}"]
    for k in seen
  ]
  return {
    "caption": caption,
    "columns": ["class", "examples", "top-1"],
    "rows": rows,
    "numbers": [1, 2],
  }


def _without_pictures(section: dict[str, Any], alone: bool) -> dict[str, Any]:
  most = f"{MOST_BYTES / 1e6:.0f} MB"
  advice = "" if alone else ": make a report of this run alone"
  return section | {
    "examples": [],
    "embeddings": [],
    "left_out": f"this file would be larger than {most}{advice}",
  }


def _text(value: Any, form: str) -> str:
  if value is None or (isinstance(value, float) and math.isnan(value)):
    return _ABSENT
  return form.format(value)


def _value(value: Any) -> str:
  """A value of the configuration: text as it is, all else as JSON."""
  if value is None:
    return "not set"
  return value if isinstance(value, str) else json.dumps(value)
