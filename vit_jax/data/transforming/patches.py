"""Images of any size, each cut into patches and padded to a fixed number."""

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8

from vit_jax.data.batch import SIZE, ArraySpec, ImageTransform, Spec
from vit_jax.data.decoding.decode import image_size
from vit_jax.data.example import (
  Example,
  Source,
  UnreadableImageError,
  evenly_spread,
)
from vit_jax.data.transforming.sizes import AnySize, Shape

_MEASURED = 256  # Images whose sizes tell the share of padding.


@dataclasses.dataclass(frozen=True)
class IntoPatches(ImageTransform):
  """The patches of another transform's images, padded to a fixed number.

  `image` has their pixels, uint8 (N, P * P * C) for N = `tokens`, in the order
  (row, column, channel) within a patch and row by row over the image; rows
  beyond the image are 0. `size`, int32 (1, 2), says how many patches there are
  along the image's height and width.

  Attributes:
    images: A transform from the module `transforms`, with `size` as its sizes.
    size: How many patches an image may have, and their side in pixels.
    channels: C, the channels of an image.
  """

  images: Any
  size: AnySize
  channels: int

  @property
  def image_shape(self) -> tuple[int, int, int]:
    """Raises ValueError, as images of any size have no common shape."""
    return (*self.size.height_width, self.channels)

  def __call__(self, image: Any, *rng: np.random.Generator) -> np.ndarray:
    """Raises ValueError: `row` gives the patches of an image, with its size."""
    raise ValueError(
      f"this model's images keep their proportions ({self.size}), and "
      "transform(image) makes images of one size: load it with an image_size."
    )

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
    """The patches of an image, and how many there are; see the class."""
    P = self.size.patch_size
    image = self.images(example["image"], *rng)
    patches = cut(image, P)
    rows = np.zeros(self.spec["image"].shape, np.uint8)
    rows[: len(patches)] = patches
    height, width, _ = image.shape
    return {"image": rows, SIZE: np.array([[height // P, width // P]])}

  def with_tokens(self, tokens: int) -> "IntoPatches":
    """The same transform with at most `tokens` patches an image."""
    size = dataclasses.replace(self.size, tokens=tokens)
    images = dataclasses.replace(self.images, sizes=size)
    return dataclasses.replace(self, images=images, size=size)

  def shape(self, example: Example, rng: np.random.Generator) -> Shape:
    """The height and width of the part that `row` resizes, by the header.

    Raises UnreadableImageError as `image_size` does.
    """
    return self.images.shape(example["image"], rng)


def pictures(
  batch: Mapping[str, np.ndarray], channels: int
) -> Iterable[UInt8[np.ndarray, "H W C"]]:
  """The images of a batch, put together again if they were cut into patches.

  Each image has a row of its own, and `channels` channels.
  """
  if SIZE not in batch:
    return batch["image"]
  P = math.isqrt(batch["image"].shape[-1] // channels)
  images = []
  for rows, (size,) in zip(batch["image"], batch[SIZE], strict=True):
    h, w = size.tolist()
    grid = rows[: h * w].reshape(h, w, P, P, channels).swapaxes(1, 2)
    images.append(grid.reshape(h * P, w * P, channels))
  return images


def some_shapes(source: Source) -> list[Shape]:
  """Heights and widths of some images, spread over the source.

  The headers of up to 256 files are read; files that cannot be read are left
  out.
  """
  shapes = []
  for index in evenly_spread(_MEASURED, len(source)):
    # A file that cannot be read has no patches either.
    with contextlib.suppress(UnreadableImageError, OSError):
      shapes.append(image_size(source[index]["image"]))
  return shapes


def padding(size: AnySize, shapes: Sequence[Shape]) -> float:
  """The share of padding in the rows of images of these shapes.

  Each image has a row of its own, and is not cropped. Without images it is 0.
  """
  filled = [math.prod(size.grid(shape)) / size.tokens for shape in shapes]
  return 1 - float(np.mean(filled)) if filled else 0.0


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
