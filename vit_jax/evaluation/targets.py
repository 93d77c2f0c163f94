"""Evaluation of several labels and of numbers, every example counted once.

The outputs for all examples are kept on the host: their ranking, or their
variance, decides on the scores.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float

from vit_jax.data.example import Source
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.evaluation.evaluator import Evaluator
from vit_jax.models.normalize import normalize
from vit_jax.runtime import hosts
from vit_jax.runtime.display import Track, untracked
from vit_jax.training import sharding
from vit_jax.training.objectives import Numbers, SeveralLabels

Table = tuple[tuple[str, ...], list[list[str]]]


@dataclasses.dataclass(frozen=True)
class Outputs:
  """The outputs for the readable examples of a split, in its order.

  Attributes:
    index: Place of each example in the split.
    label: 0 or 1 for each label, or the numbers.
    output: Probabilities, or numbers in the unit of the labels.
    loss: Loss of each example.
    skipped: Number of unreadable images.
  """

  index: np.ndarray
  label: Float[np.ndarray, "N K"]
  output: Float[np.ndarray, "N K"]
  loss: Float[np.ndarray, " N"]
  skipped: int


class TargetEvaluator(Evaluator):
  """Evaluates several labels, or numbers, on a split.

  Args:
    source: The split to evaluate on.
    objective: The objective of training; its weights of classes are left out.
    threshold: Probability from which on a label is given; None chooses that of
      the highest F1 over all labels.
    **options: As of `Evaluator`.
  """

  def __init__(
    self,
    model: nn.Module,
    mesh: Mesh,
    source: Source,
    preprocessing: Preprocessing,
    objective: SeveralLabels | Numbers,
    threshold: float | None = None,
    **options: Any,
  ):
    super().__init__(model, mesh, source, preprocessing, **options)
    objective = dataclasses.replace(objective, class_weights=None)
    self._objective, self._threshold = objective, threshold
    self._names = source.class_names

    def step(params: Any, batch: dict[str, Array]) -> tuple[Array, ...]:
      images = normalize(batch["image"], objective.mean, objective.std)
      logits: Any = model.apply({"params": params}, images)
      label = batch["label"]
      loss, _ = objective.judge(logits, objective.targets(label))
      logits = logits.astype(jnp.float32)
      return logits, loss, label, batch["mask"], batch["skipped"]

    whole = sharding.replicated(mesh)
    self._target_step = hosts.together(
      jax.jit(sharding.on_mesh(step, mesh), out_shardings=whole)
    )

  def outputs(self, params: Any, track: Track = untracked) -> Outputs:
    """The outputs for all examples.

    Raises:
      ValueError: if no image can be read.
    """
    found, skipped, first = [], 0, 0
    for batch in track(self.on_device(), "evaluating", len(self._batches)):
      logits, loss, label, mask, unreadable = jax.device_get(
        self._target_step(params, batch)
      )
      rows = np.flatnonzero(mask > 0)
      found.append((first + rows, label[rows], logits[rows], loss[rows]))
      skipped += int(unreadable.sum())
      first += len(loss)
    index, label, logits, loss = (
      np.concatenate(part) for part in zip(*found, strict=True)
    )
    if not len(index):
      raise ValueError("the evaluation split has no readable image.")
    output = logits.astype(np.float64)
    if isinstance(self._objective, Numbers):
      output *= np.array(self._objective.target_std)
      output += np.array(self._objective.target_mean)
    else:
      output = 1 / (1 + np.exp(-output))
    return Outputs(index, label.astype(np.float64), output, loss, skipped)

  def __call__(
    self,
    params: Any,
    class_names: tuple[str, ...] = (),
    observe: Callable[..., None] | None = None,
    track: Track = untracked,
  ) -> dict[str, Any]:
    """Returns the metrics `eval/...`; `observe` is not called.

    Of several labels, they are the mean average precision `map`, and the `f1`
    of all labels at a `threshold`. Of numbers, they are the mean absolute error
    `mae` in their unit and `r2`, both as means over the numbers. With class
    names, `ap_by_class`, or `mae_by_target` and `r2_by_target`, are added.
    """
    del observe
    return self.metrics(self.outputs(params, track), bool(class_names))

  def metrics(self, found: Outputs, each: bool = False) -> dict[str, Any]:
    """The metrics of some outputs; `each` adds those of each label."""
    scores = self.scores(found)
    means: dict[str, Any] = {"loss": float(found.loss.mean(dtype=np.float64))}
    if isinstance(self._objective, Numbers):
      means |= {k: _mean(scores[k]) for k in ("mae", "r2")}
    else:
      threshold = self.threshold(found)
      means |= {
        "map": _mean(scores["ap"]),
        "f1": f1(found.label > 0, found.output >= threshold),
        "threshold": threshold,
      }
    means |= {"examples": len(found.index), "skipped_images": found.skipped}
    if each:
      numbers = isinstance(self._objective, Numbers)
      for key in ("mae", "r2") if numbers else ("ap",):
        pairs = zip(self._names, scores[key], strict=True)
        name = f"{key}_by_target" if numbers else f"{key}_by_class"
        means[name] = {n: float(x) for n, x in pairs if np.isfinite(x)}
    return {f"eval/{key}": value for key, value in means.items()}

  def scores(self, found: Outputs) -> dict[str, Float[np.ndarray, " K"]]:
    """The scores of each label or number; NaN where they are not defined."""
    if isinstance(self._objective, Numbers):
      error = found.output - found.label
      spread = ((found.label - found.label.mean(0)) ** 2).sum(0)
      r2 = 1 - (error**2).sum(0) / np.where(spread > 0, spread, np.nan)
      mae, diverged = np.abs(error).mean(0), np.isnan(error).any(0)
      mae[diverged], r2[diverged] = np.inf, -np.inf
      return {"mae": mae, "r2": r2}
    columns = zip(found.label.T, found.output.T, strict=True)
    return {"ap": np.array([average_precision(*c) for c in columns])}

  def threshold(self, found: Outputs) -> float:
    """The threshold that was given, or the best."""
    if self._threshold is not None:
      return self._threshold
    return best_threshold(found.label.ravel(), found.output.ravel())

  def table(self, found: Outputs) -> Table:
    """Names of columns and rows: the scores of each label or number."""
    scores = self.scores(found)
    if isinstance(self._objective, Numbers):
      rows = [
        [
          name,
          f"{label.mean():.6g}",
          f"{label.std():.4g}",
          f"{mae:.4g}",
          _r(r2),
        ]
        for name, label, mae, r2 in zip(
          self._names, found.label.T, *scores.values(), strict=True
        )
      ]
      return ("target", "mean", "deviation", "MAE", "R2"), rows
    given = found.output >= self.threshold(found)
    rows = []
    for k, (name, ap) in enumerate(zip(self._names, scores["ap"], strict=True)):
      true, answered = found.label[:, k] > 0, given[:, k]
      hits = (true & answered).sum()
      shares = (
        ap,
        hits / max(1, answered.sum()),
        hits / max(1, true.sum()),
        f1(true, answered),
      )
      rows.append([name, f"{true.sum():,}", *map(_percent, shares)])
    return ("label", "examples", "AP", "precision", "recall", "F1"), rows


def average_precision(
  label: Float[np.ndarray, " N"], score: Float[np.ndarray, " N"]
) -> float:
  """Sum of precision times the rise of recall, over the distinct scores.

  Equal scores count as one; a NaN ranks last. Without a positive it is NaN.
  """
  if not label.sum():
    return float("nan")
  precision, recall = precision_recall(label, score)
  return float((np.diff(recall, prepend=0) * precision).sum())


def precision_recall(
  label: Float[np.ndarray, " N"], score: Float[np.ndarray, " N"]
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
  """Precision and recall at each distinct score, from the highest on."""
  hits, given = _ranked(label, score)
  return hits / given, hits / max(1, label.sum())


def best_threshold(
  label: Float[np.ndarray, " N"], score: Float[np.ndarray, " N"]
) -> float:
  """The threshold of the highest F1, between two scores; 0.5 without hits."""
  hits, given = _ranked(label, score)
  rates = 2 * hits / (given + label.sum())
  if not rates.max(initial=0):
    return 0.5
  levels = np.unique(_finite(score))[::-1]
  best = int(rates.argmax())
  lower = levels[best + 1] if best + 1 < len(levels) else levels[best]
  return float((levels[best] + max(lower, 0)) / 2)


def f1(label: np.ndarray, answer: np.ndarray) -> float:
  """F1 of boolean answers; 0 if there is neither a label nor an answer."""
  total = label.sum() + answer.sum()
  return float(2 * (label & answer).sum() / total) if total else 0.0


def _ranked(
  label: np.ndarray, score: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Positives and examples at each distinct score or above, highest first."""
  score = _finite(score)
  order = np.argsort(-score, kind="stable")
  last = np.flatnonzero(np.diff(score[order], append=-np.inf))
  return label[order].cumsum()[last], last + 1


def _finite(score: np.ndarray) -> np.ndarray:
  return np.where(np.isnan(score), -1, score)


def _mean(values: np.ndarray) -> float:
  known = values[~np.isnan(values)]
  return float(known.mean()) if len(known) else float("nan")


def _percent(value: float) -> str:
  return "-" if np.isnan(value) else f"{value:.2%}"


def _r(value: float) -> str:
  return "-" if np.isnan(value) else f"{value:.4f}"
