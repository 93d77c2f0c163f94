"""Reads the file of a mask: the number or the colour that each pixel has."""

import contextlib
import io
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int
from PIL import Image

from vit_jax.data.decoding.orientation import upright
from vit_jax.data.example import MAX_PIXELS, UnreadableImageError, check_size
from vit_jax.data.reading.image_files import read_file
from vit_jax.runtime.printable import one_line
from vit_jax.runtime.printable import printable_path as text

ENDINGS = (b".png", b".tif", b".tiff", b".bmp", b".gif")
MOST_NUMBER = (1 << 16) - 1
"""The greatest number of a pixel; masks of 16 bits have it for no class."""
_FORMATS = ("PNG", "TIFF", "BMP", "GIF")
# Pillow's modes of one number a pixel.
_NUMBERS = ("1", "L", "P", "I", "I;16", "I;16B")
_EARLIER_NUMBERS = ("1", "L", "P", "I", "I;16")
_CODE = np.array([1 << 16, 1 << 8, 1], np.int32)  # 65536 R + 256 G + B.
_GREY = int(_CODE.sum())
# Pillow multiplies the numbers of 2 and of 4 bits, so that they reach 255.
_SCALES = {"L;2": 85, "L;4": 17}
_SUBFILE_TYPE = 254  # A tag of TIFF.
_LESSER = 1 | 4  # A TIFF's smaller copy, or transparency.
_SAMPLE_FORMAT, _UNSIGNED = 339, 1  # Tags of TIFF.
_MOST_PAGES = 1000  # Pages that are counted.


class StoredMask(NamedTuple):
  """The pixels of a mask, as its file has them.

  Attributes:
    kind: "bits", "grey", "palette" or "wide" for numbers, of 1 bit, of 8 or
      less, or of more; "colours" for colours.
    values: The number of each pixel, or its colour, 65536 R + 256 G + B.
    palette: The colour of each number, (n,), in the form of `values`, and -1
      for a number without one; None for colours and for more than 8 bits.
  """

  kind: str
  values: Int[np.ndarray, "h w"]
  palette: Int[np.ndarray, " n"] | None = None


def read_stored(path: bytes, earlier: bool = False) -> StoredMask:
  """Reads the file of a mask.

  With `earlier`, as earlier versions did: it reads the first of several pages,
  takes numbers of 2 and 4 bits as Pillow multiplies them, and does not turn a
  mask by its own Exif.

  Raises:
    UnreadableImageError: the file is missing, damaged or too large.
    ValueError: it is a JPEG, or has several pages or pixels that no class can
      have.
  """
  image, scale = read_picture(
    path,
    read_file(path),
    noun="mask",
    pixel_has="the number of its class",
    earlier=earlier,
  )
  modes = _EARLIER_NUMBERS if earlier else (*_NUMBERS, "LA", "RGBA")
  if image.mode not in (*modes, "RGB"):
    raise ValueError(no_numbers_message(path, image.mode))
  return _to_stored_mask(path, image, scale)


def read_picture(
  path: bytes,
  encoded: bytes,
  *,
  noun: str,
  pixel_has: str,
  earlier: bool = False,
) -> tuple[Image.Image, int]:
  """An upright picture, and the factor by which Pillow multiplied its values.

  In messages, `noun` is the word for the picture, and `pixel_has` says what
  each pixel has. `earlier` is that of `read_stored`. Raises ValueError for a
  JPEG or several pages, and UnreadableImageError if the file is damaged or too
  large.
  """
  if encoded.startswith(b"\xff\xd8"):
    raise ValueError(
      f"{text(path)} is a JPEG, whose values are not exact: save {noun}s as "
      "PNG."
    )
  try:
    with Image.open(io.BytesIO(encoded), formats=_FORMATS) as image:
      check_size(image.height, image.width)
      pages = 1 if earlier else _count_pages(image)
      scale = 1 if earlier else _value_scale(image)
      if pages == 1:
        image.load()
        if not earlier:
          image = upright(image)
  except UnreadableImageError as error:
    raise UnreadableImageError(f"{text(path)}: {error}") from error
  # On damaged files, Pillow's plugins raise almost anything, and above its own
  # size limit Pillow warns or raises.
  except Exception as error:
    raise UnreadableImageError(f"{text(path)}: {_reason(error)}.") from error
  if pages > 1:
    count = f"{pages:,}" if pages < _MOST_PAGES else f"{_MOST_PAGES:,} or more"
    raise ValueError(
      f"{text(path)} has {count} pages, and a {noun} has one: save one page "
      f"that has {pixel_has} for each pixel."
    )
  return image, scale


def no_numbers_message(path: bytes, mode: str) -> str:
  """The message for a mask of neither numbers nor known colours.

  `mode` is Pillow's.
  """
  return (
    f"{text(path)} has the mode {mode}: a mask has one number for each pixel, "
    "the index of its class, or colours that classes.txt beside the images "
    "lists, in lines of a class and its colour, as in road 128 64 128."
  )


def as_numbers(path: bytes, stored: StoredMask) -> StoredMask:
  """A mask of grey colours as one of numbers, which are the grey levels.

  Raises ValueError if a colour is not grey.
  """
  levels = stored.values // _GREY
  if (levels * _GREY != stored.values).any():
    raise ValueError(no_numbers_message(path, "RGB"))
  palette = np.arange(256, dtype=np.int32) * _GREY
  return StoredMask("grey", levels.astype(np.uint8), palette)


def _reason(error: Exception) -> str:
  """Why a file cannot be read, in words."""
  if isinstance(error, Image.UnidentifiedImageError):
    return "it is not a PNG, TIFF, BMP or GIF file"
  bombs = Image.DecompressionBombError, Image.DecompressionBombWarning
  if isinstance(error, bombs):
    return f"it has more than {MAX_PIXELS:,} pixels; shrink it first"
  return one_line(error) or type(error).__name__


def _count_pages(image: Image.Image) -> int:
  """The number of pages or frames, up to a bound.

  Smaller copies, which maps have, and pages of transparency do not count.
  """
  if not getattr(image, "is_animated", False):
    return 1
  if image.format != "TIFF":
    return getattr(image, "n_frames", 1)
  pages = 1
  with contextlib.suppress(EOFError):
    for number in range(1, _MOST_PAGES):
      image.seek(number)
      tags: Any = getattr(image, "tag_v2", {})
      is_lesser = tags.get(_SUBFILE_TYPE, 0) & _LESSER
      pages += 0 if is_lesser else 1
  image.seek(0)
  return pages


def _value_scale(image: Image.Image) -> int:
  """Pillow's factor for the numbers of a grey image, by their bits."""
  tiles: Any = getattr(image, "tile", ())
  if not tiles:
    return 1
  *_, raw_mode = tiles[0]
  if isinstance(raw_mode, tuple) and raw_mode:
    raw_mode = raw_mode[0]
  return _SCALES.get(str(raw_mode)[:3], 1)


def _to_stored_mask(path: bytes, image: Image.Image, scale: int) -> StoredMask:
  """The pixels of an opened mask; raises ValueError as `read_stored` does."""
  pixels = np.asarray(image)
  if image.mode in ("LA", "RGBA"):
    if pixels[..., -1].min() < 255:
      raise ValueError(
        f"{text(path)} has transparent pixels, whose colour is no class: save "
        "it without transparency, in one colour for each class."
      )
    pixels = pixels[..., 0] if image.mode == "LA" else pixels[..., :3]
  if pixels.ndim == 3:
    return StoredMask("colours", _codes(pixels))
  if image.mode == "1":
    bits = np.minimum(pixels.view(np.uint8), 1)
    return StoredMask("bits", bits, np.array([0, 255 * _GREY], np.int32))
  if image.mode == "P":
    return StoredMask("palette", pixels, _palette(image))
  if image.mode in ("L", "LA"):
    levels = np.arange(0, 256, scale, dtype=np.int32)
    return StoredMask("grey", pixels // np.uint8(scale), levels * _GREY)
  return StoredMask("wide", _as_uint16(path, image, pixels))


def _codes(pixels: np.ndarray) -> Int[np.ndarray, "h w"]:
  """The colours as 65536 R + 256 G + B, made without further large arrays."""
  codes = pixels[..., 0].astype(np.int32)
  for channel in (1, 2):
    codes <<= 8
    codes |= pixels[..., channel]
  return codes


def _palette(image: Image.Image) -> Int[np.ndarray, " n"]:
  """The colour of each number; -1 if it is transparent, or there is none."""
  colours = np.array(image.getpalette("RGB") or [], np.int32).reshape(-1, 3)
  codes = np.full(256, -1, np.int32)
  codes[: len(colours)] = colours @ _CODE
  clear = image.info.get("transparency", ())
  if isinstance(clear, int):
    codes[clear] = -1
  elif isinstance(clear, bytes):
    codes[np.flatnonzero(np.frombuffer(clear, np.uint8) < 255)] = -1
  return codes


def _as_uint16(
  path: bytes, image: Image.Image, pixels: np.ndarray
) -> Int[np.ndarray, "h w"]:
  """The values of a mask as uint16.

  Raises ValueError for a value below 0 or above `MOST_NUMBER`, which itself
  marks pixels of no class.
  """
  pixels = as_unsigned(image, pixels)
  least = int(pixels.min())
  most = int(pixels.max())
  if least < 0:
    raise ValueError(
      f"{text(path)} has the class {least}: classes are counted from 0, and a "
      "pixel of no class is 255."
    )
  if most > MOST_NUMBER:
    raise ValueError(
      f"{text(path)} has the class {most:,}, and classes are at most "
      f"{MOST_NUMBER - 1:,}: number them from 0 on."
    )
  return pixels.astype(np.uint16)


def as_unsigned(image: Image.Image, pixels: np.ndarray) -> np.ndarray:
  """The pixels of an image, as uint32 if its samples of 32 bits are unsigned.

  Pillow takes them for signed.
  """
  tags: Any = getattr(image, "tag_v2", {})
  if image.mode == "I" and {*tags.get(_SAMPLE_FORMAT, ())} == {_UNSIGNED}:
    return pixels.view(np.uint32)
  return pixels
