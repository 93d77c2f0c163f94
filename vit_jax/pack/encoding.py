"""The bytes in which an image is packed."""

import dataclasses

import cv2
import numpy as np
import simplejpeg

from vit_jax.data.decoding import jpeg
from vit_jax.data.decoding.decode import (
  decode_jpeg,
  decode_rgb,
  least_reduction,
)

_KEPT = (b"\xff\xd8", b"\x89PNG\r\n\x1a\n")  # JPEG and PNG begin so.


@dataclasses.dataclass(frozen=True)
class Encoding:
  """How images are stored.

  Attributes:
    size: Length in pixels that the shorter side of larger images is reduced to;
      None keeps every size.
    quality: JPEG quality of images that are encoded anew, from 1 to 100.
  """

  size: int | None = None
  quality: int = 95

  def __post_init__(self):
    if self.size is not None and self.size < 1:
      raise ValueError(f"--size={self.size} must be 1 or more.")

  def encode(self, encoded: bytes) -> bytes:
    """The image's bytes as they are packed.

    Raises:
      UnreadableImageError: if the image cannot be decoded.
    """
    image, whole = self._decode(encoded)
    height, width = image.shape[:2]
    scale = self.size / min(height, width) if self.size else 1.0
    if scale < 1:
      sides = (max(1, round(width * scale)), max(1, round(height * scale)))
      image = cv2.resize(image, sides, interpolation=cv2.INTER_AREA)
    elif whole and encoded.startswith(_KEPT):
      return encoded
    return simplejpeg.encode_jpeg(
      np.ascontiguousarray(image), self.quality, "RGB", "420"
    )

  def _decode(self, encoded: bytes) -> tuple[np.ndarray, bool]:
    """The image, and whether it has its full size.

    A JPEG that is large enough is decoded at a half of its size or less.
    """
    header = jpeg.read_header(encoded) if self.size else None
    if header and self.size:
      side, least = min(header.height, header.width), least_reduction(header)
      fits = [r for r in jpeg.REDUCTIONS if side // r >= self.size]
      reduction = max([*fits, least])
      image = decode_jpeg(encoded, header, reduction)
      if image is not None:
        return image, reduction == 1
    return decode_rgb(encoded), True
