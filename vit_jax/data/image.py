"""The facts of an image, and OpenCV on images of any number of channels."""

import dataclasses
from collections.abc import Callable

import numpy as np

Window = tuple[float, float]
"""The values of samples of more than 8 bits that become black and white."""


@dataclasses.dataclass(frozen=True)
class ImageSpec:
  """How the samples of an image file become the pixels that a model sees.

  Attributes:
    channels: 1 for grey, 2 for grey and alpha, 3 for RGB, 4 for RGBA; or the
      number of a TIFF file's bands, which are then taken as they are stored.
      Colours become grey by their luminance (ITU-R BT.601), and alpha is 255
      where a file has none.
    window: The values of images of more than 8 bits that become black and
      white; None for 0 and 65535.
    corner: How half a pixel in the position of the evaluation's crop is
      rounded: "floor", or "even", as Python's `round` does.
  """

  channels: int = 3
  window: Window | None = None
  corner: str = "floor"

  @property
  def grey(self) -> bool:
    """Whether the first channel is the luminance."""
    return self.channels in (1, 2)


RGB = ImageSpec()


def by_fours(
  change: Callable[[np.ndarray], np.ndarray], image: np.ndarray
) -> np.ndarray:
  """Applies an OpenCV function, which takes four channels at most.

  It also drops the last axis of an image of one channel, which is put back.
  """
  if image.shape[2] > 4:
    parts = [image[..., c : c + 4] for c in range(0, image.shape[2], 4)]
    return np.concatenate([by_fours(change, p) for p in parts], axis=2)
  changed = change(image)
  return changed.reshape(*changed.shape[:2], image.shape[2])
