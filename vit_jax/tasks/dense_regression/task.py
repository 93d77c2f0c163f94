"""Dense regression as a task: a number for each pixel, such as its depth.

`models.segmenter` has the model. Labels are pictures of numbers.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Array, Float

from vit_jax.data.batch import Transform
from vit_jax.data.example import Source
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading.pixel_numbers.statistics import Statistics
from vit_jax.data.settings import TrainTransformSettings
from vit_jax.data.transforming.with_masks import with_numbers
from vit_jax.models.segmenter import segmenter
from vit_jax.runtime.checks import checked
from vit_jax.runtime.display import Metric
from vit_jax.tasks.answers import Answers, PixelFiles
from vit_jax.tasks.dense_regression.objective import PixelErrors, Scaling
from vit_jax.tasks.dense_regression.outcome import PixelNumbersOutcome, sums
from vit_jax.tasks.dense_regression.pictures import make_panels
from vit_jax.tasks.dense_regression.settings import (
  DINOV2,
  DenseRegressionSettings,
)
from vit_jax.tasks.metrics import Measure, gathering
from vit_jax.tasks.outcome import OF_NUMBERS, R2_BELOW_ZERO, Stream
from vit_jax.tasks.pictures import Panels
from vit_jax.tasks.scores import Scores
from vit_jax.tasks.segmentation.task import NOT_OF_PIXELS, UNREAD_OF_PIXELS
from vit_jax.tasks.table import labels_of
from vit_jax.tasks.task import Task

_PLAIN = DenseRegressionSettings()
_UNSCALED = Scaling()
_LOOKED_AT = 48  # Examples whose statistics serve a source without statistics.
_LEVELS = (1 << 16) - 1  # The greatest value of a PNG of 16 bits.


@dataclasses.dataclass(frozen=True)
class DenseRegressionTask(Task):
  """Predicting the number of each pixel.

  Attributes:
    scaling: The meaning of outputs, a fact of the training targets.
    levels: The number that one level of a PNG of 16 bits stands for, if such
      files can hold the training targets, which are multiples of it; or else 0.
  """

  dense_regression: DenseRegressionSettings = _PLAIN
  scaling: Scaling = _UNSCALED
  levels: float = 0.0
  name = "dense_regression"
  labels = labels_of(name)
  scores = Scores(
    (
      Metric("mae", "MAE", "{:.4g}", higher_is_better=False),
      Metric("rmse", "RMSE", "{:.4g}", higher_is_better=False),
      Metric("abs_rel", "AbsRel", "{:.4f}", higher_is_better=False),
      Metric("delta1", "delta < 1.25"),
      Metric("r2", "R2", "{:.4f}", below_zero=R2_BELOW_ZERO),
    ),
    best="r2",
    curves=OF_NUMBERS,
    sentence="Pixels are off by {mae:.4g} on average on {examples:,} images",
  )
  asked_by = "--masks=FOLDER to write the numbers of images"
  refuses = NOT_OF_PIXELS
  reported = "curves, and best and worst images"
  panels = Panels(
    make_panels,
    "What it answers",
    "The image is on the left, then its target and the model's answer, from "
    "dark for the target's least number to yellow for its greatest. Unknown "
    "pixels are grey.",
    "Three panels: the image, its target, the model's answer",
  )

  @property
  def unread(self) -> dict[str, str]:
    return UNREAD_OF_PIXELS

  @property
  def why_refused(self) -> str:
    return (
      "does not fit numbers of pixels, and data.task='dense_regression' has "
      "them as labels"
    )

  def fitted(self, train: Source) -> "DenseRegressionTask":
    """The task with the scale of the numbers of the training targets.

    Raises ValueError if all targets are equal, or the loss cannot take them.
    """
    folder: Any = train
    statistics = getattr(train, "statistics", None)
    if statistics is None:
      first = range(min(_LOOKED_AT, len(train)))
      statistics = Statistics.of(folder.labels(first))
    if not statistics.std:
      raise ValueError(
        f"all targets looked at are {statistics.mean:.6g}: give images whose "
        "numbers differ."
      )
    if self.dense_regression.loss == "silog" and not statistics.are_positive:
      raise ValueError(
        "dense_regression.loss='silog' needs targets above 0, but the smallest "
        f"is {statistics.least:.6g}: list invalid values in data.unknown, or "
        "take the loss l1."
      )
    scaling = Scaling(mean=statistics.mean, std=statistics.std)
    if self.keeps_parts:  # The kept head gives numbers in the targets' unit.
      scaling = _UNSCALED
    elif statistics.are_positive and statistics.log_std > 0:
      scaling = dataclasses.replace(
        scaling, log_mean=statistics.log_mean, log_std=statistics.log_std
      )
    levels = 0.0
    if getattr(train, "is_whole", False) and statistics.least >= 0:
      level = folder.reading.scale
      if statistics.most <= level * _LEVELS:
        levels = level
    return dataclasses.replace(self, scaling=scaling, levels=levels)

  def facts(self) -> dict[str, Any]:
    facts = dataclasses.asdict(self.scaling)
    return {"task": self.name, **facts, "levels": self.levels}

  def with_facts(self, description: Mapping[str, Any]) -> "DenseRegressionTask":
    """The task with the stored scaling and levels of the targets."""
    stored = description["targets"]
    names = [field.name for field in dataclasses.fields(Scaling)]
    numbers = {name: checked(name, float, stored[name]) for name in names}
    levels = checked("levels", float, stored["levels"])
    return dataclasses.replace(self, scaling=Scaling(**numbers), levels=levels)

  @property
  def answers(self) -> "PixelNumbersAnswers":
    return PixelNumbersAnswers(self)

  @property
  def reads_patches(self) -> bool:
    return True

  @property
  def keeps_parts(self) -> bool:
    return self.dense_regression.head == DINOV2

  def num_outputs(self, names: Sequence[str]) -> int:
    del names
    return 1

  def adapted(self, model: Any) -> Any:
    """The encoder with a head of one output for each patch, or part of it."""
    return segmenter(
      model, 1, task=self.name, **self.dense_regression.of_head()
    )

  def train_transform(
    self, preprocessing: Preprocessing, settings: TrainTransformSettings
  ) -> Transform:
    return with_numbers(preprocessing.train_transform(settings))

  def eval_transform(self, preprocessing: Preprocessing) -> Transform:
    return with_numbers(preprocessing.transform())

  def objective(self, model: Any, preprocessing: Preprocessing) -> PixelErrors:
    return PixelErrors(
      mean=preprocessing.mean,
      std=preprocessing.std,
      scaling=self.scaling,
      settings=self.dense_regression,
    )

  def measure(self, model: Any, stream: Stream) -> Measure:
    """The measure that sums errors over pixels, in the targets' unit."""
    objective = self.objective(model, stream.preprocessing)
    middle, spread = self.scaling.mean, self.scaling.std
    name, *_ = stream.source.class_names

    def rows(params: Any, batch: Mapping[str, Array]) -> dict[str, Array]:
      """The loss of each image, and its `sums`."""
      outputs = model.apply({"params": params}, objective.inputs(batch))
      targets = batch["label"]
      loss, _ = objective.compare(outputs, targets)
      y = objective.numbers(outputs, *targets.shape[1:])
      return {"loss": loss, **sums(y, targets, middle, spread)}

    unit = self.dense_regression.unit
    outcome = functools.partial(PixelNumbersOutcome, name, unit, spread)
    return gathering(rows, outcome)


@dataclasses.dataclass(frozen=True)
class PixelNumbersAnswers(Answers):
  """Answers with a number for each pixel, and without one for the image."""

  task: DenseRegressionTask

  def marker(
    self,
    model: Any,
    preprocessing: Preprocessing,
    short_side: int | None = None,
  ) -> Callable[..., Float[np.ndarray, "H W"]]:
    """Makes a function from parameters and an image to its numbers, (H, W).

    `short_side` is what the image's shorter side is resized to, as in the base.
    """
    from vit_jax.models.interpolation import bicubic_weights
    from vit_jax.tasks.segmentation.marking import enlarged_in_strips, make_mark

    def bicubic(outputs: np.ndarray, height: int, width: int) -> np.ndarray:
      """The numbers (height, width), from outputs (h, w, 1) in their unit."""
      h, w = outputs.shape[:2]
      rows = bicubic_weights(h, height, antialias=False)
      columns = bicubic_weights(w, width, antialias=False)
      answer = rows @ outputs[..., 0].astype(float) @ columns.T
      return answer.astype(np.float32)

    def numbers(outputs: np.ndarray, height: int, width: int) -> np.ndarray:
      """The numbers (height, width), from scaled outputs (h, w, 1)."""
      answer = np.empty((height, width), np.float32)
      for rows, values in enlarged_in_strips(outputs, height, width):
        answer[rows] = self.task.scaling.numbers(values[..., 0])
      return answer

    # transformers enlarges the depth of such a head bicubically.
    answer = bicubic if self.task.keeps_parts else numbers
    return make_mark(model, preprocessing, short_side, answer)

  def pixel_files(self, names: Sequence[str]) -> PixelFiles:
    """The writer of files of numbers, in the settings' unit."""
    from vit_jax.tasks.dense_regression.files import NumberFiles

    settings = self.task.dense_regression
    name = names[0] if names else "numbers"
    return NumberFiles(name, settings.unit, self.task.levels)
