"""Prepared TFDS datasets, and the messages for those that cannot be read."""

import pathlib
import pickle
import re
import shutil
import tempfile
import types

import pytest
import tensorflow_datasets as tfds

from tests.data.outside import outside
from vit_jax import data
from vit_jax.data.reading.labels import SINGLE
from vit_jax.data.reading.tfds import source as tfds_source
from vit_jax.data.reading.tfds.labels import open_labels

INSTALL = 'pip install "vit_jax[tfds-prepare]"'


# As if every record lay in memory, and as if each had to be waited for.
@pytest.mark.parametrize("wait", [60, 0])
def test_a_part_of_a_tfds_split_and_a_pickled_copy(tfds_dir, wait, monkeypatch):
  monkeypatch.setattr(tfds_source, "SLOW_READ", wait)
  source = data.open_source(
    "train",
    data.DataSettings(
      name="shades", data_dir=str(tfds_dir), train_split="train[:10%]"
    ),
  )
  assert len(source) == 4
  assert source.class_names == ("a", "b", "c")
  for example in source.read(range(4)):
    assert data.decode_rgb(example["image"])[0, 0, 0] == 10 * example["label"]
  copy = pickle.loads(pickle.dumps(source))
  assert copy[3] == source[3] == source.read([1, 3])[1]
  assert source[3]["id"] == "shades/1.0.0/train[:10%]#3"


@pytest.mark.parametrize(
  "split, message",
  [
    ("dev", "take train, test .*'dev' is not one"),
    ("test[:x%]", "^data.train_split and .* is not one of them, or"),
    ("test[:0]", r"'test\[:0\]' is not one of them"),
  ],
)
def test_unknown_splits_are_named(tfds_dir, split, message):
  settings = dict(name="shades", data_dir=str(tfds_dir), eval_split=split)
  with pytest.raises(ValueError, match=message):
    data.open_source("eval", data.DataSettings(**settings))


def test_cifar10():
  where = outside("tfds")
  source = data.open_source(
    "eval", data.DataSettings(name="cifar10", data_dir=where)
  )
  assert len(source) == 10_000
  assert source.class_names[:2] == ("airplane", "automobile")
  example = source[7]
  assert data.decode_rgb(example["image"]).shape == (32, 32, 3)
  # This dataset's own ids name the class: "test_ship_1234".
  name = source.class_names[example["label"]]
  assert example["id"].startswith(f"cifar10/3.0.2/test#7 (test_{name}_")


def test_dataset_not_prepared_says_how(tmp_path, monkeypatch):
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  assert (
    INSTALL
    in (pathlib.Path(__file__).parents[4] / "docs/howto/data.md").read_text()
  )
  message = f"mnist is not prepared.*: {re.escape(INSTALL)} && tfds build mnist"
  with pytest.raises(ValueError, match=message):
    data.open_source(
      "train", data.DataSettings(name="mnist", data_dir=str(tmp_path))
    )
  assert [*tmp_path.iterdir()] == []  # TFDS leaves no folder there.


@pytest.mark.parametrize(
  "name, message",
  [
    ("cifra10", "'cifra10' is not a TFDS data set.* cifar10"),
    ("cifar10:9.9.9", "data.name='cifar10:9.9.9': TFDS says: "),
  ],
)
def test_names_that_there_are_not(tmp_path, name, message):
  settings = data.DataSettings(name=name, data_dir=str(tmp_path))
  with pytest.raises(ValueError, match=message):
    data.open_source("train", settings)


def test_records_without_random_access(tfds_dir, tmp_path):
  data.open_source(
    "train", data.DataSettings(name="shades", data_dir=str(tfds_dir))
  )
  copy = tmp_path / "shades" / "1.0.0"
  shutil.copytree(tfds_dir / "shades" / "1.0.0", copy)
  info = copy / "dataset_info.json"
  info.write_text(info.read_text().replace("array_record", "tfrecord"))
  message = f"tfrecord files, which allow no random.*: {re.escape(INSTALL)} && "
  with pytest.raises(ValueError, match=message):
    data.open_source(
      "train", data.DataSettings(name="shades", data_dir=str(tmp_path))
    )


def test_a_dataset_of_something_else(tfds_dir):
  features = dict(tfds.builder("shades", data_dir=tfds_dir).info.features)
  for keys, missing in [
    (("image", "box"), "'box' is no ClassLabel"),
    (("label", "image"), "'label' is no Image"),
  ]:
    info = types.SimpleNamespace(
      name="d", supervised_keys=keys, features=features
    )
    with pytest.raises(ValueError, match=missing):
      open_labels(info, SINGLE, None)
