"""Parquet files as the Hugging Face Hub ships them."""

import contextlib
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzzing import damaged, examples, outcome
from vit_jax.data.example import UnreadableImageError
from vit_jax.pack import parquet
from vit_jax.pack.sources import open_sources


def _write(path, images, labels, names=None, group=2, **columns):
  declared = {"label": names} if names else {}
  _write_columns(path, images, declared, {"label": labels, **columns}, group)


def _write_columns(path, images, declared, columns, group=2):
  """Writes a file whose ClassLabels and their names are `declared`."""
  cells = [{"bytes": b, "path": f"{i}.jpg"} for i, b in enumerate(images)]
  table = pa.Table.from_pydict({"image": cells, **columns})
  features = {
    name: {"names": names, "_type": "ClassLabel"}
    for name, names in declared.items()
  }
  about = {"huggingface": json.dumps({"info": {"features": features}})}
  path.parent.mkdir(parents=True, exist_ok=True)
  pq.write_table(
    table.replace_schema_metadata(about), path, row_group_size=group
  )


def _labels(source):
  return [e["label"] for e in source.read([*range(len(source))])]


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
  with pytest.raises(UnreadableImageError, match="no bytes, only the path '0"):
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
    ([0, None], {}, "train.parquet: row 1 has no label, as its cell of the"),
    (["a", "b"], {}, "'label' holds string: there must be one of image bytes"),
    ([0.0, 1.0], {"id": [0, 1]}, "'label' holds double: there must be one"),
    ([[0], [1]], {}, "'label' holds list<.*: there must be one of image"),
    ([-1, -1], {}, "no image of the split train has a label in the column 'l"),
    ([None, None], {}, "'label' holds null: there must be one of image bytes"),
    ([0, 1], {"cls": [0, 1]}, "several of these columns have one of the names"),
    (
      [0, 1],
      {"mask": [b"x", b"y"]},
      "has the columns image, label, mask; .* image, mask hold image bytes",
    ),
  ],
)
def test_columns_that_are_refused(tmp_path, labels, columns, message):
  _write(tmp_path / "train.parquet", [b"x", b"y"], labels, **columns)
  with pytest.raises(ValueError, match=message):
    open_sources(str(tmp_path))


@pytest.mark.parametrize(
  ("columns", "declared", "chosen"),
  [
    ({"label": [1, 0], "id": [7, 8]}, (), "label"),
    ({"Class": [1, 0], "height": [7, 8]}, (), "Class"),
    ({"cls": [1, 0], "scene": [0, 0]}, ("scene",), "cls"),
    ({"scene": [1, 0], "image_id": [7, 8]}, ("scene",), "scene"),
  ],
)
def test_the_column_of_the_classes(tmp_path, columns, declared, chosen):
  names = {name: ["a", "b"] for name in declared}
  _write_columns(tmp_path / "train.parquet", [b"x", b"y"], names, columns)
  source = open_sources(str(tmp_path))["train"]
  assert source.columns == ("image", chosen)
  assert _labels(source) == [1, 0]


def test_an_id_is_no_class(tmp_path):
  """COCO's captions have an id, an image and captions."""
  columns = {"id": [522_418, 3], "caption": ["a cat", "a dog"]}
  _write_columns(tmp_path / "train.parquet", [b"x", b"y"], {}, columns)
  with pytest.raises(
    ValueError, match=r"none of them .* by --label_column=NAME\.$"
  ):
    open_sources(str(tmp_path))
  for chosen, why in (
    ("caption", "=caption holds string, not class numbers"),
    ("size", "=size is none of them"),
  ):
    with pytest.raises(ValueError, match=f"--label_column{why}"):
      open_sources(str(tmp_path), label_column=chosen)
  source = open_sources(str(tmp_path), label_column="id")["train"]
  assert _labels(source) == [522_418, 3]
  # What an earlier version began goes on as it was.
  begun = open_sources(str(tmp_path), older=True)["train"]
  assert _labels(begun) == [522_418, 3]


def test_one_of_two_columns_is_chosen(tmp_path):
  """CIFAR-100 has two."""
  names = {"fine_label": ["ant", "bee", "cod"], "coarse_label": ["air", "sea"]}
  columns = {"fine_label": [2, 0], "coarse_label": [1, 0]}
  _write_columns(tmp_path / "train.parquet", [b"x", b"y"], names, columns)
  with pytest.raises(
    ValueError, match="--label_column=fine_label or --label_column=coarse_label"
  ):
    open_sources(str(tmp_path))
  for column, of_column in names.items():
    source = open_sources(str(tmp_path), label_column=column)["train"]
    assert source.class_names == tuple(of_column)
    assert _labels(source) == columns[column]


@pytest.mark.parametrize("labels", [[-1, -1], [None, None], "no column"])
def test_a_split_without_labels_is_left_out(tmp_path, capsys, labels):
  """As test splits of the Hub are, whose labels are not published."""
  _write(tmp_path / "train-0.parquet", [b"x", b"y"], [1, 0])
  columns = {} if labels == "no column" else {"label": labels}
  _write_columns(tmp_path / "test-0.parquet", [b"z", b"w"], {}, columns)
  splits = open_sources(str(tmp_path))
  assert [*splits] == ["train"] and len(splits["train"]) == 2
  assert splits["train"].class_names == ("0", "1")
  said = capsys.readouterr().err
  assert "the split test is left out, as none of its 2 images has a" in said


@pytest.mark.parametrize("labels", [[0, -1], [-1, None]])
def test_a_split_with_some_labels_is_refused(tmp_path, labels):
  _write(tmp_path / "train-0.parquet", [b"x", b"y"], [1, 0])
  _write(tmp_path / "test-0.parquet", [b"x", b"y", b"z"], [0, *labels])
  with pytest.raises(ValueError, match="without a label cannot be packed"):
    open_sources(str(tmp_path))


@pytest.mark.parametrize(
  ("train", "test"),
  [
    ("data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"),
    ("cifar/train-0.parquet", "cifar/test-0.parquet"),
    ("train/0000.parquet", "test/0000.parquet"),
    ("default/train/0000.parquet", "default/test/0000.parquet"),
  ],
)
def test_the_root_of_a_repository(tmp_path, train, test):
  _write(tmp_path / train, [b"x", b"y"], [1, 0])
  _write(tmp_path / test, [b"z"], [1])
  (tmp_path / "README.md").write_text("# Data")
  (tmp_path / ".cache").mkdir()
  (tmp_path / "._train.parquet").write_bytes(b"Mac OS X")
  if train.startswith("data"):  # Pictures for the README.
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "0.png").touch()
  splits = open_sources(str(tmp_path))
  assert {k: _labels(v) for k, v in splits.items()} == {
    "train": [1, 0],
    "test": [1],
  }
  assert splits["train"].name == f"{tmp_path.name}, train"


def test_folders_that_are_no_repository(tmp_path):
  for name in ("fine", "coarse"):
    _write(tmp_path / name / "train.parquet", [b"x", b"y"], [1, 0])
  with pytest.raises(ValueError, match="the folders coarse, fine: give one"):
    open_sources(str(tmp_path))
  for name in ("fine", "coarse"):  # A table of the images of a class.
    for k in range(5):
      (tmp_path / name / f"{k}.png").touch()
  source = open_sources(str(tmp_path))["train"]
  assert source.class_names == ("coarse", "fine")


def test_the_column_is_of_parquet_files_alone(tmp_path):
  for name in ("a", "b"):
    (tmp_path / name).mkdir()
    (tmp_path / name / "0.png").touch()
  with pytest.raises(ValueError, match="=x is for Parquet files, and .* none"):
    open_sources(str(tmp_path), label_column="x")
  with pytest.raises(ValueError, match="--data_dir=x is for tfds:NAME, and"):
    open_sources(str(tmp_path), data_dir="x")
  with pytest.raises(ValueError, match="--outside=True is for a file of label"):
    open_sources(str(tmp_path), outside=True)


@pytest.mark.parametrize("cells", [["0.jpg", "1.jpg"], [{"path": "0.jpg"}] * 2])
def test_a_column_of_paths_is_none_of_images(tmp_path, cells):
  table = pa.Table.from_pydict({"image": cells, "label": [0, 1]})
  pq.write_table(table, tmp_path / "train.parquet")
  with pytest.raises(ValueError, match="none of them holds image bytes .paths"):
    open_sources(str(tmp_path))


def test_files_of_other_columns_are_refused(tmp_path):
  _write(tmp_path / "train-0.parquet", [b"x", b"y"], [1, 0])
  _write(tmp_path / "train-1.parquet", [b"x"], ["cat"])
  with pytest.raises(ValueError, match="train-1.*'label' holds string, not"):
    open_sources(str(tmp_path))
  table = pa.Table.from_pydict({"label": [1]})
  pq.write_table(table, tmp_path / "train-1.parquet")
  with pytest.raises(ValueError, match="train-1.parquet has no column 'image'"):
    open_sources(str(tmp_path))


def test_a_damaged_file(tmp_path):
  (tmp_path / "train.parquet").write_bytes(b"PAR1 and nothing else")
  with pytest.raises(ValueError, match="Parquet"):
    open_sources(str(tmp_path))


@examples(40)
@given(st.data())
def test_damaged_files_end_in_one_line(whole, data):
  """Also those whose footer is sound, and whose pages are not."""
  folder, content = whole
  path = folder / "train.parquet"
  path.write_bytes(data.draw(damaged(content)))

  def read():
    for source in open_sources(str(folder)).values():
      with contextlib.suppress(UnreadableImageError):
        source.read([*range(len(source))])

  outcome("Parquet, damaged", read)


def test_a_damaged_page_names_its_file(whole):
  folder, content = whole
  path = folder / "train.parquet"
  path.write_bytes(content[:4] + b"\xff" * 40 + content[44:])
  with pytest.raises(ValueError, match=r"train.parquet is damaged \(.*[^\n]$"):
    open_sources(str(folder))["train"].read([0, 1, 2, 3])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  folder = tmp_path_factory.mktemp("damaged")
  path = folder / "train.parquet"
  _write(path, [b"one", b"two", b"three", b"four"], [0, 1, 1, 0], ["a", "b"])
  return folder, path.read_bytes()


def test_a_row_group_too_large_for_memory_is_refused(tmp_path, monkeypatch):
  images = [bytes([n]) * 1000 for n in range(4)]
  _write(tmp_path / "train.parquet", images, [0, 1, 1, 0], group=4)
  source = open_sources(str(tmp_path))["train"]
  monkeypatch.setattr(parquet, "MOST_GROUP", 3000)
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
    patch.setattr(parquet, "MOST_ROWS", 1)
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
