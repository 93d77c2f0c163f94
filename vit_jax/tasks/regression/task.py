"""Regression: an image has one or several numbers."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vit_jax.data.example import Source
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.models.paths import is_kernel
from vit_jax.runtime.checks import PerChannel, checked
from vit_jax.runtime.display import Metric, Split
from vit_jax.tasks.answers import Answer, Answers
from vit_jax.tasks.metrics import Measure
from vit_jax.tasks.outcome import (
  OF_NUMBERS,
  R2_BELOW_ZERO,
  Chart,
  Stream,
  Table,
)
from vit_jax.tasks.outputs import OutputsOutcome, mean_of_known, outputs_measure
from vit_jax.tasks.scores import FoldAnswers, FoldScore, Scores
from vit_jax.tasks.table import labels_of
from vit_jax.tasks.task import Task, all_labels, class_name
from vit_jax.training.losses import Classification

if TYPE_CHECKING:
  from vit_jax.tasks.probes.number_probe import Numbers

_MOST_CHARTS = 12  # The most targets whose predictions are drawn.


@dataclasses.dataclass(frozen=True)
class Regression(Classification):
  """The objective of regression: the outputs predict standardised targets.

  `target_mean` and `target_std` are those of each target over the training
  images; without them, the outputs are the targets in their unit.
  """

  target_mean: Sequence[float] = ()
  target_std: Sequence[float] = ()
  metric = "mae"

  def targets(self, label: Float[Array, "B K"]) -> Array:
    """The standardised numbers."""
    if not self.target_std:
      return label
    mean, std = map(jnp.asarray, (self.target_mean, self.target_std))
    return (label - mean[None]) / std[None]

  def loss_and_score(
    self, logits: Array, targets: Array
  ) -> tuple[Array, Array]:
    """Each example's squared error, and its error in the targets' units."""
    error = logits - targets
    absolute = jnp.abs(error)
    if self.target_std:
      absolute = absolute * jnp.asarray(self.target_std)[None]
    return (error**2).mean(axis=-1), absolute.mean(axis=-1)


class NumberScores(Scores):
  """Scores whose headline has the error of each target."""

  def result(self, metrics: Mapping[str, Any]) -> str:
    """The error of each target, whose units may differ, and R2.

    R2 can be compared with that of the folds.
    """
    scores = Split.EVAL.scores(metrics)
    each = scores.get("mae_by_target", {})
    errors = f"{scores['mae']:.4g}"
    if len(each) > 1 and np.isfinite(scores["mae"]):
      errors = ", ".join(f"{mae:.4g} ({name})" for name, mae in each.items())
    r2 = ""
    if np.isfinite(scores.get("r2", np.nan)):
      r2 = f", with {self.metric.text(metrics)}"
    return (
      f"Predictions are off by {errors} on average on "
      f"{scores['examples']:,} images{r2}"
    )


@dataclasses.dataclass(frozen=True)
class RegressionTask(Task):
  """Predicting numbers, in their unit."""

  # Mean of each target over the training images; empty if the model's outputs
  # are in the unit of the targets by themselves.
  target_mean: tuple[float, ...] = ()
  target_std: tuple[float, ...] = ()  # Their standard deviations, or empty.
  name = "regression"
  any_size = True
  labels = labels_of(name)
  scores = NumberScores(
    (
      Metric("mae", "MAE", "{:.4g}", higher_is_better=False),
      Metric(
        "r2",
        "R2",
        "{:.4f}",
        by_example=True,
        below_zero=R2_BELOW_ZERO,
        undefined="no target differs among these images, so evaluate on "
        "others, or judge by MAE",
      ),
    ),
    best="r2",
    curves=OF_NUMBERS,
  )
  losses = ("mse",)
  refuses = (
    "loss.label_smoothing",
    "loss.mixup_alpha",
    "loss.cutmix_alpha",
    "loss.class_weights",
    "model.num_classes",
    "model.head_bias",
    "transfer.keep_head",
    "fewshot.shots",
    "distill.teacher",
  )

  def fitted(self, train: Source) -> "RegressionTask":
    """The task with the mean and deviation of each training target."""
    labels = all_labels(train)
    mean, std = (tuple(x.tolist()) for x in (labels.mean(0), labels.std(0)))
    return dataclasses.replace(self, target_mean=mean, target_std=std)

  def facts(self) -> dict[str, Any]:
    mean, std = [*self.target_mean], [*self.target_std]
    return {"task": self.name, "mean": mean, "std": std}

  def with_facts(self, description: Mapping[str, Any]) -> "RegressionTask":
    """The task with the stored mean and deviation of each target."""
    targets = description.get("targets", {})
    mean, std = (
      checked(key, PerChannel, targets.get(key, ())) for key in ("mean", "std")
    )
    return dataclasses.replace(self, target_mean=mean, target_std=std)

  def check_evaluation(self, source: Source) -> None:
    """Raises ValueError if a target is the same in all images of the split."""
    spread = np.ptp(all_labels(source), axis=0)
    if not spread.all():
      name = source.class_names[int(np.argmin(spread))]
      raise ValueError(
        f"{name} is the same in all images of {source.name}, so there is no "
        "R2 to measure: evaluate on more images."
      )

  @property
  def head_probe(self) -> "Numbers":
    from vit_jax.tasks.probes.number_probe import Numbers

    return Numbers(self.target_mean, self.target_std)

  def score_folds(
    self, folds: Sequence[FoldAnswers], count: int
  ) -> FoldScore | None:
    """The mean R2 of the targets; see `FoldScore.of_answers`."""

    def score(answers: np.ndarray, labels: np.ndarray) -> float:
      return mean_of_known(r_squared(answers, labels))

    return FoldScore.of_answers("r2", folds, count, score)

  def objective(
    self, model: nn.Module, preprocessing: Preprocessing
  ) -> Regression:
    return Regression(
      model.num_classes,
      self.loss,
      mean=preprocessing.mean,
      std=preprocessing.std,
      target_mean=self.target_mean,
      target_std=self.target_std,
    )

  def measure(self, model: nn.Module, stream: Stream) -> Measure:
    """The measure that keeps each image's numbers, in the targets' unit."""

    def answers(logits: np.ndarray) -> np.ndarray:
      return logits * np.array(self.target_std) + np.array(self.target_mean)

    return outputs_measure(self, model, stream, answers, RegressionOutcome)

  @property
  def answers(self) -> "NumberAnswers":
    return NumberAnswers(self)

  def in_unit(self) -> "RegressionTask":
    return dataclasses.replace(self, target_mean=(), target_std=())


@dataclasses.dataclass(frozen=True)
class NumberAnswers(Answers):
  """Numbers, in their unit."""

  task: "RegressionTask"

  @property
  def meaning(self) -> str:
    return "The logits are predicted numbers, in the unit of the targets."

  @property
  def are_ranked(self) -> bool:
    return False

  def outputs(self, logits: Float[Array, "B K"], top: int) -> dict[str, Array]:
    """The numbers of each image, in the targets' unit."""
    if self.task.target_std:
      mean, std = map(
        jnp.asarray, (self.task.target_mean, self.task.target_std)
      )
      logits = logits * std[None] + mean[None]
    return {"values": logits}

  def as_json(
    self, answer: Answer, names: Sequence[str], top: int | None = None
  ) -> dict[str, Any]:
    pairs = enumerate(answer.values)
    return {"values": {class_name(names, k): v for k, v in pairs}}

  def lines(
    self, answer: Answer, names: Sequence[str], top: int | None = None
  ) -> list[str]:
    pairs = enumerate(answer.values)
    return [f"{value:12.6g}  {class_name(names, k)}" for k, value in pairs]

  def text(self, row: Mapping[str, Any], names: Sequence[str]) -> str:
    return self.task.labels.describe(row["values"], names)

  def leaf_in_unit(self, path: str, array: np.ndarray) -> np.ndarray:
    """The head's arrays times the deviation, and the bias plus the mean."""
    if self.task.target_std:
      array = (array * np.array(self.task.target_std)).astype(array.dtype)
      if not is_kernel(path):
        array = (array + np.array(self.task.target_mean)).astype(array.dtype)
    return array


@dataclasses.dataclass(frozen=True)
class RegressionOutcome(OutputsOutcome):
  """The outcome of an evaluation of numbers."""

  @functools.cached_property
  def by_target(
    self,
  ) -> tuple[Float[np.ndarray, " K"], Float[np.ndarray, " K"]]:
    """Mean absolute error, in the target's unit, and R2 of each target.

    Where an output is NaN, the error is inf and R2 is -inf. R2 is NaN where all
    labels of a target are equal.
    """
    error = self.output - self.label
    r2 = r_squared(self.output, self.label)
    mae = np.abs(error).mean(0)
    diverged = np.isnan(error).any(0)
    mae[diverged] = np.inf
    r2[diverged] = -np.inf
    return mae, r2

  @property
  def scores(self) -> dict[str, Any]:
    mae, r2 = map(mean_of_known, self.by_target)
    return self.common({"mae": mae, "r2": r2})

  @property
  def chance(self) -> float:
    """The R2 of answering the mean for all images."""
    return 0.0

  @property
  def notes(self) -> list[str]:
    """A line on targets without R2, which its mean leaves out."""
    _, r2 = self.by_target
    why = "the other targets are the same for all of these images"
    return self.left_out("R2 is the mean", r2, why)

  def by_class(self) -> dict[str, Any]:
    mae, r2 = self.by_target
    return self.each("mae_by_target", mae) | self.each("r2_by_target", r2)

  def table(self) -> Table:
    """The mean, the deviation and the scores of each target."""
    columns = zip(self.names, self.label.T, *self.by_target, strict=True)
    rows = []
    for name, label, mae, r2 in columns:
      numbers = f"{label.mean():.6g}", f"{label.std():.4g}", f"{mae:.4g}"
      rows.append([name, *numbers, "-" if np.isnan(r2) else f"{r2:.4f}"])
    return ("target", "mean", "deviation", "MAE", "R2"), rows

  def columns(self) -> tuple[list[str], Callable[[int], list[str]]]:
    """The columns of targets and of answers, and a function for their cells."""

    def cells(row: int) -> list[str]:
      # Labels are float32: the shortest decimal of a label is what its file
      # has.
      labels = self.label[row].astype(np.float32)
      texts = [np.format_float_positional(value, trim="-") for value in labels]
      return [*texts, *(f"{value:.8g}" for value in self.output[row])]

    ends = ("", "_predicted")
    return [f"{name}{end}" for end in ends for name in self.names], cells

  def charts(self) -> list[Chart]:
    columns = zip(self.names, self.label.T, self.output.T, strict=True)
    return [
      Chart(
        "numbers",
        {"name": name, "true": label, "predicted": output},
        alt=f"Predictions of {name} by its true values.",
        caption=f"{name}: on the dashed line, predictions are right",
      )
      for name, label, output in itertools.islice(columns, _MOST_CHARTS)
    ]


def r_squared(
  outputs: Float[np.ndarray, "N K"], labels: Float[np.ndarray, "N K"]
) -> Float[np.ndarray, " K"]:
  """R2 of each target; NaN where all its labels are equal.

  >>> import numpy as np
  >>> from vit_jax.tasks.regression.task import r_squared
  >>> labels = np.array([[1.0], [2.0], [3.0]])
  >>> r_squared(np.array([[1.0], [2.0], [4.0]]), labels).tolist()  # 1 - 1 / 2
  [0.5]
  """
  spread = ((labels - labels.mean(0)) ** 2).sum(0)
  error = ((outputs - labels) ** 2).sum(0)
  # The spread of equal labels is not quite 0, as their mean is rounded.
  differ = (labels != labels[:1]).any(0)
  return 1 - error / np.where(differ, spread, np.nan)
