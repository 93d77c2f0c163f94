"""Decodes image files to RGB pixels.

Whatever the file holds, the result is 8-bit RGB, as a person would see it on a
white page. Grey levels are repeated, palettes looked up, CMYK is converted,
16-bit samples keep their high byte, transparent pixels are blended with white,
EXIF orientation is applied, and an animation gives its first frame. Ordinary
JPEG files are decoded by libjpeg-turbo (see `jpeg`), ordinary PNG files by
OpenCV, and everything else by Pillow.
"""

import io
from collections.abc import Callable

import cv2
import numpy as np
from PIL import ExifTags, Image

from vit_jax.data import jpeg
from vit_jax.runtime.printable import printable

MAX_PIXELS = 89_478_485
"""Larger images are refused before decoding; the limit is Pillow's own."""

_MAX_SCANS = 100
"""A scan costs hardly a byte, but as much time as decoding the whole image."""

# Pillow reads many more formats, and runs another program for some (EPS).
_PILLOW_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
_JPEG_START, _SCAN = b"\xff\xd8", b"\xff\xda"
_PNG_START = b"\x89PNG\r\n\x1a\n"
_PNG_END = b"\x00\x00\x00\x00IEND\xaeB`\x82"
_TURNS: dict[int, Callable[[np.ndarray], np.ndarray]] = {
  2: lambda stored: cv2.flip(stored, 1),
  3: lambda stored: cv2.flip(stored, -1),
  4: lambda stored: cv2.flip(stored, 0),
  5: cv2.transpose,
  6: lambda stored: cv2.rotate(stored, cv2.ROTATE_90_CLOCKWISE),
  7: lambda stored: cv2.transpose(cv2.flip(stored, -1)),
  8: lambda stored: cv2.rotate(stored, cv2.ROTATE_90_COUNTERCLOCKWISE),
}
"""The turn that makes an image of each EXIF orientation upright.

Orientation 1 is upright already.
"""


class UnreadableImageError(ValueError):
  """Raised for an image that cannot be decoded; says which one and why."""


def decode_rgb(encoded: bytes) -> np.ndarray:
  """Decodes a JPEG, PNG, WebP, BMP or GIF file.

  Args:
    encoded: the whole file.

  Returns:
    The image, uint8 of shape (H, W, 3), in the order red, green, blue.

  Raises:
    UnreadableImageError: the file is empty, cut short, damaged or of another
      format, or the image has more than `MAX_PIXELS` pixels.
  """
  if not encoded:
    raise UnreadableImageError("the file is empty.")
  if header := jpeg.read_header(encoded):
    image = decode_jpeg(encoded, header)
    if image is not None:
      return image
  elif size := _png_size(encoded):
    _check_size(*size)
    image = _decode_with_opencv(encoded)
    if image is not None:
      return image
  return _turned(*_decode_with_pillow(encoded))


def decode_jpeg(
  encoded: bytes,
  header: jpeg.Header,
  reduce: int = 1,
  rows: int | None = None,
) -> np.ndarray | None:
  """Decodes a JPEG file, at a reduced size or down to a given row.

  Args:
    encoded: the whole file.
    header: the file's header.
    reduce: one of `jpeg.REDUCTIONS`, which divides both sides, rounding up.
      Reduced images take a fraction of the time.
    rows: how many rows of the upright image are needed, counted from its top;
      None for all. Where that saves time, rows below are not decoded.

  Returns:
    The upright image or its upper part, uint8 of shape (H, W, 3); None if the
    file is damaged.

  Raises:
    UnreadableImageError: the image has more than `MAX_PIXELS` pixels, or an
      absurd number of scans.
  """
  _check_size(header.height, header.width)
  if not header.top_down:
    _check_scans(encoded)
  if header.orientation in _TURNS:
    rows = None  # The rows stored first are not the upper ones.
  image = jpeg.decode(encoded, header, reduce, rows)
  return None if image is None else _turned(image, header.orientation)


def _turned(stored: np.ndarray, orientation: int) -> np.ndarray:
  return _TURNS[orientation](stored) if orientation in _TURNS else stored


def _check_size(height: int, width: int) -> None:
  if height * width > MAX_PIXELS:
    raise UnreadableImageError(
      f"the image has {width} x {height} pixels, more than {MAX_PIXELS}; "
      "shrink it first."
    )


def _check_scans(encoded: bytes) -> None:
  """Refuses a JPEG that takes minutes to decode; cameras write ten scans."""
  scans = encoded.count(_SCAN)
  if scans > _MAX_SCANS:
    raise UnreadableImageError(
      f"the image is stored in {scans} scans, more than {_MAX_SCANS}; save it "
      "anew."
    )


def _png_size(encoded: bytes) -> tuple[int, int] | None:
  """Returns (H, W) of a complete, opaque 8-bit grey or RGB PNG, else None.

  OpenCV would fill the missing part of a cut file with grey, and drop alpha.
  """
  if not (encoded.startswith(_PNG_START) and encoded.endswith(_PNG_END)):
    return None
  if encoded[24:26] not in (b"\x08\x00", b"\x08\x02"):  # Bits, colour type.
    return None
  at = len(_PNG_START)
  while (kind := encoded[at + 4 : at + 8]) != b"IDAT":
    if kind in (b"tRNS", b"eXIf", b"IEND", b""):
      return None
    at += 12 + int.from_bytes(encoded[at : at + 4], "big")
  width = int.from_bytes(encoded[16:20], "big")
  return int.from_bytes(encoded[20:24], "big"), width


def _decode_with_opencv(encoded: bytes) -> np.ndarray | None:
  try:
    buffer = np.frombuffer(encoded, np.uint8)
    return cv2.imdecode(buffer, cv2.IMREAD_COLOR_RGB)
  except cv2.error:
    return None


def _decode_with_pillow(encoded: bytes) -> tuple[np.ndarray, int]:
  """Returns the image as it is stored, and its EXIF orientation."""
  try:
    with Image.open(io.BytesIO(encoded), formats=_PILLOW_FORMATS) as image:
      _check_size(image.height, image.width)
      if encoded.startswith(_JPEG_START):
        _check_scans(encoded)
      image.load()
      orientation = _orientation(image)
      return np.array(_to_rgb(image)), orientation
  except UnreadableImageError:
    raise
  except Image.UnidentifiedImageError:
    raise UnreadableImageError("not an image of a known format.") from None
  # On damaged files, Pillow's plugins raise almost anything (SyntaxError,
  # struct.error, ...), and above its own size limit Pillow warns or raises.
  except Exception as error:
    text = printable(str(error)).rstrip(".")  # Some messages quote the file.
    name = type(error).__name__
    raise UnreadableImageError(f"{text or name}.") from error


def _orientation(image: Image.Image) -> int:
  """Returns the EXIF orientation; 1, upright, if it is missing or damaged."""
  try:
    return image.getexif().get(ExifTags.Base.Orientation, 1)
  except Exception:  # Damaged metadata is no reason to lose the image.
    return 1


def _to_rgb(image: Image.Image) -> Image.Image:
  """Converts any mode to RGB, scaling 16-bit samples and blending alpha."""
  if image.mode.startswith("I"):  # 16-bit grey: "I;16", "I;16B", "I".
    samples = np.asarray(image)
    if samples.min() < 0 or samples.max() > 0xFFFF:
      raise UnreadableImageError("samples of more than 16 bits.")
    image = Image.fromarray((samples >> 8).astype(np.uint8))
  if image.mode == "F":
    raise UnreadableImageError("floating-point samples.")
  if not image.has_transparency_data:
    return image.convert("RGB")
  image = image.convert("RGBA")
  page = Image.new("RGBA", image.size, "white")
  return Image.alpha_composite(page, image).convert("RGB")
