"""The command `vit_jax` and what each command loads to show its help."""

import ast
import functools
import inspect
import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests import commands
from vit_jax import __main__ as main_module
from vit_jax import __version__, export, visualize
from vit_jax.find_lr import find_lr
from vit_jax.inference import exporter
from vit_jax.inspection.attention_maps import FUSIONS
from vit_jax.models import two_towers
from vit_jax.report.similar_images import find_similar
from vit_jax.run.settings import Settings
from vit_jax.runtime.settings import keys
from vit_jax.training.settings import OptimizerSettings

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "vit_jax"
COMMANDS = main_module.COMMANDS


def _guarded(path):
  """Whether a module runs something under `if __name__ == "__main__"`."""
  text = path.read_text()
  if "__main__" not in text:
    return False
  tree = ast.parse(text)
  return any(
    isinstance(node, ast.If) and "__name__ == '__main__'" in ast.unparse(node)
    for node in tree.body
  )


def test_every_command_is_listed():
  modules = {p.stem for p in PACKAGE.rglob("*.py") if _guarded(p)}
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
  lines = out.splitlines()
  assert 24 <= len(lines) <= 40 and max(map(len, lines)) <= 80
  first = [line.split()[0] for line in lines[3 : lines.index("", 2)]]
  assert len(first) in (5, 6) and first[0] == "train"
  assert call("--version") == (0, f"vit_jax {__version__}\n", "")
  assert call("help") == (code, out, "")
  error = "error: 'trian' is not a command; did you mean train?\n"
  surplus = "error: unexpected argument 'deit3' after configs.\n"
  assert call("configs", "deit3") == (2, "", surplus)
  assert call("trian") == call("help", "trian") == (2, "", error)
  for other, words in (
    ("resume", "`vit_jax train DATA`"),
    ("eval", "`vit_jax evaluate RUN`"),
    ("test", "`vit_jax evaluate RUN`"),
    ("visualise", "visualize"),
    ("embed", "`vit_jax predict RUN IMAGE --features OUT.npz`"),
  ):
    line = f"error: {other!r} is not a command; did you mean {words}?\n"
    assert call(other) == (2, "", line)
  for other in ("serve", "server", "deploy", "api"):
    _, _, line = call(other)
    assert "did you mean `vit_jax export RUN model.onnx`? docs/howto/se" in line
  code, out, _ = call("help", "config", "optimizer")
  names = [line.split("=")[0].split("_steps|")[0] for line in out.split("\n")]
  own = [f"  {key}" for key, *_ in keys(OptimizerSettings, "optimizer.")]
  assert (code, names) == (0, [*own, ""])
  assert len(call("help", "config")[1].splitlines()) == len([*keys(Settings)])
  wrong = "no key begins with 'optimiser'; did you mean optimizer?"
  assert wrong in call("help", "config", "optimiser")[2]


@pytest.mark.parametrize(
  "arguments", ["help", "help train", "train --help=all"]
)
def test_a_closed_pipe_is_no_traceback(arguments):
  """As of `head`, which has read enough."""
  read, write = os.pipe()
  os.close(read)
  command = [sys.executable, "-m", "vit_jax", *arguments.split()]
  with open(write, "w") as closed:
    done = subprocess.run(
      command, stdout=closed, stderr=subprocess.PIPE, text=True, check=False
    )
  assert (done.returncode, done.stderr) == (141, "")


def test_it_runs_a_command():
  commands.refused("vit_jax", "evaluate", "--workdir=nowhere", "surplus")


# Each is run in a fork of a process that has what they all load.
HELP = """
import os, runpy, sys
import vit_jax.run.flags, vit_jax.runtime.command
for name in sys.argv[1:]:
  if os.fork():
    _, status = os.wait()
    print("code", os.waitstatus_to_exitcode(status), flush=True)
    continue
  sys.argv = ["vit_jax", "help", name]
  try:
    runpy.run_module("vit_jax", run_name="__main__")
  finally:
    print("loaded", [n for n in ("jax", "flax", "cv2") if n in sys.modules])
  sys.exit()
"""


@functools.cache
def helps() -> dict[str, list[str]]:
  """The lines that `vit_jax help NAME` prints, what it loaded, and its code."""
  done = commands.python("-c", HELP, *COMMANDS)
  *printed, rest = re.split(r"(?<=\ncode 0)\n", done.stdout)
  assert rest == "" and done.returncode == 0, done.stderr
  return dict(zip(COMMANDS, map(str.splitlines, printed), strict=True))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_a_screen_and_loads_no_jax(name):
  """So it answers at once; importing JAX takes a second or more."""
  *shown, loaded, _ = helps()[name]
  assert loaded == "loaded []"
  assert len(shown) <= 40 and max(map(len, shown)) <= 80
  assert shown[0].startswith(f"vit_jax {name} ")
  examples = [line.startswith(f"  vit_jax {name} ") for line in shown[4:7]]
  assert examples == [True, True, False]
  assert "python -m" not in "\n".join(shown)
  assert _flags_read(name) <= set(
    re.findall(r"^--(\w+)", "\n".join(shown), re.M)
  )


def _flags_read(name):
  """The flags that a command's module names where it reads them."""
  path = PACKAGE.joinpath(*main_module.module_of(name).split(".")[1:])
  file = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
  text = file.read_text()
  names = set(re.findall(r"flags\.FLAGS\.(\w+)", text))
  if "options = flags.FLAGS\n" in text:
    names |= set(re.findall(r"\boptions\.(\w+)\b(?!\()", text))
  for values in re.findall(r"command\.values\(([^)]*)\)", text):
    names |= set(re.findall(r'"(\w+)"', values))
  return names


@pytest.mark.parametrize(
  "name, function",
  [
    ("find_lr", find_lr),
    ("similar", find_similar),
  ],
)
def test_a_function_has_the_defaults_of_its_command(name, function):
  flags = re.findall(r"^--(\w+)=(\S+)", "\n".join(helps()[name]), re.M)
  parameters = inspect.signature(function).parameters
  shown = {flag: text for flag, text in flags if flag in parameters}
  assert len(shown) > 1
  assert {flag: str(parameters[flag].default) for flag in shown} == shown


def test_choices_written_out_are_those_of_the_code():
  assert visualize.FUSIONS == tuple(FUSIONS)
  assert export.PLATFORMS == exporter.PLATFORMS
  assert export.KNOWN_PLATFORMS == exporter.KNOWN_PLATFORMS
  assert export.DTYPES == exporter.DTYPES
  assert export.TOWERS == two_towers.TOWERS


def test_it_lists_the_configurations(call):
  code, printed, _ = call("configs")
  assert code == 0
  for path in (ROOT / "configs").glob("*.py"):
    first = ast.get_docstring(ast.parse(path.read_text())).splitlines()[0]
    assert first in printed
    assert f"{path.stem} " in printed
    assert str(path) in printed


@pytest.mark.parametrize(
  "typed, expected",
  [
    ("vit_jax tr", ["train "]),
    ("vit_jax predict --o", ["--out "]),
    ("vit_jax train digits --ep", ["--epochs "]),
  ],
)
def test_a_shell_completes_commands_and_flags(tmp_path, typed, expected):
  pytest.importorskip("argcomplete")
  asks = {"_ARGCOMPLETE": "1", "COMP_LINE": typed, "_ARGCOMPLETE_IFS": "\n"}
  asks |= {"COMP_POINT": str(len(typed)), "_ARGCOMPLETE_SHELL": "bash"}
  answer = tmp_path / "answer"
  asks |= {"_ARGCOMPLETE_STDOUT_FILENAME": str(answer), "COMP_TYPE": "9"}
  done = subprocess.run(
    [sys.executable, "-m", "vit_jax"], env={**os.environ, **asks}, check=False
  )
  assert done.returncode == 0
  assert answer.read_text().split("\n") == expected
