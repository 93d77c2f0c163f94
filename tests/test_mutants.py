"""Checks the script that changes the package to see what its tests find."""

import ast
import csv
import os
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest

from scripts.mutants import choice
from scripts.mutants.__main__ import Places, Row, read, write
from scripts.mutants.changes import Mutant, mutants_of, sample, shares

SOURCE = '''"""A docstring with 1 number."""

__all__ = ["Box", "area"]
SIDE = 3


class Box:
  """A box."""

  height: int = 2

  def grow(self, by: float = 0.5, *, twice=False):
    if by < 0 and not twice:
      raise ValueError(f"by={by + 1} is less than {0}")
    self.height = self.height + by
    say(f"{by} taller", 1)
    for _ in range(2):
      self.changes.append(-by)


def area(box, names=()):
  return box.height * SIDE if "flat" not in names else 0
'''
# What can be changed in it, counted by hand: (kind, before, after).
CHANGES = {
  ("constant", "3", "4"),
  ("default", "2", "3"),
  ("default", "0.5", "1.0"),
  ("default", "False", "True"),
  ("comparison", "by < 0 and (not twice)", "(by < 0 or not twice)"),
  ("comparison", "by < 0", "(by <= 0)"),
  ("constant", "0", "1"),
  ("comparison", "not twice", "(twice)"),
  ("removed", "raise ValueError('...')", "pass"),
  ("removed", "self.height = self.height + by", "pass"),
  ("sign", "self.height + by", "(self.height - by)"),
  ("constant", "2", "3"),
  ("removed", "self.changes.append(-by)", "pass"),
  ("sign", "-by", "(by)"),
  ("sign", "box.height * SIDE", "(box.height / SIDE)"),
  ("comparison", "'flat' not in names", "('flat' in names)"),
}


def test_each_place_is_changed_once_and_messages_are_not():
  found = mutants_of("vit_jax/box.py", SOURCE)
  told = [
    (m.kind, *(m.change or f"{m.statement} -> pass").split(" -> "))
    for m in found
  ]
  assert set(told) == CHANGES
  # The zero of a condition and the one that is returned.
  assert len(told) == len(CHANGES) + 1
  for edit in found.values():
    changed = edit.of(SOURCE)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(SOURCE))
    assert len(changed.splitlines()) == len(SOURCE.splitlines())


def test_a_name_has_the_function_the_statement_and_the_change():
  assert Mutant(
    *("vit_jax/box.py", "Box.grow", "comparison"),
    *("if by < 0 and (not twice):", "by < 0 -> (by <= 0)"),
  ) in mutants_of("vit_jax/box.py", SOURCE)


def test_names_stay_when_lines_move_and_wrap():
  moved = SOURCE.replace("SIDE = 3", "# Of a box.\n\n\nSIDE = 3")
  moved = moved.replace(
    "if by < 0 and not twice:", "if (by < 0\n and not twice):"
  )
  assert moved.count("\n") == SOURCE.count("\n") + 4
  before = mutants_of("vit_jax/box.py", SOURCE)
  after = mutants_of("vit_jax/box.py", moved)
  assert list(before) == list(after)
  for name, edit in before.items():
    one = ast.parse(edit.of(SOURCE))
    assert ast.dump(one) == ast.dump(ast.parse(after[name].of(moved)))


def test_names_stay_when_messages_are_reworded():
  before = mutants_of("vit_jax/box.py", SOURCE)
  reworded = SOURCE.replace("is less than", "is below")
  assert list(mutants_of("vit_jax/box.py", reworded)) == list(before)
  old = "class A:\n  b: int = setting(1, 'Of a box.')\n"
  new = "class A:\n  b: int = setting(1, 'Sides of a box.')\n"
  assert [*mutants_of("vit_jax/a.py", old)] == [
    *mutants_of("vit_jax/a.py", new)
  ]


def test_equals_are_numbered_in_their_order():
  source = "def f(x):\n  x.add(1)\n  x.add(1)\n"
  found = mutants_of("vit_jax/a.py", source)
  removed = {m.index: e for m, e in found.items() if m.kind == "removed"}
  assert removed[0].of(source) == "def f(x):\n  pass\n  x.add(1)\n"
  assert removed[1].of(source) == "def f(x):\n  x.add(1)\n  pass\n"


def indent(text):
  return textwrap.indent(text, "  ")


def test_a_function_is_found_in_another_module_and_may_be_gone():
  old = "def f(x):\n  return x < 1\n"
  (compared, _) = mutants_of("vit_jax/a.py", old)
  moved = Places({"vit_jax/b.py": f"class B:\n{indent(old)}"})
  found = moved.find(compared)
  assert found is not None
  assert (found.module, found.function) == ("vit_jax/b.py", "B.f")
  assert "return (x <= 1)" in moved.changed(found)
  assert (
    Places({"vit_jax/a.py": "def f(x):\n  return x\n"}).find(compared) is None
  )
  # Two places that answer to the name are no answer.
  twice = Places({"vit_jax/b.py": old, "vit_jax/c.py": old})
  assert twice.find(compared) is None
  (method, _) = mutants_of("vit_jax/a.py", f"class A:\n{indent(old)}")
  classes = {"vit_jax/b.py": f"class A:\n{indent(old)}", "vit_jax/c.py": old}
  found = Places(classes).find(method)
  assert found is not None
  assert (found.module, found.function) == ("vit_jax/b.py", "A.f")


def test_numbers_are_split_in_proportion():
  assert shares({"a": 10, "b": 20, "c": 3}, 10) == {"a": 3, "b": 6, "c": 1}


def test_a_sample_follows_from_its_seed_and_from_no_line():
  small = "def f(x):\n  return x + 1 < 2\n"
  sources = {"vit_jax/a/a.py": SOURCE, "vit_jax/b/b.py": small * 3}
  drawn = sample(sources, 9, 0)
  moved = {module: f"\n\n{text}" for module, text in sources.items()}
  assert sample(moved, 9, 0) == drawn != sample(sources, 9, 1)
  lines = len(SOURCE.splitlines())
  of_a = sum(m.module == "vit_jax/a/a.py" for m in drawn)
  assert of_a == round(9 * lines / (lines + 6))
  assert len(set(drawn)) == 9


@pytest.mark.parametrize(
  "module, own",
  [
    ("vit_jax/a/b.py", ["tests/a/test_b.py", "tests/a/test_b_more.py"]),
    ("vit_jax/a/__init__.py", ["tests/test_a.py"]),
    ("vit_jax/c.py", []),
  ],
)
def test_tests_of_a_module_mirror_it(tmp_path, module, own):
  names = ["test_a.py", "a/test_b.py", "a/test_b_more.py", "a/test_bc.py"]
  for name in names:
    path = tmp_path / "tests" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("from vit_jax.a import b\n")
  assert choice.mirrored(tmp_path, module) == own


def test_a_list_is_read_as_it_was_written(tmp_path):
  rows = [Row(m, "fast", "a::b") for m in mutants_of("vit_jax/a.py", SOURCE)]
  write(tmp_path / "list.csv", rows)
  assert read(tmp_path / "list.csv") == rows


def test_the_list_names_this_package():
  rows = read(pathlib.Path(__file__).parent / "mutants.csv")
  assert len({row.mutant for row in rows}) == len(rows)
  assert all(row.mutant.module.startswith("vit_jax/") for row in rows)


def _mutants(tree, *arguments):
  command = [sys.executable, "-m", "scripts.mutants", *arguments]
  root = pathlib.Path(__file__).parents[1]
  return subprocess.run(
    [*command, "--tree", str(tree), "--list", str(tree / "list.csv")],
    **dict(cwd=root, env=os.environ, capture_output=True, text=True),
    check=False,
  )


@pytest.mark.slow
def test_a_tree_is_recorded_and_checked(tmp_path):
  files = {
    "vit_jax/__init__.py": "",
    "vit_jax/a.py": "def f(x):\n  return x < 4\n\n\n"
    "def g(x):\n  return x + 1\n",
    "tests/test_a.py": "from vit_jax.a import f\n\n\n"
    "def test_f():\n  assert f(3) and not f(4)\n\n\n"
    "def test_that_fails_anyway():\n  assert f(5)\n",
    "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["."]\n'
    'addopts = ["--import-mode=importlib"]\nmarkers = ["slow"]\n',
  }
  for name, text in files.items():
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
  done = _mutants(tmp_path, "--record", "--sample", "9")
  assert done.returncode == 0, done.stderr
  with (tmp_path / "list.csv").open(newline="") as stream:
    rows = {row["change"]: row for row in csv.DictReader(stream)}
  assert {
    change: (row["found"], row["test"]) for change, row in rows.items()
  } == {
    "x < 4 -> (x <= 4)": ("fast", "tests/test_a.py::test_f"),
    "4 -> 5": ("fast", "tests/test_a.py::test_f"),
    "x + 1 -> (x - 1)": ("none", ""),
    "1 -> 2": ("none", ""),
  }
  assert (tmp_path / "vit_jax/a.py").read_text() == files["vit_jax/a.py"]
  assert _mutants(tmp_path, "--check").returncode == 0
  weaker = files["tests/test_a.py"].replace(" and not f(4)", "")
  (tmp_path / "tests/test_a.py").write_text(weaker)
  (tmp_path / "vit_jax/a.py").write_text("def f(x):\n  return x < 4 - 0\n")
  done = _mutants(tmp_path, "--check")
  assert done.returncode == 0, done.stderr
  assert done.stdout.count("gone: ") == 2
  (tmp_path / "vit_jax/a.py").write_text(files["vit_jax/a.py"])
  done = _mutants(tmp_path, "--check")
  assert done.returncode == 1, done.stderr
  lost = re.findall(r"no longer found: .*change='(.*?)'", done.stdout)
  assert sorted(lost) == ["4 -> 5", "x < 4 -> (x <= 4)"]
