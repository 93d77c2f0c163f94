"""Packed data sets: complete, in TFDS's form, and gone on with."""

import hashlib

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from vit_jax.data.reading.sources import open_splits
from vit_jax.data.settings import DataSettings
from vit_jax.pack import shards, writer
from vit_jax.pack.shards import Encoding
from vit_jax.pack.sources import open_sources


@pytest.fixture
def photographs(tmp_path):
  """Two classes of six images each for training, two for evaluation."""
  random = np.random.default_rng(0)
  for split, count in (("train", 6), ("val", 2)):
    for name in ("cat", "dog"):
      folder = tmp_path / "photos" / split / name
      folder.mkdir(parents=True)
      for i in range(count):
        pixels = random.integers(0, 256, (20, 30, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
  return tmp_path / "photos"


def _pack(source, out, encoding=None, **options):
  options = {"workers": 1, "shard_bytes": 6_000, **options}
  writer.pack(
    open_sources(str(source)), str(out), encoding or Encoding(), **options
  )


def _content(folder):
  return {p.name: p.read_bytes() for p in folder.glob("*array_record*")}


def test_tfds_reads_every_image_once(photographs, tmp_path, capsys):
  out = tmp_path / "Packed photos"
  _pack(photographs, out)
  builder = tfds.builder_from_directory(str(out))
  assert builder.name == "packed_photos"
  assert builder.info.features["label"].names == ["cat", "dog"]
  for split, folder in (("train", "train"), ("validation", "val")):
    source = builder.as_data_source(split)
    found = {e["id"].decode(): e for e in source}
    expected = {
      str(p.relative_to(photographs)): p
      for p in (photographs / folder).rglob("*.png")
    }
    assert found.keys() == expected.keys() and len(source) == len(found)
    for name, path in expected.items():
      pixels = np.asarray(Image.open(path))
      np.testing.assert_array_equal(found[name]["image"], pixels)
      assert found[name]["label"] == ["cat", "dog"].index(path.parent.name)
  assert builder.info.splits["train"].num_shards > 1
  # Not in the folder's order.
  ids = [e["id"] for e in builder.as_data_source("train")]
  assert ids != sorted(ids)
  said = capsys.readouterr().out
  assert "train      12 images of 2 classes, 6 to 6 of a class" in said
  for line in (out / "sha256sums.txt").read_text().splitlines():
    digest, name = line.split("  ")
    assert digest == hashlib.sha256((out / name).read_bytes()).hexdigest()


def test_training_reads_it(photographs, tmp_path):
  out = tmp_path / "packed"
  _pack(photographs, out)
  splits = open_splits(DataSettings(dir=str(out)))
  assert (len(splits.train), len(splits.eval)) == (12, 4)
  example = splits.eval[0]
  name = example["id"].partition("(")[2].rstrip(")")
  assert example["image"] == (photographs / name).read_bytes()


def test_a_stopped_command_goes_on(photographs, tmp_path, monkeypatch):
  _pack(photographs, tmp_path / "whole")
  written, write = [], shards._write_shard

  def stopping(number, *of_shard):
    if len(written) == 2:
      raise KeyboardInterrupt
    written.append(number)
    write(number, *of_shard)

  monkeypatch.setattr(shards, "_write_shard", stopping)
  out = tmp_path / "stopped" / "whole"  # The same name.
  with pytest.raises(KeyboardInterrupt):
    _pack(photographs, out)
  assert len(_content(out)) == 2
  first = {path: path.stat().st_mtime_ns for path in out.glob("*array_record*")}
  monkeypatch.setattr(shards, "_write_shard", write)
  _pack(photographs, out)
  assert _content(out) == _content(tmp_path / "whole")
  for path, time in first.items():  # They were not written again.
    assert path.stat().st_mtime_ns == time


def test_unreadable_images_are_listed(photographs, tmp_path, capsys):
  broken = photographs / "train" / "dog" / "3.png"
  broken.write_bytes(broken.read_bytes()[:100])
  out = tmp_path / "packed"
  _pack(photographs, out)
  assert "train/dog/3.png" in (out / "unreadable.txt").read_text()
  builder = tfds.builder_from_directory(str(out))
  assert len(builder.as_data_source("train")) == 11
  assert "; 1 unreadable" in capsys.readouterr().out


def test_another_packing_is_refused(photographs, tmp_path):
  out = tmp_path / "packed"
  _pack(photographs, out)
  for change in ({"seed": 1}, {"encoding": Encoding(10)}):
    with pytest.raises(ValueError, match="from other images or labels"):
      _pack(photographs, out, **change)
  (photographs / "train" / "dog" / "9.png").write_bytes(
    (photographs / "train" / "dog" / "0.png").read_bytes()
  )
  with pytest.raises(ValueError, match="from other images or labels"):
    _pack(photographs, out)
  with pytest.raises(ValueError, match="is not empty"):
    _pack(photographs, photographs)


def test_changed_labels_are_another_packing(photographs, tmp_path):
  table, out = photographs / "labels.csv", tmp_path / "packed"
  text = "image,label,split\n" + "".join(
    f"{split}/{label}/0.png,{label},{split}\n"
    for split in ("train", "val")
    for label in ("cat", "dog")
  )
  table.write_text(text)
  _pack(table, out)
  table.write_text(text.replace("val/cat/0.png,cat", "val/cat/0.png,dog"))
  with pytest.raises(ValueError, match="from other images or labels"):
    _pack(table, out)


def test_row_groups_stay_together():
  class Blocks:
    blocks = np.array([3, 1, 4])

    def __len__(self):
      return 8

  order = writer._order(Blocks(), 0)
  assert sorted(order.tolist()) == [*range(8)]
  group = np.repeat([0, 1, 2], [3, 1, 4])[order]
  assert np.count_nonzero(np.diff(group)) == 2


def test_a_data_set_that_is_not_there(tmp_path):
  with pytest.raises(ValueError, match="holds no data set that TFDS prepared"):
    open_splits(DataSettings(dir=str(tmp_path)))
