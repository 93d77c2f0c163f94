"""Files of a prepared data set that ask for code, other files or addresses.

VIT_JAX_FUZZ=1000 pytest tests/data/reading/tfds/test_files.py -n 0 -s
"""

import functools
import json
import shutil
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorflow_datasets.core.features.feature import FeatureConnector

from tests import commands
from tests.fuzzing import distorted, examples, outcome
from vit_jax.data import DataSettings, open_source
from vit_jax.data.reading.tfds import files as tfds_files
from vit_jax.data.reading.tfds import source as tfds_source

CORE = "tensorflow_datasets.core.features"
EVIL = "gift.data.evil.Text"
TEXT = {"pythonClassName": EVIL, "text": {}}
OLD = {"type": EVIL, "content": {}}
DICT = f"{CORE}.features_dict.FeaturesDict"
SEQUENCE = f"{CORE}.sequence_feature.Sequence"
LABEL = f"{CORE}.class_label_feature.ClassLabel"


def in_json(name, content):
  return {"pythonClassName": name, "jsonFeature": {"json": json.dumps(content)}}


@pytest.fixture
def gift(tfds_dir, tmp_path, monkeypatch):
  """A copy of "shades" beside a module that leaves a marker, imported or not.

  Its module can be imported from the current folder.
  """
  folder = tmp_path / "gift" / "data"
  shutil.copytree(tfds_dir / "shades" / "1.0.0", folder)
  marker = f"open({str(tmp_path / 'marker')!r}, 'w').write('run')"
  (folder / "evil.py").write_text(f"{marker}\nclass Text: pass\n")
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(str(tmp_path))
  yield folder
  assert not (tmp_path / "marker").exists()
  assert not any(name.startswith("gift") for name in sys.modules)


def edit(file, change):
  content = json.loads(file.read_text())
  change(content)
  file.write_text(json.dumps(content))


def add(folder, feature):
  def change(content):
    content["featuresDict"]["features"]["more"] = feature

  edit(folder / "features.json", change)


@pytest.mark.parametrize(
  "feature",
  [
    TEXT,
    {"python_class_name": EVIL, "text": {}},
    {"pythonClassName": SEQUENCE, "sequence": {"feature": TEXT}},
    {"pythonClassName": DICT, "featuresDict": {"features": {"a": TEXT}}},
    in_json(EVIL, {}),
    in_json(DICT, {"a": {"type": DICT, "content": {"b": OLD}}}),
    in_json(SEQUENCE, {"feature": OLD, "length": None}),
    in_json(SEQUENCE, {"feature": TEXT, "length": 2}),
  ],
)
def test_no_class_is_imported_because_a_file_names_it(gift, feature):
  add(gift, feature)
  message = "^gift/data/features.json names the class gift.data.evil.Text, "
  with pytest.raises(ValueError, match=message) as caught:
    tfds_source.open_prepared("gift/data", "train")
  assert str(caught.value).isprintable()


@pytest.mark.parametrize("old", [False, True])
def test_nor_where_a_whole_file_is_of_it(gift, old):
  (gift / "features.json").write_text(json.dumps(OLD if old else TEXT))
  with pytest.raises(ValueError, match="names the class gift.data.evil.Text"):
    tfds_source.open_prepared("gift/data", "train")


def test_nor_where_the_other_file_has_the_features(gift):
  features = {"features": {"pythonClassName": EVIL, "text": {}}}
  edit(gift / "dataset_info.json", lambda content: content.update(features))
  with pytest.raises(ValueError, match="names the class gift.data.evil.Text"):
    tfds_source.open_prepared("gift/data", "train")


def test_nor_where_the_data_set_is_found_by_its_name(gift):
  add(gift, TEXT)
  shutil.copytree(gift, "kept/shades/1.0.0")
  for name in ("shades", "shades:1.0.0"):
    settings = DataSettings(name=name, data_dir="kept")
    with pytest.raises(ValueError, match="^kept/.*/features.json names the cl"):
      open_source("train", settings)
  with pytest.raises(ValueError, match="names the class gift.data.evil.Text"):
    tfds_source.open_all("shades", "kept")  # As `vit_jax.pack` does.


@pytest.mark.slow
def test_nor_by_a_command(gift):
  add(gift, TEXT)
  message = commands.refused(
    "vit_jax.train",
    "--config=digits",
    "--workdir=run",
    "--config.data.dir=gift/data",
  )
  assert "names the class gift.data.evil.Text, which is not one" in message


@pytest.mark.parametrize(
  "content, said",
  [
    ({"names_file": "/etc/passwd"}, "sets names_file"),
    ({"num_classes": 2, "names": "gs://other/names.txt"}, "sets names of"),
    ({"num_classes": 2, "names": ["a", {}]}, "sets names of"),
    ({"dtype": "bfloat17"}, "the type bfloat17, which NumPy does not know"),
    ({"dtype": "(9,9)f8,O"}, "the type .* which NumPy does not know"),
  ],
)
def test_old_forms_name_no_other_files(gift, content, said):
  add(gift, in_json(LABEL, content))
  with pytest.raises(ValueError, match=f"^gift/data/features.json .*{said}"):
    tfds_source.open_prepared("gift/data", "train")


def test_the_form_of_tfds_4_0_is_read(gift):
  parts = {
    "image": (
      "image_feature.Image",
      {"shape": [8, 8, 3], "dtype": "uint8", "encoding_format": "png"},
    ),
    "label": ("class_label_feature.ClassLabel", {"num_classes": 3}),
  }
  content = {
    key: {"type": f"{CORE}.{name}", "content": value}
    for key, (name, value) in parts.items()
  }
  old = {"type": DICT, "content": content}
  (gift / "features.json").write_text(json.dumps(old))
  source = tfds_source.open_prepared("gift/data", "train")
  assert source.class_names == ("a", "b", "c")
  assert [source[k]["label"] for k in range(3)] == [
    tfds_source.open_prepared("gift/data", "train")[k]["label"]
    for k in range(3)
  ]
  of_protos = {
    "type": DICT,
    "proto_cls": "tensorflow_datasets.FeaturesDict",
    "content": {
      "features": {
        key: {"pythonClassName": f"{CORE}.{name}", kind: {}}
        for key, (name, _), kind in zip(
          parts, parts.values(), ("image", "classLabel"), strict=True
        )
      }
    },
  }
  of_protos["content"]["features"]["image"]["image"] = {"dtype": "uint8"}
  of_protos["content"]["features"]["label"]["classLabel"] = {"numClasses": "3"}
  (gift / "features.json").write_text(json.dumps(of_protos))
  again = tfds_source.open_prepared("gift/data", "train")
  assert again.class_names == ("a", "b", "c")


def test_the_name_of_a_feature_leads_to_no_class_list_elsewhere(gift):
  """TFDS has a dot for each slash, so that there is no such list."""
  (gift.parent / "more.labels.txt").write_text("other\nnames\nof three\n")

  def change(content):
    label = {"pythonClassName": LABEL, "classLabel": {"numClasses": "2"}}
    content["featuresDict"]["features"]["../more"] = label

  edit(gift / "features.json", change)
  assert len(tfds_source.open_prepared("gift/data", "train")) == 40


@pytest.mark.parametrize(
  "changes",
  [
    {"filepathTemplate": "../other/{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"},
    {"filepathTemplate": "/etc/passwd"},
    {"filepathTemplate": "{SPLIT:>1000000000}"},
    {"filepathTemplate": "{SPLIT.__class__}"},
    {"name": "../../train", "filepathTemplate": "{SPLIT}"},
  ],
)
def test_no_records_outside_the_folder(gift, changes):
  def change(content):
    content["splits"][0].update(changes)

  edit(gift / "dataset_info.json", change)
  message = "^gift/data/dataset_info.json puts the records of a split at .*, "
  with pytest.raises(ValueError, match=message):
    tfds_source.open_prepared("gift/data", "train")


def test_a_folder_below_is_inside(gift):
  """`pack` and TFDS write none, but TFDS allows it."""

  def change(content):
    for split in content["splits"]:
      split["filepathTemplate"] = "{SPLIT}/{SHARD_INDEX}.{FILEFORMAT}"

  edit(gift / "dataset_info.json", change)
  for name in ("train", "test"):
    (gift / name).mkdir()
    (records,) = gift.glob(f"shades-{name}.array_record*")
    records.rename(gift / name / "00000.array_record")
  assert len(tfds_source.open_prepared("gift/data", "train")) == 40


@pytest.mark.parametrize("config", ["../../gift", "/etc", "gs://other", [1]])
def test_a_configuration_is_the_name_of_a_folder(gift, config):
  shutil.copytree(gift, "kept/shades/base/1.0.0")
  metadata = gift.parents[1] / "kept/shades/.config/metadata.json"
  metadata.parent.mkdir()
  metadata.write_text('{"default_config_name": "base"}')
  settings = DataSettings(name="shades", data_dir="kept")
  assert len(open_source("train", settings)) == 40
  metadata.write_text(json.dumps({"default_config_name": config}))
  with pytest.raises(ValueError, match="metadata.json names the configuration"):
    open_source("train", settings)


@pytest.mark.parametrize(
  "name",
  [
    "huggingface:evil",
    "kaggle:evil/config:1.0.0",
    "mnist/data_dir=gs:",
    "mnist/a=True,b=3",
    "mnist/..",
    "",
    "mnist\n",
  ],
)
def test_names_that_tfds_would_look_up_elsewhere(name):
  with pytest.raises(ValueError, match="not the name of a TFDS data set: giv"):
    tfds_source.find_builder(name, None)


def test_every_feature_of_this_tfds_is_known():
  """A new one, or a new place of one, has to be added."""
  inside = {
    name for name in FeatureConnector._registered_features if CORE in name
  }
  abstract = {f"{CORE}.top_level_feature.TopLevelFeature"}
  assert inside - abstract == tfds_files.FEATURES


NAMES = st.sampled_from([EVIL, *sorted(tfds_files.FEATURES)])
INSERTED = st.one_of(
  NAMES.map(lambda name: {"pythonClassName": name, "text": {}}),
  NAMES.map(lambda name: {"type": name, "content": {}}),
  st.tuples(NAMES, st.sampled_from([OLD, TEXT, {"names_file": EVIL}])).map(
    lambda pair: in_json(*pair)
  ),
  st.just({"pythonClassName": LABEL, "tensor": {"dtype": EVIL}}),
)


class Watcher:
  """Notes what Python looks for to import, whether there is such a module."""

  def __init__(self):
    self.asked = []

  def find_spec(self, name, path=None, target=None):
    self.asked.append(name.partition(".")[0])


@pytest.fixture
def watcher(gift, monkeypatch):
  """Watches from when a real data set was read, which imports its readers."""
  assert len(tfds_source.open_prepared("gift/data", "train").read([0])) == 1
  watcher = Watcher()
  monkeypatch.setattr(sys, "meta_path", [watcher, *sys.meta_path])
  return watcher


@examples(150)
@given(data=st.data())
def test_a_distorted_file_is_read_or_refused(gift, watcher, data):
  """Nothing but TFDS is imported, and the marker is not written."""
  if not (real := gift / "real.json").exists():
    shutil.copy(gift / "features.json", real)
  tree = json.loads(real.read_text())
  if (feature := data.draw(st.none() | INSERTED)) is not None:
    tree["featuresDict"]["features"]["more"] = feature
  tree = data.draw(st.one_of(st.just(tree), distorted(tree)))
  (gift / "features.json").write_text(json.dumps(tree))
  opened = functools.partial(tfds_source.open_prepared, "gift/data", "train")
  watcher.asked.clear()
  outcome("features.json", opened)
  known = {"tensorflow_datasets", "hypothesis", *sys.stdlib_module_names}
  assert {*watcher.asked} <= known
