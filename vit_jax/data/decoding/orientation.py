"""Which turn makes an image upright, by the metadata in its file.

All decoders ask here. The orientation is that of CIPA DC-008 (Exif), and where
Exif has none, that of XMP, as in `PIL.ImageOps.exif_transpose`. PNG files have
Exif in a chunk of its own or, as ImageMagick and exiftool write them, in a raw
profile, which is text.
"""

import contextlib
import re
import struct

from PIL import ExifTags, Image

from vit_jax.data.decoding.png import Chunk

_ORIENTATION = int(ExifTags.Base.Orientation)  # A tag of TIFF.
_SHORT = 3  # The type of that tag's value.
_EXIF = b"Exif\0\0"
_XMP = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')
_RAW_EXIF, _RAW_APP1 = "Raw profile type exif", "Raw profile type APP1"
_XMP_TEXT = "XML:com.adobe.xmp"
_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
QUARTER_TURNS = (5, 6, 7, 8)
"""The orientations that swap height and width."""
_TURNS = {
  2: Image.Transpose.FLIP_LEFT_RIGHT,
  3: Image.Transpose.ROTATE_180,
  4: Image.Transpose.FLIP_TOP_BOTTOM,
  5: Image.Transpose.TRANSPOSE,
  6: Image.Transpose.ROTATE_270,
  7: Image.Transpose.TRANSVERSE,
  8: Image.Transpose.ROTATE_90,
}


def of_exif(exif: bytes) -> int | None:
  """The orientation in Exif data; None if absent, or the data are damaged."""
  with contextlib.suppress(KeyError, struct.error):
    return _read_orientation(exif.removeprefix(_EXIF))
  parsed = Image.Exif()
  try:  # Pillow may still make sense of the data.
    parsed.load(exif)
    value = parsed.get(_ORIENTATION)
    return None if value is None else int(value)
  except Exception:  # Pillow raises almost anything on damaged data.
    return None


def of_xmp(xmp: bytes) -> int | None:
  """The orientation in XMP data; None if there is none."""
  found = _XMP.search(xmp)
  return int(found[1]) if found else None


def of_picture(image: Image.Image) -> int:
  """The orientation of an image that Pillow opened; 1, upright, if unknown."""
  try:
    exif = image.getexif()  # This reads all chunks of a PNG file.
    profile = image.info.get(_RAW_APP1)
    if profile and not {"exif", _RAW_EXIF} & image.info.keys():
      _, _, digits = str(profile).strip().split("\n", 2)
      found = of_exif(bytes.fromhex("".join(digits.split())))
      if found is not None:
        return found
    return int(exif.get(_ORIENTATION, 1))
  except Exception:  # Damaged metadata is no reason to lose the image.
    return 1


def upright(image: Image.Image) -> Image.Image:
  """An image that Pillow opened, turned upright as its metadata say."""
  image.load()  # This turns a TIFF file.
  turn = _TURNS.get(of_picture(image))
  return image if turn is None else image.transpose(turn)


def may_be_in(chunk: Chunk, encoded: bytes) -> bool:
  """Whether a chunk of a PNG file may have an orientation.

  Compressed XMP and raw profiles are not searched: each of them may have one.
  """
  kind, start, end = chunk
  if kind not in _TEXTS:
    return kind == b"eXIf"
  if encoded.startswith((_RAW_EXIF.encode(), _RAW_APP1.encode()), start):
    return True
  if not encoded.startswith(_XMP_TEXT.encode(), start):
    return False
  compressed = kind == b"zTXt" or (
    kind == b"iTXt" and encoded[start + len(_XMP_TEXT) + 1] != 0
  )
  return compressed or _XMP.search(encoded, start, end) is not None


def _read_orientation(tiff: bytes) -> int | None:
  """The orientation in the first directory of TIFF data; None without one.

  Pillow takes longer to parse all tags than to decode a small image. Raises
  KeyError or struct.error if the data are damaged or the tag is not a short.
  """
  order = {b"II*\0": "<", b"MM\0*": ">"}[tiff[:4]]
  (start,) = struct.unpack_from(f"{order}I", tiff, 4)
  (num_tags,) = struct.unpack_from(f"{order}H", tiff, start)
  # Each tag has its number, the type and the count of its values, and a value.
  tags = struct.unpack_from(f"{order}" + "HHIHxx" * num_tags, tiff, start + 2)
  if _ORIENTATION not in tags[::4]:
    return None
  at = 4 * tags[::4].index(_ORIENTATION)
  _, kind, count, orientation = tags[at : at + 4]
  if (kind, count) != (_SHORT, 1):
    raise KeyError(kind)
  return orientation
