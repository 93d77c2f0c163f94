"""Tells which image files have a lossless coding: JPEG would change them."""

import io
import struct

from PIL import Image

_RIFF, _WEBP = b"RIFF", b"WEBP"
_ALWAYS = (b"BM", b"GIF87a", b"GIF89a", b"\x89PNG\r\n\x1a\n")
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_JP2 = (b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51")
_COMPRESSION = 259  # A tag of TIFF.
_LOSSY = {6, 7, 33003, 33005, 34712, 50001, 50002}  # JPEG, JPEG 2000, WebP.
_FRAME = 16  # Bytes of an animation's frame before its image.
_STYLES = b"\xff\x52"  # The marker of JPEG 2000 that names its wavelets.


def is_lossless(encoded: bytes) -> bool:
  """Whether a file's coding is known to be lossless.

  BMP, GIF and PNG always are; WebP, TIFF and JPEG 2000 say whether they are.
  AVIF and HEIC are taken for lossy.
  """
  if encoded.startswith(_ALWAYS):
    return True
  if encoded.startswith(_TIFF):
    return _is_lossless_tiff(encoded)
  if encoded.startswith(_RIFF) and encoded[8:12] == _WEBP:
    return _is_lossless_webp(encoded)
  if encoded.startswith(_JP2):
    at = encoded.find(_STYLES)
    # Wavelets of whole numbers, kind 1, are lossless.
    return at >= 0 and encoded[at + 13 : at + 14] == b"\1"
  return False


def _is_lossless_webp(encoded: bytes) -> bool:
  """Whether the first image of a WebP file is in its lossless coding."""
  at = 12
  while at + 8 <= len(encoded):
    kind, size = struct.unpack_from("<4sI", encoded, at)
    if kind in (b"VP8L", b"VP8 "):
      return kind == b"VP8L"
    at += 8 + (_FRAME if kind == b"ANMF" else size + size % 2)
  return False


def _is_lossless_tiff(encoded: bytes) -> bool:
  """Whether a TIFF file is compressed by a lossless method, or not at all."""
  try:
    with Image.open(io.BytesIO(encoded), formats=("TIFF",)) as image:
      tags = getattr(image, "tag_v2", {})
      return tags.get(_COMPRESSION, 1) not in _LOSSY
  except Exception:  # Pillow cannot open files of bands; they are not packed.
    return False
