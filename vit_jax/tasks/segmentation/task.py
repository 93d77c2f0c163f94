"""Segmentation as a task: a class for each pixel of an image.

`models.segmenter` has the model. Labels are pictures of classes.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from vit_jax.data.batch import Transform
from vit_jax.data.example import Source
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading.mask_folder import ignored_label
from vit_jax.data.settings import TrainTransformSettings
from vit_jax.data.transforming.with_masks import WithMasks
from vit_jax.models.segmenter import segmenter
from vit_jax.runtime.checks import CLASSES, checked
from vit_jax.runtime.display import Display, Metric, Split
from vit_jax.tasks.answers import Answers, PixelFiles
from vit_jax.tasks.finite import best_class
from vit_jax.tasks.metrics import Gathered, Measure, gathering
from vit_jax.tasks.outcome import (
  Curves,
  Example,
  Examples,
  Outcome,
  Stream,
  Table,
  write_rows,
)
from vit_jax.tasks.pictures import Panels
from vit_jax.tasks.scores import Scores
from vit_jax.tasks.segmentation.objective import PixelClasses, enlarged
from vit_jax.tasks.segmentation.pictures import make_panels
from vit_jax.tasks.segmentation.settings import SegmentationSettings
from vit_jax.tasks.table import labels_of
from vit_jax.tasks.task import OF_CLASSES, Task, class_name

_SHOWN = 6  # Examples of each kind in a report.
_PLAIN = SegmentationSettings()
NOT_OF_PIXELS = (
  *OF_CLASSES,
  "transfer.keep_head",
  "train_transform.randaugment_layers",
  "distill.teacher",
  "fewshot.shots",
  "fewshot.neighbours",
)
"""Keys that have no effect with labels of pixels."""
UNREAD_OF_PIXELS: dict[str, str] = dict.fromkeys(
  ("model.representation_size", "transfer.keep_pre_logits"),
  "as the head reads patches, and no representation of the image",
)
"""Keys that such a task takes and does not read, with the reason."""


@dataclasses.dataclass(frozen=True)
class SegmentationTask(Task):
  """Naming the class of each pixel.

  Attributes:
    classes: The number of classes of the training masks, a fact; 0 stands for
      that of the model's outputs.
  """

  segmentation: SegmentationSettings = _PLAIN
  classes: int = 0
  name = "segmentation"
  labels = labels_of(name)
  scores = Scores(
    (
      Metric("pixels_right", "pixels right"),
      Metric("mean_iou", "mean IoU"),
    ),
    best="mean_iou",
    curves=(
      Curves(
        "Mean IoU", {Split.EVAL.key("mean_iou"): "evaluation"}, percent=True
      ),
      Curves(
        "Pixels right",
        {
          Split.TRAIN.key("pixels_right"): "training",
          Split.EVAL.key("pixels_right"): "evaluation",
        },
        percent=True,
      ),
    ),
  )
  asked_by = "--masks=FOLDER to write the masks of images"
  refuses = NOT_OF_PIXELS
  reported = "curves, and best and worst images"
  panels = Panels(
    make_panels,
    "What it marks",
    "The image is on the left, then its mask and the model's answer. Each "
    "class has a colour, and pixels of no class keep the image's.",
    "Three panels: the image, its mask, the model's answer",
  )

  @property
  def unread(self) -> dict[str, str]:
    return UNREAD_OF_PIXELS

  @property
  def why_refused(self) -> str:
    return "does not fit masks, and data.task='segmentation' has them as labels"

  def fitted(self, train: Source) -> "SegmentationTask":
    return dataclasses.replace(self, classes=len(train.class_names))

  @property
  def answers(self) -> "PixelAnswers":
    return PixelAnswers()

  @property
  def reads_patches(self) -> bool:
    return True

  def facts(self) -> dict[str, Any]:
    return {"task": self.name, "classes": self.classes}

  def with_facts(self, description: Mapping[str, Any]) -> "SegmentationTask":
    """The task with the stored number of classes."""
    stored = description["targets"]["classes"]
    classes = checked("classes", int, stored, CLASSES)
    return dataclasses.replace(self, classes=classes)

  def adapted(self, model: Any) -> Any:
    """The encoder with a head of K logits for each patch, or part of it."""
    classes = self.classes or model.num_classes
    return segmenter(
      model, classes, task=self.name, **self.segmentation.of_head()
    )

  def train_transform(
    self, preprocessing: Preprocessing, settings: TrainTransformSettings
  ) -> Transform:
    return WithMasks(
      preprocessing.train_transform(settings), ignored_label(self.classes)
    )

  def eval_transform(self, preprocessing: Preprocessing) -> Transform:
    return WithMasks(preprocessing.transform(), ignored_label(self.classes))

  def objective(self, model: Any, preprocessing: Preprocessing) -> PixelClasses:
    return PixelClasses(preprocessing.mean, preprocessing.std)

  def measure(self, model: Any, stream: Stream) -> Measure:
    """The measure that counts the pixels of each class."""
    objective = self.objective(model, stream.preprocessing)
    names = stream.source.class_names

    def rows(params: Any, batch: Mapping[str, Array]) -> dict[str, Array]:
      """The loss of each image, and its `counts`."""
      logits = model.apply({"params": params}, objective.inputs(batch))
      masks = batch["label"]
      loss, _ = objective.compare(logits, masks)
      answer = best_class(enlarged(logits, *masks.shape[1:]))
      return {"loss": loss, **counts(masks, answer, logits.shape[-1])}

    return gathering(rows, functools.partial(SegmentationOutcome, names))


class PixelAnswers(Answers):
  """Answers with a class for each pixel, and without one for the image."""

  def marker(
    self,
    model: Any,
    preprocessing: Preprocessing,
    short_side: int | None = None,
  ) -> Callable[..., np.ndarray]:
    from vit_jax.tasks.segmentation.marking import make_mark

    return make_mark(model, preprocessing, short_side)

  def pixel_files(self, names: Sequence[str]) -> PixelFiles:
    from vit_jax.tasks.segmentation.files import MaskFiles

    return MaskFiles(names)


def counts(
  masks: Int[Array, "B H W"], answer: Int[Array, "B H W"], num_classes: int
) -> dict[str, Int[Array, "B K"]]:
  """The numbers of pixels of each class in masks, in answers, and in both.

  Pixels of no class count nowhere.
  """
  has_class = masks != ignored_label(num_classes)

  def count_class(k: Array) -> dict[str, Array]:
    """The pixels of class k in masks, in answers, and in both, (B,) each."""
    true = (masks == k) & has_class
    answered = (answer == k) & has_class
    pixels = {"true": true, "answered": answered, "right": true & answered}
    return {key: x.sum(axis=(1, 2)) for key, x in pixels.items()}

  by_class = jax.lax.map(count_class, jnp.arange(num_classes))
  return jax.tree.map(jnp.transpose, by_class)


def iou(
  right: Int[np.ndarray, "*N K"],
  true: Int[np.ndarray, "*N K"],
  answered: Int[np.ndarray, "*N K"],
) -> Float[np.ndarray, "*N K"]:
  """IoU of each class, from numbers of pixels; NaN if the class is nowhere."""
  union = true + answered - right
  return np.where(union > 0, right / np.maximum(union, 1), np.nan)


@dataclasses.dataclass(frozen=True)
class SegmentationOutcome(Outcome):
  """The outcome of an evaluation of segmentation.

  Attributes:
    gathered: The loss of each example, and the pixels of `counts`.
  """

  names: Sequence[str]
  gathered: Gathered

  @property
  def unanswered(self) -> int:
    return self.gathered.unanswered

  @property
  def constant(self) -> bool:
    """Whether pixels of several classes are all answered as one class."""
    true, answered = (
      int(self._pixels[key].any(axis=0).sum()) for key in ("true", "answered")
    )
    return answered == 1 < true

  @functools.cached_property
  def _pixels(self) -> dict[str, Int[np.ndarray, "N K"]]:
    """The `counts` of each example."""
    keys = ("right", "true", "answered")
    return {key: self.gathered.arrays[key].astype(np.int64) for key in keys}

  @functools.cached_property
  def iou(self) -> Float[np.ndarray, " K"]:
    """The IoU of each class over the split; NaN if the class is nowhere."""
    return iou(**{key: x.sum(axis=0) for key, x in self._pixels.items()})

  @functools.cached_property
  def each_iou(self) -> Float[np.ndarray, " N"]:
    """The mean IoU of each example; 1 if none of its pixels has a class."""
    each = iou(**self._pixels)
    occurs = ~np.isnan(each)
    count = occurs.sum(axis=1)
    total = np.where(occurs, each, 0).sum(axis=1)
    return np.where(count > 0, total / np.maximum(count, 1), 1.0)

  @property
  def scores(self) -> dict[str, Any]:
    """The scores of the split; raises ValueError if no pixel has a class."""
    pixels = self._pixels
    total = int(pixels["true"].sum())
    if not total:
      raise ValueError(
        "no readable pixel of the evaluation split has a class: evaluate on "
        "other images."
      )
    return {
      "loss": float(self.gathered.arrays["loss"].mean(dtype=np.float64)),
      "mean_iou": float(np.nanmean(self.iou)),
      "pixels_right": int(pixels["right"].sum()) / total,
      "examples": len(self.gathered.index),
      "skipped_images": self.gathered.skipped,
    }

  @property
  def chance(self) -> float:
    """The mean IoU of answering the commonest class for all pixels."""
    true = self._pixels["true"].sum(axis=0)
    return float(true.max() / max(true.sum(), 1) / max((true > 0).sum(), 1))

  def by_class(self) -> dict[str, Any]:
    """The IoU of each class that occurs."""
    pairs = zip(self.names, self.iou, strict=False)
    finite = {name: float(x) for name, x in pairs if np.isfinite(x)}
    return Split.EVAL.keyed({"iou_by_class": finite})

  def table(self) -> Table:
    """The IoU of each class, and its share of the pixels."""
    true, answered = (
      self._pixels[key].sum(axis=0) for key in ("true", "answered")
    )
    total = max(int(true.sum()), 1)
    rows = [
      [
        class_name(self.names, k),
        "-" if np.isnan(value) else f"{value:.2%}",
        f"{true[k] / total:.1%}",
        f"{answered[k] / total:.1%}",
      ]
      for k, value in enumerate(self.iou)
    ]
    return ("class", "IoU", "of the pixels", "answered"), rows

  def show(self, display: Display) -> None:
    display.table(*self.table())

  def tables(self, counts: Any = None) -> list[tuple[str, Table]]:
    return [("IoU of each class", self.table())]

  def write(self, path: pathlib.Path, source: Source) -> None:
    """Writes the scores of each image, the highest loss first."""
    loss = self.gathered.arrays["loss"]
    order = np.argsort(-loss, kind="stable")
    right, true = (self._pixels[key].sum(axis=1) for key in ("right", "true"))
    share = right / np.maximum(true, 1)
    rows = (
      [f"{self.each_iou[row]:.6g}", f"{share[row]:.6g}", f"{loss[row]:.6g}"]
      for row in order
    )
    columns = ("mean_iou", "pixels_right", "loss")
    write_rows(path, source, columns, self.gathered.index[order], rows)

  def telling(self) -> list[Examples]:
    """The images with the lowest and the highest mean IoU."""
    order = np.argsort(self.each_iou, kind="stable")
    worst = [*order[:_SHOWN]]
    best = [row for row in order[::-1][:_SHOWN] if row not in worst]
    text = "The image, its mask, and the model's answer."
    return [
      Examples(f"{kind} images", text, [*map(self._example, rows)])
      for kind, rows in (("Worst", worst), ("Best", best))
      if rows
    ]

  def _example(self, row: int) -> Example:
    """The image at a row, with its mean IoU as caption."""
    caption = f"mean IoU {self.each_iou[row]:.1%}"
    index = int(self.gathered.index[row])
    alt = f"An image, its mask, and the model's answer, {caption}"
    return Example(index, caption, alt)
