"""Arguments of `open_source`, imports that data may not have, and the digits.

The digits are compared with scikit-learn's, and parts of them with TFDS's.
"""

import ast
import collections
import pathlib
import pickle
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds
import tifffile
from PIL import Image
from sklearn.datasets import load_digits

from vit_jax import data
from vit_jax.data.example import RGB, ImageSpec
from vit_jax.data.reading.sources import Digits, check_same_classes, open_splits
from vit_jax.tasks.settings import DataSettings
from vit_jax.tasks.table import LABELLED_TASKS

DIGITS = data.DataSettings(name="digits")


def test_a_name_or_a_root_is_needed():
  with pytest.raises(ValueError, match="^data.root .* is missing"):
    data.open_source("train", data.DataSettings())
  with pytest.raises(ValueError, match="split='dev' is unknown"):
    data.open_source("dev", data.DataSettings(name="digits"))


@pytest.mark.parametrize(
  "key", ["root", "dir", "data_dir", "labels_file", "eval_labels_file"]
)
@pytest.mark.parametrize(
  "address", ["http://e.org/a", "file:///tmp/a", "GS://b/a", "://", "gs://"]
)
def test_an_address_that_cannot_be_read_is_one_line(key, address):
  with pytest.raises(
    ValueError, match=f"^{key}='{address}': .* cannot be read"
  ):
    data.DataSettings(**{key: address})


def test_an_address_whose_library_is_missing_is_one_line():
  with pytest.raises(ValueError, match="adlfs, which is not installed: pip in"):
    data.DataSettings(dir="az://b/a")


def test_images_are_not_read_one_by_one_from_a_bucket():
  with pytest.raises(ValueError, match="^root='gs://b/a' lies in a bucket"):
    data.DataSettings(root="gs://b/a")


def test_names_of_two_lists_are_quoted_without_escape_sequences():
  lists = ("a", "\x1b]0;owned\x07", "c\nd"), "one", ("a",), "the other"
  with pytest.raises(
    ValueError, match="in the same order; one alone"
  ) as caught:
    check_same_classes(*lists)
  assert str(caught.value).endswith(r"; one alone has \x1b]0;owned\x07, c\nd.")


def test_names_that_differ_are_said_with_the_list_that_has_them():
  said = "; A alone has cat; B alone has Cat, dog."
  with pytest.raises(ValueError, match=said):
    check_same_classes(("ant", "cat"), "A", ("Cat", "ant", "dog"), "B")
  said = "A has 2 classes and B 2, .* order; only their order differs.$"
  with pytest.raises(ValueError, match=said):
    check_same_classes(("ant", "cat"), "A", ("cat", "ant"), "B")
  many = tuple(f"{n:02}" for n in range(30))
  with pytest.raises(ValueError, match="; B alone has 00, 01, .* more.$"):
    check_same_classes(("ant",), "A", ("ant", *many), "B")


def test_no_module_imports_jax_or_tensorflow():
  folder = pathlib.Path(data.__file__).parent
  for module in folder.rglob("*.py"):
    lines = module.read_text().splitlines()
    imports = [
      line.split()[1] for line in lines if line.startswith(("import ", "from "))
    ]
    assert not {"jax", "tensorflow"} & {name.split(".")[0] for name in imports}


def test_no_module_has_a_name_of_a_task():
  folder = pathlib.Path(data.__file__).parent
  for module in folder.rglob("*.py"):
    tree = ast.parse(module.read_text())
    values = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)]
    assert not [name for name in LABELLED_TASKS if name in values], module


@pytest.fixture
def _without_tfds(monkeypatch):
  """As if TFDS were not installed.

  Our reader would go on with a TFDS that it has imported, which looks for its
  data sets once in a process and would remember that it found none.
  """
  monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
  reader = "vit_jax.data.reading.tfds.source"
  monkeypatch.delitem(sys.modules, reader, raising=False)


@pytest.mark.usefixtures("_without_tfds")
def test_without_the_extra_tfds_one_line_says_so():
  settings = data.DataSettings(name="cifar10")
  with pytest.raises(ValueError, match="tensorflow_datasets is not") as caught:
    data.open_source("train", settings)
  assert str(caught.value).endswith('pip install "vit_jax[tfds]"')
  assert len(data.open_source("train", DIGITS)) == 1438


@pytest.mark.usefixtures("_without_tfds")
def test_a_folder_by_name_is_said_to_be_a_root(tmp_path, monkeypatch):
  with pytest.raises(ValueError, match=r"is a path.*: give root='\.\./photos'"):
    data.DataSettings("../photos")
  monkeypatch.chdir(tmp_path)
  (tmp_path / "photos").mkdir()
  with pytest.raises(ValueError, match=r"If .* DataSettings\(root='photo"):
    data.open_source("train", data.DataSettings("photos"))


def test_digits_are_the_ones_of_scikit_learn():
  expected = load_digits()
  splits = [data.open_source(s, DIGITS) for s in ("train", "eval")]
  assert [len(s) for s in splits] == [1438, 359]
  found = collections.Counter()
  for source in splits:
    assert source.class_names == tuple("0123456789")
    for example in source.read(range(len(source))):
      image = data.decode_rgb(example["image"])
      assert image.shape == (8, 8, 3) and (image == image[..., :1]).all()
      found[(image[..., 0].tobytes(), example["label"])] += 1
  scaled = np.round(expected.images / 16 * 255).astype(np.uint8)
  assert found == collections.Counter(
    (image.tobytes(), int(label))
    for image, label in zip(scaled, expected.target, strict=True)
  )


def test_digits_are_split_by_class():
  held_out = Digits("test")
  labels = [held_out[i]["label"] for i in range(len(held_out))]
  np.testing.assert_array_equal(held_out.labels(range(359)), labels)
  totals = np.bincount(load_digits().target)
  assert np.bincount(labels).tolist() == [round(0.2 * n) for n in totals]


# As TFDS reads them; 1438 x 25 % is 359.5.
@pytest.mark.parametrize(
  "split",
  [
    *("train", "test[:25%]", "train[25%:]", "train[-10%:]", "train[100:-1]"),
    *("test[3:7]", "train + test", "test[:5]+test[:7]"),
  ],
)
def test_parts_are_those_of_tfds(split):
  infos = {
    name: tfds.core.SplitInfo(
      name=name, shard_lengths=[size], num_bytes=0, filename_template=None
    )
    for name, size in (("train", 1438), ("test", 359))
  }
  parts = tfds.core.ReadInstruction.from_spec(split).to_absolute(infos)
  expected = []
  for part in parts:
    expected += Digits(part.splitname).read(
      range(1438)[: infos[part.splitname].num_examples]
    )[part.from_ : part.to]
  source = Digits(split)
  assert [e["image"] for e in source] == [e["image"] for e in expected]
  assert [e["label"] for e in source] == [e["label"] for e in expected]
  assert source[1]["id"] == f"digits/1.0.0/{split}#1"
  assert pickle.loads(pickle.dumps(source))[2] == source[2]


@pytest.mark.parametrize(
  "split", ["dev", "train[:x%]", "test[:0]", "train[:1439]", "train[5]", ""]
)
def test_other_splits_are_refused(split):
  with pytest.raises(
    ValueError,
    match="^data.train_split and .* take train, test .* is not one of",
  ):
    Digits(split)


@pytest.mark.parametrize("white", [4_000, 60_000])
def test_dark_images_of_16_bits_are_said_unless_a_window_is_set(
  tmp_path, white
):
  for name in ("cat", "dog"):
    (tmp_path / name).mkdir()
    for number in range(3):
      pixels = np.full((8, 8), white, np.uint16)
      Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
  splits = open_splits(data.DataSettings(root=str(tmp_path)))
  lines = [x for x in splits.warnings_for(RGB) if "nearly black" in x]
  assert bool(lines) == (white == 4_000)
  assert not lines or lines[0].endswith("normalization.window='(0,4095)'.")
  assert splits.warnings_for(ImageSpec(window=(0, 4_095))) == splits.warnings


@pytest.mark.parametrize("layout", ["contig", "separate", "pages"])
@pytest.mark.parametrize("spec", [ImageSpec(4), ImageSpec(5, some_bands=True)])
@pytest.mark.parametrize("masks", [True, False])
def test_all_bands_of_dark_images_are_looked_at(tmp_path, layout, spec, masks):
  """The fourth band, such as near infrared, is often the brightest."""
  pixels = np.full((8, 8, 4), [900, 800, 700, 5_000], np.uint16)
  if layout != "contig":
    pixels = np.moveaxis(pixels, 2, 0)
  planes: Any = {} if layout == "pages" else {"planarconfig": layout}
  for place in ("images", "masks"):
    (tmp_path / place).mkdir()
    for number in range(6):
      file = tmp_path / place / f"{number}.tif"
      tifffile.imwrite(file, pixels, photometric="minisblack", **planes)
      if place == "masks":
        tifffile.imwrite(file, np.eye(8, dtype=np.uint8))
  (tmp_path / "classes.txt").write_text("soil\ntrees\n")
  settings = DataSettings(root=str(tmp_path), task="segmentation")
  if not masks:
    settings = DataSettings(root=str(tmp_path / "images"), labels=False)
  splits = open_splits(settings)
  (line,) = [x for x in splits.warnings_for(spec) if "nearly black" in x]
  assert "reach 5,000 of" in line and line.endswith("window='(0,8191)'.")
