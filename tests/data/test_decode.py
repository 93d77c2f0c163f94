"""Every kind of image file against pixels known beforehand."""

import io

import numpy as np
import pytest
from PIL import Image

from tests.data.pictures import GREEN, RED, corners, encode, noise
from vit_jax.data import UnreadableImageError, decode_rgb, jpeg
from vit_jax.data import decode as decode_module


@pytest.mark.parametrize(
  "file_format, options",
  [
    ("PNG", {}),
    ("BMP", {}),
    ("WEBP", {"lossless": True}),
  ],
)
def test_lossless_formats_give_the_exact_pixels(file_format, options):
  pixels = noise(40, 30)
  decoded = decode_rgb(encode(Image.fromarray(pixels), file_format, **options))
  assert decoded.dtype == np.uint8
  np.testing.assert_array_equal(decoded, pixels)


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
  [("JPEG", "RGB"), ("JPEG", "CMYK"), ("PNG", "RGB"), ("WEBP", "RGB")],
)
def test_exif_orientation(orientation, file_format, mode):
  exif = Image.Exif()
  exif[0x0112] = orientation
  options = {"lossless": True} if file_format == "WEBP" else {}
  encoded = encode(corners(mode), file_format, exif=exif, **options)
  expected = ORIENTATIONS[orientation](np.asarray(corners()))
  decoded = decode_rgb(encoded)
  assert decoded.shape == expected.shape
  # Away from the blocks' edges, where JPEG blurs.
  difference = np.abs(decoded.astype(int) - expected)[4::8, 4::8]
  assert difference.max() <= 8


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "BMP", "GIF"])
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


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "GIF"])
def test_too_many_pixels_are_refused(file_format, monkeypatch):
  encoded = encode(Image.new("RGB", (60, 50)), file_format)
  monkeypatch.setattr(decode_module, "MAX_PIXELS", 2999)
  with pytest.raises(UnreadableImageError, match="60 x 50 pixels, more than"):
    decode_rgb(encoded)
  monkeypatch.setattr(decode_module, "MAX_PIXELS", 3000)
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
  monkeypatch.setattr(jpeg, "decode", lambda *_: None)
  np.testing.assert_array_equal(decode_rgb(encoded), expected)
