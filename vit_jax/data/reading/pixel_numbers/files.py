"""Reads the number of each pixel from a PNG, TIFF or .npy file."""

import dataclasses
import io
import math
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped
from PIL import Image

from vit_jax.data.example import UnreadableImageError, check_size
from vit_jax.data.reading.image_files import read_file
from vit_jax.data.reading.masks.files import as_unsigned, read_picture
from vit_jax.runtime.printable import one_line
from vit_jax.runtime.printable import printable_path as text

_ARRAY = b"\x93NUMPY"
# Pillow's modes of one number a pixel.
_GREY = ("1", "L", "I", "I;16", "I;16B", "I;16L", "F")
_NO_DATA = 42113  # GDAL's tag of TIFF, for pixels without a number.
_KINDS = "uif"  # Types of arrays: whole numbers, and floats.
_INSTEAD = (
  "save a grey PNG of 8 or 16 bits, a float TIFF or an .npy file of one number "
  "for each pixel"
)

Values = Shaped[np.ndarray, "h w"]


@dataclasses.dataclass(frozen=True)
class Reading:
  """How the files of a folder become numbers.

  Attributes:
    name: The name of the numbers, such as "depth".
    scale: The factor from a file's values to the numbers.
    unknown: Values of files that stand for no number.
  """

  name: str
  scale: float = 1.0
  unknown: tuple[float, ...] = ()

  def read(self, path: bytes) -> Float[np.ndarray, "h w"]:
    """The numbers of a file, float32, NaN where they are unknown.

    Raises UnreadableImageError and ValueError as `read_values` does.
    """
    return self.numbers(read_values(path))

  def numbers(self, values: Values) -> Float[np.ndarray, "h w"]:
    """The numbers of values from `read_values`, as `read` gives them."""
    found = values.astype(np.float32)
    found *= np.float32(self.scale)
    for value in self.unknown:
      found[values == value] = np.nan
    found[~np.isfinite(found)] = np.nan
    return found


def read_values(path: bytes) -> Values:
  """The values of a file, in its own type.

  The value that a TIFF's no-data tag names becomes NaN.

  Raises:
    UnreadableImageError: the file is missing, damaged or too large.
    ValueError: it does not have one number for each pixel.
  """
  encoded = read_file(path)
  if encoded.startswith(_ARRAY):
    return _read_array(path, encoded)
  image, factor = read_picture(
    path, encoded, noun="target", pixel_has="a number"
  )
  pixels = np.asarray(image)
  if image.mode in ("RGB", "RGBA", "LA"):
    pixels = _single_channel(path, image.mode, pixels)
  elif image.mode not in _GREY:
    raise ValueError(_no_numbers_message(path, f"has the mode {image.mode}"))
  if pixels.dtype == bool:
    pixels = pixels.astype(np.uint8)
  if factor > 1:  # Pillow has multiplied grey levels of 2 or 4 bits by it.
    pixels = pixels // np.uint8(factor)
  return _mask_no_data(image, as_unsigned(image, pixels))


def _single_channel(path: bytes, mode: str, pixels: np.ndarray) -> Values:
  """The levels of a grey picture that is stored with equal colour channels.

  Raises ValueError if the channels differ, or a pixel is transparent.
  """
  colours = pixels if mode == "RGB" else pixels[..., :-1]
  is_opaque = mode == "RGB" or pixels[..., -1].min() == 255
  if not is_opaque or (colours != colours[..., :1]).any():
    raise ValueError(_no_numbers_message(path, "has colours"))
  return colours[..., 0]


def _mask_no_data(image: Image.Image, pixels: Values) -> Values:
  """The pixels, with NaN for the value that a TIFF's no-data tag names."""
  tags: Any = getattr(image, "tag_v2", {})
  try:
    value = float(str(tags.get(_NO_DATA, "")).strip("\0 "))
  except ValueError:
    return pixels
  if pixels.dtype.kind == "f":
    value = pixels.dtype.type(value)  # A number of the file's own precision.
  # No integer equals a value outside of its type, such as -9999 in uint16.
  return np.where(pixels == value, np.nan, pixels)


def _read_array(path: bytes, encoded: bytes) -> Values:
  """The array of an .npy file, whose header is checked first.

  Raises UnreadableImageError if the file is damaged or the array too large, and
  ValueError if it does not have one number for each pixel.
  """
  file = io.BytesIO(encoded)
  npy = np.lib.format
  try:
    version = npy.read_magic(file)
    read = npy.read_array_header_1_0
    if version != (1, 0):
      read = npy.read_array_header_2_0
    shape, by_columns, dtype = read(file)
  except Exception as error:  # Parsing a header may raise any error.
    why = one_line(error) or type(error).__name__
    raise UnreadableImageError(f"{text(path)}: {why}.") from error
  sides = [n for n in shape if n != 1] if len(shape) > 2 else [*shape]
  if dtype.kind not in _KINDS or len(sides) != 2 or 0 in sides:
    sizes = " x ".join(map(str, shape)) or "no"
    raise ValueError(
      _no_numbers_message(path, f"has {sizes} values of type {dtype}")
    )
  try:
    check_size(*sides)
    count = math.prod(sides)
    flat = np.frombuffer(encoded, dtype, count=count, offset=file.tell())
  except ValueError as error:
    raise UnreadableImageError(f"{text(path)}: {one_line(error)}.") from error
  return flat.reshape(sides, order="F" if by_columns else "C")


def _no_numbers_message(path: bytes, what: str) -> str:
  """The message for a file that does not have one number for each pixel."""
  return f"{text(path)} {what}: {_INSTEAD}."
