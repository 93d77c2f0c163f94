"""Ordinary JPEG files: their headers, and as few of their pixels as needed.

ITU-T T.81 | ISO/IEC 10918-1, Annex B, has the markers; CIPA DC-008 (Exif) the
orientation.
"""

from typing import NamedTuple

import numpy as np
import simplejpeg
from PIL import ExifTags, Image

REDUCTIONS = (1, 2, 4, 8)
"""Divisors of an image's sides that it can be decoded at."""

_START, _END = b"\xff\xd8", b"\xff\xd9"
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF0 ... SOF15
_SEQUENTIAL = (0xC0, 0xC1)  # Baseline and extended, in Huffman codes.
_QUARTER_TURNS = range(5, 9)  # Exif's orientations.
_SCAN, _APP1, _FILL = 0xDA, 0xE1, 0xFF
# Colours may have half as many rows as the image, or a quarter. Those between
# two are interpolated: the last rows asked for need one row of colours more.
_ROWS_BEYOND = 8


class Header(NamedTuple):
  """What the markers before the pixels tell of a grey or three-colour JPEG.

  Attributes:
    height: rows as stored, before `orientation` is applied.
    width: columns as stored.
    height_at: where the height stands in the file, big endian, in 2 bytes.
    orientation: how the image wants to be turned, by Exif's numbers 1 to 8.
    top_down: whether the pixels are stored once, from the top to the bottom.
  """

  height: int
  width: int
  height_at: int
  orientation: int
  top_down: bool

  @property
  def upright_size(self) -> tuple[int, int]:
    """(H, W) after the turn that `orientation` asks for."""
    lies = self.orientation in _QUARTER_TURNS
    return (self.width, self.height) if lies else (self.height, self.width)


def read_header(encoded: bytes) -> Header | None:
  """Reads a complete JPEG of 8 bits and 1 or 3 colours; None for any other.

  Decoders fill the missing part of a cut file with grey, so a file has to have
  its end marker to count as complete.
  """
  if not (encoded.startswith(_START) and encoded.endswith(_END)):
    return None
  try:
    return _walk(encoded)
  except IndexError:  # a segment runs past the end
    return None


def decode(
  encoded: bytes, header: Header, reduce: int = 1, rows: int | None = None
) -> np.ndarray | None:
  """Decodes the pixels as they are stored, not turned.

  Args:
    encoded: the whole file.
    header: of this file.
    reduce: one of `REDUCTIONS`, which divides both sides, rounding up. The
      decoder leaves out what the small image cannot show.
    rows: how many are needed, of those stored; None is all. Where the header is
      `top_down`, decoding stops soon after them.

  Returns:
    uint8 of shape (H, W, 3) in the order red, green, blue, where H is at least
    the rows needed over `reduce`; None if the file is damaged beyond decoding.
  """
  height = header.height
  if rows is not None and header.top_down and rows + _ROWS_BEYOND < height:
    # A decoder reads no further than the height that the header states.
    height = rows + _ROWS_BEYOND
    at = header.height_at
    encoded = encoded[:at] + height.to_bytes(2, "big") + encoded[at + 2 :]
  try:
    return simplejpeg.decode_jpeg(
      encoded,
      min_height=-(-height // reduce),
      min_width=-(-header.width // reduce),
      min_factor=reduce,
      strict=False,
    )
  except ValueError:
    return None


def _walk(encoded: bytes) -> Header | None:
  """The segments up to the first scan."""
  at, orientation, frame = len(_START), 1, None
  while encoded[at] == 0xFF:
    marker = encoded[at + 1]
    if marker == _FILL:
      at += 1
      continue
    if marker in _FRAMES:
      bits, colours = encoded[at + 4], encoded[at + 9]
      if frame or bits != 8 or colours not in (1, 3):
        return None
      frame = at
    elif marker == _APP1:
      orientation = _orientation(encoded, at + 4) or orientation
    elif marker == _SCAN:
      break
    at += 2 + _two_bytes(encoded, at + 2)
  else:
    return None
  if not frame:
    return None
  return Header(
    height=_two_bytes(encoded, frame + 5),
    width=_two_bytes(encoded, frame + 7),
    height_at=frame + 5,
    orientation=orientation,
    top_down=encoded[frame + 1] in _SEQUENTIAL
    and encoded[at + 4] == encoded[frame + 9],  # All colours in one scan.
  )


def _two_bytes(encoded: bytes, at: int) -> int:
  return encoded[at] << 8 | encoded[at + 1]


def _orientation(encoded: bytes, at: int) -> int | None:
  """What the Exif data at `at` says; None where there is none or damaged."""
  if not encoded.startswith(b"Exif\0\0", at):
    return None
  exif = Image.Exif()
  try:
    exif.load(encoded[at : at + _two_bytes(encoded, at - 2) - 2])
    return int(exif.get(ExifTags.Base.Orientation, 1))
  except Exception:  # Pillow raises almost anything on damaged data.
    return None
