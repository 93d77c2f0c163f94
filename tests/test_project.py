"""Lists of modules, paths and versions in the project's files are correct."""

import importlib
import pathlib
import re
import subprocess
import tomllib
import xml.etree.ElementTree

import pytest
import yaml
from packaging.specifiers import SpecifierSet

import vit_jax

ROOT = pathlib.Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_shapes_are_checked_wherever_conftest_says(shapes_checked):
  """Otherwise a renamed module would silently lose its checks."""
  assert len(set(shapes_checked)) == len(shapes_checked)
  for name in shapes_checked:
    module = importlib.import_module(name)  # Fails if there is none.
    assert type(module.__loader__).__module__.startswith("jaxtyping"), name


def _make_variable(name):
  """The value of a variable of the Makefile, as make expands it."""
  rules = f"include Makefile\nshow:\n\t@echo '$({name})'\n"
  done = subprocess.run(
    ["make", "--silent", "--no-print-directory", "--file=-", "show"],
    input=rules,
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
  )
  return done.stdout


def test_the_lowest_versions_leave_out_only_tests_that_exist():
  options = _make_variable("MINIMUM_WITHOUT").split()
  assert options
  ignored = [option.removeprefix("--ignore=") for option in options]
  assert all(path.startswith("tests/") for path in ignored)
  assert [path for path in ignored if not (ROOT / path).exists()] == []


# Tests of a whole folder, named after what they do to it.
NOT_OF_ONE_MODULE = {
  "data/test_channels.py",  # Decoding and transforms of 1, 2, 4, 5 channels.
  "data/test_odd_files.py",  # Folders of odd images and names.
  "pretrained/test_arrays_refused.py",  # .npz, .safetensors and shards.
  "pretrained/test_fuzz.py",  # Every reader of files, given damaged ones.
  "pretrained/test_rubbish.py",  # Every reader of files, given odd ones.
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
    name = re.sub(r"_(fuzz|refused)$", "", path.stem.removeprefix("test_"))
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


def test_files_that_the_package_ships_exist():
  for package, names in PYPROJECT["tool"]["setuptools"]["package-data"].items():
    folder = ROOT / package.replace(".", "/")
    assert [name for name in names if not (folder / name).is_file()] == []


def test_ci_runs_what_developers_run():
  workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
  supported = SpecifierSet(PYPROJECT["project"]["requires-python"])
  commands = {
    "all": ".ci/run",
    "minimum": "make test-minimum",
    "newest": "make test-newest",
    "fixtures": ".ci/fixtures",
    "stores": 'make test-slow PYTEST_FLAGS="tests/test_bucket_runs.py '
    "tests/test_slurm.py tests/runtime/test_hosts.py tests/run/test_study.py "
    "tests/test_faults.py tests/test_stops.py tests/test_notebook.py "
    "tests/test_pages.py tests/pack/test_bucket_folder.py "
    "tests/run/test_task.py tests/run/test_suite.py "
    "tests/run/test_adaptation.py tests/test_channels.py "
    'tests/test_gpu_report.py"',
  }
  assert set(workflow["jobs"]) == set(commands)
  for name, job in workflow["jobs"].items():
    assert commands[name] in [step.get("run") for step in job["steps"]]
    assert all(
      python in supported for python in job["strategy"]["matrix"]["python"]
    )


def test_commit_hooks_use_the_projects_own_tools():
  config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
  for repository in config["repos"]:
    assert repository["repo"] == "local"
    for hook in repository["hooks"]:
      assert hook["language"] == "system"
      assert hook["entry"].startswith(".venv/bin/ruff ")


@pytest.mark.parametrize("name", ["bug", "feature"])
def test_issue_forms_are_whole(name):
  path = ROOT / f".github/ISSUE_TEMPLATE/{name}.yml"
  form = yaml.safe_load(path.read_text())
  assert form["name"] and form["description"]
  ids = [field["id"] for field in form["body"]]
  assert len(set(ids)) == len(ids)
  assert all(field["attributes"]["label"] for field in form["body"])


def _floors():
  """The contract's floors, from the top: lists of files and folders.

  `__main__`, which starts the commands, is not shown beside them.
  """
  contracts = PYPROJECT["tool"]["importlinter"]["contracts"]
  (layers,) = [c["layers"] for c in contracts if c["type"] == "layers"]
  found = [re.findall(r"\w+", layer) for layer in layers]
  return [[name for name in floor if name != "__main__"] for floor in found]


def test_the_picture_of_the_folders_shows_the_contracts_floors():
  picture = xml.etree.ElementTree.parse(ROOT / "docs/_static/architecture.svg")
  svg = "{http://www.w3.org/2000/svg}"
  shown = [
    [
      text.text
      for text in floor.iter(f"{svg}text")
      if "name" in text.get("class")
    ]
    for floor in picture.iter(f"{svg}g")
  ]
  assert shown == _floors()


def test_the_table_of_the_folders_has_the_contracts_floors():
  page = (ROOT / "docs/architecture.md").read_text()
  rows = re.findall(r"^\| (`.*?) \| ", page, re.MULTILINE)
  assert [re.findall(r"`(\w+)`", row) for row in rows] == _floors()
