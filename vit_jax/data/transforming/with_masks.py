"""Images with their masks, which are cut and mirrored alike."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.data.batch import LABEL, ArraySpec, ImageTransform, Spec, Transform
from vit_jax.data.example import Example
from vit_jax.data.reading.mask_folder import IGNORED, ignored_label


@dataclasses.dataclass(frozen=True)
class WithMasks(Transform):
  """A transform of images that cuts and mirrors their masks alike.

  The label of an example, a mask of any size, becomes one of the transformed
  image's height and width. Each pixel takes the value of the nearest one, so
  that no two classes are mixed. What lies outside of the image has no class, or
  no number.

  Attributes:
    images: A `PlacedTransform`.
    outside: The label of pixels of no class; NaN for numbers.
    dtype: The type of labels.
  """

  images: Any
  outside: float = IGNORED
  dtype: Any = np.int32

  @property
  def spec(self) -> Spec:
    height, width, _ = self.images.image_shape
    return {**self.images.spec, LABEL: ArraySpec((height, width), self.dtype)}

  def row(
    self, example: Example, *rng: np.random.Generator
  ) -> Mapping[str, Any]:
    """The arrays of the image, and its mask, (H, W), as `label`."""
    arrays, places = self.images.row_and_places(example["image"], *rng)
    label = places.take_from(example["label"], self.outside)
    return {**arrays, LABEL: label}


def with_label(
  images: ImageTransform, label: ArraySpec, classes: int
) -> Transform:
  """A transform of images that cuts their labels alike if these are pictures.

  Labels are pictures if the shape of `label` is (0, 0), for any size: masks of
  `classes` classes, or numbers if they are floats. For other labels, `images`
  is returned as it is.
  """
  if label.shape != (0, 0):
    return images
  if label.dtype.kind == "f":
    return with_numbers(images)
  return WithMasks(images, ignored_label(classes))


def with_numbers(images: ImageTransform) -> WithMasks:
  """A transform of images that cuts their labels alike: pictures of float32."""
  return WithMasks(images, float("nan"), np.float32)
