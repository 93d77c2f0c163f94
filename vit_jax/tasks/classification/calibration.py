"""Temperatures that make a classifier's probabilities agree with its hits.

The logits are divided by a temperature T, which leaves their order as it is
(arXiv:1706.04599, Sec. 4.2). It is fitted on one half of a split, and its
effect measured on the other.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from vit_jax.runtime.display import Track, untracked
from vit_jax.tasks.classification.confusion import ConfusionMatrix
from vit_jax.tasks.classification.eval_step import Predictions
from vit_jax.tasks.finite import check_finite
from vit_jax.tasks.intervals import FEW
from vit_jax.tasks.metrics import Evaluator, gathering
from vit_jax.tasks.outcome import Stream
from vit_jax.training.losses import Classification

_LARGEST = 100.0  # The highest temperature; its inverse is the lowest.
LEAST_IMAGES = 2 * FEW  # Examples, so that each half has `FEW`.
_HALVINGS = 60  # The interval of log(1 / T) shrinks to 1e-17.

Logits = Float[np.ndarray, "N K"]
Labels = Float[np.ndarray, "N K"]
"""1 for the class of an example, or for each of its labels; 0 elsewhere.

One of several labels may be NaN, if it is unknown; sums leave it out.
"""


@dataclasses.dataclass(frozen=True)
class Calibration:
  """Temperatures, and what they change on the half they were not fitted on.

  Attributes:
    temperature: One for all classes, or one for each label.
    error_before, error_after: The expected calibration error.
    loss_before, loss_after: The mean negative log-likelihood.
    fitted_on, measured_on: The number of examples of each half.
    unfitted: The indices of labels for which no temperature is best, as where
      no example has the label, or the logits separate those that have it; their
      temperature is 1.
    logits, labels: Those of the whole split; no temperature divides the logits.
  """

  temperature: tuple[float, ...]
  error_before: float
  error_after: float
  loss_before: float
  loss_after: float
  fitted_on: int
  measured_on: int
  unfitted: tuple[int, ...]
  logits: Logits = dataclasses.field(repr=False)
  labels: Labels = dataclasses.field(repr=False)

  def check(self) -> None:
    """Raises ValueError if the temperature makes the measured loss higher.

    Probabilities would then be worse than without the temperature.
    """
    if self.loss_after > self.loss_before:
      raise ValueError(
        "the temperature is not kept, as it makes the loss higher on the "
        f"examples that it was not fitted on ({self.loss_before:.4f} before, "
        f"{self.loss_after:.4f} after): the answers are calibrated as they "
        "are, or there are too few examples to tell."
      )

  def lines(self, names: Sequence[str]) -> list[str]:
    """The temperatures and scores in words; `names` has the labels' names."""
    T = self.temperature
    if len(T) == 1:
      shown = f"temperature {T[0]:.4g}"
    else:
      each = zip(names, T, strict=True)
      shown = "temperatures " + ", ".join(f"{k} {x:.4g}" for k, x in each)
    lines = [f"{shown}, fitted on {self.fitted_on:,} examples"]
    lines.append(
      f"on {self.measured_on:,} others: calibration error "
      f"{self.error_before:.2%} before, {self.error_after:.2%} after; "
      f"loss {self.loss_before:.4f} before, {self.loss_after:.4f} after"
    )
    if self.unfitted:
      unfitted = ", ".join(names[k] for k in self.unfitted)
      lines.append(f"No temperature is best for {unfitted}: 1 is taken.")
    return lines


def calibrator(
  objective: Classification, model: nn.Module, stream: Stream, *, each: bool
) -> Callable[[Any, Track], Calibration]:
  """Returns a function from (params, track) to the `Calibration` of a split.

  `each` fits a temperature for each label instead of one for all classes. The
  function raises ValueError as `fit` does.
  """
  plain = objective.for_evaluation()

  def rows(params: Any, batch: Any) -> dict[str, Any]:
    logits: Any = plain.model_outputs(model, params, batch)
    targets = plain.targets(batch["label"])
    return {"logits": logits.astype(jnp.float32), "targets": targets}

  evaluator = Evaluator(gathering(rows), stream)

  def calibrate(params: Any, track: Track = untracked) -> Calibration:
    arrays = evaluator.metric(params, track).result().arrays
    logits, labels = (
      arrays[name].astype(np.float64) for name in ("logits", "targets")
    )
    return fit(plain.settings.kind, logits, labels, each=each)

  return calibrate


def fit(
  kind: str, logits: Logits, labels: Labels, *, each: bool = False
) -> Calibration:
  """Fits temperatures on one half of the examples, and tests them on the other.

  The examples are always halved in the same way.

  Args:
    kind: The loss, "softmax" or "sigmoid".
    each: Whether each label has a temperature of its own, which maximises the
      likelihood of that label.

  Raises:
    ValueError: if there are fewer than 100 examples, a logit is not finite, or
      no temperature is best, as where every answer is right.
  """
  count = len(logits)
  if count < LEAST_IMAGES:
    raise ValueError(
      f"{count} examples are too few to calibrate on: it takes {LEAST_IMAGES}, "
      "half of them to fit the temperature and half to see what it changes."
    )
  check_finite(logits)
  order = np.random.default_rng(0).permutation(count)
  first, second = order[: count // 2], order[count // 2 :]
  if each:
    columns = zip(logits[first].T, labels[first].T, strict=True)
    fitted = [_temperature_of_known(kind, z, y) for z, y in columns]
  else:
    fitted = [temperature(kind, logits[first], labels[first])]
  unfitted = [k for k, T in enumerate(fitted) if T is None]
  if len(unfitted) == len(fitted):
    raise ValueError(
      f"no temperature is best on {len(first)} examples: all answers are "
      "right, or they are no better than chance. Calibrate on more examples."
    )
  T = np.array([1.0 if one is None else one for one in fitted])
  before = logits[second]
  after = logits[second] / T
  y = labels[second]
  return Calibration(
    temperature=tuple(T.tolist()),
    error_before=calibration_error(kind, before, y, several=each),
    error_after=calibration_error(kind, after, y, several=each),
    loss_before=loss(kind, before, y),
    loss_after=loss(kind, after, y),
    fitted_on=len(first),
    measured_on=len(second),
    unfitted=tuple(unfitted),
    logits=logits,
    labels=labels,
  )


def _temperature_of_known(
  kind: str, logits: np.ndarray, labels: np.ndarray
) -> float | None:
  """The temperature of one label, from the examples whose label is known.

  None if no label is known, or where `temperature` gives None.
  """
  known = ~np.isnan(labels)
  if not known.any():
    return None
  return temperature(kind, logits[known, None], labels[known, None])


def temperature(kind: str, logits: Logits, labels: Labels) -> float | None:
  """The temperature of the highest likelihood; None outside of [0.01, 100].

  The negative logarithm of the likelihood is convex in b = 1 / T, so b is where
  its slope, the mean of sum_k z_k (p_k - y_k), is 0.

  >>> import numpy as np
  >>> from vit_jax.tasks.classification.calibration import temperature
  >>> z = np.log([[3.0, 1.0]] * 4)  # p = 3/4 and 1/4.
  >>> y = np.eye(2)[[0, 0, 0, 1]]  # Three of four are right.
  >>> round(temperature("softmax", z, y), 6)
  1.0
  """

  def slope(b: float) -> float:
    p = probabilities(kind, b * logits)
    return float((logits * (p - labels)).sum(axis=1).mean())

  low = -np.log(_LARGEST)
  high = np.log(_LARGEST)
  if slope(np.exp(low)) >= 0 or slope(np.exp(high)) <= 0:
    return None
  for _ in range(_HALVINGS):
    middle = (low + high) / 2
    if slope(np.exp(middle)) < 0:
      low = middle
    else:
      high = middle
  return float(np.exp(-(low + high) / 2))


def probabilities(kind: str, logits: Logits) -> Logits:
  """The softmax over the classes, or the sigmoid of each logit."""
  if kind == "sigmoid":
    return (1 + np.tanh(logits / 2)) / 2
  e = np.exp(logits - logits.max(axis=1, keepdims=True))
  return e / e.sum(axis=1, keepdims=True)


def loss(kind: str, logits: Logits, labels: Labels) -> float:
  """The mean negative log-likelihood of the examples' known labels."""
  if kind == "sigmoid":
    terms = np.nan_to_num(np.logaddexp(0, logits) - labels * logits)
  else:
    terms = labels * (np.logaddexp.reduce(logits, axis=1)[:, None] - logits)
  return float(terms.sum(axis=1).mean())


def calibration_error(
  kind: str, logits: Logits, labels: Labels, *, several: bool
) -> float:
  """The expected calibration error (arXiv:1706.04599, Eq. 5).

  It is over the answers, or, if an example may have `several` labels, over all
  pairs of an example and a known label.
  """
  p = probabilities(kind, logits)
  if several:
    is_known = ~np.isnan(labels)
    label = labels[is_known].astype(int)
    answer = np.ones_like(label)
    probability = p[is_known]
  else:
    label = labels.argmax(axis=1)
    answer = logits.argmax(axis=1)
    probability = p.max(axis=1)
  answers = Predictions(
    label=label,
    answer=answer,
    probability=probability,
    loss=np.zeros_like(probability),
    counted=np.ones(label.shape, bool),
  )
  return ConfusionMatrix.of(answers).calibration_error()
