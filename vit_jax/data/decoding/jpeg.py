"""Reads the headers of ordinary JPEG files.

The markers are those of ITU-T T.81 | ISO/IEC 10918-1, Annex B; the orientation
is that of CIPA DC-008 (Exif).
"""

import contextlib
import struct
from typing import NamedTuple

from PIL import ExifTags, Image

REDUCTIONS = (1, 2, 4, 8)
"""Numbers by which the decoder can divide both sides of an image."""

_START = b"\xff\xd8"
_END = b"\xff\xd9"
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF0 ... SOF15.
_SEQUENTIAL = (0xC0, 0xC1)  # Baseline and extended, in Huffman codes.
_QUARTER_TURNS = range(5, 9)  # Exif orientations that swap height and width.
_SCAN = 0xDA
_APP1 = 0xE1
_FILL = 0xFF
_ORIENTATION = int(ExifTags.Base.Orientation)  # A tag of TIFF.
_SHORT = 3  # The type of its value.


class Header(NamedTuple):
  """Header of a grey or three-colour JPEG."""

  height: int  # rows as stored, before `orientation` is applied.
  width: int
  height_at: int  # offset in the file of the height, 2 bytes, big endian.
  orientation: int  # Exif's number, 1 to 8, for the turn that makes it upright.
  top_down: bool  # whether pixels are stored in one scan, from top to bottom.

  @property
  def upright_size(self) -> tuple[int, int]:
    """Size (H, W) once `orientation` has been applied."""
    lies = self.orientation in _QUARTER_TURNS
    return (self.width, self.height) if lies else (self.height, self.width)


def read_header(encoded: bytes) -> Header | None:
  """Reads the header of a complete 8-bit JPEG of 1 or 3 colours; else None.

  Decoders fill the missing part of a cut file with grey, so a file counts as
  complete only if it has an end marker.
  """
  if not (encoded.startswith(_START) and encoded.endswith(_END)):
    return None
  try:
    return _walk(encoded)
  except IndexError:  # A segment runs past the end.
    return None


def _walk(encoded: bytes) -> Header | None:
  """Reads the segments up to the first scan."""
  at = len(_START)
  orientation = 1
  frame = None
  while encoded[at] == 0xFF:
    marker = encoded[at + 1]
    if marker == _FILL:
      at += 1
      continue
    if marker in _FRAMES:
      bits = encoded[at + 4]
      colours = encoded[at + 9]
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
  """Returns the orientation in the segment at `at`; None without sound Exif."""
  if not encoded.startswith(b"Exif\0\0", at):
    return None
  segment = encoded[at : at + _two_bytes(encoded, at - 2) - 2]
  with contextlib.suppress(KeyError, struct.error):
    return _short_orientation(segment[6:])
  exif = Image.Exif()
  try:  # Pillow may still make sense of it.
    exif.load(segment)
    return int(exif.get(_ORIENTATION, 1))
  except Exception:  # Pillow raises almost anything on damaged data.
    return None


def _short_orientation(tiff: bytes) -> int:
  """The orientation in the first directory of TIFF data; 1 if it has none.

  Pillow takes longer to parse all tags than to decode a small image. Raises
  KeyError or struct.error if the data are damaged or the tag is not a short.
  """
  order = {b"II*\0": "<", b"MM\0*": ">"}[tiff[:4]]
  (start,) = struct.unpack_from(f"{order}I", tiff, 4)
  (count,) = struct.unpack_from(f"{order}H", tiff, start)
  tags = struct.unpack_from(f"{order}" + "HHIHxx" * count, tiff, start + 2)
  if _ORIENTATION not in tags[::4]:
    return 1
  at = 4 * tags[::4].index(_ORIENTATION)
  _, kind, values, orientation = tags[at : at + 4]
  return {(_SHORT, 1): orientation}[kind, values]
