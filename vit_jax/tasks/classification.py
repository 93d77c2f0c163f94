"""Classification: an image has one class."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax
from jaxtyping import Array, Float

from vit_jax.data.example import Source
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.runtime import hosts
from vit_jax.runtime.display import Display, Metric, Track, untracked
from vit_jax.tasks.confusion import ConfusionMatrix
from vit_jax.tasks.eval_step import (
  Predictions,
  Totals,
  class_accuracy,
  make_eval_step,
  summary,
  total_over,
)
from vit_jax.tasks.outcome import (
  Chart,
  Curves,
  Evaluator,
  Examples,
  Outcome,
  Table,
)
from vit_jax.tasks.stream import Stream
from vit_jax.tasks.task import Answer, Task, class_name, class_names
from vit_jax.training import losses, sharding
from vit_jax.training.losses import Classification


@dataclasses.dataclass(frozen=True)
class ClassificationTask(Task):
  """Naming the class of an image.

  Attributes:
    class_weights: A factor for each class's part of the loss.
    outcome: The class of what an evaluation finds.
    counts_answers: Whether its metrics need the counts of the answers.
  """

  class_weights: tuple[float, ...] | None = None
  outcome: ClassVar[type["ClassificationOutcome"]]
  counts_answers: ClassVar[bool] = False
  name = "classification"
  metrics = (
    Metric("top1", "top-1"),
    Metric("macro_f1", "macro-F1"),
    Metric("top5", "top-5"),
    Metric("calibration_error", "calibration error", higher_is_better=False),
  )
  score = "top1"
  curves = (
    Curves(
      "Top-1 accuracy",
      {
        "train/top1": "training",
        "eval/top1": "evaluation",
        "fewshot/top1": "few-shot",
      },
      percent=True,
    ),
  )

  def fitted(self, train: Source) -> "ClassificationTask":
    if not self.loss.class_weights:
      return self
    from vit_jax.tasks.class_weights import class_weights

    return dataclasses.replace(
      self, class_weights=class_weights(self.loss, train)
    )

  def facts(self) -> dict[str, Any]:
    if self.class_weights is None:
      return {}
    return {"task": self.name, "weights": [*self.class_weights]}

  def with_facts(self, description: Mapping[str, Any]) -> "ClassificationTask":
    weights = description.get("targets", {}).get("weights")
    return dataclasses.replace(self, class_weights=weights and tuple(weights))

  def objective(
    self, model: nn.Module, preprocessing: Preprocessing
  ) -> Classification:
    count, weights = model.num_classes, self.class_weights
    if weights is not None:  # A head may be wider than the data's classes.
      weights = (*weights, *[1.0] * (count - len(weights)))
    mean, std = preprocessing.mean, preprocessing.std
    return Classification(count, self.loss, mean, std, weights)

  def evaluator(self, model: nn.Module, stream: Stream) -> Evaluator:
    return _Evaluator(self, model, stream)

  def class_logits(self, logits: Float[Array, "B K"]) -> Array:
    """One logit for each class, from the outputs of the model."""
    return logits

  def outputs(self, logits: Float[Array, "B K"], top: int) -> dict[str, Array]:
    logits = self.class_logits(logits)
    _, index = jax.lax.top_k(logits, min(top, logits.shape[1]))
    every = losses.probabilities(self.loss.kind, logits)
    probability = jax.numpy.take_along_axis(every, index, axis=1)
    return {"index": index, "probability": probability}

  def as_json(
    self, answer: Answer, names: Sequence[str], top: int | None = None
  ) -> dict[str, Any]:
    return {
      "predictions": [
        {"class": class_name(names, k), "index": k, "probability": p}
        for k, p in self.ranked(answer, top)
      ]
    }

  def lines(
    self, answer: Answer, names: Sequence[str], top: int | None = None
  ) -> list[str]:
    return [
      f"{p:7.2%}  {class_name(names, k)}" for k, p in self.ranked(answer, top)
    ]

  def ranked(
    self, answer: Answer, top: int | None = None
  ) -> list[tuple[int, float]]:
    """The classes to show and their probabilities, the likeliest first."""
    return [*zip(answer.index, answer.probability, strict=True)][:top]

  def answer_text(self, row: Mapping[str, Any], names: Sequence[str]) -> str:
    answer = class_name(names, row["index"][0])
    return f"{answer}, {row['probability'][0]:.1%}"

  def score_text(self, metrics: Mapping[str, Any]) -> str:
    return f"{metrics['eval/top1']:.1%} are right"

  def headline(self, metrics: Mapping[str, Any]) -> str:
    total = f"{metrics['eval/examples']:,} images"
    return f"{metrics['eval/top1']:.1%} of {total} are right"


@dataclasses.dataclass(frozen=True)
class ClassificationOutcome(Outcome):
  """The outcome of an evaluation of classes.

  Attributes:
    totals: Sums over all examples.
    names: Names of all classes.
    confusion: Counts of the answers, if details were asked for.
    predictions: The answers to each batch, if they are to be written.
  """

  totals: Totals
  names: Sequence[str]
  confusion: ConfusionMatrix | None = None
  predictions: Sequence[Predictions] = ()

  @property
  def counts(self) -> ConfusionMatrix:
    """The counts of the answers, which details alone have."""
    assert self.confusion is not None
    return self.confusion

  @property
  def metrics(self) -> dict[str, Any]:
    return {f"eval/{k}": v for k, v in summary(self.totals).items()}

  @property
  def details(self) -> dict[str, float]:
    if self.confusion is None:
      return {}
    return {
      "eval/macro_f1": self.confusion.macro_f1(),
      "eval/calibration_error": self.confusion.calibration_error(),
    }

  @property
  def remark(self) -> str:
    if self.confusion is None:
      return ""
    return f"  macro-F1 {self.confusion.macro_f1():.2%}"

  @property
  def notes(self) -> list[str]:
    if self.confusion is None or not self.confusion.unanswered:
      return []
    count = self.confusion.unanswered
    return [f"The model answers NaN to {count:,} examples."]

  def by_class(self) -> dict[str, Any]:
    return {"eval/top1_by_class": class_accuracy(self.totals, self.names)}

  def show(self, display: Display) -> None:
    from vit_jax.tasks import class_report

    class_report.show(display, self.counts, self.names)

  def write(self, path: pathlib.Path, source: Source) -> None:
    from vit_jax.tasks import prediction_table

    prediction_table.write_classes(path, source, self.predictions, self.names)

  def headline(self) -> str:
    from vit_jax.tasks import class_report

    return class_report.headline(self.confusion, self.names)

  def tables(self, counts: Any = None) -> list[tuple[str, Table]]:
    from vit_jax.tasks import class_report

    return class_report.tables(self.counts, self.names, counts)

  def charts(self) -> list[Chart]:
    from vit_jax.tasks import class_report

    return class_report.charts(self.counts, self.names)

  def telling(self) -> list[Examples]:
    from vit_jax.tasks import class_report

    return class_report.telling(self.counts, self.names)


ClassificationTask.outcome = ClassificationOutcome


class _Evaluator:
  """Evaluates a classifier on a split; see `outcome.Evaluator`."""

  def __init__(
    self, task: ClassificationTask, model: nn.Module, stream: Stream
  ):
    self._stream, self._task = stream, task
    preprocessing = stream.preprocessing
    objective = task.objective(model, preprocessing).for_evaluation()
    step = make_eval_step(
      model, objective=objective, class_logits=task.class_logits
    )
    whole = sharding.replicated(stream.mesh)
    self._step = hosts.together(
      jax.jit(
        sharding.on_mesh(step, stream.mesh),
        in_shardings=(whole, None, None),
        out_shardings=whole,
      )
    )
    names = stream.source.class_names
    self._names = class_names(names, model.num_classes)

  def __call__(
    self,
    params: Any,
    track: Track = untracked,
    *,
    detail: bool = False,
    examples: bool = False,
  ) -> ClassificationOutcome:
    detail = detail or self._task.counts_answers
    confusion = ConfusionMatrix() if detail else None
    predictions: list[Predictions] = []

    def observe(batch: Predictions) -> None:
      if confusion is not None:
        confusion.add(batch)
      if examples:
        predictions.append(batch)

    totals = total_over(
      self._step,
      params,
      self._stream(track),
      len(self._names),
      observe if detail or examples else None,
    )
    return self._task.outcome(totals, self._names, confusion, predictions)
