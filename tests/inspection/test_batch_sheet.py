"""The picture of a batch: where images stand, and what is said of labels."""

import numpy as np
import pytest

from tests import commands
from vit_jax.data.reading.captions import Captions
from vit_jax.data.reading.tokenizer_files import new_tokenizer
from vit_jax.inspection.batch_sheet import batch_sheet
from vit_jax.tasks.segmentation.pictures import palette

NAMES = ("cat", "dog")
TEXTS = ["A red circle", "a blue square"]


def test_the_sheet_shows_every_image():
  images = np.random.default_rng(0).integers(0, 256, (9, 150, 140, 3), np.uint8)
  sheet = np.asarray(batch_sheet(images, np.zeros(9, np.int32), ["name"]).image)
  corners = [
    np.argwhere((sheet == image[0, 0]).all(axis=-1)).tolist()
    for image in images
  ]
  places = [
    [(y, x) for y, x in some if np.array_equal(sheet[y:, x:][:150, :140], one)]
    for some, one in zip(corners, images, strict=True)
  ]
  assert [len(place) for place in places] == [1] * 9
  found = [place[0] for place in places]
  assert found == sorted(found)  # In reading order,
  assert len({y for y, _ in found}) == 2  # in rows of eight,
  for y, x in found:  # each below its name.
    assert (sheet[y - 14 : y - 1, x : x + 140] < 128).any()
  assert (sheet[found[8][0] :, found[1][1] :] == 255).all()


@pytest.mark.slow
def test_a_sheet_needs_no_matplotlib():
  code = (
    "import sys, numpy\n"
    "from vit_jax.inspection.batch_sheet import batch_sheet\n"
    "batch_sheet(\n"
    "  numpy.zeros((2, 8, 8, 3), 'uint8'), numpy.arange(2), ['Käse', '猫'])\n"
    "assert 'matplotlib' not in sys.modules\n"
  )
  assert commands.python("-c", code).returncode == 0


def captions():
  """A kind of labels with a tokenizer, and the label of two captions."""
  kind = Captions(files=new_tokenizer(TEXTS, 300, 20), most=2)
  return kind, kind.ids([TEXTS])[0]


def letters(text):
  return np.array([[*map(ord, text), -1, -1]], np.int32)


@pytest.mark.parametrize(
  "label, kind, names, expected",
  [
    (np.int32(1), None, NAMES, "dog"),
    (np.int32(5), None, NAMES, "class 5"),
    (np.int32(5), None, (), "5"),
    (np.float32([1, 1]), None, NAMES, "cat, dog"),
    (np.float32([0, 0]), None, NAMES, ""),
    (np.float32([0.5, 3]), None, ("age", "size"), "age 0.5, size 3"),
    (np.float32([0.5]), None, ("age",), "0.5"),
    (np.float32(7), None, (), "7"),
    (letters("a häß"), None, (), "a häß"),
    (np.uint8([[1, 1], [1, 0]]), None, NAMES, "dog, cat"),
    (np.uint8([[2, 2], [1, 2]]), None, (), "class 2, class 1"),
    (*captions()[::-1], (), "a red circle"),
  ],
)
def test_a_label_in_words(label, kind, names, expected):
  """By the kind of labels, or what they look like without one."""
  image = np.zeros((1, 128, 128, 3), np.uint8)
  found = batch_sheet(image, label[None], names, kind).image
  of_name = batch_sheet(image, np.int32([0]), [expected]).image
  above = (0, 0, found.width, found.height - 132)  # A mask is on its image.
  assert found.size == of_name.size
  assert found.crop(above) == of_name.crop(above)


def test_a_mask_lies_on_its_image():
  """0.6 of a class's colour and 0.4 of the pixel; of no class, the pixel."""
  image = np.full((1, 128, 128, 3), 100, np.uint8)
  mask = np.zeros((1, 64, 64), np.int32)  # Half as large as the image.
  mask[0, :, 32:48], mask[0, :, 48:] = 1, 255
  sheet = np.asarray(batch_sheet(image, mask, NAMES).image)
  row = sheet[-30, 4:-4]
  assert row[10].tolist() == [40] * 3
  np.testing.assert_array_equal(row[70], np.rint(0.6 * palette()[1] + 40))
  assert row[110].tolist() == [100] * 3


def test_a_long_caption_takes_three_lines():
  image = np.zeros((1, 128, 128, 3), np.uint8)
  heights = []
  for words in (1, 3, 100, 200):
    label = letters("circle " * words)
    heights.append(batch_sheet(image, label[None]).image.height)
  assert heights[0] < heights[1] < heights[2] == heights[3]


@pytest.mark.parametrize("count, side", [(2, 32), (8, 128), (16, 224)])
def test_captions_are_wrapped_where_they_would_be_shortened(
  monkeypatch, count, side
):
  cut = []
  monkeypatch.setattr(
    "vit_jax.inspection.fonts.shortened",
    lambda text, fits: cut.append(text) if not fits(text) else text,
  )
  images = np.zeros((count, side, side, 3), np.uint8)
  texts = [letters("a picture of a large green triangle")[0]] * count
  batch_sheet(images, np.stack(texts))
  assert not cut
