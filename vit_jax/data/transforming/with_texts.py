"""Images, each with the ids of one of its captions."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from vit_jax.data.batch import ArraySpec, Spec, Transform
from vit_jax.data.example import Example
from vit_jax.data.reading.captions import NONE, TEXT
from vit_jax.data.transforming.sizes import AnySize, Shape


@dataclasses.dataclass(frozen=True)
class WithTexts(Transform):
  """The arrays of another transform, and `text`, the ids of a caption, (T,).

  The label of an example has the ids of all of its captions, (M, T), as
  `Captions` makes them. Training draws one, after the image's random changes;
  an evaluation takes the first. `PairsTask.train_transform` makes this object,
  for a `models.two_towers.TwoTowers`.
  """

  images: Any  # An `ImageTransform`.
  length: int  # T, the number of ids of a caption.

  @property
  def size(self) -> AnySize:
    """The `AnySize` of the images, if these share rows of a batch."""
    return self.images.size

  def with_tokens(self, tokens: int) -> Self:
    """The same transform with at most `tokens` patches an image."""
    return dataclasses.replace(self, images=self.images.with_tokens(tokens))

  def shape(self, example: Example, rng: np.random.Generator) -> Shape:
    """The height and width of the part of an image that is cut into patches."""
    return self.images.shape(example, rng)

  @property
  def spec(self) -> Spec:
    text = ArraySpec((self.length,), np.int32)
    return {**self.images.spec, TEXT: text}

  def row(
    self, example: Example, *rng: np.random.Generator
  ) -> Mapping[str, Any]:
    """The arrays of the image, and the ids of one of its captions."""
    arrays = self.images.row(example, *rng)
    captions = np.asarray(example["label"])
    count = int((captions[:, 0] != NONE).sum())
    place = 0
    if rng and count > 1:
      (generator,) = rng
      place = int(generator.integers(count))
    return {**arrays, TEXT: captions[place]}
