"""JPEG headers, and images decoded in part, against images decoded whole."""

import struct

import numpy as np
import pytest
from PIL import Image

from tests.data.pictures import corners, encode, noise
from vit_jax.data import decode_rgb
from vit_jax.data.decoding.decode import decode_jpeg
from vit_jax.data.decoding.jpeg import REDUCTIONS, read_header


def smooth(height: int, width: int) -> np.ndarray:
  """Waves too long for a reduction to lose."""
  y, x = np.mgrid[:height, :width]
  waves = [np.sin(x / 31 + y / 47), np.cos(x / 53), np.sin(y / 37)]
  return np.stack([127.5 + 100 * w for w in waves], axis=-1).astype(np.uint8)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("shape", [(160, 240), (163, 245)])
def test_a_reduced_jpeg_shows_the_means_of_its_blocks(reduce, shape):
  pixels = smooth(*shape)
  encoded = encode(Image.fromarray(pixels), "JPEG", quality=95, subsampling=0)
  found = decode_jpeg(encoded, read_header(encoded), reduce)
  assert found.shape == (*(-(-side // reduce) for side in shape), 3)
  h, w = (side // reduce * reduce for side in shape)
  blocks = pixels[:h, :w].reshape(h // reduce, reduce, w // reduce, reduce, 3)
  inner = found[: h // reduce, : w // reduce]
  assert np.abs(blocks.mean(axis=(1, 3)) - inner).mean() < 1.5


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_size_of_a_turned_jpeg_is_known_without_decoding(orientation):
  exif = Image.Exif()
  exif[0x0112] = orientation
  encoded = encode(corners(), "JPEG", exif=exif)
  header = read_header(encoded)
  assert header.orientation == orientation
  assert header.upright_size == decode_rgb(encoded).shape[:2]
  half = decode_jpeg(encoded, header, 2).shape[:2]
  assert half == tuple(side // 2 for side in header.upright_size)


@pytest.mark.parametrize(
  "encoded",
  [
    encode(corners("CMYK"), "JPEG"),
    encode(corners(), "PNG"),
    encode(corners(), "JPEG")[:-100],
    b"\xff\xd8\xff\xd9",
    b"\xff\xd8\xff\xda\x00\x02\xff\xd9",  # A scan without a frame.
    b"",
  ],
)
def test_other_files_do_not_tell_their_size(encoded):
  assert read_header(encoded) is None


def test_damaged_exif_data_turns_nothing():
  exif = Image.Exif()
  exif[0x0112] = 6
  encoded = encode(corners(), "JPEG", exif=exif)
  at = encoded.index(b"Exif") + 6
  damaged = encoded[:at] + b"\xff" * 8 + encoded[at + 8 :]
  assert read_header(damaged).upright_size == (32, 48)


@pytest.mark.parametrize("order", ["II", "MM"])
@pytest.mark.parametrize("kind", ["H", "I"])
@pytest.mark.parametrize("before", [0, 3])
def test_the_orientation_is_found_among_other_tags(order, kind, before):
  end = {"II": "<", "MM": ">"}[order]
  width = struct.pack(f"{end}HHII", 0x0100, 4, 1, 0x01120003)
  value = struct.pack(f"{end}{kind}", 6).ljust(4, b"\0")
  tag = struct.pack(f"{end}HHI", 0x0112, {"H": 3, "I": 4}[kind], 1) + value
  tiff = order.encode() + struct.pack(f"{end}HIH", 42, 8, before + 2)
  tiff += width * before + tag + width + bytes(4)
  encoded = encode(corners(), "JPEG", exif=b"Exif\0\0" + tiff)
  assert read_header(encoded).orientation == 6


def test_a_late_exif_segment_counts():
  exif = Image.Exif()
  exif[0x0112] = 6
  encoded = encode(corners(), "JPEG", exif=exif)
  filling = b"\xff\xee" + (9000).to_bytes(2, "big") + bytes(8998)
  late = encoded[:2] + filling + encoded[2:]
  assert read_header(late).orientation == 6
  np.testing.assert_array_equal(decode_rgb(late), decode_rgb(encoded))


PHOTOGRAPH = np.repeat(np.repeat(noise(30, 17), 5, axis=0), 6, axis=1)
"""150 x 102, with edges everywhere, in brightness and in colour."""


@pytest.mark.parametrize(
  "options",
  [
    {"subsampling": 0},
    {"subsampling": 1},
    {"subsampling": 2},
    {"subsampling": 2, "restart_marker_rows": 1},
    {"subsampling": 2, "progressive": True},
    {"keep_rgb": True},
  ],
)
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 100, 141, 142, 150])
def test_the_upper_rows_alone_are_those_of_the_whole(options, rows):
  encoded = encode(Image.fromarray(PHOTOGRAPH), "JPEG", quality=90, **options)
  header = read_header(encoded)
  assert header.top_down == ("progressive" not in options)
  upper = decode_jpeg(encoded, header, rows=rows)
  shorter = header.top_down and rows < 142
  assert upper.shape == (rows + 8 if shorter else 150, 102, 3)
  np.testing.assert_array_equal(upper[:rows], decode_rgb(encoded)[:rows])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_upper_rows_of_a_turned_image(orientation):
  exif = Image.Exif()
  exif[0x0112] = orientation
  encoded = encode(Image.fromarray(PHOTOGRAPH), "JPEG", exif=exif)
  upper = decode_jpeg(encoded, read_header(encoded), rows=40)
  np.testing.assert_array_equal(upper[:40], decode_rgb(encoded)[:40])


def test_pixels_stored_colour_by_colour_are_decoded_whole():
  encoded = bytearray(encode(Image.fromarray(PHOTOGRAPH), "JPEG"))
  scan = encoded.index(b"\xff\xda")
  assert encoded[scan + 4] == 3
  encoded[scan + 4] = 1  # As if more scans followed.
  assert not read_header(bytes(encoded)).top_down
