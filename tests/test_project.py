"""What the project says of itself holds: lists of modules, paths, versions."""

import importlib
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).parent.parent


def test_shapes_are_checked_wherever_conftest_says(shapes_checked):
  """A renamed module would otherwise lose its checks in silence."""
  assert len(set(shapes_checked)) == len(shapes_checked)
  for name in shapes_checked:
    module = importlib.import_module(name)  # Fails if there is none.
    assert type(module.__loader__).__module__.startswith("jaxtyping"), name


def _make_variable(name):
  """The value that make gives a variable of the Makefile."""
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


def test_checkpoints_for_tests_are_small():
  files = [p for p in (ROOT / "tests/checkpoints").rglob("*") if p.is_file()]
  assert [path for path in files if path.stat().st_size >= 1e6] == []
