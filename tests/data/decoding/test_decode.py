"""Every kind of image file against pixels known beforehand."""

import io
import struct
import sys
import zlib

import cv2
import numpy as np
import pillow_heif
import pytest
import simplejpeg
from PIL import Image

from tests.data.pictures import GREEN, RED, corners, encode, noise, refuse
from vit_jax.data import (
  UnreadableImageError,
  decode_rgb,
  example,
  make_eval_transform,
  make_train_transform,
)

pillow_heif.register_heif_opener()


@pytest.mark.parametrize(
  "file_format, options",
  [
    ("PNG", {}),
    ("BMP", {}),
    ("WEBP", {"lossless": True}),
    ("TIFF", {}),
    ("TIFF", {"compression": "tiff_lzw"}),
    ("JPEG2000", {}),
  ],
)
def test_lossless_formats_give_the_exact_pixels(file_format, options):
  pixels = noise(40, 30)
  decoded = decode_rgb(encode(Image.fromarray(pixels), file_format, **options))
  assert decoded.dtype == np.uint8
  np.testing.assert_array_equal(decoded, pixels)


@pytest.mark.parametrize("file_format", ["AVIF", "HEIF"])
def test_formats_of_phones(file_format):
  decoded = decode_rgb(encode(corners(), file_format, quality=95))
  difference = decoded.astype(int) - np.asarray(corners())
  assert np.abs(difference[4::8, 4::8]).max() <= 12  # Away from the edges.


def test_heic_without_its_library_names_the_extra(monkeypatch):
  encoded = encode(corners(), "HEIF")
  monkeypatch.setitem(sys.modules, "pillow_heif", None)
  with pytest.raises(UnreadableImageError, match=r'install "vit_jax\[heif\]"'):
    decode_rgb(encoded)


@pytest.mark.parametrize("options", [{}, {"progressive": True}])
def test_jpeg_matches_an_independent_decoder(options):
  encoded = encode(
    Image.fromarray(noise(40, 30)), "JPEG", quality=90, **options
  )
  expected = np.asarray(Image.open(io.BytesIO(encoded)))
  difference = decode_rgb(encoded).astype(int) - expected
  assert np.abs(difference).max() <= 2


def test_the_first_frame_of_an_animation():
  frames = [Image.new("RGB", (6, 4), colour) for colour in (RED, GREEN)]
  encoded = encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
  np.testing.assert_array_equal(decode_rgb(encoded), np.full((4, 6, 3), RED))


@pytest.mark.parametrize("file_format", ["PNG", "JPEG"])
def test_grey_is_repeated(file_format):
  grey = np.full((8, 8), 77, np.uint8)
  decoded = decode_rgb(encode(Image.fromarray(grey), file_format))
  np.testing.assert_array_equal(decoded, np.full((8, 8, 3), 77))


def test_black_and_white_becomes_0_and_255():
  bits = Image.fromarray(np.array([[0, 255]], np.uint8)).convert("1")
  assert decode_rgb(encode(bits, "PNG"))[0, :, 0].tolist() == [0, 255]


def test_a_palette_is_looked_up():
  indexed = corners().quantize(8, dither=Image.Dither.NONE)
  expected = np.asarray(indexed.convert("RGB"))
  np.testing.assert_array_equal(decode_rgb(encode(indexed, "PNG")), expected)


@pytest.mark.parametrize("file_format", ["PNG", "WEBP"])
def test_transparency_is_laid_over_white(file_format):
  pixels = np.zeros((1, 3, 4), np.uint8)
  pixels[0, :, :3] = RED
  pixels[0, :, 3] = 0, 128, 255
  options = {"lossless": True, "exact": True} if file_format == "WEBP" else {}
  decoded = decode_rgb(encode(Image.fromarray(pixels), file_format, **options))
  alpha = pixels[0, :, 3:] / 255
  expected = alpha * np.array(RED) + (1 - alpha) * 255
  np.testing.assert_allclose(decoded[0], expected, atol=1)


def test_transparent_palette_and_transparent_grey():
  indexed = Image.new("P", (2, 1))
  indexed.putpalette([*RED, *GREEN])
  indexed.putpixel((1, 0), 1)
  decoded = decode_rgb(encode(indexed, "PNG", transparency=0))
  assert decoded[0].tolist() == [[255, 255, 255], list(GREEN)]
  grey = Image.fromarray(np.array([[7, 9]], np.uint8))
  decoded = decode_rgb(encode(grey, "PNG", transparency=7))
  assert decoded[0].tolist() == [[255, 255, 255], [9, 9, 9]]


def test_sixteen_bits_are_scaled_not_clipped():
  wide = np.array([[0, 0x0100, 0x80FF, 0xFFFF]], np.uint16)
  decoded = decode_rgb(encode(Image.fromarray(wide), "PNG"))
  assert decoded[0, :, 0].tolist() == [0, 1, 0x80, 255]


WINDOW = (100, 4095)


def windowed(samples):
  """The formula of a window: linear between its ends, and cut there."""
  scaled = (samples.astype(float) - WINDOW[0]) / (WINDOW[1] - WINDOW[0])
  return np.clip(scaled, 0, 1) * 255


def wide(*shape):
  return np.random.default_rng(1).integers(0, 5000, shape, np.uint16)


@pytest.mark.parametrize("ending", [".png", ".tiff"])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_window_of_sixteen_bits(ending, channels):
  samples = wide(9, 7, channels)  # Blue, green, red.
  encoded = cv2.imencode(ending, samples)[1].tobytes()
  expected = np.broadcast_to(samples[..., ::-1], (9, 7, 3))
  np.testing.assert_array_equal(decode_rgb(encoded), expected >> 8)
  decoded = decode_rgb(encoded, WINDOW)
  assert decoded.dtype == np.uint8
  np.testing.assert_allclose(decoded, windowed(expected), atol=0.51)


def test_a_window_of_other_samples():
  for dtype in (np.float32, np.int32):
    image = Image.fromarray(wide(9, 7).astype(dtype) - 50)
    encoded = encode(image, "TIFF")
    expected = windowed(np.asarray(image))[..., None]
    np.testing.assert_allclose(
      decode_rgb(encoded, WINDOW) + np.zeros(3), expected + [0] * 3, atol=0.51
    )
    with pytest.raises(UnreadableImageError, match="to 8 bits, or train with"):
      decode_rgb(encoded)


def test_a_window_leaves_eight_bits_alone():
  pixels = noise(9, 7)
  encoded = encode(Image.fromarray(pixels), "PNG")
  np.testing.assert_array_equal(decode_rgb(encoded, WINDOW), pixels)


@pytest.mark.parametrize("window", [None, WINDOW])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_transparent_level_of_sixteen_bits(channels, window):
  samples = wide(3, 4, channels)
  samples[1, 2] = samples[0, 0]
  raw = png16(samples, transparent=samples[0, 0])
  expected = np.broadcast_to(samples, (3, 4, 3))
  expected = expected >> 8 if window is None else windowed(expected)
  expected = expected.copy()
  expected[0, 0] = expected[1, 2] = 255
  np.testing.assert_allclose(decode_rgb(raw, window), expected, atol=0.51)


@pytest.mark.parametrize("window", [None, WINDOW])
@pytest.mark.parametrize("channels", [2, 4])
def test_alpha_of_sixteen_bits(channels, window):
  samples = wide(5, 4, channels)
  samples[..., -1] = np.random.default_rng(2).integers(0, 65536, (5, 4))
  colours = np.broadcast_to(samples[..., :-1], (5, 4, 3))
  colours = colours >> 8 if window is None else windowed(colours)
  alpha = samples[..., -1:] / 65535
  expected = alpha * colours + (1 - alpha) * 255
  decoded = decode_rgb(png16(samples), window)
  np.testing.assert_allclose(decoded, expected, atol=1.5)


def png16(samples, transparent=None) -> bytes:
  """A PNG of 16 bits by its specification, which Pillow cannot write."""

  def chunk(kind, content):
    checksum = zlib.crc32(kind + content)
    length = struct.pack(">I", len(content))
    return length + kind + content + struct.pack(">I", checksum)

  height, width, channels = samples.shape
  kind = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
  header = struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0)
  lines = b"".join(b"\0" + line.astype(">u2").tobytes() for line in samples)
  raw = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
  if transparent is not None:
    raw += chunk(b"tRNS", transparent.astype(">u2").tobytes())
  return raw + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def test_cmyk_jpeg():
  # (255 - C)(255 - K) / 255 for each of C, M, Y.
  inks = Image.new("CMYK", (16, 16), (200, 50, 0, 30))
  expected = np.array([55, 205, 255]) * 225 / 255
  decoded = decode_rgb(encode(inks, "JPEG", quality=100))
  np.testing.assert_allclose(decoded[8, 8], expected, atol=4)


# Where each stored corner (top-left, top-right, bottom-left, bottom-right) is
# to appear, from the EXIF standard's table of row 0 and column 0.
ORIENTATIONS = {
  1: lambda a: a,
  2: lambda a: a[:, ::-1],
  3: lambda a: a[::-1, ::-1],
  4: lambda a: a[::-1],
  5: lambda a: a.transpose(1, 0, 2),
  6: lambda a: a[::-1].transpose(1, 0, 2),
  7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
  8: lambda a: a[:, ::-1].transpose(1, 0, 2),
}


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize(
  "file_format, mode",
  [
    ("JPEG", "CMYK"),
    *((f, "RGB") for f in ("JPEG", "PNG", "WEBP", "TIFF", "AVIF", "HEIF")),
  ],
)
def test_exif_orientation(orientation, file_format, mode):
  exif = Image.Exif()
  exif[0x0112] = orientation
  options = {"lossless": True} if file_format == "WEBP" else {}
  if file_format == "HEIF":  # pillow-heif turns only what comes as bytes.
    exif = exif.tobytes()
  encoded = encode(corners(mode), file_format, exif=exif, **options)
  expected = ORIENTATIONS[orientation](np.asarray(corners()))
  decoded = decode_rgb(encoded)
  assert decoded.shape == expected.shape
  # Away from the blocks' edges, where JPEG blurs.
  difference = np.abs(decoded.astype(int) - expected)[4::8, 4::8]
  assert difference.max() <= 12


@pytest.mark.parametrize(
  "file_format",
  ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "AVIF", "JPEG2000", "HEIF"],
)
@pytest.mark.parametrize("part", [0.3, 0.7, 0.95])
def test_files_cut_short_are_refused(file_format, part):
  encoded = encode(Image.fromarray(noise(100, 100)), file_format)
  with pytest.raises(UnreadableImageError):
    decode_rgb(encoded[: int(part * len(encoded))])


def test_bytes_after_the_end_of_a_jpeg_do_no_harm():
  encoded = encode(corners(), "JPEG")
  np.testing.assert_array_equal(
    decode_rgb(encoded + b"\0" * 7), decode_rgb(encoded)
  )


def test_a_damaged_png_is_refused(capfd):
  encoded = bytearray(encode(Image.fromarray(noise(40, 30)), "PNG"))
  encoded[len(encoded) // 2] ^= 0xFF
  with pytest.raises(UnreadableImageError):
    decode_rgb(bytes(encoded))


def test_not_an_image():
  with pytest.raises(UnreadableImageError, match="the file is empty"):
    decode_rgb(b"")
  with pytest.raises(UnreadableImageError, match="not an image of a known"):
    decode_rgb(b"<html>404</html>")
  assert issubclass(UnreadableImageError, ValueError)


def test_a_large_jpeg_is_reduced_while_decoding(monkeypatch):
  photograph = cv2.resize(noise(6, 5), (500, 600), interpolation=cv2.INTER_AREA)
  encoded = encode(Image.fromarray(photograph), "JPEG", quality=95)
  monkeypatch.setattr(example, "MAX_PIXELS", 600 * 500 - 1)
  decoded = decode_rgb(encoded)
  expected = cv2.resize(photograph, (250, 300), interpolation=cv2.INTER_AREA)
  assert decoded.shape == (300, 250, 3)
  assert np.abs(decoded.astype(int) - expected).mean() < 2
  monkeypatch.setattr(example, "MAX_PIXELS", 600 * 500 // 4)
  assert decode_rgb(encoded).shape == (300, 250, 3)
  monkeypatch.setattr(example, "MAX_PIXELS", 600 * 500 // 4 - 1)
  with pytest.raises(UnreadableImageError, match="500 x 600 pixels, more than"):
    decode_rgb(encoded)


@pytest.mark.slow
def test_two_hundred_megapixels():
  """As the largest phone cameras have; decoded whole, they take 0.6 GB."""
  grey = np.full((12_240, 16_320), 90, np.uint8)
  grey[6120:] = 180
  encoded = simplejpeg.encode_jpeg(grey[..., None], colorspace="GRAY")
  decoded = decode_rgb(encoded)
  assert decoded.shape == (6120, 8160, 3)
  rows = decoded[[0, 3000, 3100, -1], ::1000].astype(int)
  assert np.abs(rows - np.array([90, 90, 180, 180])[:, None, None]).max() <= 1
  whole = make_eval_transform(64)(encoded)[:, 0, 0]
  assert abs(int(whole[10]) - 90) <= 1 and abs(int(whole[-10]) - 180) <= 1
  assert make_train_transform(64)(encoded, np.random.default_rng(0)).any()


@pytest.mark.parametrize("file_format", ["PNG", "GIF", "progressive"])
def test_too_many_pixels_are_refused(file_format, monkeypatch):
  image = Image.new("RGB", (60, 50))
  if file_format == "progressive":  # All its scans are in memory at once.
    encoded = encode(image, "JPEG", progressive=True)
  else:
    encoded = encode(image, file_format)
  monkeypatch.setattr(example, "MAX_PIXELS", 2999)
  with pytest.raises(UnreadableImageError, match="60 x 50 pixels, more than"):
    decode_rgb(encoded)
  monkeypatch.setattr(example, "MAX_PIXELS", 3000)
  assert decode_rgb(encoded).shape == (50, 60, 3)


def test_a_bomb_is_refused_by_its_header_alone():
  encoded = bytearray(encode(Image.new("RGB", (8, 8)), "PNG"))
  encoded[16:24] = (60_000).to_bytes(4, "big") * 2
  with pytest.raises(UnreadableImageError, match="more than 89478485"):
    decode_rgb(bytes(encoded))


def test_jpeg_decoders_agree_to_the_last_bit():
  """The other is Pillow's libjpeg-turbo, on colours as cameras store them."""
  photograph = np.repeat(np.repeat(noise(30, 17), 5, axis=0), 6, axis=1)
  encoded = encode(Image.fromarray(photograph), "JPEG", subsampling=2)
  expected = np.asarray(Image.open(io.BytesIO(encoded)))
  np.testing.assert_array_equal(decode_rgb(encoded), expected)


def test_a_jpeg_too_damaged_for_one_decoder_is_given_to_the_other(monkeypatch):
  encoded = encode(corners(), "JPEG")
  expected = decode_rgb(encoded)
  monkeypatch.setattr(simplejpeg, "decode_jpeg", refuse)
  np.testing.assert_array_equal(decode_rgb(encoded), expected)
