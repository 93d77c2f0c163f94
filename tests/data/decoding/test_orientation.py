"""One reader of orientation, whichever decoder takes the file."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.image_files import encode
from vit_jax.data.decoding import decode, orientation
from vit_jax.data.decoding.decode import decode_image, decode_rgb
from vit_jax.data.example import ImageSpec
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.inference.reading import read_images

PIXELS = np.random.default_rng(0).integers(0, 256, (16, 24, 3), np.uint8)
TURNED = np.rot90(PIXELS, -1)  # Of orientation 6.


def _exif(number=6):
  exif = Image.Exif()
  exif[0x0112] = number
  return exif.tobytes()


def _xmp(number=6):
  return (
    '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description '
    f'tiff:Orientation="{number}"/></x:xmpmeta>'
  ).encode()


def _raw_profile(kind, content):
  """As ImageMagick and exiftool write it: a name, a length and digits."""
  digits = content.hex()
  lines = [digits[k : k + 72] for k in range(0, len(digits), 72)]
  text = f"\n{kind}\n{len(content):8}\n" + "\n".join(lines) + "\n"
  return f"Raw profile type {kind}".encode(), text.encode("latin-1")


def _chunk(kind, content):
  check = zlib.crc32(kind + content)
  return struct.pack(">I", len(content)) + kind + content + check.to_bytes(4)


def _text(keyword, text, kind):
  if kind == b"tEXt":
    return _chunk(kind, keyword + b"\0" + text)
  if kind == b"zTXt":
    return _chunk(kind, keyword + b"\0\0" + zlib.compress(text))
  return _chunk(kind, keyword + bytes(5) + text)


def _converted(mode):
  image = Image.fromarray(PIXELS)
  if mode != "I;16":
    return image.convert(mode)
  return Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) << 8)


def _png(mode, chunk, late=False):
  """A PNG file with one more chunk, before or after its pixels."""
  encoded = encode(_converted(mode), "PNG")
  at = encoded.index(b"IEND" if late else b"IDAT") - 4
  return encoded[:at] + chunk + encoded[at:]


_MAGICK = _raw_profile("exif", _exif())
_APP1 = _raw_profile("APP1", _exif())
_ADOBE = b"XML:com.adobe.xmp", _xmp()
CHUNKS = {
  "eXIf": _chunk(b"eXIf", _exif().removeprefix(b"Exif\0\0")),
  "exif, as text": _text(*_MAGICK, b"tEXt"),
  "exif, compressed": _text(*_MAGICK, b"zTXt"),
  "exif, without its prefix": _text(
    *_raw_profile("exif", _exif().removeprefix(b"Exif\0\0")), b"tEXt"
  ),
  "APP1": _text(*_APP1, b"tEXt"),
  "APP1, compressed": _text(*_APP1, b"zTXt"),
  "XMP": _text(*_ADOBE, b"iTXt"),
  "XMP, compressed": _text(*_ADOBE, b"zTXt"),
}


@pytest.mark.parametrize("name", CHUNKS)
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "I;16"])
def test_a_png_is_turned_with_alpha_and_without(name, late, mode):
  encoded = _png(mode, CHUNKS[name], late)
  plain = _converted("L" if mode == "I;16" else mode).convert("RGB")
  turned = np.rot90(np.asarray(plain), -1)
  np.testing.assert_array_equal(decode_rgb(encoded), turned)
  with Image.open(io.BytesIO(encoded)) as image:
    assert orientation.of_picture(image) == 6
    if mode != "I;16" and not name.startswith("APP1"):  # Pillow reads no APP1.
      theirs = ImageOps.exif_transpose(image).convert("RGB")
      np.testing.assert_array_equal(theirs, turned)
  # Opened by Pillow, it is turned alike.
  with Image.open(io.BytesIO(encoded)) as image:
    (pixels,) = read_images(Preprocessing(turned.shape[:2]), image)
  np.testing.assert_array_equal(pixels, turned)


@pytest.mark.parametrize(
  "chunk",
  [
    _text(*_raw_profile("exif", _exif(1)), b"tEXt"),
    _text(*_raw_profile("exif", b"damaged"), b"tEXt"),
    _text(b"Raw profile type exif", b"no digits", b"tEXt"),
    _text(*_raw_profile("APP1", b"http://ns.adobe.com/xap/1.0/"), b"zTXt"),
    _text(b"Raw profile type APP1", b"x\ny\nzz", b"tEXt"),
    _text(b"XML:com.adobe.xmp", _xmp(1), b"iTXt"),
    _text(b"XML:com.adobe.xmp", b"<x:xmpmeta/>", b"iTXt"),
    _text(b"Comment", _xmp(6), b"tEXt"),
    # Exif is before XMP.
    _chunk(b"eXIf", _exif(1)[6:]) + _text(*_ADOBE, b"iTXt"),
    _text(*_raw_profile("APP1", _exif(1)), b"tEXt") + _text(*_ADOBE, b"iTXt"),
  ],
)
@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_what_turns_no_png(chunk, mode):
  np.testing.assert_array_equal(decode_rgb(_png(mode, chunk)), PIXELS)


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
@pytest.mark.parametrize("number", [1, 3, 6])
@pytest.mark.parametrize("kind", ["exif", "xmp"])
def test_a_jpeg_is_turned_by_either_decoder(mode, number, kind):
  """libjpeg-turbo takes grey and RGB, and Pillow CMYK."""
  about = {"exif": _exif(number)} if kind == "exif" else {"xmp": _xmp(number)}
  image = Image.fromarray(PIXELS).convert(mode)
  plain = decode_rgb(encode(image, "JPEG"))
  turned = np.rot90(plain, {1: 0, 3: 2, 6: -1}[number])
  encoded = encode(image, "JPEG", **about)
  np.testing.assert_array_equal(decode_rgb(encoded), turned)
  size = turned.shape[:2]
  from_memory = read_images(
    Preprocessing(size), Image.open(io.BytesIO(encoded))
  )
  assert np.abs(from_memory[0].astype(int) - turned).max() <= 4


def test_exif_is_before_xmp_in_a_jpeg():
  image = Image.fromarray(PIXELS)
  encoded = encode(image, "JPEG", exif=_exif(1), xmp=_xmp(6))
  assert decode_rgb(encoded).shape == PIXELS.shape
  assert decode.jpeg.orientation_of(encoded) == 1


def test_plain_files_are_decoded_by_the_fast_decoders(monkeypatch):
  """A file whose metadata turn nothing takes no longer way."""
  other = _text(b"XML:com.adobe.xmp", b"<x:xmpmeta/>", b"iTXt")
  plain = (_png("RGB", other), _png("L", b""), _png("RGB", b""))
  monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("slow"))
  for encoded in plain:
    decode_image(encoded, ImageSpec(channels=3))


@pytest.mark.parametrize("name", CHUNKS)
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_the_size_is_that_of_the_turned_image(name, late, mode):
  assert decode.image_size(_png(mode, CHUNKS[name], late)) == TURNED.shape[:2]


def test_the_size_of_a_png_takes_no_decoding():
  """What it lacks is the end of its pixels."""
  encoded = encode(Image.fromarray(PIXELS), "PNG")
  at = encoded.index(b"IDAT") + 20
  spoilt = encoded[:at] + bytes(200) + encoded[at + 200 :]
  assert decode.image_size(spoilt) == PIXELS.shape[:2]
