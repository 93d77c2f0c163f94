"""From the bytes of an image file to RGB pixels.

Whatever the file holds, the result is 8-bit RGB as a person would see it on a
white page: grey levels are repeated, palettes looked up, CMYK converted, 16-bit
samples scaled (their high byte), transparency laid over white, EXIF rotation
applied, and of an animation the first frame taken. Ordinary JPEG and PNG files
go through OpenCV, all others through Pillow.
"""

import io

import cv2
import numpy as np
from PIL import Image

MAX_PIXELS = 89_478_485
"""Images of more pixels are refused before decoding (Pillow's own limit)."""

_PNG_START = b"\x89PNG\r\n\x1a\n"
_PNG_END = b"\x00\x00\x00\x00IEND\xaeB`\x82"
_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF0 ... 15
_EXIF_ORIENTATION = 0x0112
_TRANSPOSES = {
  2: Image.Transpose.FLIP_LEFT_RIGHT,
  3: Image.Transpose.ROTATE_180,
  4: Image.Transpose.FLIP_TOP_BOTTOM,
  5: Image.Transpose.TRANSPOSE,
  6: Image.Transpose.ROTATE_270,
  7: Image.Transpose.TRANSVERSE,
  8: Image.Transpose.ROTATE_90,
}
_QUARTER_TURNS = (5, 6, 7, 8)
REDUCTIONS = {
  1: cv2.IMREAD_COLOR_RGB,
  2: cv2.IMREAD_REDUCED_COLOR_2,
  4: cv2.IMREAD_REDUCED_COLOR_4,
  8: cv2.IMREAD_REDUCED_COLOR_8,
}
"""Divisors of a JPEG's sides that it can be decoded at, as OpenCV has them."""


class UnreadableImageError(ValueError):
  """An image that cannot be decoded; the message says which one and why."""


def decode_rgb(encoded: bytes, reduce: int = 1) -> np.ndarray:
  """Decodes a JPEG, PNG, WebP, BMP or GIF file.

  Args:
    encoded: the whole file.
    reduce: one of `REDUCTIONS`. A file that `upright_jpeg_size` knows is
      decoded with its sides divided by it (rounded up), which takes a fraction
      of the time: the decoder leaves out what the small image cannot show.

  Returns:
    The image, uint8 of shape (H, W, 3), in the order red, green, blue.

  Raises:
    UnreadableImageError: the file is empty, cut short, damaged, not an image,
      or of more than `MAX_PIXELS` pixels.
  """
  if not encoded:
    raise UnreadableImageError("the file is empty.")
  size = _ordinary_size(encoded)
  if size is not None:
    _check_size(*size)
    buffer = np.frombuffer(encoded, np.uint8)
    try:
      image = cv2.imdecode(buffer, REDUCTIONS[reduce])
    except cv2.error:
      image = None
    if image is not None:
      return image if reduce == 1 else cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
  return _decode_with_pillow(encoded)


def upright_jpeg_size(encoded: bytes) -> tuple[int, int] | None:
  """(H, W) as `decode_rgb` gives a plain JPEG; None for any other file."""
  if not encoded.startswith(b"\xff\xd8"):
    return None
  size = _ordinary_size(encoded)
  if size is None or size[0] * size[1] > MAX_PIXELS:
    return None
  height, width = size
  lies = _exif_orientation(encoded) in _QUARTER_TURNS
  return (width, height) if lies else (height, width)


def _check_size(height: int, width: int) -> None:
  if height * width > MAX_PIXELS:
    raise UnreadableImageError(
      f"the image has {width} x {height} pixels, more than {MAX_PIXELS}; "
      "shrink it first."
    )


def _ordinary_size(encoded: bytes) -> tuple[int, int] | None:
  """(H, W) of a complete file that OpenCV decodes as we want, else None.

  OpenCV fills the missing part of a cut file with grey, so the end marker has
  to be there; and it drops alpha and refuses CMYK.
  """
  try:
    if encoded.startswith(b"\xff\xd8") and encoded.endswith(b"\xff\xd9"):
      return _jpeg_size(encoded)
    if encoded.startswith(_PNG_START) and encoded.endswith(_PNG_END):
      return _png_size(encoded)
  except IndexError:  # the headers run past the end
    pass
  return None


def _jpeg_size(encoded: bytes) -> tuple[int, int] | None:
  """(H, W) of a grey or three-colour 8-bit JPEG; None for any other."""
  at = 2
  while encoded[at] == 0xFF:
    marker = encoded[at + 1]
    if marker == 0xFF:  # padding
      at += 1
    elif marker in _JPEG_SIZES:
      height = encoded[at + 5] << 8 | encoded[at + 6]
      width = encoded[at + 7] << 8 | encoded[at + 8]
      bits, colours = encoded[at + 4], encoded[at + 9]
      ordinary = bits == 8 and colours in (1, 3)
      return (height, width) if ordinary else None
    else:
      at += 2 + (encoded[at + 2] << 8 | encoded[at + 3])
  return None


def _exif_orientation(encoded: bytes) -> int:
  """How a JPEG wants to be turned, by its Exif data; 1 is not at all."""
  # Written by cameras before anything long, so a search finds it at once.
  start = encoded.find(b"\xff\xe1", 0, 4096)
  segment = encoded[start + 4 : start + 4 + (1 << 16)]
  if start < 0 or not segment.startswith(b"Exif\0\0"):
    return 1
  exif = Image.Exif()
  try:
    exif.load(segment)
    return int(exif.get(_EXIF_ORIENTATION, 1))
  except Exception:  # Pillow raises almost anything on damaged data.
    return 1


def _png_size(encoded: bytes) -> tuple[int, int] | None:
  """(H, W) of an 8-bit grey or RGB PNG with no transparency; else None."""
  bits, colour_type = encoded[24], encoded[25]
  if bits != 8 or colour_type not in (0, 2):
    return None
  at = len(_PNG_START)
  while (kind := encoded[at + 4 : at + 8]) != b"IDAT":
    if kind in (b"tRNS", b"eXIf", b"IEND"):
      return None
    encoded[at + 8]
    at += 12 + int.from_bytes(encoded[at : at + 4], "big")
  width = int.from_bytes(encoded[16:20], "big")
  return int.from_bytes(encoded[20:24], "big"), width


def _decode_with_pillow(encoded: bytes) -> np.ndarray:
  try:
    with Image.open(io.BytesIO(encoded)) as image:
      _check_size(image.height, image.width)
      image.load()
      orientation = _orientation(image)
      image = _to_rgb(image)
      if orientation in _TRANSPOSES:
        image = image.transpose(_TRANSPOSES[orientation])
      return np.array(image)
  except UnreadableImageError:
    raise
  except Image.UnidentifiedImageError:
    raise UnreadableImageError("not an image of a known format.") from None
  # Pillow's plugins raise almost anything on damaged files (SyntaxError,
  # struct.error, ...), and a bomb above its own limit a warning or an error.
  except Exception as error:
    raise UnreadableImageError(f"{error}.".replace("..", ".")) from error


def _orientation(image: Image.Image) -> int:
  """The EXIF orientation, 1 (upright) where there is none or it is damaged."""
  try:
    return image.getexif().get(_EXIF_ORIENTATION, 1)
  except Exception:  # damaged metadata is no reason to lose the picture
    return 1


def _to_rgb(image: Image.Image) -> Image.Image:
  """Any mode to RGB: wide samples scaled, transparency laid over white."""
  if image.mode.startswith("I"):  # 16-bit grey: "I;16", "I;16B", "I"
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
