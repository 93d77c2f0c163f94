"""The page of a report: one HTML file that needs nothing else, not even a net.

`report.html.jinja` is its layout. Every picture is in the file, with a text
that stands for it; what is a table is a table.
"""

import base64
import dataclasses
import datetime
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

import jinja2
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from vit_jax import charts, figures
from vit_jax.report_run import Example, Measured, RunFacts, changed_keys

MOST_BYTES = 5_000_000
_MOST_ROWS = 100  # Of the table of classes.
_CONFUSED = 10  # Pairs of classes listed.
_LONGEST_SIDE = 256  # Pixels of a photograph.
_SMALL_SIDE = 96  # Below it pixels are shown as squares.
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


@dataclasses.dataclass(frozen=True)
class Picture:
  """An image in the page; `small` is one whose pixels are shown as squares."""

  uri: str
  alt: str
  caption: str = ""
  small: bool = False


def page(runs: Sequence[RunFacts]) -> str:
  """The HTML of a report on some runs, of `MOST_BYTES` at most.

  Runs whose pictures would make it larger go without.
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
    sections[last] = _without_pictures(sections[last])
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
    scores = run.measured.metrics if run.measured else _last_evaluation(run)
    rates = run.curve("train/images_per_second")[1]
    steps = run.rows[-1]["step"] if run.rows else None
    measured = run.measured
    return [
      name,
      _text(steps, "{:,}"),
      _text(scores.get("eval/top1"), "{:.2%}"),
      _text(scores.get("eval/top5"), "{:.2%}"),
      _text(scores.get("eval/loss"), "{:.4f}"),
      _text(measured and measured.tally.calibration_error(), "{:.2%}"),
      _text(measured and measured.num_parameters, "{:,}"),
      _text(float(np.median(rates)) if rates else None, "{:,.0f}"),
    ]

  columns = ["run", "steps", "top-1", "top-5", "loss", "calibration error"]
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
    pictures.append(_svg(figure, f"{title} by step. {ends}."))
  return pictures


def _differences(
  names: list[str], runs: Sequence[RunFacts]
) -> dict[str, Any] | None:
  """The table of configuration keys that are not the same in all runs."""
  keys = sorted({key for run in runs for key in run.config})
  rows = [[key, *(_value(run.config.get(key)) for run in runs)] for key in keys]
  different = [row for row in rows if len({*row[1:]}) > 1]
  if not different:
    return None
  return {
    "caption": "Configuration keys that differ",
    "columns": ["key", *names],
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
  rows = [[key, _value(value)] for key, value in config.items()]
  return {"caption": caption, "columns": ["key", "value"], "rows": rows}


def _evaluation(measured: Measured) -> dict[str, Any]:
  tally, names = measured.tally, measured.class_names
  drawn = [_calibration(measured)]
  if len(names) <= charts.MOST_CLASSES:
    drawn.insert(0, _confusion(measured))
  groups = [
    {
      "title": title,
      "text": text,
      "examples": [_example(e, names) for e in measured.examples[kind]],
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
    "charts": drawn,
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
    "embeddings": _embeddings(measured),
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
    ["expected calibration error", f"{tally.calibration_error():.2%}"],
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


def _confusion(measured: Measured) -> Picture:
  names, matrix = measured.class_names, measured.confusion
  worst = measured.tally.most_confused(3)
  told = "; ".join(
    f"{names[label]} answered as {names[answer]}, {count:,} times"
    for label, answer, count in worst
  )
  alt = f"Confusion matrix of {len(names)} classes. " + (
    f"Commonest mistakes: {told}." if worst else "No mistakes."
  )
  figure = charts.confusion_figure(matrix, names)
  return dataclasses.replace(_svg(figure, alt), caption="Confusion matrix")


def _calibration(measured: Measured) -> Picture:
  bins = measured.tally.calibration()
  error = measured.tally.calibration_error()
  told = "; ".join(
    f"of {count:,.0f} answers given about {probability:.0%}, {right:.0%} right"
    for count, right, probability in bins
  )
  caption = (
    "Calibration: on the dashed line, answers are as often right as the model "
    f"says. Expected calibration error {error:.2%}."
  )
  alt = f"Calibration curve: {told}."
  return dataclasses.replace(
    _svg(charts.calibration_figure(bins), alt), caption=caption
  )


def _example(example: Example, names: Sequence[str]) -> dict[str, Any]:
  said = example.answered
  label, answer = names[said.label], names[said.answer]
  caption = (
    f"{answer}, {said.probability:.1%}"
    if said.label == said.answer
    else f"{label}, answered as {answer}, {said.probability:.1%}"
  )
  images = [_photograph(example.photograph, f"Photograph of class {label}")]
  if example.rollout is not None:
    lit = figures.lit(example.photograph, example.rollout)
    where = _where(example.rollout)
    images.append(
      _photograph(lit, f"The same by attention rollout, most of it {where}")
    )
  return {"images": images, "caption": caption}


def _where(map_: np.ndarray) -> str:
  """Where on an image the highest value of a map is, in words."""
  place = np.unravel_index(map_.argmax(), map_.shape)
  row, column = (
    int(3 * (p + 0.5) / size) for p, size in zip(place, map_.shape, strict=True)
  )
  if (row, column) == (1, 1):
    return "at the centre"
  vertical, horizontal = (
    ("top", "", "bottom")[row],
    ("left", "", "right")[column],
  )
  return f"at the {f'{vertical} {horizontal}'.strip()}"


def _embeddings(measured: Measured) -> list[Picture]:
  pictures = []
  if measured.filters is not None and len(measured.filters):
    pictures.append(
      _png(
        figures.filters_figure(measured.filters),
        f"The first {len(measured.filters)} principal components of the "
        "embedding filters, as colours.",
        "Embedding filters: principal components (Fig. 7, left)",
      )
    )
  if measured.positions is not None:
    h, w = measured.positions.shape[:2]
    pictures.append(
      _png(
        figures.positions_figure(measured.positions),
        f"A grid of {h} x {w} grids: the cosine similarity of each position "
        "embedding with all others.",
        "Position embeddings: similarity of each with all (Fig. 7, centre)",
      )
    )
  return pictures


def _without_pictures(section: dict[str, Any]) -> dict[str, Any]:
  return section | {
    "examples": [],
    "embeddings": [],
    "left_out": f"{MOST_BYTES / 1e6:.0f} MB",
  }


def _text(value: Any, form: str) -> str:
  return _ABSENT if value is None else form.format(value)


def _value(value: Any) -> str:
  """A value of the configuration as the command line takes it."""
  return value if isinstance(value, str) else json.dumps(value)


def _svg(figure: Figure, alt: str) -> Picture:
  return Picture(
    _uri("svg+xml", lambda f: figure.savefig(f, format="svg")), alt
  )


def _png(figure: Figure, alt: str, caption: str) -> Picture:
  return Picture(
    _uri("png", lambda f: figure.savefig(f, format="png", dpi=100)),
    alt,
    caption,
  )


def _photograph(image: np.ndarray, alt: str) -> Picture:
  """As JPEG; as PNG where single pixels are to be seen."""
  photo = Image.fromarray(image)
  small = max(photo.size) < _SMALL_SIDE
  if small:
    return Picture(_uri("png", lambda f: photo.save(f, "png")), alt, small=True)
  photo.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE))
  save = _uri("jpeg", lambda f: photo.save(f, "jpeg", quality=85))
  return Picture(save, alt)


def _uri(kind: str, write: Callable[[io.BytesIO], Any]) -> str:
  file = io.BytesIO()
  write(file)
  data = base64.b64encode(file.getvalue()).decode()
  return f"data:image/{kind};base64,{data}"
