"""Images of any size, cut into patches, as many rows for each."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import UInt8

from vit_jax.data.batch import ArraySpec, Spec, Transform
from vit_jax.data.example import Example
from vit_jax.data.transforming.sizes import AnySize

SIZE = "size"
"""Name of the array of images' sizes: patches along height and width."""


@dataclasses.dataclass(frozen=True)
class IntoPatches(Transform):
  """The patches of another transform's images, padded to a fixed number.

  `image` has their pixels, uint8 (N, P * P * C) for N = `tokens`, in the order
  (row, column, channel) within a patch and row by row over the image; rows
  beyond the image are 0. `size`, int32 (1, 2), says how many patches there are
  along its height and width.

  Attributes:
    images: One of `transforms` whose images are of the sizes of `size`.
    size: How many patches of how many pixels.
    channels: C, the channels of an image.
  """

  images: Any
  size: AnySize
  channels: int

  @property
  def spec(self) -> Spec:
    P, C = self.size.patch_size, self.channels
    return {
      "image": ArraySpec((self.size.tokens, P * P * C)),
      SIZE: ArraySpec((1, 2), np.int32),
    }

  def row(
    self, example: Example, *rng: np.random.Generator
  ) -> Mapping[str, Any]:
    P = self.size.patch_size
    image = self.images(example["image"], *rng)
    patches = cut(image, P)
    rows = np.zeros(self.spec["image"].shape, np.uint8)
    rows[: len(patches)] = patches
    height, width, _ = image.shape
    return {"image": rows, SIZE: np.array([[height // P, width // P]])}


def cut(
  image: UInt8[np.ndarray, "H W C"], patch_size: int
) -> UInt8[np.ndarray, "N P2C"]:
  """Cuts an image into patches, row by row, each of them flat.

  >>> import numpy as np
  >>> from vit_jax.data.transforming.patches import cut
  >>> cut(np.arange(8, dtype=np.uint8).reshape(2, 4, 1), 2).tolist()
  [[0, 1, 4, 5], [2, 3, 6, 7]]
  """
  P = patch_size
  H, W, C = image.shape
  grid = image.reshape(H // P, P, W // P, P, C).swapaxes(1, 2)
  return grid.reshape(-1, P * P * C)
