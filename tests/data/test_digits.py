"""The digits, in the package's own table and as a prepared dataset."""

import collections
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits

from vit_jax import data
from vit_jax.data import digits


def test_the_table_is_the_one_of_scikit_learn():
  expected = load_digits()
  images, labels = digits._load()
  assert images.shape == (1797, 8, 8) and images.dtype == np.uint8
  levels = np.round(np.arange(17) * 255 / 16).astype(np.uint8)
  np.testing.assert_array_equal(images, levels[expected.images.astype(int)])
  np.testing.assert_array_equal(labels, expected.target)


def test_digits_are_the_ones_of_scikit_learn(data_dir):
  expected = load_digits()
  splits = [
    data.open_source(
      s, data.DataSettings(name="digits", data_dir=str(data_dir))
    )
    for s in ("train", "eval")
  ]
  assert [len(s) for s in splits] == [1438, 359]
  assert splits[0].class_names == tuple("0123456789")
  found = collections.Counter()
  for source in splits:
    for example in source.read(range(len(source))):
      image = data.decode_rgb(example["image"])
      assert image.shape == (8, 8, 3) and (image == image[..., :1]).all()
      found[(image[..., 0].tobytes(), example["label"])] += 1
  scaled = np.round(expected.images / 16 * 255).astype(np.uint8)
  assert found == collections.Counter(
    (image.tobytes(), int(label))
    for image, label in zip(scaled, expected.target, strict=True)
  )


def test_digits_are_split_by_class(data_dir):
  held_out = data.open_source(
    "eval", data.DataSettings(name="digits", data_dir=str(data_dir))
  )
  counts = np.bincount([held_out[i]["label"] for i in range(len(held_out))])
  totals = np.bincount(load_digits().target)
  assert counts.tolist() == [round(0.2 * total) for total in totals]


def test_two_processes_may_prepare_digits_at_once_and_in_silence(tmp_path):
  code = (
    "from vit_jax import data; print(len(data.open_source('train',"
    f" data.DataSettings(name='digits', data_dir={str(tmp_path)!r}))))"
  )
  racers = [
    subprocess.Popen(
      [sys.executable, "-c", code],
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      cwd=pathlib.Path(__file__).parents[2],
    )
    for _ in range(2)
  ]
  assert [r.communicate() for r in racers] == [(b"1438\n", b"")] * 2
  left = [p.name for p in (tmp_path / "digits").iterdir()]
  assert left == ["1.0.0"]


def test_digits_where_nothing_can_be_written(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(ValueError, match="cannot write the digits to"):
    data.open_source(
      "train", data.DataSettings(name="digits", data_dir=str(tmp_path / "file"))
    )
