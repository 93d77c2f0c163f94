"""Small image files of every format whose headers claim a huge image."""

import io
import struct
from typing import Any

import numpy as np
import pillow_heif
import tifffile
from PIL import Image

from tests.image_files import encode

pillow_heif.register_heif_opener()


def encoded(kind: str, mode: str = "RGB", **options: Any) -> bytes:
  return encode(Image.new(mode, (64, 64)), kind, **options)


def patched(raw: bytes, at: int, content: bytes) -> bytes:
  return raw[:at] + content + raw[at + len(content) :]


def claiming(side: int) -> dict[str, bytes]:
  """The files by what they are; sides are cut to what a format can say."""
  files = {}
  wide = struct.pack(">I", side) * 2
  for mode in ("RGB", "RGBA", "L", "P", "I;16", "1", "LA"):
    files[f"PNG {mode}"] = patched(encoded("PNG", mode), 16, wide)
  short = min(side, 65_535)
  for name, mark, raw in (
    ("baseline", b"\xff\xc0", encoded("JPEG")),
    ("progressive", b"\xff\xc2", encoded("JPEG", progressive=True)),
    ("CMYK", b"\xff\xc0", encoded("JPEG", "CMYK")),
  ):
    at = raw.index(mark) + 5
    files[f"JPEG {name}"] = patched(raw, at, struct.pack(">HH", short, short))
  gif = encoded("GIF")
  files["GIF"] = patched(gif, 6, struct.pack("<HH", short, short))
  at = gif.index(b"\x2c") + 5
  files["GIF frame"] = patched(gif, at, struct.pack("<HH", short, short))
  signed = min(side, 2**31 - 1)
  for mode in ("RGB", "L", "1"):
    for sign in (1, -1):
      sides = struct.pack("<ii", signed, sign * signed)
      files[f"BMP {mode} {sign}"] = patched(encoded("BMP", mode), 18, sides)
  files |= webps(side) | tiffs(side) | boxes(wide)
  return files


def webps(side: int) -> dict[str, bytes]:
  more = [Image.new("L", (64, 64), 9)]
  moving = encoded("WEBP", save_all=True, append_images=more)
  canvas = struct.pack("<I", min(side, 1 << 24) - 1)[:3] * 2
  plain, lossless = encoded("WEBP"), encoded("WEBP", lossless=True)
  most = 0x3FFF
  return {
    "WebP moving": patched(moving, moving.index(b"VP8X") + 12, canvas),
    "WebP": patched(
      plain, plain.index(b"\x9d\x01\x2a") + 3, struct.pack("<HH", most, most)
    ),
    "WebP lossless": patched(
      lossless,
      lossless.index(b"VP8L") + 9,
      struct.pack("<I", most | most << 14),
    ),
  }


def tiffs(side: int) -> dict[str, bytes]:
  codes = ("raw", "tiff_lzw", "jpeg", "tiff_adobe_deflate")
  files = {f"TIFF {c}": encoded("TIFF", compression=c) for c in codes}
  files["TIFF group4"] = encoded("TIFF", "1", compression="group4")
  together = {"photometric": "minisblack", "planarconfig": "contig"}
  tiles = {"tile": (16, 16), "compression": "zlib"}
  apart = {"photometric": "rgb", "planarconfig": "separate"}
  for name, shape, kind, options in (
    ("bands", (64, 64, 6), np.uint16, together),
    ("tiles", (64, 64, 6), np.uint8, together | tiles),
    ("floats", (64, 64), np.float32, {}),
    ("apart", (3, 64, 64), np.uint16, apart),
  ):
    file = io.BytesIO()
    tifffile.imwrite(file, np.zeros(shape, kind), **options)
    files[f"TIFF {name}"] = file.getvalue()
  return {name: _with_sides(raw, side) for name, raw in files.items()}


def _with_sides(raw: bytes, side: int) -> bytes:
  for tag in (256, 257, 278):  # Width, height, rows of a strip.
    for kind in (3, 4):
      at = raw.find(struct.pack("<HH", tag, kind))
      if at >= 0:
        raw = patched(raw, at, struct.pack("<HHII", tag, 4, 1, side))
        break
  return raw


def boxes(wide: bytes) -> dict[str, bytes]:
  jp2 = encoded("JPEG2000")
  size = jp2.index(b"\xff\x51")
  both = patched(jp2, jp2.index(b"ihdr") + 4, wide)
  both = patched(both, size + 6, wide)
  files = {
    "JPEG 2000 header": patched(jp2, jp2.index(b"ihdr") + 4, wide),
    "JPEG 2000": both,
    "JPEG 2000 tiles": patched(both, size + 22, wide),
    "JPEG 2000 stream": patched(both, size + 22, wide)[size - 2 :],
  }
  for kind in ("AVIF", "HEIF"):
    raw = encoded(kind)
    files[kind] = patched(raw, raw.index(b"ispe") + 8, wide)
  return files
