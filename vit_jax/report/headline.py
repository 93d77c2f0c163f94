"""The result of runs in words."""

from collections.abc import Sequence
from typing import Any

from vit_jax.report.measure import Measured, RunFacts


def headline_of(names: Sequence[str], runs: Sequence[RunFacts]) -> str:
  """The result in a sentence or two; empty without any evaluation."""
  if len(runs) == 1:
    return _headline(runs[0])
  known = zip(names, map(top1_of, runs), strict=True)
  top1 = {name: rate for name, rate in known if rate is not None}
  if len(top1) < 2:
    return ""
  if len({_evaluated_on(run) for run in runs if top1_of(run) is not None}) > 1:
    return "The runs were evaluated on different images: compare no figures."
  first, second = sorted(top1, key=lambda name: -top1[name])[:2]
  ahead = 100 * (top1[first] - top1[second])
  if f"{ahead:.1f}" == "0.0":
    return (
      f"{first} and {second} are equally good: {top1[first]:.1%} are right."
    )
  return (
    f"{first} is the best of {len(top1)} runs: {top1[first]:.1%} are right, "
    f"{ahead:.1f} points more than {second}."
  )


def _evaluated_on(run: RunFacts) -> tuple[Any, ...]:
  """Identifies the images of `scores_of`, as far as the run's folder says."""
  keys = ("name", "root", "train_split", "eval_split", "eval_fraction")
  config = [run.config.get(f"data.{key}") for key in keys]
  return (*config, scores_of(run).get("eval/examples"))


def _headline(run: RunFacts) -> str:
  scores, measured = scores_of(run), run.measured
  if "eval/colours_right" in scores:
    right, common = (
      scores[f"eval/{name}"] for name in ("colours_right", "commonest_colour")
    )
    return (
      f"{right:.1%} of the masked patches' colours are right, where the "
      f"commonest alone is {common:.1%}."
    )
  if "eval/map" in scores:
    return (
      f"The mean average precision is {scores['eval/map']:.1%} on "
      f"{scores['eval/examples']:,} images."
    )
  if "eval/mae" in scores:
    return (
      f"Predictions are off by {scores['eval/mae']:.4g} on average on "
      f"{scores['eval/examples']:,} images."
    )
  if scores.get("eval/top1") is None:
    return ""
  total = scores["eval/examples"]
  said = f"{scores['eval/top1']:.1%} of {total:,} images are right"
  worst = measured.tally.most_confused(1) if measured else []
  if not measured or not worst:
    return f"{said}."
  label, answer, count = worst[0]
  names = measured.class_names
  of_class = measured.tally.class_scores()[label].examples
  return (
    f"{said}; {names[label]} is taken for {names[answer]} in {count:,} of "
    f"{of_class:,}."
  )


def evaluated(measured: Measured) -> str:
  """Names the data evaluated, and how much was left out, in a sentence."""
  scores, tally = measured.metrics, measured.tally
  said = (
    f"Checkpoint of step {measured.step:,}, evaluated on the "
    f"{scores['eval/examples']:,} images of {measured.data_name}."
  )
  if scores["eval/skipped_images"]:
    said += f" Unreadable and left out: {scores['eval/skipped_images']:,}."
  if tally.unanswered:
    said += f" The model answers NaN to {tally.unanswered:,}."
  return said


def scores_of(run: RunFacts) -> dict[str, Any]:
  """Metrics of the checkpoint, or else of the last evaluation in training."""
  if run.measured is not None:
    return run.measured.metrics | {"step": run.measured.step}
  rows = [row for row in run.rows if "eval/examples" in row]
  return rows[-1] if rows else {}


def top1_of(run: RunFacts) -> float | None:
  """Top-1 accuracy of `scores_of`, if known."""
  return scores_of(run).get("eval/top1")
