"""A linear probe that names the class of each patch, and its IoU by pixel."""

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from vit_jax.data.reading.mask_folder import ignored_label, resize_mask
from vit_jax.tasks.finite import NO_ANSWER, best_class, check_representations
from vit_jax.tasks.probes.linear_probe import Probe, fit_in_parts
from vit_jax.tasks.probes.whole_set import Readable, Represented
from vit_jax.tasks.scores import Metric, Verdict


@dataclasses.dataclass(frozen=True)
class Segmentation:
  """The result of the probe, by pixel."""

  # Intersection over union of each class, in [0, 1]; None for a class that
  # neither a mask nor an answer has.
  iou: tuple[float | None, ...]
  mean_iou: float  # Mean over the classes whose IoU is not None.
  pixels_right: float  # Share of right answers among pixels that have a class.
  examples: int
  train_examples: int
  skipped_images: int  # Number of unreadable images in both splits.
  l2: float
  class_names: tuple[str, ...]

  @property
  def verdict(self) -> Verdict:
    """How far `mean_iou` can be trusted."""
    metric = Metric("mean_iou", "mean IoU")
    return Verdict(
      metric, {"mean_iou": self.mean_iou, "examples": self.examples}
    )


def segment(
  train: Represented, test: Represented, class_names: Sequence[str]
) -> Segmentation:
  """Fits the closed-form linear probe to the patches, and tests it by pixel.

  Representations are maps of the patches, (B, h, w, D), and labels masks, (B,
  H, W). The class of a patch is that of the mask resized to the grid of patches
  by nearest neighbour. Every tenth training image chooses the L2. To test, the
  scores are enlarged to the masks' size bilinearly. Raises ValueError if there
  are too few training images, or none to test on.
  """
  num_classes = len(class_names)
  trained = Readable(train)
  probe = fit_in_parts(_patches(trained, num_classes), num_classes)
  classes_of = jax.jit(partial(answers, probe), static_argnums=1)
  tested = Readable(
    (classes_of(maps, row_info["label"].shape[1:]), row_info)
    for maps, row_info in test
  )
  pixels = np.zeros((3, num_classes), np.int64)
  for answer, label in tested:
    if (answer == NO_ANSWER).any():
      check_representations(np.nan)  # Raises its error.
    pixels += count(label, answer, num_classes)
  right, true, answered = pixels
  if not true.sum():
    raise ValueError(
      "no readable pixel of the evaluation split has a class: evaluate on "
      "other images."
    )
  union = true + answered - right
  iou = right / np.maximum(union, 1)
  return Segmentation(
    iou=tuple(float(x) if n else None for x, n in zip(iou, union, strict=True)),
    mean_iou=float(iou[union > 0].mean()),
    pixels_right=float(right.sum() / true.sum()),
    examples=tested.examples,
    train_examples=trained.examples,
    skipped_images=trained.skipped + tested.skipped,
    l2=probe.l2,
    class_names=tuple(class_names),
  )


def answers(
  probe: Probe, maps: Float[Array, "B h w D"], size: tuple[int, int]
) -> Int[Array, "B H W"]:
  """The class of each pixel of images of `size`, by scores of patches.

  The scores are enlarged bilinearly.
  """
  mean, scale, W = (
    jnp.asarray(x, jnp.float32) for x in (probe.mean, probe.scale, probe.W)
  )

  def answer(features: Float[Array, "h w D"]) -> Int[Array, "H W"]:
    """The class of each pixel of one image."""
    z = (features - mean[None, None]) / scale[None, None]
    scores = jnp.dot(z, W[:-1], precision=jax.lax.Precision.HIGHEST)
    scores = scores + W[-1][None, None]
    enlarged = jax.image.resize(scores, (*size, W.shape[1]), "bilinear")
    return best_class(enlarged)

  return jax.lax.map(answer, maps)


def count(
  label: Any, answer: Int[np.ndarray, "N H W"], num_classes: int
) -> Int[np.ndarray, "3 K"]:
  """Counts the pixels of each class that are right, true, and answered.

  Pixels of no class count nowhere.

  Raises ValueError if a pixel's class is `num_classes` or more.

  >>> import numpy as np
  >>> from vit_jax.tasks.probes.segmentation import count
  >>> mask = np.array([[[0, 0], [1, 255]]])  # 255 stands for no class.
  >>> answer = np.array([[[0, 1], [1, 1]]])
  >>> count(mask, answer, num_classes=2).tolist()
  [[1, 1], [2, 1], [1, 2]]
  """
  label = np.asarray(label).astype(np.int64)
  has_class = label != ignored_label(num_classes)
  if (label[has_class] >= num_classes).any():
    raise ValueError(
      f"a mask to evaluate on has the class {label[has_class].max()}, and the "
      f"training masks have 0 to {num_classes - 1}."
    )
  true = label[has_class]
  answered = answer[has_class]
  parts = (true[true == answered], true, answered)
  return np.stack([np.bincount(x, minlength=num_classes) for x in parts])


def _patches(
  train: Readable, num_classes: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
  """Features, classes and folds of each image's patches that have a class.

  The patches of every tenth image are the one fold, and those of other images
  are never held out. Raises ValueError for fewer than 10 images.
  """
  for maps, masks in train:
    numbers = range(train.examples - len(maps), train.examples)
    for number, features, mask in zip(numbers, maps, masks, strict=True):
      label = resize_mask(mask.astype(np.int32), features.shape[:2])
      has_class = label != ignored_label(num_classes)
      fold = 0 if number % 10 == 9 else -1
      yield (
        features[has_class],
        label[has_class],
        np.full(has_class.sum(), fold),
      )
  if train.examples < 10:
    raise ValueError(
      f"{train.examples} readable training images are too few for a "
      "segmentation probe; give 10 or more."
    )
