"""TIFF files of all kinds of samples, against tifffile's raw arrays."""

import io
import pathlib
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from tests.data.pictures import encode
from vit_jax.data.decoding.decode import decode_image, decode_rgb
from vit_jax.data.example import ImageSpec, UnreadableImageError

HERE = pathlib.Path(__file__).parent
LAYOUTS: dict[str, dict[str, Any]] = {
  "grey": dict(photometric="minisblack"),
  "0 is white": dict(photometric="miniswhite"),
  "together": dict(photometric="rgb", planarconfig="contig"),
  "apart": dict(photometric="rgb", planarconfig="separate"),
  "alpha": dict(photometric="rgb", planarconfig="contig"),
  "alpha apart": dict(photometric="rgb", planarconfig="separate"),
}
TYPES = "u1 i1 u2 i2 u4 i4 u8 f2 f4 f8".split()
# What is read, and at least has to be; all else is refused in a line.
READ = {
  *((t, layout) for t in ("u1", "u2") for layout in LAYOUTS),
}
WINDOWED = {*READ, *((t, "grey") for t in ("i1", "i2", "u4", "i4", "f4"))}
WINDOWED |= {("f4", "0 is white")}
BIG_ENDIAN_UNREAD = {("u2", "0 is white"), ("u4", "grey")}


def tiff(samples, byteorder, **options):
  file = io.BytesIO()
  options |= {"metadata": None, "byteorder": byteorder}
  if samples.shape[2] == 4:
    options["extrasamples"] = ["unassalpha"]
  if options.get("planarconfig") == "separate":
    samples = np.moveaxis(samples, 2, 0)
  elif samples.shape[2] == 1:
    samples = samples[..., 0]
  tifffile.imwrite(file, samples, **options)
  return file.getvalue()


def shown(samples, layout, low, high):
  """The levels that a person would see, float (H, W, 3)."""
  levels = np.clip((samples.astype(float) - low) / (high - low), 0, 1) * 255
  if layout == "0 is white":
    levels = 255 - levels
  if levels.shape[2] == 4:
    top = np.iinfo(samples.dtype).max  # No window is for alpha.
    alpha = samples[..., 3:] / top
    levels = alpha * levels[..., :3] + (1 - alpha) * 255
  return np.broadcast_to(levels, (*levels.shape[:2], 3))


@pytest.mark.parametrize("byteorder", "<>")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", TYPES)
def test_samples_are_shown_rightly_or_refused(kind, layout, byteorder):
  dtype: Any = np.dtype(kind)
  channels = {"g": 1, "0": 1, "t": 3, "a": 3}[layout[0]]
  channels += layout.startswith("alpha")
  rng = np.random.default_rng(0)
  if dtype.kind == "f":
    low, high = 0.25, 0.75
    samples = rng.random((6, 7, channels)).astype(dtype)
  else:
    info = np.iinfo(dtype)
    low, high = info.min // 2, info.max // 4 * 3
    shape = (6, 7, channels)
    samples = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
  encoded = tiff(samples, byteorder, **LAYOUTS[layout])
  unread = byteorder == ">" and (kind, layout) in BIG_ENDIAN_UNREAD
  for window in (None, (low, high)):
    if (kind, layout) not in (READ if window is None else WINDOWED) or unread:
      with pytest.raises(UnreadableImageError) as error:
        decode_rgb(encoded, window)
      assert "\n" not in str(error.value)
      continue
    ends = (low, high)
    if window is None or kind == "u1":  # No window is for 8 bits.
      ends = (0, np.iinfo(dtype).max)
    expected = shown(samples, layout, *ends)
    tolerance = 1 if "alpha" not in layout else 1.6
    found = decode_rgb(encoded, window)
    np.testing.assert_allclose(found, expected, atol=tolerance)


@pytest.mark.parametrize("name", ["planar_rgb16", "minwhite16"])
def test_files_of_sixteen_bits(name):
  found = decode_rgb((HERE / f"{name}.tif").read_bytes())
  with np.load(HERE / "tiff_expected.npz") as levels:
    expected = levels[name].reshape(*found.shape[:2], -1)
  np.testing.assert_allclose(found, expected + np.zeros(3), atol=1)


def test_signed_samples_need_a_window():
  encoded = (HERE / "signed16.tif").read_bytes()
  with pytest.raises(UnreadableImageError, match="signed samples: convert"):
    decode_rgb(encoded)
  samples = tifffile.imread(HERE / "signed16.tif")[..., None]
  found = decode_rgb(encoded, (-30000, 30000))
  expected = shown(samples, "grey", -30000, 30000)
  np.testing.assert_allclose(found, expected, atol=0.51)


def test_small_integers_of_32_bits_are_not_black():
  encoded = encode(Image.fromarray(np.full((2, 2), 200, np.int32)), "TIFF")
  with pytest.raises(UnreadableImageError, match="signed samples: convert"):
    decode_rgb(encoded)


def test_a_palette_of_sixteen_bits_is_looked_up():
  table = np.random.default_rng(0).integers(0, 2**16, (3, 256), np.uint16)
  indices = np.arange(256, dtype=np.uint8).reshape(16, 16)
  file = io.BytesIO()
  tifffile.imwrite(file, indices, photometric="palette", colormap=table)
  found = decode_rgb(file.getvalue())
  expected = table[:, indices].transpose(1, 2, 0) / 257
  np.testing.assert_allclose(found, expected, atol=1)


@pytest.mark.parametrize("orientation", [3, 6])
@pytest.mark.parametrize("window", [None, (0, 65535)])
@pytest.mark.parametrize("layout", ["grey", "together", "apart"])
def test_sixteen_bits_are_turned_once(layout, window, orientation):
  samples = np.arange(24, dtype=np.uint16).reshape(2, 4, 3) * 2700
  samples = samples[..., :1] if layout == "grey" else samples
  tag = [(274, "H", 1, orientation, True)]
  encoded = tiff(samples, "<", extratags=tag, **LAYOUTS[layout])
  turned = np.rot90(samples / 257, {3: 2, 6: -1}[orientation])
  turned = np.broadcast_to(turned, (*turned.shape[:2], 3))
  np.testing.assert_allclose(decode_rgb(encoded, window), turned, atol=1)


def test_bands_whose_0_is_white_are_refused():
  samples = np.zeros((4, 5, 2), np.uint8)
  options = {"planarconfig": "contig", "photometric": "miniswhite"}
  encoded = tiff(samples, "<", **options)
  with pytest.raises(UnreadableImageError, match="in its bands 0 is white"):
    decode_image(encoded, ImageSpec(2))
