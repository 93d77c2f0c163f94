"""Parquet files as the Hugging Face Hub ships them."""

import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vit_jax.data.example import UnreadableImageError
from vit_jax.pack import parquet
from vit_jax.pack.sources import open_sources


def _write(path, images, labels, names=None, group=2, **columns):
  table = {
    "image": [{"bytes": b, "path": f"{i}.jpg"} for i, b in enumerate(images)],
    "label": labels,
    **columns,
  }
  schema = pa.Table.from_pydict(table)
  if names:
    features = {"label": {"names": names, "_type": "ClassLabel"}}
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    schema = schema.replace_schema_metadata(about)
  pq.write_table(schema, path, row_group_size=group)


def test_the_hubs_files(tmp_path):
  images = [b"one", b"two", b"three", b"four", b"five"]
  names = ["cat", "dog"]
  train = tmp_path / "train-00000-of-00002.parquet"
  _write(train, images[:3], [0, 1, 1], names)
  _write(tmp_path / "train-00001-of-00002.parquet", images[3:4], [0], names)
  _write(tmp_path / "validation-00000-of-00001.parquet", images[4:], [1], names)
  splits = open_sources(str(tmp_path))
  train, validation = splits["train"], splits["validation"]
  assert train.class_names == ("cat", "dog")
  assert train.blocks.tolist() == [2, 1, 1]  # Row groups.
  # In any order, as each example names its own row group.
  found = train.read([3, 0, 2, 1])
  assert [e["image"] for e in found] == [b"four", b"one", b"three", b"two"]
  assert [e["label"] for e in found] == [0, 0, 1, 1]
  assert "row group 1, row 0" in found[2]["id"]
  assert [e["label"] for e in validation.read([0])] == [1]


def test_a_row_without_bytes_is_unreadable(tmp_path):
  _write(tmp_path / "train.parquet", [None, b"x"], [0, 1])
  source = open_sources(str(tmp_path))["train"]
  assert source.class_names == ("0", "1")
  with pytest.raises(UnreadableImageError, match="there are no bytes"):
    source[0]


@pytest.mark.parametrize(
  ("labels", "columns", "message"),
  [
    ([0, -1], {}, "holds -1 to 0, and there are 1 classes"),
    (
      [0, 2**40],
      {},
      "'label' counts 1,099,511,627,777 classes, and there are 2",
    ),
    ([0, None], {}, "holds nan to nan, and there are 0"),
    (["a", "b"], {}, "there must be one of image bytes and one of class"),
    ([0, 1], {"mask": [b"x", b"y"]}, "has the columns image, label, mask"),
  ],
)
def test_columns_that_are_refused(tmp_path, labels, columns, message):
  _write(tmp_path / "train.parquet", [b"x", b"y"], labels, **columns)
  with pytest.raises(ValueError, match=message):
    open_sources(str(tmp_path))


def test_a_damaged_file(tmp_path):
  (tmp_path / "train.parquet").write_bytes(b"PAR1 and nothing else")
  with pytest.raises(ValueError, match="Parquet"):
    open_sources(str(tmp_path))


def test_a_row_group_too_large_for_memory_is_refused(tmp_path, monkeypatch):
  images = [bytes([n]) * 1000 for n in range(4)]
  _write(tmp_path / "train.parquet", images, [0, 1, 1, 0], group=4)
  source = open_sources(str(tmp_path))["train"]
  monkeypatch.setattr(parquet, "_MOST_GROUP", 3000)
  with pytest.raises(ValueError, match=r"takes .* more than 3,000; write"):
    source[0]


@pytest.mark.slow
def test_equal_images_take_their_memory_once(tmp_path):
  """Four kilobytes on the disk would be 400 MB."""
  _write(tmp_path / "train.parquet", [bytes(10**7)] * 40, [0] * 40, group=40)
  assert (tmp_path / "train.parquet").stat().st_size < 10**6
  source = open_sources(str(tmp_path))["train"]
  before = pa.total_allocated_bytes()
  assert source[39]["image"] == bytes(10**7)
  assert pa.total_allocated_bytes() - before < 10**8


def test_rows_and_footers_are_bounded(tmp_path, monkeypatch):
  path = tmp_path / "train.parquet"
  _write(path, [b"x", b"y"], [0, 1])
  with monkeypatch.context() as patch:
    patch.setattr(parquet, "_MOST_ROWS", 1)
    with pytest.raises(ValueError, match="claim 2 rows, more than 1: pack"):
      open_sources(str(tmp_path))
  content = path.read_bytes()
  path.write_bytes(content[:-8] + (2**31).to_bytes(4, "little") + b"PAR1")
  with pytest.raises(ValueError, match="its footer takes 2,147,483,648 bytes"):
    open_sources(str(tmp_path))


def test_a_fifo_is_refused(tmp_path):
  os.mkfifo(tmp_path / "train.parquet")
  with pytest.raises(OSError, match="a FIFO, not a regular file"):
    open_sources(str(tmp_path))
