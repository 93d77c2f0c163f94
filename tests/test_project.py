"""Lists of modules, paths and versions in the project's files are correct."""

import importlib
import itertools
import pathlib
import re
import subprocess
import tomllib

import pytest
import yaml

import vit_jax
from tests import left_out
from vit_jax import config, data, models
from vit_jax.__main__ import COMMANDS
from vit_jax.runtime.settings import flat

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
  "parity/test_coverage.py",  # Every encoder of two libraries, beside ours.
  "parity/test_trajectories.py",  # Whole recipes, beside their references.
  "pretrained/test_arrays_refused.py",  # .npz, .safetensors and shards.
  "pretrained/test_fuzz.py",  # Every reader of files, given damaged ones.
  "pretrained/test_rubbish.py",  # Every reader of files, given odd ones.
  "run/test_divergence.py",  # Runs of all tasks that diverge or learn nothing.
  "tasks/test_every_encoder.py",  # Each objective with each family of encoders.
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
    words = path.stem.removeprefix("test_").split("_")
    names = ["_".join(words[:n]) for n in range(1, len(words) + 1)]
    tested = [package / path.parent / name for name in names]
    whole_folder = path.parent.name == names[-1]
    if not whole_folder and not any(
      x.is_dir() or x.with_suffix(".py").exists() for x in tested
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


def _public_names():
  """What docs/compatibility.md promises not to take away silently."""
  names = {f"vit_jax {name}" for name in COMMANDS}
  for module in (vit_jax, config, data, models):
    assert all(hasattr(module, name) for name in module.__all__)
    names |= {f"{module.__name__}.{name}" for name in module.__all__}
  keys = flat(config.base_config().to_dict())
  return names | {f"config.{key}" for key in keys}


def _vanished(before, now, changelog):
  """Names that are gone, and that no "Removed" of a changelog mentions."""
  removed = "".join(
    re.findall(r"^### Removed\n(.*?)^##", changelog, re.M | re.S)
  )
  return {
    n for n in before - now if f"`{n.removeprefix('config.')}`" not in removed
  }


def test_public_names_do_not_vanish_without_a_line_in_the_changelog():
  """tests/public_names.txt has all that there ever were; add new ones to it."""
  before = set((ROOT / "tests/public_names.txt").read_text().splitlines())
  changelog = (ROOT / "CHANGELOG.md").read_text()
  now = _public_names()
  assert _vanished(before, now, changelog + "\n##") == set()
  assert now - before == set()


def test_a_name_that_vanished_is_found():
  before, now = {"vit_jax.a", "config.b.c", "vit_jax.d"}, {"vit_jax.d"}
  text = (
    "## [2]\n\n### Removed\n\n- {}\n\n## [1]\n\n- `config.b.c`, `vit_jax.a`\n"
  )
  assert _vanished(before, now, text) == {"vit_jax.a", "config.b.c"}
  assert _vanished(before, now, text.format("`vit_jax.a`")) == {"config.b.c"}
  assert _vanished(before, now, text.format("`vit_jax.a` and `b.c`")) == set()


def test_the_table_of_the_folders_has_the_contracts_floors():
  """The picture too; all but `__main__`, which starts the commands."""
  contracts = PYPROJECT["tool"]["importlinter"]["contracts"]
  (layers,) = [c["layers"] for c in contracts if c["type"] == "layers"]
  floors = [re.findall(r"(?!__main__)\b\w+", layer) for layer in layers]
  page = (ROOT / "docs/architecture.md").read_text()
  rows = re.findall(r"^\| (`.*?) \| ", page, re.MULTILINE)
  assert [re.findall(r"`(\w+)`", row) for row in rows] == floors
  picture = (ROOT / "docs/_static/architecture.svg").read_text()
  boxes = re.findall(r'<text class="name[^>]*>(\w+)<', picture)
  assert boxes == [name for floor in floors for name in floor]


def test_make_takes_the_newest_python_that_makes_environments(tmp_path):
  """From PATH or pyenv, but not pyenv's shim of a version that is not there."""
  pyenv = tmp_path / ".pyenv/versions/3.12.7/bin"
  newest = []
  kinds = (tmp_path, "3.11", 0), (pyenv, "3.12", 0), (tmp_path, "3.13", 127)
  for folder, version, status in kinds:
    folder.mkdir(parents=True, exist_ok=True)
    python = folder / f"python{version}"
    python.write_text(f"#!/bin/sh\nexit {status}\n")
    python.chmod(0o755)
    done = subprocess.run(
      [ROOT / ".ci/find_python", "3.14", "3.13", "3.12", "3.11"],
      env={"PATH": str(tmp_path), "HOME": str(tmp_path)},
      capture_output=True,
      text=True,
      check=True,
    )
    newest.append(done.stdout.strip())
  assert newest == ["python3.11", *[str(pyenv / "python3.12")] * 2]


def test_what_the_script_leaves_out_is_there_and_the_workflow_runs_it():
  listed = left_out.names()
  for path, _, name in (test.partition("::") for test in listed):
    code = (ROOT / path).read_text()
    function = name or r"test_\w+"  # A whole file may be listed.
    # Marked itself, or some of its rows are.
    assert re.search(rf"^def {function}\(", code, re.M) and "slow" in code, name
  if not (ROOT / ".github").exists():
    pytest.skip("this is a source distribution; it has no workflow")
  assert "--left-out=$tenth" in (ROOT / ".ci/run").read_text()
  jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
  commands = [step.get("run", "") for j in jobs.values() for step in j["steps"]]
  assert "make test-slow PYTEST_FLAGS=--left-out=only" in commands


def test_each_test_that_is_left_out_is_run_once_in_ten_days():
  listed = {"tests/a.py::test_many"}
  rows = [f"tests/a.py::test_many[{n}]" for n in range(300)]
  others = ["tests/a.py::test_many_more[1]", "tests/b.py::test_many"]
  tests = rows + others

  def run(choice):
    return [*itertools.compress(tests, left_out.are_run(tests, choice, listed))]

  days = [run(str(day)) for day in range(10)]
  assert all(day[-2:] == others for day in days)
  assert sorted(test for day in days for test in day[:-2]) == sorted(rows)
  assert {len(day) for day in days} == {30 + 2}
  assert run("only") == rows


def test_the_tests_of_a_listed_file_are_run_on_one_day():
  tests = [f"tests/a.py::test_{n}" for n in range(7)]
  tests += [f"tests/b.py::test_b[{n}]" for n in range(9)]
  listed = {"tests/a.py", "tests/b.py::test_b"}
  days = [left_out.are_run(tests, str(day), listed) for day in range(10)]
  assert sorted(map(sum, days)) == [*[1] * 9, 7]
  assert [any(days) for days in zip(*days, strict=True)] == [True] * 16
  assert all(left_out.are_run(tests, "only", listed))
