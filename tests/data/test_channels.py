"""Images of 1, 2, 4 and more channels against Pillow's and NumPy's pixels."""

import dataclasses
import io
import sys

import cv2
import numpy as np
import pytest
import tifffile
from PIL import Image

from tests.data.pictures import encode, noise, png, scene
from tests.memory import bounded_memory
from vit_jax.data import ImageSpec, make_eval_transform, make_train_transform
from vit_jax.data.decoding.decode import decode_image
from vit_jax.data.decoding.pillow import brightest, leaves_out_bands
from vit_jax.data.example import UnreadableImageError
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading.sources import (
  channel_warnings,
  looked_at,
  open_splits,
)
from vit_jax.data.settings import (
  DataSettings,
  EvalTransformSettings,
  TrainTransformSettings,
)
from vit_jax.inference.reading import read_images
from vit_jax.inspection.photograph import seen_part
from vit_jax.runtime.printable import said_once

H, W = 46, 71
COLOURS = scene(H, W)
GREY = np.asarray(Image.fromarray(COLOURS).convert("L"))
ALPHA = np.linspace(0, 255, H * W).reshape(H, W, 1).astype(np.uint8)


def bands(count, dtype=np.uint8):
  top = 255 if dtype == np.uint8 else 4095
  rng = np.random.default_rng(count)
  return rng.integers(0, top, (H, W, count), endpoint=True).astype(dtype)


def tiff(samples, **options):
  file = io.BytesIO()
  options = {"photometric": "minisblack", **options}
  tifffile.imwrite(file, samples, **options)
  return file.getvalue()


def test_grey_files_are_grey():
  np.testing.assert_array_equal(
    decode_image(png(GREY), ImageSpec(1)), GREY[..., None]
  )
  jpeg = encode(Image.fromarray(GREY), "JPEG")
  stored = np.asarray(Image.open(io.BytesIO(jpeg)))
  np.testing.assert_array_equal(
    decode_image(jpeg, ImageSpec(1)), stored[..., None]
  )


def test_colours_become_grey_by_their_luminance():
  for encoded in (png(COLOURS), encode(Image.fromarray(COLOURS), "TIFF")):
    found = decode_image(encoded, ImageSpec(1))
    np.testing.assert_array_equal(found, GREY[..., None])
  jpeg = encode(Image.fromarray(COLOURS), "JPEG")
  stored = Image.open(io.BytesIO(jpeg))
  stored.draft("L", stored.size)  # The luminance that the file holds.
  np.testing.assert_array_equal(
    decode_image(jpeg, ImageSpec(1))[..., 0], np.asarray(stored)
  )


@pytest.mark.parametrize("colours", [GREY[..., None], COLOURS])
def test_alpha_is_kept_or_blended_with_white(colours):
  channels = colours.shape[2]
  pixels = np.dstack([colours, ALPHA])
  encoded = png(pixels)
  found = decode_image(encoded, ImageSpec(channels + 1))
  np.testing.assert_array_equal(found, pixels)
  blended = ALPHA / 255 * colours + 255 - ALPHA
  found = decode_image(encoded, ImageSpec(channels))
  np.testing.assert_allclose(found, blended, atol=1)


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "BMP"])
@pytest.mark.parametrize("channels", [2, 4])
def test_alpha_of_opaque_files(file_format, channels):
  encoded = encode(Image.fromarray(COLOURS), file_format)
  found = decode_image(encoded, ImageSpec(channels))
  assert found.shape == (H, W, channels)
  assert (found[..., -1] == 255).all()
  opaque = decode_image(encoded, ImageSpec(channels - 1))
  np.testing.assert_array_equal(found[..., :-1], opaque)


@pytest.mark.parametrize("count", [2, 4, 5])
@pytest.mark.parametrize("layout", ["together", "planes", "pages"])
def test_bands_are_taken_as_they_are_stored(count, layout):
  pixels = bands(count)
  planes = np.ascontiguousarray(np.moveaxis(pixels, 2, 0))
  encoded = {
    "together": lambda: tiff(pixels, planarconfig="contig"),
    "planes": lambda: tiff(planes, planarconfig="separate"),
    "pages": lambda: tiff(planes),
  }[layout]()
  np.testing.assert_array_equal(decode_image(encoded, ImageSpec(count)), pixels)


@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
def test_a_window_scales_every_band(dtype):
  samples = bands(5, dtype)
  expected = np.clip((samples.astype(float) - 100) / 3900, 0, 1) * 255
  encoded = tiff(samples, planarconfig="contig")
  found = decode_image(encoded, ImageSpec(5, (100, 4000)))
  np.testing.assert_allclose(found, expected, atol=0.51)
  if dtype == np.uint16:
    found = decode_image(encoded, ImageSpec(5))
    np.testing.assert_array_equal(found, samples // 256)
    assert brightest(encoded) == samples.max()
  else:
    with pytest.raises(UnreadableImageError, match="to 8 bits, or train with"):
      decode_image(encoded, ImageSpec(5))


def test_a_window_of_one_channel():
  samples = bands(1, np.uint16)
  expected = np.clip(samples / 2000, 0, 1) * 255
  for ending in (".png", ".tiff"):
    encoded = cv2.imencode(ending, samples)[1].tobytes()
    found = decode_image(encoded, ImageSpec(1, (0, 2000)))
    np.testing.assert_allclose(found, expected, atol=0.51)


def test_bands_are_turned_upright():
  pixels = bands(5)
  turned = tiff(
    pixels, planarconfig="contig", extratags=[(274, "H", 1, 6, True)]
  )
  found = decode_image(turned, ImageSpec(5))
  np.testing.assert_array_equal(found, np.rot90(pixels, -1))


# The kinds of extra samples of a TIFF file, by their numbers in its tag.
UNKNOWN, ASSOCIATED, PLAIN = 0, 1, 2


def with_extra(pixels, extra, **options):
  return tiff(pixels, planarconfig="contig", extrasamples=extra, **options)


@pytest.mark.parametrize("channels", [2, 4, 5])
@pytest.mark.parametrize("count, colours", [(2, 1), (3, 1), (4, 3), (5, 3)])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_bands_are_no_picture_unless_the_file_says_so(
  count, colours, channels, dtype
):
  pixels = bands(count, dtype)
  photometric = "rgb" if colours == 3 else "minisblack"
  extra = [UNKNOWN] * (count - colours)
  encoded = with_extra(pixels, extra, photometric=photometric)
  if count == channels:
    found = decode_image(encoded, ImageSpec(channels))
    expected = pixels if dtype == np.uint8 else pixels >> 8
    np.testing.assert_array_equal(found, expected)
    return
  message = f"^{channels} bands are needed, and it has {count} bands"
  with pytest.raises(UnreadableImageError, match=message) as error:
    decode_image(encoded, ImageSpec(channels))
  assert "\n" not in str(error.value)


def test_bands_in_pages_are_no_picture():
  pages = tiff(np.ascontiguousarray(np.moveaxis(bands(2), 2, 0)))
  with pytest.raises(UnreadableImageError, match="4 bands .* has 2 bands"):
    decode_image(pages, ImageSpec(4))


def test_a_tiff_file_that_says_it_has_alpha_is_a_picture():
  pixels = bands(2)
  encoded = with_extra(pixels, [PLAIN])
  found = decode_image(encoded, ImageSpec(4))
  np.testing.assert_array_equal(found, pixels[..., [0, 0, 0, 1]])
  encoded = with_extra(bands(4), [ASSOCIATED], photometric="rgb")
  assert decode_image(encoded, ImageSpec(2)).shape == (H, W, 2)


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "BMP", "TIFF"])
@pytest.mark.parametrize("channels", [2, 4])
def test_opaque_pictures_have_no_band_of_another_name(file_format, channels):
  encoded = encode(Image.fromarray(COLOURS), file_format)
  names = {2: ("vv", "vh"), 4: ("blue", "green", "red", "nir")}[channels]
  transform = half_normalised(names).transform()
  said = f"^{channels} bands are needed, and it is a picture without alpha"
  with pytest.raises(UnreadableImageError, match=said):
    transform(encoded)
  whole = np.dstack([COLOURS, ALPHA])[..., -channels:]
  whole = png(whole) if channels == 4 else tiff(whole, planarconfig="contig")
  assert transform(whole).shape == (*SIZE, channels)
  with_alpha = half_normalised((*names[:-1], "Alpha")).transform()(encoded)
  assert (with_alpha[..., -1] == 255).all()


SIZE = (8, 8)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_picture_of_a_file_with_some_bands_has_its_own(count):
  """Pictures are drawn of it, whatever the bands of the model are."""
  names = ("red", "green", "blue", "nir")
  some = dataclasses.replace(half_normalised(names), some_bands=True)
  encoded = tiff(bands(count), planarconfig="contig")
  found = decode_image(encoded, some.spec)
  np.testing.assert_array_equal(found, bands(count))
  assert seen_part(encoded, some).shape[2] == 3
  opaque = encode(Image.fromarray(COLOURS), "PNG")
  np.testing.assert_array_equal(decode_image(opaque, some.spec), COLOURS)


def half_normalised(names, channels=None):
  half = (0.5,) * (channels or len(names))
  return Preprocessing(SIZE, mean=half, std=half, bands=names)


def test_a_line_says_that_pictures_get_alpha(tmp_path, capsys):
  for split in ("train", "val"):
    (tmp_path / split).mkdir()
    for name in ("x.jpg", "y.tif"):
      Image.fromarray(COLOURS).save(tmp_path / split / name)
    (tmp_path / split / "z.png").write_bytes(png(np.dstack([COLOURS, ALPHA])))
  settings = DataSettings(root=str(tmp_path), labels=False)
  pictures = open_splits(settings).train
  plain = half_normalised((), 4)
  (line,) = channel_warnings(looked_at(pictures), plain.spec)
  assert line.startswith("2 of 3 images looked at have no alpha")
  assert channel_warnings(looked_at(pictures), ImageSpec(3)) == []
  named = half_normalised(("red", "green", "blue", "nir"))
  # Pictures of other bands are refused.
  assert channel_warnings(looked_at(pictures), named.spec) == []
  pixels = read_images(plain, tmp_path / "train")
  assert pixels.shape == (3, *SIZE, 4)
  assert "it is 255 for them" in "".join(capsys.readouterr())


@pytest.mark.parametrize(
  "dtype, colours, window, atol",
  [
    (np.uint8, 1, None, 2.5),  # The stored levels are rounded to 1 of 255.
    (np.uint8, 3, None, 2.5),
    (np.uint16, 3, None, 1),
    (np.uint16, 3, (0, 65535), 1),
    (np.uint16, 3, (0, 32768), 1),
  ],
)
def test_colours_that_are_multiplied_by_alpha(dtype, colours, window, atol):
  top = np.iinfo(dtype).max
  alpha = np.array([0.25, 0.5, 0.75, 1, 0]).reshape(1, 5, 1)
  plain = np.array([0.2, 0.4, 0.8])[:colours] * np.ones((2, 5, 1))
  stored = np.concatenate([plain * alpha, alpha * np.ones((2, 5, 1))], axis=2)
  encoded = with_extra(
    np.rint(stored * top).astype(dtype),
    [ASSOCIATED],
    photometric="rgb" if colours == 3 else "minisblack",
  )
  white = window[1] / top if window else 1
  shown = np.minimum(plain / white, 1)
  on_white = 255 * (alpha * shown + 1 - alpha) * np.ones(3)
  found = decode_image(encoded, ImageSpec(3, window))
  np.testing.assert_allclose(found, on_white, atol=atol)
  if colours == 1:
    grey = decode_image(encoded, ImageSpec(1))
    np.testing.assert_array_equal(grey, found[..., :1])
    kept = decode_image(encoded, ImageSpec(4))
    np.testing.assert_allclose(kept[:, :4, :3], 51, atol=atol)


def unmarked(count, dtype=np.uint8):
  """A file of colours, and of samples that may be anything."""
  extra = [UNKNOWN] * (count - 3)
  return with_extra(bands(count, dtype), extra, photometric="rgb")


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("window", [None, (0, 65535)])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_an_unmarked_band_is_not_taken_for_alpha(dtype, window, channels):
  alone = tiff(bands(4, dtype)[..., :3], photometric="rgb")
  spec = ImageSpec(channels, window)
  expected = decode_image(alone, spec)
  found = decode_image(unmarked(4, dtype), spec)
  np.testing.assert_array_equal(found, expected)


PAGES = np.ascontiguousarray(np.moveaxis(bands(2), 2, 0))
MORE_BANDS = {
  "colours and one": unmarked(4),
  "colours and two": unmarked(5),
  "grey and one": with_extra(bands(2), [UNKNOWN]),
  "alpha and one": with_extra(bands(5), [PLAIN, UNKNOWN], photometric="rgb"),
  "pages": tiff(PAGES),
}


def with_overview():
  """A file with a smaller copy in a page of its own, as GDAL writes it."""
  file = io.BytesIO()
  with tifffile.TiffWriter(file) as writer:
    writer.write(COLOURS, photometric="rgb", subifds=0)
    writer.write(COLOURS[::2, ::2], photometric="rgb", subfiletype=1)
  return file.getvalue()


NO_MORE_BANDS = {
  "colours": tiff(COLOURS, photometric="rgb"),
  "alpha": with_extra(bands(4), [PLAIN], photometric="rgb"),
  "multiplied alpha": with_extra(bands(2), [ASSOCIATED]),
  "overview": with_overview(),
  "cmyk": encode(Image.fromarray(COLOURS).convert("CMYK"), "TIFF"),
  "palette": encode(Image.fromarray(COLOURS).convert("P"), "TIFF"),
  "png": png(np.dstack([COLOURS, ALPHA])),
  "animation": encode(
    Image.fromarray(GREY),
    "GIF",
    save_all=True,
    append_images=[Image.fromarray(255 - GREY)],
  ),
}


@pytest.mark.parametrize("name", [*MORE_BANDS, *NO_MORE_BANDS])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_line_says_that_bands_are_left_out(name, channels, tmp_path, capsys):
  encoded = {**MORE_BANDS, **NO_MORE_BANDS}[name]
  for split in ("train", "val"):
    (tmp_path / split).mkdir()
    (tmp_path / split / "x.tif").write_bytes(encoded)
    Image.fromarray(COLOURS).save(tmp_path / split / "y.jpg")
  settings = DataSettings(root=str(tmp_path), labels=False)
  pictures = open_splits(settings).train
  plain = half_normalised((), channels)
  lines = channel_warnings(looked_at(pictures), plain.spec)
  said_once.clear()
  assert read_images(plain, tmp_path / "train").shape[3] == channels
  read_images(plain, tmp_path / "val")
  said = "".join(capsys.readouterr()).count("further bands or pages")
  if name in NO_MORE_BANDS:
    assert (lines, said) == ([], 0)
    return
  (line,) = lines
  assert line.startswith("1 of 2 images looked at have further bands or pages")
  assert f"channels={channels} leaves them out" in line
  assert said == 1


def test_bands_of_tokens_of_their_own_are_not_left_out():
  some = half_normalised(("red", "green", "blue"))
  some = dataclasses.replace(some, some_bands=True)
  assert not leaves_out_bands(unmarked(4), some.spec)


@pytest.mark.parametrize("channels", [1, 3])
def test_bands_that_are_no_picture_are_counted(channels):
  said = f"^{channels} bands are needed, and it has 4 bands: set channels to"
  with pytest.raises(UnreadableImageError, match=said):
    decode_image(tiff(bands(4), planarconfig="contig"), ImageSpec(channels))


def test_planes_with_alpha_say_what_to_do():
  planes = np.ascontiguousarray(np.moveaxis(bands(2), 2, 0))
  options = {"planarconfig": "separate", "extrasamples": [ASSOCIATED]}
  with pytest.raises(
    UnreadableImageError, match="a plane of its own.*La: save"
  ):
    decode_image(tiff(planes, **options), ImageSpec(3))


def test_bands_that_a_file_does_not_have(monkeypatch):
  six = tiff(bands(6), planarconfig="contig")
  with pytest.raises(UnreadableImageError, match="5 bands are needed.* has 6"):
    decode_image(six, ImageSpec(5))
  with pytest.raises(UnreadableImageError, match="4 bands are needed.* has 6"):
    decode_image(six, ImageSpec(4))
  for file_format in ("PNG", "JPEG"):
    with pytest.raises(UnreadableImageError, match="it is not a TIFF file"):
      decode_image(encode(Image.fromarray(COLOURS), file_format), ImageSpec(5))
  volume = np.zeros((2, 3, 8, 8), np.uint8)
  with pytest.raises(UnreadableImageError, match="its axes are"):
    decode_image(tiff(volume), ImageSpec(5))
  monkeypatch.setitem(sys.modules, "tifffile", None)
  with pytest.raises(UnreadableImageError, match=r'install "vit_jax\[tiff\]"'):
    decode_image(six, ImageSpec(5))


@pytest.mark.parametrize("count", [1, 2, 4, 5])
@pytest.mark.parametrize(
  "interpolation", ["bilinear", "bicubic", "area", "few"]
)
def test_each_channel_is_resized_alone(count, interpolation):
  settings = EvalTransformSettings(
    interpolation=interpolation.replace("few", "bilinear"),
    antialias=interpolation != "few",
  )
  pixels = bands(count)
  encoded = (
    png(pixels[..., 0]) if count == 1 else tiff(pixels, planarconfig="contig")
  )
  found = make_eval_transform((20, 90), settings, ImageSpec(count))(encoded)
  alone = [
    make_eval_transform((20, 90), settings)(png(band))[..., 0]
    for band in np.moveaxis(pixels, 2, 0)
  ]
  assert found.shape == (20, 90, count)
  np.testing.assert_allclose(found.astype(int), np.stack(alone, 2), atol=1)
  if interpolation in ("bilinear", "bicubic"):
    pillow = Image.Resampling[interpolation.upper()]
    band = Image.fromarray(pixels[..., -1]).resize((90, 20), pillow)
    np.testing.assert_array_equal(found[..., -1], np.asarray(band))


@pytest.mark.parametrize("crop", ["inception", "pad", "resize"])
@pytest.mark.parametrize("count", [2, 5])
def test_each_channel_is_cropped_alike(crop, count):
  settings = TrainTransformSettings(crop=crop)
  pixels = bands(count)
  encoded = tiff(pixels, planarconfig="contig")
  found = make_train_transform((20, 60), settings, ImageSpec(count))(
    encoded, np.random.default_rng(3)
  )
  alone = [
    make_train_transform((20, 60), settings)(
      png(band), np.random.default_rng(3)
    )[..., 0]
    for band in np.moveaxis(pixels, 2, 0)
  ]
  np.testing.assert_allclose(found.astype(int), np.stack(alone, 2), atol=1)


@pytest.mark.parametrize("as_published", [False, True])
def test_grey_is_augmented_as_three_equal_channels(as_published):
  settings = TrainTransformSettings(
    randaugment_layers=2,
    three_augment=True,
    colour_jitter=0.3,
    as_published=as_published,
  )
  for seed in range(20):
    one, three = (
      make_train_transform((20, 30), settings, ImageSpec(channels))(
        png(GREY), np.random.default_rng(seed)
      )
      for channels in (1, 3)
    )
    assert one.shape == (20, 30, 1)
    np.testing.assert_array_equal(np.repeat(one, 3, 2), three)


def test_noise_erases_every_channel():
  settings = TrainTransformSettings(crop="resize", flip=False, erase=1.0)
  black = tiff(np.zeros((H, W, 5), np.uint8), planarconfig="contig")
  found = make_train_transform((H, W), settings, ImageSpec(5))(
    black, np.random.default_rng(0)
  )
  assert all(band.any() for band in np.moveaxis(found, 2, 0))


@pytest.mark.parametrize(
  "name, value, off",
  [
    ("randaugment_layers", 2, "0"),
    ("three_augment", True, "False"),
    ("colour_jitter", 0.3, "0.0"),
  ],
)
def test_augmentations_of_colours_need_colours(name, value, off):
  settings = TrainTransformSettings(**{name: value})
  message = (
    f"{name}={value} is defined for .* 1 or 3 .* have 4: set it to {off}[.]$"
  )
  with pytest.raises(ValueError, match=message):
    make_train_transform(8, settings, ImageSpec(4))


def test_colours_are_read_as_before():
  pixels = noise(9, 7)
  np.testing.assert_array_equal(decode_image(png(pixels)), pixels)


def test_bands_that_take_gigabytes_are_refused_unread(tmp_path):
  """80 megapixels of 5 bands of 16 bits are claimed by a few bytes."""
  path = tmp_path / "bands.tif"
  form = {"photometric": "minisblack", "planarconfig": "contig"}
  tifffile.imwrite(path, bands(5, np.uint16), metadata=None, **form)
  with tifffile.TiffFile(path, mode="r+") as file:
    tags = file.pages.first.tags
    tags["ImageWidth"].overwrite(8_000)
    tags["ImageLength"].overwrite(10_000)
  encoded = path.read_bytes()
  said = "samples take 800,000,000 bytes, more than 715,"
  with bounded_memory(2**24), pytest.raises(UnreadableImageError, match=said):
    decode_image(encoded, ImageSpec(channels=5))
