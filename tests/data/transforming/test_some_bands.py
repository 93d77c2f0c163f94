"""Files that have some of a run's bands."""

import io

import numpy as np
import pytest
import tifffile
from PIL import Image

from vit_jax.data import Preprocessing
from vit_jax.data.decoding.bands import FileBands, file_bands
from vit_jax.data.example import UnreadableImageError
from vit_jax.data.settings import TrainTransformSettings
from vit_jax.data.transforming.some_bands import places_of_bands
from vit_jax.data.transforming.with_masks import WithMasks

NAMES = ("blue", "green", "red", "nir")
HALF = (0.5,) * 4
GDAL_METADATA = 42_112


def pixels_of(count, seed=0):
  rng = np.random.default_rng(seed)
  return rng.integers(0, 256, (6, 8, count), np.uint8)


def tiff(pixels, names=(), **options):
  """A TIFF file whose bands have names as GDAL writes them."""
  items = "".join(
    f'<Item name="DESCRIPTION" sample="{i}" role="description">{name}</Item>\n'
    for i, name in enumerate(names)
    if name
  )
  text = f'<GDALMetadata>\n  <Item name="A">1</Item>{items}</GDALMetadata>'
  options = {"photometric": "minisblack", "planarconfig": "contig"} | options
  if pixels.shape[-1] == 1:  # The last tifffile for Python 3.11 wants no axis.
    pixels, options["planarconfig"] = pixels[..., 0], None
  if names:
    options["extratags"] = [(GDAL_METADATA, 2, None, text, True)]
  file = io.BytesIO()
  tifffile.imwrite(file, pixels, metadata=None, **options)
  return file.getvalue()


def png(pixels):
  file = io.BytesIO()
  Image.fromarray(pixels).save(file, "PNG")
  return file.getvalue()


def read(encoded, names=NAMES, **fields):
  half = (0.5,) * len(names)
  fields = {"mean": half, "std": half, "bands": names} | fields
  transform = Preprocessing((6, 8), some_bands=True, **fields).transform()
  row = transform.row({"image": encoded, "label": 0, "id": ""})
  assert {k: (v.shape, v.dtype) for k, v in row.items()} == {
    k: (v.shape, v.dtype) for k, v in transform.spec.items()
  }
  np.testing.assert_array_equal(transform(encoded), row["image"])
  return row["image"], row["bands"].tolist()


@pytest.mark.parametrize(
  "names, bands, places",
  [
    # The run's band k is the file's band `places[k]`; None if it has none.
    (("NIR", "red"), [False, False, True, True], [None, None, 1, 0]),
    (("swir", "Green ", "", "x"), [False, True, False, False], [None, 1] * 2),
    (("nir", "red", "green", "blue"), [True] * 4, [3, 2, 1, 0]),
    (("b1", "b2", "b3", "b4"), [True] * 4, [0, 1, 2, 3]),
    ((), [True] * 4, [0, 1, 2, 3]),
    (("nir",), [False, False, False, True], [None, None, None, 0]),
    (("red", "nir", "red"), [False, False, True, True], [None, None, 0, 1]),
  ],
)
def test_bands_of_tiff_files_are_found_by_their_names(names, bands, places):
  pixels = pixels_of(len(names) or 4)
  image, has = read(tiff(pixels, names))
  assert has == bands
  for band, place in enumerate(places):
    if has[band]:
      np.testing.assert_array_equal(image[..., band], pixels[..., place])
    else:
      assert not image[..., band].any()


def test_bands_in_pages_and_of_16_bits_are_as_those_of_one_page():
  """A file of 3 pages is not read as its first page in grey."""
  pixels = pixels_of(3)
  planes = np.moveaxis(pixels, 2, 0)
  names = ("red", "nir", "blue")
  for encoded in (
    tiff(planes, names, planarconfig=None),
    tiff(planes, names, planarconfig="separate"),
    tiff(pixels.astype(np.uint16) << 8, names),
  ):
    image, has = read(encoded)
    assert has == [True, False, True, True]
    np.testing.assert_array_equal(image[..., [2, 3, 0]], pixels)


def test_colours_are_red_green_and_blue():
  pixels = pixels_of(3)
  for encoded in (png(pixels), tiff(pixels, photometric="rgb")):
    image, has = read(encoded)
    assert has == [True, True, True, False]
    np.testing.assert_array_equal(image[..., [2, 1, 0]], pixels)
  # With as many bands as the file, they are the run's, as without names.
  image, has = read(png(pixels), names=("nir", "red", "green"))
  assert has == [True] * 3
  np.testing.assert_array_equal(image, pixels)
  four = pixels_of(4)
  image, has = read(png(four))
  assert has == [True] * 4
  np.testing.assert_array_equal(image, four)
  # A run of six bands has no place for transparency: it is blended.
  six = ("red", "green", "blue", "a", "b", "c")
  four[..., 3] = 255
  image, has = read(png(four), names=six)
  assert has == [True] * 3 + [False] * 3
  np.testing.assert_array_equal(image[..., :3], four[..., :3])


def test_files_of_unknown_bands_are_refused():
  with pytest.raises(
    UnreadableImageError,
    match="some of blue, green, red, nir, and it does not name its 2 bands: na",
  ):
    read(tiff(pixels_of(2)))
  with pytest.raises(UnreadableImageError, match="and it has swir, vv: name"):
    read(tiff(pixels_of(2), ("swir", "vv")))
  with pytest.raises(UnreadableImageError):
    read(tiff(pixels_of(2))[:40])


def test_names_are_unescaped_and_bounded():
  names = ("a &amp; b", "")
  encoded = tiff(pixels_of(2), names)
  assert file_bands(encoded, 4) == FileBands(("a & b", ""), are_colours=False)
  beyond = encoded.replace(b'sample="0"', b'sample="9"')
  assert file_bands(beyond, 4).names == ("", "")


def test_of_two_bands_of_a_name_the_first_counts():
  bands = FileBands(("red", "RED"), are_colours=False)
  assert places_of_bands(bands, NAMES) == {0: 2}


def test_training_and_a_cut_take_them_too():
  pixels = pixels_of(2)
  encoded = tiff(pixels, ("red", "nir"))
  preprocessing = Preprocessing(
    (5, 7), cut_from=(6, 8), mean=HALF, std=HALF, bands=NAMES, some_bands=True
  )
  image, has = (
    preprocessing.transform()
    .row({"image": encoded, "label": 0, "id": ""})
    .values()
  )
  assert has.tolist() == [False, False, True, True]
  np.testing.assert_array_equal(image[..., 2:], pixels[:5, :7])
  settings = TrainTransformSettings(crop="resize", flip=True)
  transform = preprocessing.train_transform(settings)
  row = {"image": encoded, "label": 0, "id": ""}
  found = [
    transform.row(row, np.random.default_rng(seed))["image"][..., 2:]
    for seed in range(8)
  ]
  whole = pixels[:5, :7], pixels[:, ::-1][:5, :7]
  which = [[np.array_equal(w, f) for w in whole].index(True) for f in found]
  assert {*which} == {0, 1}


def test_a_line_says_what_is_missing():
  files = [tiff(pixels_of(2), ("red", "nir")), png(pixels_of(3))] * 3
  files.append(tiff(pixels_of(4)))
  source = [{"image": file, "label": 0, "id": ""} for file in files]
  transform = Preprocessing(
    (6, 8), mean=HALF, std=HALF, bands=NAMES, some_bands=True
  ).transform()
  assert transform.about(source) == (
    "of 7 images looked at, 3 lack blue, 3 lack green, 3 lack nir; these "
    "tokens are left out"
  )
  assert transform.about(source[-1:]) == ""


def test_without_bands_of_their_own_models_take_files_as_before():
  names = (*NAMES, "swir")
  half = (0.5,) * 5
  preprocessing = Preprocessing((6, 8), mean=half, std=half, bands=names)
  assert set(preprocessing.transform().spec) == {"image"}
  with pytest.raises(UnreadableImageError, match="5 bands are needed"):
    preprocessing.transform()(tiff(pixels_of(2), ("red", "nir")))


def test_masks_are_cut_as_the_bands_that_are_there():
  pixels = pixels_of(2)
  encoded = tiff(pixels, ("red", "nir"))
  mask = pixels[..., 1].astype(np.int32)  # Each pixel's class is its nir.
  preprocessing = Preprocessing(
    (5, 7), cut_from=(6, 8), mean=HALF, std=HALF, bands=NAMES, some_bands=True
  )
  settings = TrainTransformSettings(crop="resize", flip=True)
  train = WithMasks(preprocessing.train_transform(settings))
  example = {"image": encoded, "label": mask, "id": ""}
  rows = [train.row(example, np.random.default_rng(k)) for k in range(8)]
  rows.append(WithMasks(preprocessing.transform()).row(example))
  for row in rows:
    assert {k: (v.shape, v.dtype) for k, v in row.items()} == {
      k: (v.shape, v.dtype) for k, v in train.spec.items()
    }
    assert row["bands"].tolist() == [False, False, True, True]
    np.testing.assert_array_equal(row["image"][..., 3], row["label"])
  assert len({row["label"].tobytes() for row in rows}) == 2
