"""The page of a report: one HTML file that needs no other file or network.

`report.html.jinja` is its layout. Every picture is embedded in the file and has
an alternative text, and tabular data are real tables, for screen readers.
"""

import datetime
from collections.abc import Sequence
from typing import Any

import jinja2

from vit_jax.inspection import charts
from vit_jax.inspection.photograph import LONGEST
from vit_jax.report import headline, pictures, tables
from vit_jax.report.measure import Measured, RunFacts, changed_keys
from vit_jax.report.pictures import Picture
from vit_jax.tasks.outcome import Curves

MOST_BYTES = 5_000_000
# Longest side of photographs in pixels; the next is tried if they do not fit.
_SIDES = LONGEST, 512, 384, 256
# Charts of every run: before those of its task, and among the rest.
_LOSS = Curves("Loss", {"train/loss": "training", "eval/loss": "evaluation"})
_MORE_CURVES = (
  Curves("Learning rate", {"train/learning_rate": ""}),
  Curves("Gradient norm", {"train/gradient_norm": ""}, logarithmic=True),
  Curves("Images a second", {"train/images_per_second": ""}),
)


def page(runs: Sequence[RunFacts]) -> str:
  """Renders the HTML of a report on some runs.

  If it is larger than `MOST_BYTES`, photographs are shrunk, and then pictures
  are left out, beginning with the last run, until it fits. Charts and tables
  always stay.
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
    "headline": headline.headline_of(names, runs),
    "results": tables.results(names, runs),
    "curves": _curves(names, runs, _wanted(runs)),
    "more_curves": _curves(names, runs, _MORE_CURVES),
    "differences": tables.differences(names, runs) if several else None,
    "shrunk": None,
  }
  html = ""
  sections = [_section(n, run) for n, run in zip(names, runs, strict=True)]
  for longest in _SIDES:
    for section, run in zip(sections, runs, strict=True):
      section["examples"] = _examples(run.measured, longest)
    if longest < LONGEST:
      most = f"{MOST_BYTES / 1e6:.0f} MB"
      context["shrunk"] = f"{longest:,} pixels a side, to stay below {most}"
    html = template.render(**context, runs=sections)
    if len(html.encode()) <= MOST_BYTES:
      return html
  for last in reversed(range(len(sections))):
    sections[last] = _without_pictures(sections[last], alone=not several)
    html = template.render(**context, runs=sections)
    if len(html.encode()) <= MOST_BYTES:
      break
  return html


def _names(workdirs: Sequence[str]) -> list[str]:
  """Names the workdirs by as many last parts of their paths as differ."""
  parts = [w.rstrip("/").split("/") for w in workdirs]
  for count in range(1, max(map(len, parts)) + 1):
    names = ["/".join(part[-count:]) for part in parts]
    if len({*names}) == len(names):
      return names
  return [f"{number}: {w}" for number, w in enumerate(workdirs, 1)]


def _wanted(runs: Sequence[RunFacts]) -> list[Curves]:
  """The charts of the loss and of the runs' tasks."""
  own = [c for run in runs if run.task for c in run.task.curves]
  return [_LOSS, *(c for n, c in enumerate(own) if c not in own[:n])]


def _curves(
  names: list[str], runs: Sequence[RunFacts], wanted: Sequence[Curves]
) -> list[Picture]:
  """The charts for which a run has values."""
  drawn = []
  for chart in wanted:
    curves, thin = {}, set()
    for name, run in zip(names, runs, strict=True):
      for key, kind in chart.curves.items():
        curve = run.curve(key)
        if len(runs) == 1:
          called = kind or chart.title
        else:
          called = f"{name}, {kind}" if kind else name
        if curve[0]:
          curves[called] = curve
        if kind == "training":
          thin.add(called)
    if not curves:
      continue
    form = "{:.2%}" if chart.percent else "{:.4g}"
    ends = "; ".join(
      f"{name}: from {form.format(values[0])} at step {steps[0]:,} to "
      f"{form.format(values[-1])} at step {steps[-1]:,}"
      for name, (steps, values) in curves.items()
    )
    figure = charts.curves_figure(
      curves,
      chart.title,
      percent=chart.percent,
      logarithmic=chart.logarithmic,
      thin=thin,
    )
    drawn.append(pictures.svg(figure, f"{chart.title} by step. {ends}."))
  return drawn


def _section(name: str, run: RunFacts) -> dict[str, Any]:
  """The values that the template shows for one run."""
  commands = dict.fromkeys(s["command"] for s in run.starts if s["command"])
  section: dict[str, Any] = {
    "name": name,
    "headline": headline.headline_of([name], [run]),
    "commands": [*commands],
    "starts": tables.starts(run),
    "time": tables.time(run),
    "changed": tables.config(
      "Keys that differ from their defaults", changed_keys(run.config)
    ),
    "config": tables.config("Every key of the configuration", run.config),
    "problem": run.problem,
    "evaluated": None,
    "left_out": None,
  }
  if run.measured is not None:
    section |= _evaluation(run.measured)
  return section


def _examples(measured: Measured | None, longest: int) -> list[dict[str, Any]]:
  """The groups of examples, with photographs of at most `longest` pixels."""
  if measured is None:
    return []
  return [
    {
      "title": title,
      "text": text,
      "examples": [pictures.example(one, longest) for one in shown],
    }
    for title, text, shown in measured.groups
    if shown
  ]


def _evaluation(measured: Measured) -> dict[str, Any]:
  return {
    "evaluated": headline.evaluated(measured),
    "panels": pictures.panels(measured),
    "charts": pictures.evaluation(measured),
    "tables": tables.evaluation(measured),
    "sizes": tables.sizes(measured),
    "data_problem": measured.data_problem,
    "augmented": pictures.augmented(measured),
    "embeddings": pictures.embeddings(measured),
  }


def _without_pictures(section: dict[str, Any], alone: bool) -> dict[str, Any]:
  most = f"{MOST_BYTES / 1e6:.0f} MB"
  advice = "" if alone else ": make a report of this run alone"
  return section | {
    "examples": [],
    "augmented": [],
    "panels": [],
    "embeddings": [],
    "left_out": f"this file would otherwise be larger than {most}{advice}",
  }
