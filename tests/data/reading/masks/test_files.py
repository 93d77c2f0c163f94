"""What files of masks hold, in every form in which a mask may be saved."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import ExifTags, Image

from vit_jax.data.example import UnreadableImageError
from vit_jax.data.reading.masks.files import read_stored

NUMBERS = np.random.default_rng(0).integers(0, 3, (6, 8), np.uint8)


def chunk(kind, data):
  check = zlib.crc32(kind + data)
  return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)


def grey_png(numbers, bits, size=None):
  """A grey PNG file of so many bits a pixel, written by hand."""
  height, width = size or numbers.shape
  header = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
  rows = b""
  for row in numbers:
    wide = (row[:, None] >> np.arange(bits - 1, -1, -1)) & 1
    rows += b"\0" + np.packbits(wide.astype(np.uint8).ravel()).tobytes()
  parts = (b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")
  return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def palette(numbers, colours):
  picture = Image.fromarray(numbers)
  picture.putpalette(np.uint8(colours).tobytes())
  return picture


def written(path, picture, form="PNG", **options):
  if isinstance(picture, bytes):
    path.write_bytes(picture)
  else:
    picture.save(path, form, **options)
  return str(path).encode()


COLOURS = [[9, 8, 7], [200, 0, 1], [0, 50, 99]]
FORMS = {
  "L": (Image.fromarray(NUMBERS), "PNG"),
  "L of BMP": (Image.fromarray(NUMBERS), "BMP"),
  "L of TIFF": (Image.fromarray(NUMBERS), "TIFF"),
  "L of GIF": (Image.fromarray(NUMBERS), "GIF"),
  "P": (palette(NUMBERS, COLOURS), "PNG"),
  "P of GIF": (palette(NUMBERS, COLOURS), "GIF"),
  "P of BMP": (palette(NUMBERS, COLOURS), "BMP"),
  "I;16": (Image.fromarray(NUMBERS.astype(np.uint16)), "PNG"),
  "I;16 of TIFF": (Image.fromarray(NUMBERS.astype(np.uint16)), "TIFF"),
  "I": (Image.fromarray(NUMBERS.astype(np.int32)), "TIFF"),
  "LA": (
    Image.fromarray(np.dstack([NUMBERS, np.full_like(NUMBERS, 255)]), "LA"),
    "PNG",
  ),
  "2 bits": (grey_png(NUMBERS, 2), "PNG"),
  "4 bits": (grey_png(NUMBERS, 4), "PNG"),
}


@pytest.mark.filterwarnings("ignore:'mode' parameter:DeprecationWarning")
@pytest.mark.parametrize("form", FORMS)
def test_numbers_are_those_that_were_saved(tmp_path, form):
  found = read_stored(written(tmp_path / "m", *FORMS[form]))
  np.testing.assert_array_equal(found.values, NUMBERS)


@pytest.mark.parametrize("bits, most", [(1, 1), (2, 3), (4, 15), (8, 255)])
def test_grey_of_few_bits_has_its_numbers_and_its_levels(tmp_path, bits, most):
  numbers = np.arange(most + 1, dtype=np.uint8)[None]
  found = read_stored(written(tmp_path / "m", grey_png(numbers, bits)))
  np.testing.assert_array_equal(found.values, numbers)
  assert found.palette is not None
  levels = found.palette[found.values] & 255
  np.testing.assert_array_equal(levels, numbers * np.float64(255 / most))
  if bits in (2, 4):  # As a saved run reads it.
    earlier = read_stored(str(tmp_path / "m").encode(), earlier=True)
    np.testing.assert_array_equal(earlier.values, levels)


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_colours_are_codes(tmp_path, mode):
  picture = palette(NUMBERS, COLOURS).convert(mode)
  found = read_stored(written(tmp_path / "m", picture))
  codes = np.array([(r << 16) + (g << 8) + b for r, g, b in COLOURS])
  assert found.kind == "colours"
  np.testing.assert_array_equal(found.values, codes[NUMBERS])
  by_palette = read_stored(
    written(tmp_path / "p", palette(NUMBERS, COLOURS))
  ).palette
  assert by_palette is not None
  np.testing.assert_array_equal(by_palette[:3], codes)


def pages(form, count=3, **options):
  file = io.BytesIO()
  one, *more = [Image.fromarray(NUMBERS + k) for k in range(count)]
  one.save(file, form, save_all=True, append_images=more, **options)
  return file.getvalue()


@pytest.mark.parametrize("form", ["TIFF", "GIF", "PNG"])
def test_more_than_one_page_is_refused(tmp_path, form):
  path = written(tmp_path / "m.tif", pages(form))
  with pytest.raises(ValueError, match="m.tif has 3 pages, and a mask has one"):
    read_stored(path)
  assert read_stored(path, earlier=True).values.shape == NUMBERS.shape


def test_smaller_copies_in_a_tiff_are_no_pages(tmp_path):
  file = io.BytesIO()
  small = Image.fromarray(NUMBERS[::2, ::2].copy())
  small.encoderinfo = {"tiffinfo": {254: 1}}
  Image.fromarray(NUMBERS).save(
    file, "TIFF", save_all=True, append_images=[small]
  )
  found = read_stored(written(tmp_path / "m.tif", file.getvalue()))
  np.testing.assert_array_equal(found.values, NUMBERS)


def clear(mode):
  return Image.new(mode, (4, 4), (0,) * len(mode))


@pytest.mark.parametrize(
  "picture, message",
  [
    (clear("RGBA"), "has transparent pixels, whose colour is no class"),
    (clear("LA"), "has transparent pixels, whose colour is no class"),
    (Image.fromarray(np.full((2, 2), 2_000_000_000, np.int32)), "2,000,000,00"),
    (
      Image.fromarray(np.full((2, 2), 65_536, np.int32)),
      "the class 65,536, an",
    ),
    (
      Image.fromarray(np.full((2, 2), -1, np.int32)),
      "the class -1: classes ar",
    ),
    (Image.new("F", (2, 2)), "has the mode F: a mask has one number for each"),
  ],
)
def test_pixels_that_no_class_has_are_refused(tmp_path, picture, message):
  form = "TIFF" if picture.mode in ("I", "F") else "PNG"
  with pytest.raises(ValueError, match=message) as error:
    read_stored(written(tmp_path / "m", picture, form))
  assert "\n" not in str(error.value)


def test_a_jpeg_of_any_name_is_refused(tmp_path):
  path = written(tmp_path / "m.png", Image.fromarray(NUMBERS), "JPEG")
  with pytest.raises(ValueError, match="m.png is a JPEG, whose values are not"):
    read_stored(path)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(
  "encoded, message",
  [
    (grey_png(NUMBERS, 8, (40_000, 40_000)), "more than 89,478,485 pixels"),
    (grey_png(NUMBERS, 8, (10_000, 10_000)), "more than 89478485; shrink it"),
    (grey_png(NUMBERS, 8)[:50], "m.png: "),
    (b"", "is not a PNG, TIFF, BMP or GIF file"),
    (b"words", "is not a PNG, TIFF, BMP or GIF file"),
    (pages("TIFF")[:30], "m.png: "),
  ],
)
def test_damaged_files_and_bombs_are_one_line(tmp_path, encoded, message):
  path = written(tmp_path / "m.png", encoded)
  with pytest.raises(UnreadableImageError, match=message) as error:
    read_stored(path)
  assert "\n" not in str(error.value) and "BytesIO" not in str(error.value)


def test_a_mask_is_turned_by_its_own_exif(tmp_path):
  exif = Image.Exif()
  exif[ExifTags.Base.Orientation] = 6  # The top is at the right.
  path = written(tmp_path / "m", Image.fromarray(NUMBERS), exif=exif)
  np.testing.assert_array_equal(read_stored(path).values, np.rot90(NUMBERS, -1))
  np.testing.assert_array_equal(read_stored(path, True).values, NUMBERS)
