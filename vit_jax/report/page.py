"""The page of a report: one HTML file that needs no other file or network.

`report.html.jinja` is its layout. Every picture is embedded in the file and has
an alternative text, and tabular data are real tables, for screen readers.
"""

import datetime
from collections.abc import Sequence
from typing import Any

import jinja2

from vit_jax.inspection import charts
from vit_jax.report import pictures, tables
from vit_jax.report.measure import Measured, RunFacts, changed_keys
from vit_jax.report.pictures import Picture

MOST_BYTES = 5_000_000
_KINDS = {
  "surest": (
    "Most confident right answers",
    "The right answers with the highest probability.",
  ),
  "nearest": (
    "Nearest misses",
    "The mistakes with the lowest loss: the true class came close.",
  ),
  "worst": (
    "Worst mistakes",
    "The mistakes with the highest loss. Look for wrong labels here first.",
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
  """Renders the HTML of a report on some runs.

  If it is larger than `MOST_BYTES`, pictures of examples and embeddings are
  left out, beginning with the last run, until it fits. Charts and tables always
  stay.
  """
  names = _names([run.workdir for run in runs])
  environment = jinja2.Environment(
    loader=jinja2.PackageLoader("vit_jax.report", ""),
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
    "results": tables.results(names, runs),
    "curves": _curves(names, runs),
    "differences": tables.differences(names, runs) if several else None,
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
  """Names the workdirs by as many last parts of their paths as differ."""
  parts = [w.rstrip("/").split("/") for w in workdirs]
  for count in range(1, max(map(len, parts)) + 1):
    names = ["/".join(part[-count:]) for part in parts]
    if len({*names}) == len(names):
      return names
  return [f"{number}: {w}" for number, w in enumerate(workdirs, 1)]


def _curves(names: list[str], runs: Sequence[RunFacts]) -> list[Picture]:
  drawn = []
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
    drawn.append(pictures.svg(figure, f"{title} by step. {ends}."))
  return drawn


def _section(name: str, run: RunFacts) -> dict[str, Any]:
  """The values that the template shows for one run."""
  commands = dict.fromkeys(s["command"] for s in run.starts if s["command"])
  section: dict[str, Any] = {
    "name": name,
    "commands": [*commands],
    "starts": tables.starts(run),
    "changed": tables.config(
      "Keys that differ from their defaults", changed_keys(run.config)
    ),
    "config": tables.config("Every key of the configuration", run.config),
    "problem": run.problem,
    "metrics": None,
    "left_out": None,
  }
  if run.measured is not None:
    section |= _evaluation(run.measured)
  return section


def _evaluation(measured: Measured) -> dict[str, Any]:
  names = measured.class_names
  groups = [
    {
      "title": title,
      "text": text,
      "examples": [
        pictures.example(one, names) for one in measured.examples[kind]
      ],
    }
    for kind, (title, text) in _KINDS.items()
    if measured.examples[kind]
  ]
  return {
    "metrics": tables.metrics(measured),
    "charts": [
      *pictures.confusion(measured),
      *pictures.calibration(measured),
    ],
    "classes": tables.classes(measured),
    "confused": tables.confused(measured),
    "examples": groups,
    "embeddings": pictures.embeddings(measured),
  }


def _without_pictures(section: dict[str, Any], alone: bool) -> dict[str, Any]:
  most = f"{MOST_BYTES / 1e6:.0f} MB"
  advice = "" if alone else ": make a report of this run alone"
  return section | {
    "examples": [],
    "embeddings": [],
    "left_out": f"this file would otherwise be larger than {most}{advice}",
  }
