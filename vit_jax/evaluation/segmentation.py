"""A linear probe that names the class of each patch, and its IoU by pixel."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from vit_jax.data.reading.segmentation import IGNORED, resize_mask
from vit_jax.evaluation.linear_probe import L2S, Moments, Probe

Batches = Iterable[tuple[Array, dict[str, Array]]]
"""Maps (B, h, w, D), and `label` (B, H, W), `mask` and `skipped`, both (B,)."""


@dataclasses.dataclass(frozen=True)
class Segmentation:
  """The result of the probe.

  Attributes:
    iou: Intersection over union of each class, in [0, 1]; None for one that
      neither a mask nor an answer has.
    mean_iou: Mean over the others.
    pixels_right: Share of the pixels with a class that are right.
    examples: Number of evaluation images.
    train_examples: Number of training images.
    skipped_images: Number of unreadable images in both splits.
    l2: The probe's L2.
  """

  iou: tuple[float | None, ...]
  mean_iou: float
  pixels_right: float
  examples: int
  train_examples: int
  skipped_images: int
  l2: float


def segment(train: Batches, test: Batches, num_classes: int) -> Segmentation:
  """Fits the closed-form linear probe to the patches, and tests it by pixel.

  The class of a patch is that of the mask resized to the grid of patches by
  nearest neighbour. Every tenth training image chooses the L2. To test, the
  scores are enlarged to the masks' size bilinearly.

  Raises:
    ValueError: if there are too few training images, or none to test on.
  """
  moments, held, seen, skipped = None, [], 0, 0
  for maps, rest in train:
    features, label, readable = _patches(maps, rest)
    skipped += int(rest["skipped"].sum())
    moments = moments or Moments(features.shape[-1], num_classes)
    for image in np.flatnonzero(readable):
      known = label[image] != IGNORED
      patches = features[image][known], label[image][known]
      if seen % 10 == 9:
        held.append(patches)
      else:
        moments.add(*patches)
      seen += 1
  if moments is None or not held:
    raise ValueError(
      f"{seen} readable training images are too few for a probe of "
      "segmentation; give 10 or more."
    )
  features, label = (np.concatenate(part) for part in zip(*held, strict=True))
  l2 = moments.choose_l2(features, label, L2S)
  moments.add(features, label)
  probe, examples = moments.fit(l2), 0
  answer = jax.jit(
    lambda maps, size: answers(probe, maps, size), static_argnums=1
  )
  confusion = np.zeros((num_classes, num_classes), np.int64)
  for maps, rest in test:
    size = rest["label"].shape[1:]
    found, label, mask = jax.device_get(
      (answer(maps, size), rest["label"], rest["mask"])
    )
    skipped += int(rest["skipped"].sum())
    examples += int(mask.sum())
    confusion += count(label[mask > 0], found[mask > 0], num_classes)
  if not confusion.sum():
    raise ValueError("the evaluation split has no readable pixel of a class.")
  union = confusion.sum(0) + confusion.sum(1) - confusion.diagonal()
  iou = confusion.diagonal() / np.maximum(union, 1)
  return Segmentation(
    iou=tuple(float(x) if n else None for x, n in zip(iou, union, strict=True)),
    mean_iou=float(iou[union > 0].mean()),
    pixels_right=float(confusion.trace() / confusion.sum()),
    examples=examples,
    train_examples=seen,
    skipped_images=skipped,
    l2=l2,
  )


def answers(
  probe: Probe, maps: Float[Array, "B h w D"], size: tuple[int, int]
) -> Int[Array, "B H W"]:
  """The class of each pixel, by scores enlarged bilinearly."""
  mean, scale, W = (
    jnp.asarray(x, jnp.float32) for x in (probe.mean, probe.scale, probe.W)
  )

  def one(features: Float[Array, "h w D"]) -> Int[Array, "H W"]:
    z = (features - mean[None, None]) / scale[None, None]
    scores = jnp.dot(z, W[:-1], precision=jax.lax.Precision.HIGHEST)
    scores = scores + W[-1][None, None]
    enlarged = jax.image.resize(scores, (*size, W.shape[1]), "bilinear")
    return enlarged.argmax(axis=-1)

  return jax.lax.map(one, maps)


def count(
  label: Any, answer: Int[np.ndarray, "N H W"], num_classes: int
) -> Int[np.ndarray, "K K"]:
  """Counts pixels by class (rows) and answer, without those of no class."""
  label = np.asarray(label).astype(np.int64)
  known = label != IGNORED
  if (label[known] >= num_classes).any():
    raise ValueError(
      f"a mask to evaluate on has the class {label[known].max()}, and the "
      f"training masks have 0 to {num_classes - 1}."
    )
  pairs = label[known] * num_classes + answer[known]
  return np.bincount(pairs, minlength=num_classes**2).reshape(
    num_classes, num_classes
  )


def _patches(
  maps: Array, rest: dict[str, Array]
) -> tuple[Float[np.ndarray, "B h w D"], Int[np.ndarray, "B h w"], np.ndarray]:
  """Features and classes of the patches, and which images could be read."""
  features, label, mask = jax.device_get((maps, rest["label"], rest["mask"]))
  grid = features.shape[1:3]
  small = np.stack([resize_mask(one, grid) for one in label.astype(np.int32)])
  return features, small, mask > 0
