"""The result of runs in words."""

from collections.abc import Sequence
from typing import Any

from vit_jax.report.measure import Measured, RunFacts


def headline_of(names: Sequence[str], runs: Sequence[RunFacts]) -> str:
  """The result in a sentence or two; empty without any evaluation."""
  if len(runs) == 1:
    return _headline(runs[0])
  pairs = zip(names, runs, strict=True)
  known = {name: run for name, run in pairs if score_of(run) is not None}
  if len(known) < 2:
    return ""
  if len({_evaluated_on(run) for run in known.values()}) > 1:
    return "The runs were evaluated on different images: compare no figures."
  scores = {name: score_of(run) or 0.0 for name, run in known.items()}
  first, second = sorted(known, key=lambda name: -scores[name])[:2]
  task = known[first].task
  assert task is not None
  said = task.score_text(scores_of(known[first]))
  ahead = task.ahead(scores[first], scores[second])
  if not ahead:
    return f"{first} and {second} are equally good: {said}."
  return f"{first} is the best of {len(known)} runs: {said}, {ahead} {second}."


def _evaluated_on(run: RunFacts) -> tuple[Any, ...]:
  """Identifies the images of `scores_of`, as far as the run's folder says."""
  keys = ("name", "root", "train_split", "eval_split", "eval_fraction")
  config = [run.config.get(f"data.{key}") for key in keys]
  score = run.task and run.task.score
  return (*config, score, scores_of(run).get("eval/examples"))


def _headline(run: RunFacts) -> str:
  scores, measured = scores_of(run), run.measured
  if run.task is None or score_of(run) is None:
    return ""
  more = measured.outcome.headline() if measured else ""
  return f"{run.task.headline(scores)}{more}."


def evaluated(measured: Measured) -> str:
  """Names the data evaluated, and how much was left out, in a sentence."""
  scores = measured.metrics
  said = (
    f"Checkpoint of step {measured.step:,}, evaluated on the "
    f"{scores['eval/examples']:,} images of {measured.data_name}."
  )
  if scores["eval/skipped_images"]:
    said += f" Unreadable and left out: {scores['eval/skipped_images']:,}."
  return " ".join([said, *measured.outcome.notes])


def scores_of(run: RunFacts) -> dict[str, Any]:
  """Metrics of the checkpoint, or else of the last evaluation in training."""
  if run.measured is not None:
    return run.measured.metrics | {"step": run.measured.step}
  rows = [row for row in run.rows if "eval/examples" in row]
  return rows[-1] if rows else {}


def score_of(run: RunFacts) -> float | None:
  """The score of the task in `scores_of`, if known."""
  return run.task and scores_of(run).get(f"eval/{run.task.score}")
