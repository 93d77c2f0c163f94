"""Folders of images and masks, as people have them, and what masks mean."""

import os

import numpy as np
import pytest
from PIL import ExifTags, Image

from vit_jax.data.example import UnreadableImageError
from vit_jax.data.reading import number_folder
from vit_jax.data.reading.mask_folder import (
  IGNORED,
  MASKS,
  open_folder,
  open_split,
  open_whole,
)
from vit_jax.data.settings import DataSettings
from vit_jax.runtime.settings import from_dict, to_dict

MASK = np.zeros((16, 16), np.uint8)
MASK[4:8, 4:12] = 1  # An eighth.
MASK[0, :4] = 2


def grey(numbers, values=(0, 1, 2)):
  return Image.fromarray(np.array(values, np.uint8)[numbers])


def with_palette(numbers, colours):
  picture = Image.fromarray(np.uint8(numbers))
  picture.putpalette(np.uint8(colours).tobytes())
  return picture


def write(root, *masks, classes=None, name="{}.png", image="{}.jpg", **options):
  """Writes images with these masks, the last of which to evaluate on."""
  for number, mask in enumerate(masks):
    split = "val" if number == len(masks) - 1 else "train"
    for kind, file, picture in (
      ("images", image, Image.new("RGB", mask.size)),
      ("masks", name, mask),
    ):
      path = root / kind / split / file.format(number)
      path.parent.mkdir(parents=True, exist_ok=True)
      picture.save(path, **(options if kind == "masks" else {}))
  if classes is not None:
    (root / "classes.txt").write_text("\n".join(classes))
  return DataSettings(root=str(root))


def opened(settings):
  splits = open_folder(settings)
  return splits["train"], splits["eval"]


TWO = np.uint8(MASK == 1)
NAMES = ("background", "crack")
BLACK_AND_WHITE = ("background 0 0 0", "crack 255 255 255")


@pytest.mark.parametrize("classes", [None, NAMES, BLACK_AND_WHITE])
@pytest.mark.parametrize("form", ["L", "P", "1", "I;16", "65535"])
def test_white_is_class_1_of_two(tmp_path, form, classes):
  white = grey(TWO, (0, 255))
  if form == "P":
    white = with_palette(255 * TWO, np.arange(256)[:, None].repeat(3, 1))
  elif form == "1":
    white = white.convert("1")
  elif form != "L":
    white = Image.fromarray(TWO * np.uint16(255 if form == "I;16" else 65535))
  if form in ("I;16", "65535") and classes == BLACK_AND_WHITE:
    classes = NAMES  # Grey of 16 bits has no colours.
  train, _ = opened(write(tmp_path, white, white, classes=classes))
  np.testing.assert_array_equal(train[0]["label"], TWO)
  assert train[0]["label"].dtype == np.int32
  said = " ".join(train.warnings())
  is_taken = form != "1" and classes != BLACK_AND_WHITE
  taken = f"0 and {np.asarray(white).max()} alone, which are taken for the two"
  assert (taken in said) == is_taken
  assert "12.5%" in said


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
@pytest.mark.parametrize("values", [(0, 1, 2), (0, 255, 0)])
def test_equal_channels_are_one_number(tmp_path, mode, values):
  mask = grey(MASK, values)
  one, _ = opened(write(tmp_path / "one", mask, mask))
  three, _ = opened(write(tmp_path / "three", *2 * [mask.convert(mode)]))
  np.testing.assert_array_equal(three[0]["label"], one[0]["label"])
  assert len(three.class_names) == len({*values})
  (line,) = {*three.warnings()} - {*one.warnings()}
  assert line.endswith("channels are equal, and are read as one number.")
  old = DataSettings(root=three.root, mask_values="index")
  with pytest.raises(ValueError, match="has the mode RGB"):
    opened(old)


def test_colours_without_names_are_refused(tmp_path):
  mask = with_palette(MASK, [[0, 0, 0], [128, 0, 0], [0, 1, 0]]).convert("RGB")
  with pytest.raises(ValueError, match="mode RGB: .*, as in road 128 64 128"):
    opened(write(tmp_path, mask, mask, classes=("a", "b", "c")))


def test_a_saved_run_keeps_its_reading_of_white(tmp_path):
  white = grey(TWO, (0, 255))
  write(tmp_path, white, white, classes=NAMES)
  saved = to_dict(DataSettings(root=str(tmp_path)))
  assert saved.pop("mask_values") == "meant"  # A run of today keeps it.
  train, _ = opened(from_dict(DataSettings, saved, saved=True))
  np.testing.assert_array_equal(train[0]["label"], IGNORED * TWO)
  assert train.warnings() == []


def test_255_stays_no_class_beside_other_numbers(tmp_path):
  masks = [grey(MASK, (0, 1, 255))] * 2
  train, _ = opened(write(tmp_path, *masks, classes=NAMES))
  expected = np.where(MASK == 2, IGNORED, MASK)
  np.testing.assert_array_equal(train[0]["label"], expected)


def test_white_after_black_alone_is_refused(tmp_path):
  black, white = grey(0 * MASK), grey(TWO, (0, 255))
  train, val = opened(write(tmp_path, black, white, classes=NAMES))
  assert "1 of 2 classes have no pixel in 1 training masks: crack." in (
    train.warnings()
  )
  with pytest.raises(
    ValueError, match="number 255 in row 4, column 4, which m"
  ):
    val[0]
  again, _ = opened(write(tmp_path / "b", white, grey(TWO), classes=NAMES))
  with pytest.raises(
    ValueError, match="has the number 1 in row 4, .* hold 0 an"
  ):
    open_split(DataSettings(root=str(tmp_path / "b")), "eval")[0]
  assert len(again)


COLOURS = np.array([[0, 0, 0], [200, 10, 10], [90, 90, 90]], np.uint8)
COLOURED = tuple(
  "{} {} {} {}".format(name, *colour)
  for name, colour in zip("abc", COLOURS.tolist(), strict=True)
)
ORDER = np.array([2, 0, 1])


def in_order(numbers, order):
  """A picture of the same colours, whose palette has another order."""
  return with_palette(np.argsort(order)[numbers], COLOURS[order])


@pytest.mark.parametrize(
  "forms",
  [
    (in_order(MASK, [0, 1, 2]), in_order(MASK, ORDER)),
    (Image.fromarray(COLOURS[MASK]), in_order(MASK, ORDER)),
    (in_order(MASK, ORDER), Image.fromarray(COLOURS[MASK]).convert("RGBA")),
  ],
)
def test_colours_that_are_named_go_before_numbers(tmp_path, forms):
  train, val = opened(write(tmp_path, *forms, classes=COLOURED))
  for split in (train, val):
    np.testing.assert_array_equal(split[0]["label"], MASK)
  assert train.warnings() == [
    "pixels of 1 training masks: a 85.9%, b 12.5%, c 1.6%."
  ]


@pytest.mark.parametrize(
  "mask", [grey(MASK), with_palette(MASK, [[1, 1, 1], [2, 2, 2], [3, 3, 3]])]
)
def test_numbers_are_read_where_masks_lack_the_colours(tmp_path, mask):
  train, _ = opened(write(tmp_path, mask, mask, classes=COLOURED))
  np.testing.assert_array_equal(train[0]["label"], MASK)
  assert (
    "numbers of masks are read, and not the colours" in train.warnings()[-1]
  )


def test_all_classes_of_a_mask_are_in_its_words():
  names = ("sky", "road", "car", "tree")
  mask = np.int32([[1, 1, 1, 3], [3, 0, IGNORED, IGNORED]])
  assert MASKS.label_text(mask, names) == "road, tree, sky"


def test_one_wrong_number_among_numbers_is_named_with_its_mask(tmp_path):
  wrong = grey(np.where(MASK == 2, 7, MASK), range(8))
  masks = [grey(MASK), wrong, grey(MASK)]
  train, _ = opened(write(tmp_path, *masks, classes=COLOURED))
  np.testing.assert_array_equal(train[0]["label"], MASK)
  with pytest.raises(
    ValueError, match=r"1\.png has the class 7, .* are 0 to 2"
  ):
    train[1]


def test_numbers_from_1_on_may_mean_that_0_is_no_class(tmp_path):
  good, wrong = grey(MASK), grey(np.where(MASK == 2, 3, MASK), range(4))
  train, _ = opened(write(tmp_path, good, wrong, good, classes=COLOURED))
  said = "is 255; if 0 is no class, 'ignored' in the first line of classes.txt"
  with pytest.raises(ValueError, match=f"has the class 3, .* {said}"):
    train[1]
  old = DataSettings(root=train.root, mask_values="index")
  with pytest.raises(ValueError, match=r"has the class 3, .* is 255\.$"):
    opened(old)[0][1]


def test_one_wrong_colour_among_colours_is_named_with_its_mask(tmp_path):
  good, wrong = grey(TWO, (0, 255)), TWO * np.uint8(255)
  wrong[0, :3] = 1, 2, 254  # 1 is a number of a class, and 255 of none.
  masks = [good, Image.fromarray(wrong), good]
  with pytest.raises(ValueError, match=r"1\.png has the colour \(1, 1, 1\)"):
    opened(write(tmp_path, *masks, classes=BLACK_AND_WHITE))


def test_palettes_that_fit_in_part_are_refused(tmp_path):
  masks = [
    in_order(MASK, ORDER),
    with_palette(MASK, 3 * [[1, 2, 3]]),
    grey(MASK),
  ]
  with pytest.raises(ValueError, match=r"has the colour \(1, 2, 3\) in row 0"):
    opened(write(tmp_path, *masks, classes=COLOURED))


def test_palettes_that_differ_without_names_are_said(tmp_path):
  masks = [in_order(MASK, [0, 1, 2]), in_order(MASK, ORDER), grey(MASK)]
  train, _ = opened(write(tmp_path, *masks))
  assert "0.png and" in train.warnings()[-1]
  assert "1.png differ, and their numbers are read" in train.warnings()[-1]
  same = [in_order(MASK, [0, 1, 2])] * 3
  train, _ = opened(write(tmp_path / "same", *same))
  assert len(train.warnings()) == 1


def test_ignored_keeps_its_number(tmp_path):
  masks = [grey(MASK)] * 2
  lines = ("ignored", "wall", "floor")
  train, _ = opened(write(tmp_path, *masks, classes=lines))
  assert train.class_names == ("wall", "floor")
  expected = np.where(MASK == 0, IGNORED, MASK.astype(int) - 1)
  np.testing.assert_array_equal(train[0]["label"], expected)
  assert "0 (ignored) 85.9%, 1 (wall) 12.5%" in train.warnings()[0]


def test_more_than_255_classes_count_class_255(tmp_path):
  numbers = np.arange(300, dtype=np.uint16).reshape(10, 30)
  numbers[0, :3] = 65535
  mask = Image.fromarray(numbers)
  train, _ = opened(write(tmp_path, mask, mask))
  assert len(train.class_names) == 300
  np.testing.assert_array_equal(train[0]["label"], numbers)  # 65535: no class.
  assert "3 of 300 classes have no pixel in 1 training masks: 0, 1, 2." in (
    train.warnings()
  )
  old = DataSettings(root=str(tmp_path), mask_values="index")
  label = opened(old)[0][0]["label"]
  assert label[8, 15] == 65535 and label[8, 16] == 256


@pytest.mark.parametrize(
  "values, message",
  [
    (
      (0, 0, 0),
      "one class: give .* or more in classes.txt; all pixels are 0, and 255",
    ),
    ((255, 255, 255), "all pixels are 255, and 255 is no class"),
    (
      (0, 1, 40_000),
      "0.png has the class 40,000, and .* only 3 different ones",
    ),
  ],
)
def test_numbers_that_are_no_classes_are_refused(tmp_path, values, message):
  kind = np.uint16 if max(values) > 255 else np.uint8
  mask = Image.fromarray(np.array(values, kind)[MASK])
  with pytest.raises(ValueError, match=message):
    opened(write(tmp_path, mask, mask))


def test_few_numbers_far_apart_are_said(tmp_path):
  mask = grey(MASK, (0, 100, 200))
  train, _ = opened(write(tmp_path, mask, mask))
  (line,) = [x for x in train.warnings() if "have no pixel" in x]
  assert line.startswith("198 of 201 classes have no pixel")
  assert line.endswith("; number the classes from 0 on, without gaps.")


def test_gaps_are_said(tmp_path):
  mask = grey(MASK, (1, 4, 5))
  train, _ = opened(write(tmp_path, mask, mask))
  assert "3 of 6 classes have no pixel in 1 training masks: 0, 2, 3." in (
    train.warnings()
  )


@pytest.mark.parametrize(
  "image, name",
  [
    ("{}.jpg", "{}.PNG"),
    ("{}.jpg", "{}_mask.png"),
    ("{}.jpg", "{}_gt.png"),
    ("{}.jpg", "{}_L.png"),
    ("{}.jpg", "{}_mask.gif"),
    ("{}.jpg", "{}_Mask.TIF"),
    ("{}.jpg", "0{}.png"),
    ("caf\u00e9{}.jpg", "cafe\u0301{}.png"),
    ("a_{}_leftImg8bit.png", "a_{}_gtFine_labelIds.png"),
    ("{}_sat.jpg", "{}_mask.png"),
  ],
)
def test_names_of_masks_may_differ(tmp_path, image, name):
  forms = {".gif": "GIF", ".tif": "TIFF"}
  form = forms.get(name[-4:].lower(), "PNG")
  settings = write(
    tmp_path, *[grey(MASK)] * 3, image=image, name=name, format=form
  )
  train, _ = opened(settings)
  assert len(train) == 2
  np.testing.assert_array_equal(train[1]["label"], MASK)
  said = "masks are named with" in " ".join(train.warnings())
  assert said == ("_" in name)
  with pytest.raises(ValueError, match="there is no mask"):
    opened(DataSettings(root=str(tmp_path), mask_values="index"))


def test_all_images_without_a_mask_are_named(tmp_path):
  settings = write(tmp_path, *[grey(MASK)] * 9)
  for missing in "35":
    (tmp_path / "masks" / "train" / f"{missing}.png").unlink()
  message = (
    r"no mask .*3.png for '3.jpg': give it one, or move the image away "
    r"\(and none for 1 other image of 8: 5.jpg\)\.$"
  )
  with pytest.raises(ValueError, match=message):
    opened(settings)


@pytest.mark.parametrize(
  "name, form, message",
  [
    ("{}.jpg", "JPEG", "'0.jpg': 0.jpg is a JPEG, whose values are not exact"),
    ("{}_mask.jpeg", "JPEG", "0_mask.jpeg is a JPEG, whose values are not"),
    ("{}.webp", "WEBP", "0.png for '0.jpg'; the nearest there is 0.webp."),
    ("mask_{}.png", "PNG", "no mask .*0.png for '0.jpg'"),
  ],
)
def test_a_missing_mask_is_told_by_what_is_there(tmp_path, name, form, message):
  settings = write(tmp_path, *[grey(MASK)] * 2, name=name, format=form)
  with pytest.raises(ValueError, match=message):
    opened(settings)


def test_the_first_suffix_is_that_of_all(tmp_path):
  settings = write(tmp_path, *[grey(MASK)] * 4, name="{}_mask.png")
  masks = tmp_path / "masks/train"
  (masks / "1_mask.png").rename(masks / "1_gt.png")
  with pytest.raises(ValueError, match="1_mask.png for '1.jpg'; the ne.* 1_gt"):
    opened(settings)
  grey(MASK).save(masks / "0_gt.png")
  with pytest.raises(
    ValueError, match="may have the mask '0_gt.png' or '0_mas"
  ):
    opened(settings)


def test_masks_beside_images_are_refused_in_words_of_masks(tmp_path):
  for split in ("train", "val"):
    (tmp_path / split).mkdir()
    grey(MASK).save(tmp_path / split / "0.jpg")
    grey(MASK).save(tmp_path / split / "0_mask.png")
  with pytest.raises(
    ValueError, match="segmentation needs one: put .* and the masks"
  ):
    opened(DataSettings(root=str(tmp_path)))


def test_an_image_that_exif_turns_needs_its_mask_turned(tmp_path):
  numbers = np.zeros((12, 20), np.uint8)
  numbers[3] = 1
  settings = write(tmp_path, *[grey(numbers)] * 2)
  exif = Image.Exif()
  exif[ExifTags.Base.Orientation] = 6
  image = tmp_path / "images/train/0.jpg"
  Image.new("RGB", (20, 12)).save(image, exif=exif)
  train, _ = opened(settings)
  message = (
    "12 x 20, turned .* mask 20 x 12 pix.* Turn the mask as the image is"
  )
  with pytest.raises(UnreadableImageError, match=message):
    train[0]
  turned = np.rot90(numbers, -1)
  grey(turned).save(tmp_path / "masks/train/0.png")
  np.testing.assert_array_equal(train[0]["label"], turned)


@pytest.mark.parametrize("orientation", [None, 1, 3])
def test_only_an_orientation_that_turns_is_blamed(tmp_path, orientation):
  settings = write(tmp_path, *[grey(np.zeros((30, 10), int) + 1)] * 2)
  exif = Image.Exif()
  if orientation:
    exif[ExifTags.Base.Orientation] = orientation
  image = Image.new("RGB", (32, 24))
  image.save(tmp_path / "images/train/0.jpg", exif=exif)
  train, _ = opened(settings)
  message = "is 32 x 24 and its mask 10 x 30 pixels wide and high: "
  with pytest.raises(UnreadableImageError, match=message) as caught:
    train[0]
  assert "Exif" not in str(caught.value)


@pytest.mark.parametrize("orientation, said", [(1, 0), (3, 1), (6, 1)])
def test_images_that_exif_turns_in_place_are_said(tmp_path, orientation, said):
  settings = write(tmp_path, *[grey(MASK)] * 3)
  exif = Image.Exif()
  exif[ExifTags.Base.Orientation] = orientation
  Image.new("RGB", (16, 16)).save(tmp_path / "images/train/1.jpg", exif=exif)
  lines = opened(settings)[0].warnings()
  assert sum("1 of 2 images looked at, such as " in line for line in lines) == (
    said
  )


FORMS = ("L", "P", "I;16", "TIFF", "BMP", "GIF", "LA", "RGB", "RGBA", "PLTE")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore:'mode' parameter:DeprecationWarning")
def test_one_mask_gives_the_same_classes_in_every_form(tmp_path, form):
  mask, kind, classes = grey(MASK), "PNG", None
  if form in ("RGB", "RGBA", "PLTE"):
    mask, classes = in_order(MASK, ORDER), COLOURED
    mask = mask if form == "PLTE" else mask.convert(form)
  elif form == "P":
    mask = in_order(MASK, [0, 1, 2])
  elif form == "I;16":
    mask = Image.fromarray(MASK.astype(np.uint16))
  elif form == "LA":
    mask = Image.merge("LA", [mask, Image.new("L", mask.size, 255)])
  else:
    kind = "PNG" if form == "L" else form
  settings = write(tmp_path, mask, mask, classes=classes, format=kind)
  np.testing.assert_array_equal(opened(settings)[0][0]["label"], MASK)


def test_few_of_many_masks_are_looked_at(tmp_path, monkeypatch):
  from vit_jax.data.reading.masks import census as mask_census

  monkeypatch.setattr(mask_census, "LOOKED_AT", 3)
  monkeypatch.setattr(mask_census, "LARGEST", 1)
  masks = [grey(0 * MASK)] * 9
  noise = np.random.default_rng(0).integers(0, 2, (16, 16))
  masks[2] = grey(noise, (0, 255))  # The largest file.
  train, _ = opened(write(tmp_path, *masks, classes=NAMES))
  assert "pixels of 4 of 8 training masks" in train.warnings()[0]
  np.testing.assert_array_equal(train[2]["label"], noise)


@pytest.mark.parametrize(
  "folders, expected",
  [
    ([""], 5),  # No splits: all.
    (["val"], 5),  # No other split.
    (["train", "val"], 5),  # That of evaluation.
  ],
)
@pytest.mark.parametrize("kind", ["masks", "depth"])
def test_a_folder_that_is_new_to_a_run_is_evaluated_whole(
  tmp_path, kind, folders, expected
):
  for folder in folders:
    for number in range(3 if folder == "train" else expected):
      for name, picture in (
        ("images", Image.new("RGB", (16, 16))),
        (kind, grey(MASK)),
      ):
        path = tmp_path / name / folder / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path)
  settings = DataSettings(root=str(tmp_path))
  opened = open_whole if kind == "masks" else number_folder.open_whole
  source = opened(settings)
  assert len(source) == len(source.files()) == expected
  assert all(map(os.path.isfile, source.files()))


def test_a_run_on_numbers_finds_its_classes_by_the_lines_it_asks_for(tmp_path):
  run, _ = opened(write(tmp_path / "run", grey(MASK), grey(MASK)))
  settings = write(tmp_path / "new", grey(TWO), grey(TWO))
  assert opened(settings)[0].class_names == ("0", "1")
  said = MASKS.about_other_names(run.class_names, new=True)
  assert "a line for each number from 0 to 2, " in said
  (tmp_path / "new" / "classes.txt").write_text("0\n1\n2\n")
  assert opened(settings)[0].class_names == run.class_names == ("0", "1", "2")


def test_a_run_on_named_classes_finds_them_by_the_same_file(tmp_path):
  said = MASKS.about_other_names(NAMES, new=False)
  assert "a classes.txt: put the same file into this folder." in said
  settings = write(tmp_path, grey(TWO), grey(TWO), classes=NAMES)
  assert opened(settings)[0].class_names == NAMES


def test_a_number_that_no_line_names_has_its_share_and_its_cure(tmp_path):
  mask = MASK.copy()
  mask[8:12] = 3  # A quarter.
  names = ("background", "crack", "rust")
  train, _ = opened(write(tmp_path, *[grey(mask, range(4))] * 2, classes=names))
  assert (
    "0 (background) 60.9%, 3 (not in classes.txt) 25.0%, 1 (crack) 12"
    in (train.warnings()[0])
  )
  message = "has the class 3, and the classes are 0 to 2: name it in a further"
  with pytest.raises(ValueError, match=message):
    train[0]
