"""Lists of modules, paths and versions in the project's files are correct."""

import importlib
import pathlib
import re
import tomllib

import yaml

import vit_jax

ROOT = pathlib.Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_shapes_are_checked_wherever_conftest_says(shapes_checked):
  """Otherwise a renamed module would silently lose its checks."""
  assert len(set(shapes_checked)) == len(shapes_checked)
  for name in shapes_checked:
    module = importlib.import_module(name)  # Fails if there is none.
    assert type(module.__loader__).__module__.startswith("jaxtyping"), name


# Tests of a whole folder, named after what they do to it.
NOT_OF_ONE_MODULE = {
  "data/test_channels.py",  # Decoding and transforms of 1, 2, 4, 5 channels.
  "data/test_odd_files.py",  # Folders of odd images and names.
  "parity/test_augmentations.py",  # Images and draws, beside their references.
  "parity/test_trajectories.py",  # Whole recipes, beside their references.
  "pretrained/test_arrays_refused.py",  # .npz, .safetensors and shards.
  "pretrained/test_fuzz.py",  # Every reader of files, given damaged ones.
  "pretrained/test_rubbish.py",  # Every reader of files, given odd ones.
  "tasks/test_own_task.py",  # A user's class, in every use of a task.
}


def test_tests_mirror_the_package():
  """`vit_jax/models/vit.py` is tested by `tests/models/test_vit.py`."""
  tests, package = ROOT / "tests", ROOT / "vit_jax"
  files = {path.relative_to(tests) for path in tests.glob("*/**/test_*.py")}
  exceptions = set(map(pathlib.Path, NOT_OF_ONE_MODULE))
  assert exceptions <= files
  strays = []
  for path in files - exceptions:
    # `test_decode_fuzz` tests `decode`, and so do all that begin like it.
    name = re.sub(
      r"_(fuzz|refused|written|card)$", "", path.stem.removeprefix("test_")
    )
    tested = package / path.parent / name  # A module, or a folder.
    whole_folder = path.parent.name == name
    if not (
      whole_folder or tested.is_dir() or tested.with_suffix(".py").exists()
    ):
      strays.append(path)
  assert sorted(strays) == []


def test_checkpoints_for_tests_are_small():
  files = [p for p in (ROOT / "tests/checkpoints").rglob("*") if p.is_file()]
  assert [path for path in files if path.stat().st_size >= 1e6] == []


def test_one_version_is_given_everywhere():
  citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
  project = PYPROJECT["project"]
  assert citation["version"] == project["version"] == vit_jax.__version__
  assert citation["title"] == project["name"]
  assert citation["license"] == project["license"]
  assert citation["repository-code"] == project["urls"]["Source"]


def test_the_table_of_the_folders_has_the_contracts_floors():
  """All but `__main__`, which starts the commands."""
  contracts = PYPROJECT["tool"]["importlinter"]["contracts"]
  (layers,) = [c["layers"] for c in contracts if c["type"] == "layers"]
  floors = [re.findall(r"(?!__main__)\b\w+", layer) for layer in layers]
  page = (ROOT / "docs/architecture.md").read_text()
  rows = re.findall(r"^\| (`.*?) \| ", page, re.MULTILINE)
  assert [re.findall(r"`(\w+)`", row) for row in rows] == floors
