"""The command `vit_jax` and what each command loads to show its help."""

import ast
import pathlib
import sys

import pytest

from tests import commands
from vit_jax import __main__ as main_module
from vit_jax import __version__, export, visualize
from vit_jax.inference import exporter
from vit_jax.inspection.attention_maps import FUSIONS

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "vit_jax"
COMMANDS = main_module.COMMANDS


def _guarded(path):
  """Whether a module runs something under `if __name__ == "__main__"`."""
  tree = ast.parse(path.read_text())
  return any(
    isinstance(node, ast.If) and "__name__ == '__main__'" in ast.unparse(node)
    for node in tree.body
  )


def test_every_command_is_listed():
  modules = {p.stem for p in PACKAGE.glob("*.py") if _guarded(p)}
  folders = {p.parent.name for p in PACKAGE.glob("*/__main__.py")}
  assert (modules | folders) - {"__main__"} == set(COMMANDS)


@pytest.fixture
def call(monkeypatch, capsys):
  """Calls the command; returns its exit code, stdout and stderr."""

  def call(*arguments):
    monkeypatch.setattr(sys, "argv", ["vit_jax", *arguments])
    return main_module.main(), *capsys.readouterr()

  return call


def test_what_it_prints_itself(call):
  code, out, _ = call()
  assert code == 0 and all(f"  {name} " in out for name in COMMANDS)
  assert call("--version") == (0, f"vit_jax {__version__}\n", "")
  error = "error: 'trian' is not a command of vit_jax; the commands are "
  assert call("trian") == (2, "", f"{error}{', '.join(COMMANDS)}.\n")


def test_it_runs_a_command():
  commands.refused("vit_jax", "evaluate", "--workdir=nowhere", "surplus")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_loads_no_jax(name):
  """So it answers at once; importing JAX takes a second or more."""
  code = (
    "import runpy, sys\n"
    f"sys.argv = ['{name}', '--help']\n"
    "try:\n"
    f"  runpy.run_module('vit_jax.{name}', run_name='__main__')\n"
    "finally:\n"
    "  print('loaded', [n for n in ('jax', 'flax', 'cv2') if n in sys.modules])"
  )
  done = commands.python("-c", code)
  assert done.stdout.splitlines()[-1] == "loaded []", done.stderr
  assert "flags:" in done.stdout


def test_choices_written_out_are_those_of_the_code():
  assert visualize.FUSIONS == tuple(FUSIONS)
  assert export.PLATFORMS == exporter.PLATFORMS
  assert export.KNOWN_PLATFORMS == exporter.KNOWN_PLATFORMS
  assert export.DTYPES == exporter.DTYPES


def test_it_lists_the_configurations(call):
  code, printed, _ = call("configs")
  assert code == 0
  for path in (ROOT / "configs").glob("*.py"):
    first = ast.get_docstring(ast.parse(path.read_text())).splitlines()[0]
    assert first in printed
    assert f"{path.stem} " in printed
    assert str(path) in printed
