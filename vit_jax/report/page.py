"""The page of a report: one HTML file that needs no other file or network.

`report.html.jinja` is its layout. Every picture is embedded in the file and has
an alternative text, and tabular data are real tables, for screen readers.
"""

import datetime
import functools
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import markupsafe

from vit_jax.data.settings import EVALUATED_FIELDS, HELD_OUT_FIELDS
from vit_jax.inspection import charts
from vit_jax.inspection.photograph import LONGEST
from vit_jax.report import pictures, tables
from vit_jax.report.measure import Measured, RunFacts
from vit_jax.report.pictures import Picture
from vit_jax.runtime.display import Split
from vit_jax.runtime.printable import printable_lines
from vit_jax.tasks.outcome import Curves

MOST_BYTES = 5_000_000
_MOST = f"{MOST_BYTES / 1e6:.0f} MB"
# Longest side of photographs in pixels. If the page is too large with one, the
# next is tried.
_SIDES = LONGEST, 512, 384, 256
# Charts of every run: one before those of its task, and some after them.
_LOSS = Curves(
  "Loss",
  {Split.TRAIN.key("loss"): "training", Split.EVAL.key("loss"): "evaluation"},
)
_MORE_CURVES = (
  Curves("Learning rate", {Split.TRAIN.key("learning_rate"): ""}),
  Curves(
    "Gradient norm", {Split.TRAIN.key("gradient_norm"): ""}, logarithmic=True
  ),
  Curves("Images a second", {Split.TRAIN.key("images_per_second"): ""}),
)


def page(runs: Sequence[RunFacts]) -> str:
  """Renders the HTML of a report on some runs.

  If it is larger than `MOST_BYTES`, photographs are shrunk, and then pictures
  are left out, beginning with the last run, until it fits. Charts and tables
  always stay.
  """
  names = _names([run.workdir for run in runs])
  mark = _is_best_known(_ranked(names, runs))
  template = template_of("report.html.jinja")
  now = datetime.datetime.now().astimezone()
  several = len(runs) > 1
  first_curves: list[Curves] = [_LOSS]
  for run in runs:
    for curves in run.task.scores.curves if run.task else ():
      if curves not in first_curves:
        first_curves.append(curves)
  curves, points = _curves(names, runs, first_curves)
  more_curves, more_points = _curves(names, runs, _MORE_CURVES)
  context = {
    "title": f"{len(runs)} runs compared" if several else f"Run {names[0]}",
    "date": f"{now:%Y-%m-%d %H:%M}",
    "headline": headline_of(names, runs),
    "results": tables.results(names, runs, mark=mark),
    "alone": not several,
    "curves": curves,
    "more_curves": more_curves,
    "points": [*points, *more_points],
    "differences": (
      tables.differences(names, runs, mark=mark) if several else None
    ),
    "shrunk": None,
  }
  html = ""
  sections = [_section(n, run) for n, run in zip(names, runs, strict=True)]
  for longest in _SIDES:
    for section, run in zip(sections, runs, strict=True):
      section["examples"] = _examples(run.measured, longest)
    if longest < LONGEST:
      context["shrunk"] = f"{longest:,} pixels a side, to stay below {_MOST}"
    html = template.render(**context, runs=sections)
    if len(html.encode()) <= MOST_BYTES:
      return html
  for last in reversed(range(len(sections))):
    sections[last] = _without_pictures(sections[last], alone=not several)
    html = template.render(**context, runs=sections)
    if len(html.encode()) <= MOST_BYTES:
      break
  return html


@functools.cache
def template_of(name: str) -> jinja2.Template:
  """A template of this folder, which escapes what it shows."""
  environment = jinja2.Environment(
    loader=jinja2.PackageLoader("vit_jax.report", ""),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    finalize=_plain,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  return environment.get_template(name)


def _plain(value: Any) -> Any:
  """A value as a template shows it, without characters that HTML forbids."""
  if isinstance(value, str) and not isinstance(value, markupsafe.Markup):
    return printable_lines(value)
  return value


def headline_of(names: Sequence[str], runs: Sequence[RunFacts]) -> str:
  """The result in a sentence or two.

  It is "" if a single run has no score, or if fewer than two of several runs
  have a score.
  """
  if len(runs) == 1:
    (run,) = runs
    more = run.measured.outcome.headline() if run.measured else ""
    if run.score is None or not run.task:
      return ""
    scores = run.task.scores
    result = f"{scores.headline(run.scores)}{more}."
    return f"{result} {scores.verdict(run.scores).advice}".rstrip()
  ranked = _ranked(names, runs)
  if len(ranked) < 2:
    return ""
  if unknown := [name for name, run in ranked if not run.config]:
    return (
      f'"{unknown[0]}" has no checkpoint, so it is not known whether the runs '
      "were evaluated on the same images: compare their figures with care."
    )
  if not _same_images(ranked):
    return (
      "The runs were evaluated on different images or labels: do not compare "
      "their figures."
    )
  if alike := _alike(ranked):
    return alike
  (first, best), (second, other) = ranked[:2]
  assert best.task is not None
  score = best.task.scores.text(best.scores)
  ahead = best.task.scores.ahead(best.score or 0.0, other.score or 0.0)
  if not ahead:
    return f'"{first}" and "{second}" are equally good: {score}.'
  return (
    f'"{first}" is the best of {len(ranked)} runs: {score}, {ahead} "{second}".'
  )


_Ranked = Sequence[tuple[str, RunFacts]]


def _ranked(names: Sequence[str], runs: Sequence[RunFacts]) -> _Ranked:
  """The runs with a score and their names, the best first."""
  pairs = zip(names, runs, strict=True)
  scored = [(name, run) for name, run in pairs if run.score is not None]
  return sorted(scored, key=lambda pair: -(pair[1].score or 0.0))


def _is_best_known(ranked: _Ranked) -> bool:
  """Whether one run may be called the best, as far as the images can tell."""
  if len(ranked) < 2:
    return True
  return _same_images(ranked) and not _alike(ranked)


def _same_images(ranked: _Ranked) -> bool:
  """Whether all runs say that they were evaluated on the same images."""
  runs = [run for _, run in ranked]
  return all(r.config for r in runs) and len(set(map(_evaluated_on, runs))) == 1


def _alike(ranked: _Ranked) -> str:
  """A sentence if the images cannot tell the first two runs apart; else ""."""
  (_, first), *_ = ranked
  assert first.task is not None  # A run with a score has a task.
  return first.task.scores.alike([(name, run.scores) for name, run in ranked])


def _evaluated_on(run: RunFacts) -> tuple[Any, ...]:
  """The data on which `run.scores` were measured, equal for comparable runs.

  It holds the data, the metric that is the score, and the number of examples,
  as far as the run's folder says.
  """
  fields = EVALUATED_FIELDS
  if run.measured and run.measured.data_name.endswith(", held out"):
    fields += HELD_OUT_FIELDS
  values = [str(run.config.get(f"data.{field}")) for field in fields]
  score = run.task and run.task.scores.best
  return (*values, score, run.scores.get(Split.EVAL.key("examples")))


def _evaluation_text(measured: Measured) -> str:
  """Names the checkpoint, the data it was evaluated on, and what is odd."""
  scores = Split.EVAL.scores(measured.metrics)
  step, total = measured.step, measured.total_steps
  of_all = f" of {total:,}" if total and step != total else ""
  text = (
    f"Checkpoint of step {step:,}{of_all}, evaluated on the "
    f"{scores['examples']:,} images of {measured.data_name}."
  )
  if scores["skipped_images"]:
    text += f" Unreadable and left out: {scores['skipped_images']:,}."
  return " ".join([text, *measured.outcome.remarks])


def _better(run: RunFacts, measured: Measured) -> dict[str, str] | None:
  """The `text` on the best checkpoint, and the `command` that reports on it.

  It is None if `measured` is the best checkpoint, or the best is not known.
  """
  if not run.best or run.best[0] == measured.step:
    return None
  step, score = run.best
  return {
    "text": f"Best checkpoint: step {step:,} with {score}.",
    "command": f"vit_jax report {shlex.quote(run.workdir)} --best",
  }


def _names(workdirs: Sequence[str]) -> list[str]:
  """Names workdirs by the fewest last parts of their paths that differ."""
  parts = [w.rstrip("/").split("/") for w in workdirs]
  for count in range(1, max(map(len, parts)) + 1):
    names = ["/".join(part[-count:]) for part in parts]
    if len({*names}) == len(names):
      return names
  return [f"{number}: {w}" for number, w in enumerate(workdirs, 1)]


def _curves(
  names: list[str], runs: Sequence[RunFacts], kinds: Sequence[Curves]
) -> tuple[list[Picture], list[str]]:
  """The charts for which a run has values, and sentences on single points.

  A chart whose curves have a single point each becomes a sentence.
  """
  drawn = []
  sentences = []
  for chart in kinds:
    curves = {}
    thin = set()
    for name, run in zip(names, runs, strict=True):
      for key, kind in chart.curves.items():
        steps, values = run.curve(key)
        parts = [name, kind] if len(runs) > 1 else [kind]
        curve_name = ", ".join(filter(None, parts)) or chart.title
        if steps:
          curves[curve_name] = steps, values
        if kind == "training":
          thin.add(curve_name)
    if not curves:
      continue
    if all(len(steps) == 1 for steps, _ in curves.values()):
      sentences.append(_single_points(chart, curves))
      continue
    figure = charts.curves_figure(
      curves,
      chart.title,
      percent=chart.percent,
      logarithmic=chart.logarithmic,
      thin=thin,
    )
    drawn.append(pictures.svg(figure, _ends_of_curves(chart, curves)))
  return drawn, sentences


_Points = Mapping[str, tuple[Sequence[int], Sequence[float]]]


def _single_points(chart: Curves, curves: _Points) -> str:
  """A sentence on curves that have a single point each."""
  form = "{:.2%}" if chart.percent else "{:.4g}"
  texts = []
  for name, ((step,), (value,)) in curves.items():
    text = f"{form.format(value)} at step {step:,}"
    texts.append(text if name == chart.title else f"{name} {text}")
  return f"{chart.title}, measured once: {'; '.join(texts)}."


def _ends_of_curves(chart: Curves, curves: _Points) -> str:
  """The alternative text of a chart: where its curves begin and end."""
  form = "{:.2%}" if chart.percent else "{:.4g}"
  ends = "; ".join(
    f"{name}: from {form.format(values[0])} at step {steps[0]:,} to "
    f"{form.format(values[-1])} at step {steps[-1]:,}"
    for name, (steps, values) in curves.items()
  )
  return f"{chart.title} by step. {ends}."


def _commands(starts: Sequence[dict[str, Any]]) -> tuple[list[str], int]:
  """The commands whose steps the run holds, and the number of other commands.

  A start left no step if a later one began at its step or before it.
  """
  kept: list[dict[str, Any]] = []
  for start in starts:
    kept = [one for one in kept if one["step"] < start["step"]] + [start]
  commands = dict.fromkeys(s["command"] for s in kept if s["command"])
  others = {s["command"] for s in starts if s["command"]} - commands.keys()
  return [*commands], len(others)


def _section(name: str, run: RunFacts) -> dict[str, Any]:
  """The values that the template shows for one run."""
  commands, dropped = _commands(run.starts)
  section: dict[str, Any] = {
    "name": name,
    "headline": headline_of([name], [run]),
    "commands": commands,
    "dropped_commands": dropped,
    "facts": tables.facts(run),
    "config": run.config,
    "problem": run.problem,
    "notes": run.notes,
    "evaluated": None,
    "best": None,
    "left_out": None,
  }
  if (measured := run.measured) is not None:
    augmented = pictures.augmented(measured)
    labels = {picture.caption for picture in augmented}
    section |= {
      "evaluated": _evaluation_text(measured),
      "best": _better(run, measured),
      "panels": pictures.panels(measured),
      "panel_text": measured.task.panels,
      "charts": [
        pictures.svg(charts.figure_of_chart(chart), chart.alt, chart.caption)
        for chart in measured.outcome.charts()
      ],
      "tables": tables.evaluation(measured),
      "sizes": tables.sizes(measured),
      "data_problem": measured.data_problem,
      "augmented": augmented,
      "augmented_as": labels.pop() if len(labels) == 1 else "",
      "embeddings": pictures.embeddings(measured),
    }
  return section


def _examples(measured: Measured | None, longest: int) -> list[dict[str, Any]]:
  """The groups of examples, with photographs of at most `longest` pixels."""
  if measured is None:
    return []
  return [
    {
      "title": group.title,
      "text": group.text,
      "examples": [pictures.example(one, longest) for one in group.examples],
    }
    for group in measured.groups
  ]


def _without_pictures(section: dict[str, Any], alone: bool) -> dict[str, Any]:
  """A run's section without its pictures, and the reason for the reader."""
  advice = "" if alone else ": make a report of this run alone"
  return section | {
    **dict.fromkeys(("examples", "augmented", "panels", "embeddings"), ()),
    "left_out": f"this file would otherwise be larger than {_MOST}{advice}",
  }
