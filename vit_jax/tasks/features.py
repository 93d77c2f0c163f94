"""Evaluation by the features of a split: whether they differ, and how much."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from vit_jax.models.model import unit
from vit_jax.runtime.display import Metric, Split
from vit_jax.tasks.means import SumsOutcome, sums_of
from vit_jax.tasks.metrics import Measure, Parts
from vit_jax.tasks.outcome import Curves
from vit_jax.training.losses import Objective

RANK = Metric("rank", "rank of the features")
DEVIATION = Metric("deviation", "deviation of the features", format="{:.3f}")
"""The scores of features that `features_measure` adds to the objective's."""
RANKS = Curves(
  "Rank of the features, as a share of its maximum",
  {Split.EVAL.key("rank"): "evaluation"},
  percent=True,
)
RANKS_NOTHING = (
  "The rank of the features does not tell which run is better: compare them by "
  "labels, with vit_jax fewshot."
)
"""Why runs whose score is `RANK` have no best one."""
LOW_DEVIATION = 0.1
LOW_RANK = 1.5
"""Features below either of these are taken to have collapsed."""


def features_measure(model: Any, objective: Objective, advice: str) -> Measure:
  """Returns the measure of the loss and of the features of a split.

  The objective has `mirrored_loss`, as `SelfDistillation` has, and the model's
  outputs have the features `y`. `advice` ends the warning of a collapse.
  """

  def compute(params: Any, batch: Mapping[str, Array], first: Array) -> Any:
    """The sums of a batch, and the moments of its features."""
    del first
    images = objective.inputs({"image": batch["image"]})
    seen: dict[str, Float[Array, "B D"]] = {}

    def apply(images: Any) -> Any:
      outputs = model.apply({"params": params}, images)
      # The first call is for the images, the second for their mirror images.
      seen.setdefault("y", outputs["y"])
      return outputs

    mirrored: Any = objective
    loss, score = mirrored.mirrored_loss(apply, images)
    counts = batch["mask"] > 0
    z = unit(seen["y"])
    loss = jnp.where(jnp.isfinite(z).all(axis=1), loss, jnp.nan)
    sums = sums_of(batch, loss, {objective.metric: score})
    return sums, _moments(z, counts)

  def parts(computed: tuple[Any, Any], first: int, **_: bool) -> Parts:
    """The sums, and the `Moments` of the features, in float64."""
    del first
    sums, moments = jax.tree.map(np.float64, computed)
    return {**sums, "features": Moments(sums["examples"], *moments)}

  outcome = functools.partial(
    FeaturesOutcome, metric=objective.metric, advice=advice
  )
  return Measure(compute, outcome, parts)


def _moments(
  z: Float[Array, "B D"], counts: Bool[Array, " B"]
) -> tuple[Array, Array, Array]:
  """`shift`, `first` and `second` of the `Moments` of vectors that count.

  The shift is their mean.
  """
  rows = counts[:, None]
  mean = jnp.where(rows, z, 0).sum(axis=0) / jnp.maximum(counts.sum(), 1)
  z = jnp.where(rows, z - mean[None], 0)
  return mean, z.sum(axis=0), z.T @ z


@dataclasses.dataclass(frozen=True)
class Moments:
  """Sums over `count` vectors z, from which their mean and covariance follow.

  `first` is the sum of z - `shift`, and `second` that of its outer product with
  itself. The shift is near the mean of a batch: without it, a covariance of
  nearly equal vectors would lose its digits. A sum of two moments keeps the
  shift of the first.
  """

  count: Any
  shift: Float[np.ndarray, " D"]
  first: Float[np.ndarray, " D"]
  second: Float[np.ndarray, "D D"]

  def __add__(self, other: "Moments") -> "Moments":
    """The sums over both, from (z - a) = (z - b) + (b - a)."""
    d = other.shift - self.shift
    moved = np.outer(other.first + other.count * d / 2, d)
    return Moments(
      count=self.count + other.count,
      shift=self.shift,
      first=self.first + other.first + other.count * d,
      second=self.second + other.second + moved + moved.T,
    )


@dataclasses.dataclass(frozen=True)
class FeaturesOutcome(SumsOutcome):
  """The features of a split: how far apart they lie, in how many directions.

  Features are scaled to length 1. `deviation` is the root of their mean squared
  distance from their mean. `rank` is the exponential of the entropy of the
  shares of their singular values (RankMe, arXiv:2210.02885), divided by its
  largest possible value. `totals` has the sums, and as `features` the
  `Moments`. `metric` is the key of the objective's score, and `advice` ends the
  warning of a collapse.
  """

  metric: str
  advice: str

  @functools.cached_property
  def scores(self) -> dict[str, Any]:
    """The loss, the rank and the spread of the features, and the metric."""
    examples = self.examples
    features = self.totals["features"]
    mean = features.first / examples
    covariance = features.second / examples - np.outer(mean, mean)
    mean = mean + features.shift
    most = min(len(mean), examples)
    return self.with_counts(
      {
        "loss": self.mean("loss"),
        "rank": effective_rank(covariance + np.outer(mean, mean)) / most,
        self.metric: self.mean(self.metric),
        "deviation": float(np.sqrt(max(np.trace(covariance), 0.0))),
      }
    )

  @property
  def warnings(self) -> list[str]:
    """A line if the features hardly differ between images."""
    if self.unanswered:
      return []
    scores = self.scores
    rank = scores["rank"] * min(
      len(self.totals["features"].shift), scores["examples"]
    )
    if scores["deviation"] >= LOW_DEVIATION and rank >= LOW_RANK:
      return []
    line = (
      "The features may have collapsed: all images get nearly the same "
      f"features (deviation {scores['deviation']:.3f} of at most 1, rank "
      f"{rank:.1f}). "
      "At first that is normal; if these numbers do not rise, or have fallen, "
      f"lower optimizer.peak_lr{self.advice}."
    )
    return [line]

  @property
  def notes(self) -> list[str]:
    return self.warnings


def effective_rank(second: Float[np.ndarray, "D D"]) -> float:
  """The effective rank of features x, from `second`, the mean of x x^T.

  The rank is NaN if an entry of the mean is not finite.

  >>> import numpy as np
  >>> from vit_jax.tasks.features import effective_rank
  >>> round(effective_rank(np.diag([1.0, 1.0, 0.0])), 6)
  2.0
  """
  if not np.isfinite(second).all():
    return float("nan")
  singular = np.sqrt(np.linalg.eigvalsh(second).clip(0))
  shares = singular / singular.sum()
  shares = shares[shares > 0]
  return float(np.exp(-(shares * np.log(shares)).sum()))
