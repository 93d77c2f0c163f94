"""Reads the headers of ordinary JPEG files.

The markers are those of ITU-T T.81 | ISO/IEC 10918-1, Annex B.
"""

from typing import NamedTuple

from vit_jax.data.decoding import orientation as orientations

REDUCTIONS = (1, 2, 4, 8)
"""Numbers by which the decoder can divide both sides of an image."""

_START = b"\xff\xd8"
_END = b"\xff\xd9"
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF0 ... SOF15.
_SEQUENTIAL = (0xC0, 0xC1)  # Baseline and extended, in Huffman codes.
_SCAN = 0xDA
_APP1 = 0xE1
_FILL = 0xFF
_EXIF, _XMP = b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0"


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
    if self.orientation in orientations.QUARTER_TURNS:
      return self.width, self.height
    return self.height, self.width


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


def orientation_of(encoded: bytes) -> int:
  """The Exif orientation of any JPEG file; 1, upright, if it tells none.

  The file may also have other colours than `read_header` takes, or be cut
  short.
  """
  turn = _Turn()
  at = len(_START)
  try:
    while encoded[at] == _FILL and encoded[at + 1] != _SCAN:
      if encoded[at + 1] == _FILL:
        at += 1
        continue
      if encoded[at + 1] == _APP1:
        turn.see(encoded, at + 2)
      at += 2 + _two_bytes(encoded, at + 2)
  except IndexError:
    pass
  return turn.orientation


class _Turn:
  """The orientation that the segments seen so far tell, Exif before XMP."""

  def __init__(self):
    self._exif: int | None = None
    self._xmp: int | None = None

  @property
  def orientation(self) -> int:
    found = self._xmp if self._exif is None else self._exif
    return 1 if found is None else found

  def see(self, encoded: bytes, at: int) -> None:
    """Reads an APP1 segment, whose two bytes of length lie at `at`."""
    start = at + 2
    end = at + _two_bytes(encoded, at)
    if self._exif is None and encoded.startswith(_EXIF, start):
      self._exif = orientations.of_exif(encoded[start:end])
    elif self._xmp is None and encoded.startswith(_XMP, start):
      self._xmp = orientations.of_xmp(encoded[start:end])


def _walk(encoded: bytes) -> Header | None:
  """Reads the segments up to the first scan, for `read_header`.

  Returns None unless there is a scan, and before it just one frame, of 8 bits
  and 1 or 3 colours. Raises IndexError if a segment runs past the end.
  """
  at = len(_START)
  turn = _Turn()
  frame = None
  while encoded[at] == 0xFF:
    marker = encoded[at + 1]
    if marker == _FILL:
      at += 1
      continue
    if marker in _FRAMES:
      # Marker, length, bits, height, width, number of colours: two bytes each,
      # but one byte for the bits and one for the number.
      bits = encoded[at + 4]
      colours = encoded[at + 9]
      if frame or bits != 8 or colours not in (1, 3):
        return None
      frame = at
    elif marker == _APP1:
      turn.see(encoded, at + 2)
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
    orientation=turn.orientation,
    top_down=encoded[frame + 1] in _SEQUENTIAL
    and encoded[at + 4] == encoded[frame + 9],  # All colours in one scan.
  )


def _two_bytes(encoded: bytes, at: int) -> int:
  """The number in two bytes, big endian."""
  return encoded[at] << 8 | encoded[at + 1]
