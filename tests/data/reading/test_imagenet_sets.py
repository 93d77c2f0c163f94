"""The test sets in their publishers' form, and the maps of their classes."""

import importlib.resources
import io
import json
import pathlib

import numpy as np
import pytest
from PIL import Image

from tests.image_files import encode
from vit_jax.data import decode_rgb
from vit_jax.data.reading.imagenet_sets import (
  ALEXNET_ERRORS,
  CLASSES,
  WORDNET_IDS,
  AbsentError,
  open_set,
  without_border,
)

TENCH, GOLDFISH, STINGRAY = "n01440764", "n01443537", "n01498041"


def save(path, level=0):
  path.parent.mkdir(parents=True, exist_ok=True)
  Image.new("RGB", (9, 7), (level, 0, 0)).save(path)


def test_the_maps_of_classes():
  assert len(CLASSES) == len(set(WORDNET_IDS)) == 1000
  assert list(WORDNET_IDS) == sorted(WORDNET_IDS)
  for name in ("imagenet_a", "imagenet_r"):
    assert sum(row[name] == "1" for row in CLASSES) == 200
  found = [row["objectnet"] for row in CLASSES if row["objectnet"]]
  assert (len(set(found)), len(found)) == (113, 125)


def test_some_classes_by_name():
  """The names are those of another file, in the same order."""
  path = importlib.resources.files("vit_jax.pretrained") / "imagenet_names.txt"
  rows = dict(zip(path.read_text().splitlines(), CLASSES, strict=False))
  assert rows["tench"]["wordnet_id"] == TENCH
  assert rows["analog clock"]["objectnet"] == "alarm_clock"
  assert rows["digital clock"]["objectnet"] == "alarm_clock"
  assert rows["banana"]["objectnet"] == "banana"
  assert rows["stingray"]["imagenet_a"] == rows["goldfish"]["imagenet_r"] == "1"
  assert rows["tench"]["imagenet_a"] == rows["tench"]["imagenet_r"] == "0"


def test_folders_of_wordnet_ids_among_the_200(tmp_path):
  for name in (STINGRAY, "n01531178"):
    save(tmp_path / "imagenet-a" / name / "x.jpg")
  found = open_set("a", str(tmp_path), None)
  assert found.correct == [frozenset([6]), frozenset([11])]
  assert found.candidates is not None and len(found.candidates) == 200
  assert (
    found.candidates[0] == 6
    and 11 in found.candidates
    and 0 not in found.candidates
  )
  assert [e["label"] for e in found.source.read([0, 1])] == [0, 1]


def test_folders_of_numbers_are_not_sorted_as_text(tmp_path):
  folder = tmp_path / "imagenetv2-matched-frequency-format-val"
  for number in (2, 10, 999):
    save(folder / str(number) / "0.jpeg", number % 250)
  found = open_set("v2", str(tmp_path), None)
  assert found.candidates is None
  for example in found.source.read(range(3)):
    (k,) = found.correct[example["label"]]
    level = int(pathlib.Path(example["id"]).parent.name)
    assert k == level


def test_real_labels_are_sets_and_images_without_any_are_left_out(tmp_path):
  real = [[3, 5], [], [7]]
  (tmp_path / "real.json").write_text(json.dumps(real))
  for number in (3, 1, 2):  # In any order, and in class folders or not.
    name = f"ILSVRC2012_val_{number:08}.JPEG"
    folder = tmp_path / "val" / (TENCH if number == 1 else "")
    save(folder / name)
  found = open_set("real", str(tmp_path), None)
  assert len(found.source) == 2
  sets = {
    pathlib.Path(e["id"]).name[-7:-5]: found.correct[e["label"]]
    for e in found.source.read([0, 1])
  }
  assert sets == {"01": {3, 5}, "03": {7}}
  assert found.source[1]["label"] == 1


def test_objectnet_has_113_classes_and_no_border(tmp_path):
  for name in ("alarm_clock", "air_freshener"):  # ImageNet lacks the latter.
    folder = tmp_path / "objectnet-1.0" / "images" / name
    folder.mkdir(parents=True)
    pixels = np.full((9, 12, 3), (255, 0, 0), np.uint8)
    pixels[2:-2, 2:-2] = np.random.default_rng(0).integers(0, 99, (5, 8, 3))
    Image.fromarray(pixels).save(folder / "x.png")
  found = open_set("objectnet", str(tmp_path), None)
  assert found.correct == [frozenset([409, 530])] and found.candidates is None
  assert found.missing_note == "only 1 of 113 classes are there"
  seen = decode_rgb(found.source[0]["image"])
  np.testing.assert_array_equal(seen, pixels[2:-2, 2:-2])


def test_a_border_of_a_file_that_is_none():
  file = encode(Image.new("L", (10, 10)), "PNG")
  assert decode_rgb(without_border(file)).shape == (6, 6, 3)
  with pytest.raises(ValueError, match="not an image of a known format"):
    without_border(b"none")


def test_corruptions_are_folders_by_severity(tmp_path):
  save(tmp_path / "imagenet-c" / "fog" / "3" / GOLDFISH / "x.JPEG")
  found = open_set("c/fog/3", str(tmp_path), None)
  assert found.correct == [frozenset([1])]
  assert found.missing_note == "only 1 of 1000 classes are there"
  assert len(ALEXNET_ERRORS) == 15


def test_what_is_wrong_with_a_set(tmp_path):
  with pytest.raises(AbsentError, match="is not prepared|no folder|TFDS"):
    open_set("sketch", str(tmp_path), str(tmp_path))
  with pytest.raises(AbsentError, match="and TFDS has none"):
    open_set("objectnet", None, None)
  save(tmp_path / "imagenet-r" / "goldfish" / "x.jpg")
  with pytest.raises(ValueError, match="class 'goldfish': its folders must be"):
    open_set("r", str(tmp_path), None)
  (tmp_path / "real.json").write_text("[[1]]")
  save(tmp_path / "val" / "dog.jpg")
  with pytest.raises(ValueError, match="dog.jpg is not named like ILSVRC2012"):
    open_set("real", str(tmp_path), None)


@pytest.mark.slow
def test_sets_that_tfds_has_prepared(tmp_path):
  import tensorflow_datasets as tfds

  ids, file = list(WORDNET_IDS), io.BytesIO()
  Image.new("RGB", (9, 7)).save(file, "JPEG")
  label = tfds.features.ClassLabel(names=ids)
  common = {"image": tfds.features.Image(encoding_format="jpeg")}
  common["file_name"] = tfds.features.Text()

  class StandIn(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    VERSION = tfds.core.Version("1.0.0")
    url_infos = {}
    features, examples, split = {}, [], "validation"

    def _info(self):
      features = tfds.features.FeaturesDict({**common, **self.features})
      return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
      return {self.split: self._generate_examples()}

    def _generate_examples(self):
      for number, labels in enumerate(self.examples):
        image = io.BytesIO(file.getvalue())
        yield number, {"image": image, "file_name": f"{number}", **labels}

  class Imagenet2012Real(StandIn, skip_registration=True):
    real = tfds.features.Sequence(label)
    features = {"original_label": label, "real_label": real}
    examples = [
      {"original_label": 3, "real_label": real} for real in ([3, 5], [], [7])
    ]

  class ImagenetA(StandIn, skip_registration=True):
    VERSION = tfds.core.Version("0.1.0")
    features, examples, split = {"label": label}, [{"label": 6}], "test"

  for builder in (Imagenet2012Real, ImagenetA):
    builder(data_dir=tmp_path).download_and_prepare(file_format="array_record")
  real = open_set("real", None, str(tmp_path))
  sets = [real.correct[e["label"]] for e in real.source.read(range(2))]
  assert sorted(map(sorted, sets)) == [[3, 5], [7]]
  assert len(real.source) == 2
  hard = open_set("a", str(tmp_path / "no_folder"), str(tmp_path))
  assert hard.correct[hard.source[0]["label"]] == {6}
  assert hard.candidates is not None and len(hard.candidates) == 200
