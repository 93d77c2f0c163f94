"""The labels of VTAB's tasks against loops over made-up examples."""

import io

import numpy as np
import pytest

from tests.data.pictures import png
from vit_jax import data
from vit_jax.data.reading.tfds.labels import labels_of

COUNT = 40


def objects(rng, least):
  """Objects as CLEVR (coordinates) and KITTI (locations, types) have them."""
  count = int(rng.integers(least, 11))
  return {
    "size": rng.integers(0, 2, count),
    "pixel_coords": rng.uniform(7, 12, (count, 3)).astype(np.float32),
    "location": rng.uniform(-5, 40, (count, 3)).astype(np.float32),
    "type": rng.integers(0, 8, count),
  }


def records():
  rng = np.random.default_rng(0)
  for number in range(COUNT):
    yield {
      "image": io.BytesIO(png(np.eye(8, dtype=np.uint8)[..., None][:, :, 0])),
      "label_orientation": number % 40,
      "objects": objects(rng, 3),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A data set "toys" with features of CLEVR, KITTI and dSprites in one."""
  import tensorflow_datasets as tfds

  class Toys(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    VERSION = tfds.core.Version("1.0.0")
    url_infos = {}

    def _info(self):
      coordinates = tfds.features.Tensor(shape=(3,), dtype=np.float32)
      features = {
        "image": tfds.features.Image(shape=(8, 8, 1), encoding_format="png"),
        "label_orientation": tfds.features.ClassLabel(num_classes=40),
        "objects": tfds.features.Sequence(
          {
            "size": tfds.features.ClassLabel(names=["small", "large"]),
            "pixel_coords": coordinates,
            "location": coordinates,
            "type": tfds.features.ClassLabel(num_classes=8),
          }
        ),
      }
      return tfds.core.DatasetInfo(
        builder=self, features=tfds.features.FeaturesDict(features)
      )

    def _split_generators(self, dl_manager):
      return {"train": self._generate_examples()}

    def _generate_examples(self):
      yield from enumerate(records())

  where = tmp_path_factory.mktemp("tfds")
  Toys(data_dir=where).download_and_prepare(file_format="array_record")
  return str(where)


def opened(folder, label):
  settings = data.DataSettings(name="toys", data_dir=folder, tfds_label=label)
  return data.open_source("train", settings)


def count(example):
  return sum(1 for _ in example["size"]) - 3


def nearest_object(example):
  near = min(float(place[2]) for place in example["pixel_coords"])
  if near <= 8:
    return 0
  return 5 if near > 10 else 1 + [near <= x for x in (8.5, 9, 9.5, 10)].index(1)


def nearest_vehicle(example):
  far = [
    float(place[2])
    for place, kind in zip(example["location"], example["type"], strict=True)
    if kind in (0, 1, 2)
  ]
  if not far:
    return 3
  return 0 if min(far) <= 8 else 1 if min(far) <= 20 else 2


@pytest.mark.parametrize(
  "name, classes, loop",
  [
    ("count_all", 8, count),
    ("closest_object_distance", 6, nearest_object),
    ("closest_vehicle_distance", 4, nearest_vehicle),
  ],
)
def test_computed_labels(folder, name, classes, loop):
  source = opened(folder, name)
  assert source.class_names == tuple(map(str, range(classes)))
  found = sorted(example["label"] for example in source.read(range(COUNT)))
  assert found == sorted(loop(record["objects"]) for record in records())
  assert len(set(found)) > 2


def test_a_label_in_groups_of_neighbours(folder):
  whole, groups = (
    opened(folder, f"label_orientation{end}") for end in ("", "/16")
  )
  assert len(whole.class_names) == 40 and len(groups.class_names) == 16
  found = {
    one["label"]: other["label"]
    for one, other in zip(
      whole.read(range(COUNT)), groups.read(range(COUNT)), strict=True
    )
  }
  assert found == {k: int(k * 16 / 40) for k in range(40)}


def test_the_pixels_of_dsprites_are_made_black_and_white(folder):
  source = opened(folder, "count_all")
  dark = source[0]["image"]
  assert data.decode_rgb(dark).max() == 1
  source._binary = True  # As a data set of that name has it.
  image = data.decode_rgb(source[0]["image"])
  np.testing.assert_array_equal(image[..., 0], 255 * np.eye(8, dtype=np.uint8))


def test_only_a_data_set_of_tfds_has_other_labels():
  for where in (dict(root="photos"), dict(name="digits"), {}):
    with pytest.raises(ValueError, match="is for a TFDS data set: leave it"):
      data.DataSettings(tfds_label="count_all", **where)


@pytest.mark.parametrize("place", [8.0, 8.5, 10.0])
def test_a_distance_on_an_edge_belongs_below(place):
  """As the benchmark compares: the last threshold that is less."""
  objects = {"pixel_coords": np.array([[0, 0, place]], np.float32)}
  features = {"objects": type("F", (), {"feature": objects})}
  labels = labels_of(features, "closest_object_distance")
  assert labels.label({"objects": objects}) == nearest_object(objects)


@pytest.mark.parametrize(
  "name, message",
  [
    ("label_azimuth", "no such label; it has label_orientation, and the label"),
    ("objects", "no such label"),
    ("label_orientation/many", "no such label"),
    ("label_orientation/41", "has 40 classes, which make 2 to 40 groups"),
  ],
)
def test_a_label_that_is_not_there(folder, name, message):
  with pytest.raises(ValueError, match=message):
    opened(folder, name)
