"""Sources against what was put into them."""

import collections
import io
import os
import pathlib
import pickle
import re
import shutil
import subprocess
import sys
import types

import numpy as np
import pytest
from PIL import Image

from vit_jax import data
from vit_jax.data import tfds_source
from vit_jax.data.image_folder import ImageFolder

INSTALL = 'pip install -c constraints.txt -e ".[tfds]"'
SHARED = pathlib.Path(__file__).parents[3] / "shared" / "data"


def shared(name: str) -> str:
  path = SHARED / name
  if not path.exists():
    pytest.skip(f"{name} is not in a folder shared/data beside the checkout")
  return str(path)


def png(value: int) -> bytes:
  file = io.BytesIO()
  Image.new("RGB", (4, 4), (value, value, value)).save(file, "PNG")
  return file.getvalue()


def make_folder(root, files: dict[str, int]) -> str:
  """Writes files of one grey level each."""
  for name, value in files.items():
    path = pathlib.Path(root) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(value))
  return str(root)


def levels(source) -> list[int]:
  return [int(data.decode_rgb(e["image"])[0, 0, 0]) for e in source]


@pytest.fixture(scope="module")
def digits_dir(tmp_path_factory) -> str:
  return str(tmp_path_factory.mktemp("tfds"))


def test_digits_are_the_ones_of_scikit_learn(digits_dir):
  from sklearn.datasets import load_digits

  expected = load_digits()
  splits = [
    data.open_source(s, data.DataSettings(name="digits", data_dir=digits_dir))
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


def test_digits_are_split_by_class(digits_dir):
  from sklearn.datasets import load_digits

  held_out = data.open_source(
    "eval", data.DataSettings(name="digits", data_dir=digits_dir)
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


def test_a_part_of_a_tfds_split_and_a_pickled_copy(digits_dir):
  source = data.open_source(
    "train",
    data.DataSettings(
      name="digits", data_dir=digits_dir, train_split="train[:10%]"
    ),
  )
  assert len(source) == 144
  copy = pickle.loads(pickle.dumps(source))
  assert copy[143] == source[143] == source.read([5, 143])[1]
  assert source[143]["id"] == "digits/1.0.0/train[:10%]#143"


def test_unknown_splits_are_named(digits_dir):
  def opened(split):
    data.open_source(
      "eval",
      data.DataSettings(name="digits", data_dir=digits_dir, eval_split=split),
    )

  with pytest.raises(
    ValueError, match="no split 'dev', or .* it has train, test"
  ):
    opened("dev")
  with pytest.raises(ValueError, match="has no split"):
    opened("test[:x%]")
  with pytest.raises(ValueError, match=r"'test\[:0\]', or it is empty"):
    opened("test[:0]")


def test_cifar10():
  where = shared("tfds")
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


def test_unknown_dataset_suggests_the_nearest(tmp_path):
  with pytest.raises(ValueError, match="no TFDS dataset 'cifra10'.* cifar10"):
    data.open_source(
      "train", data.DataSettings(name="cifra10", data_dir=str(tmp_path))
    )


def test_dataset_not_prepared_says_how(tmp_path):
  assert (
    INSTALL in (pathlib.Path(__file__).parents[2] / "README.md").read_text()
  )
  message = f"mnist is not prepared.*: {re.escape(INSTALL)} && tfds build mnist"
  with pytest.raises(ValueError, match=message):
    data.open_source(
      "train", data.DataSettings(name="mnist", data_dir=str(tmp_path))
    )


def test_a_version_that_does_not_exist(tmp_path):
  with pytest.raises(ValueError, match="TFDS cannot open 'cifar10:9.9.9': "):
    data.open_source(
      "train", data.DataSettings(name="cifar10:9.9.9", data_dir=str(tmp_path))
    )


def test_records_without_random_access(digits_dir, tmp_path):
  data.open_source(
    "train", data.DataSettings(name="digits", data_dir=digits_dir)
  )
  copy = tmp_path / "digits" / "1.0.0"
  shutil.copytree(pathlib.Path(digits_dir) / "digits" / "1.0.0", copy)
  info = copy / "dataset_info.json"
  info.write_text(info.read_text().replace("array_record", "tfrecord"))
  message = f"tfrecord files, which allow no random.*: {re.escape(INSTALL)} && "
  with pytest.raises(ValueError, match=message):
    data.open_source(
      "train", data.DataSettings(name="digits", data_dir=str(tmp_path))
    )


def test_a_dataset_of_something_else(digits_dir):
  source = data.open_source(
    "train", data.DataSettings(name="digits", data_dir=digits_dir)
  )
  features = dict(source._examples.dataset_info.features)
  for keys, missing in [
    (("image", "box"), "'box' is not one ClassLabel"),
    (("label", "image"), "'label' is not one Image"),
  ]:
    info = types.SimpleNamespace(supervised_keys=keys, features=features)
    with pytest.raises(ValueError, match=missing):
      tfds_source._feature_keys(types.SimpleNamespace(name="d", info=info))


def test_a_name_or_a_root_is_needed():
  with pytest.raises(ValueError, match="the configuration names no data"):
    data.open_source("train", data.DataSettings())
  with pytest.raises(ValueError, match="split='test' is unknown"):
    data.open_source("test", data.DataSettings(name="digits"))


@pytest.mark.parametrize("folder", ["test", "val", "validation"])
def test_folders_already_split(tmp_path, folder):
  root = make_folder(
    tmp_path,
    {
      "train/cat/1.png": 1,
      "train/dog/2.PNG": 2,
      "train/dog/deep/er/3.png": 3,
      "train/dog/.hidden.png": 9,
      "train/.git/4.png": 9,
      f"{folder}/dog/5.png": 5,
    },
  )
  (tmp_path / "train/dog/notes.txt").write_text("no image")
  train = data.open_source("train", data.DataSettings(root=root))
  assert train.class_names == ("cat", "dog")
  assert sorted(
    zip(levels(train), [e["label"] for e in train], strict=True)
  ) == [
    (1, 0),
    (2, 1),
    (3, 1),
  ]
  held_out = data.open_source("eval", data.DataSettings(root=root))
  assert held_out.class_names == ("cat", "dog")
  assert levels(held_out) == [5] and held_out[0]["label"] == 1
  assert held_out[0]["id"].endswith("dog/5.png")


def test_an_unsplit_folder_is_split_by_class(tmp_path):
  files = {f"a/{i}.png": i for i in range(10)}
  files |= {f"train/{i}.png": 100 + i for i in range(25)}  # a class, no split
  files |= {"one/1.png": 200}
  root = make_folder(tmp_path, files)
  train, held_out = (
    data.open_source(split, data.DataSettings(root=root, eval_fraction=0.2))
    for split in ("train", "eval")
  )
  assert train.class_names == ("a", "one", "train")
  labels = np.bincount([e["label"] for e in held_out], minlength=3)
  assert labels.tolist() == [2, 0, 5]
  assert sorted(levels(train) + levels(held_out)) == sorted(files.values())
  again = data.open_source(
    "eval", data.DataSettings(root=root, eval_fraction=0.2)
  )
  assert [e["id"] for e in again] == [e["id"] for e in held_out]


def test_odd_names_and_links(tmp_path):
  root = make_folder(
    tmp_path,
    {
      'train/it\'s "odd"/a b.png': 1,
      "train/plain/2.png": 2,
      "val/plain/3.png": 3,
    },
  )
  strange = os.fsencode(root) + b"/train/plain/\xff.png"
  with open(strange, "wb") as file:
    file.write(png(4))
  os.symlink(tmp_path / "train", tmp_path / "train" / "plain" / "loop")
  os.symlink(tmp_path / "nowhere", tmp_path / "train" / "plain" / "gone.png")
  source = data.open_source("train", data.DataSettings(root=root))
  assert source.class_names == ('it\'s "odd"', "plain")
  ids = [source_id(source, i) for i in range(len(source))]
  assert any(name.endswith(r"plain/\xff.png") for name in ids)
  readable = [i for i in range(len(source)) if "gone" not in ids[i]]
  assert {1, 2, 4} <= set(levels(source[i] for i in readable))
  gone = next(i for i in range(len(source)) if "gone" in ids[i])
  with pytest.raises(data.UnreadableImageError, match="gone.png: No such file"):
    source[gone]


def source_id(source, index: int) -> str:
  try:
    return source[index]["id"]
  except data.UnreadableImageError as error:
    return str(error)


def test_paths_are_kept_compactly_and_pickled(tmp_path):
  root = make_folder(tmp_path, {f"c/{i:04}.png": i % 256 for i in range(300)})
  source = ImageFolder(root, "train", 0.5)
  assert len(pickle.dumps(source)) < 300 * 40
  copy = pickle.loads(pickle.dumps(source))
  assert [copy[i] for i in (0, 1, 149)] == [source[i] for i in (0, 1, 149)]
  assert len({copy[i]["id"] for i in range(len(copy))}) == 150


def test_labels_of_a_folder_need_no_file(tmp_path):
  files = {f"{name}/{i}.png": i for name in "abc" for i in range(10)}
  source = ImageFolder(make_folder(tmp_path, files), "train", 0.2)
  chosen = [0, 23, 8, 15]
  expected = [source[i]["label"] for i in chosen]
  shutil.rmtree(tmp_path / "c")
  labels = source.labels(chosen)
  assert labels.tolist() == expected == [0, 2, 1, 1]
  assert labels.dtype == np.int32


def test_folders_that_are_not_datasets(tmp_path):
  def fails(match, split="train", **kwargs):
    with pytest.raises(ValueError, match=match):
      data.open_source(split, data.DataSettings(root=str(tmp_path), **kwargs))

  with pytest.raises(ValueError, match="there is no folder"):
    data.open_source("train", data.DataSettings(root=str(tmp_path / "missing")))
  fails("has no folders; put the images of each class")
  fails(r"eval_fraction=1\.5 must lie", eval_fraction=1.5)
  make_folder(tmp_path, {"train/cat/1.png": 1})
  fails("has a train folder but none called test, val")
  make_folder(tmp_path, {"test/cow/1.png": 1})
  fails("has the class 'cow', which the train folder has not", split="eval")
  (tmp_path / "train" / "dog").mkdir()
  fails(r"class folder .*dog' has no images")


def test_an_eval_split_with_nothing_in_it(tmp_path):
  root = make_folder(tmp_path, {"cat/1.png": 1})
  with pytest.raises(ValueError, match="has no images for split='eval'"):
    data.open_source("eval", data.DataSettings(root=root))


def test_photographs():
  root = shared("pizza_steak_sushi")
  assert len(data.open_source("train", data.DataSettings(root=root))) == 225
  held_out = data.open_source("eval", data.DataSettings(root=root))
  assert len(held_out) == 75
  assert held_out.class_names == ("pizza", "steak", "sushi")


def test_no_tensorflow_and_no_jax_of_ours():
  """Ours, since Grain itself imports JAX (it starts no backend)."""
  folder = pathlib.Path(data.__file__).parent
  for module in folder.glob("*.py"):
    lines = module.read_text().splitlines()
    imports = [
      line.split()[1] for line in lines if line.startswith(("import ", "from "))
    ]
    assert not {"jax", "tensorflow"} & {name.split(".")[0] for name in imports}
