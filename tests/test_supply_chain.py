"""All dependencies are pinned, and nothing from a user is executed."""

import ast
import importlib.metadata
import importlib.util
import pathlib
import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = pathlib.Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONSTRAINTS = (ROOT / "constraints.txt").read_text()


def _pins():
  lines = [line.partition("#")[0].strip() for line in CONSTRAINTS.splitlines()]
  return [line for line in lines if line]


def _declared():
  """The requirements that a developer installs."""
  project = PYPROJECT["project"]
  return project["dependencies"] + project["optional-dependencies"]["dev"]


def _closure(requirements):
  """Names of all installed packages that the requirements depend on."""
  seen = set()
  waiting = [Requirement(text) for text in requirements]
  while waiting:
    requirement = waiting.pop()
    name = canonicalize_name(requirement.name)
    for extra in {"", *requirement.extras}:
      if (name, extra) in seen:
        continue
      seen.add((name, extra))
      for text in importlib.metadata.requires(name) or ():
        needed = Requirement(text)
        if needed.marker is None or needed.marker.evaluate({"extra": extra}):
          waiting.append(needed)
  return {name for name, _ in seen}


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
def test_every_pin_names_one_version(python):
  pins = [Requirement(pin) for pin in _pins()]
  assert all(re.fullmatch(r"==[\w.]+", str(pin.specifier)) for pin in pins)
  marked = [p for p in pins if p.marker is not None]
  every = {canonicalize_name(pin.name) for pin in pins}
  held = [
    canonicalize_name(pin.name)
    for pin in pins
    if pin not in marked or pin.marker.evaluate({"python_version": python})
  ]
  assert sorted(held) == sorted(every)


def test_all_that_comes_with_the_package_is_pinned():
  """Other packages that are installed here, such as PyTorch, are ignored."""
  pinned = {canonicalize_name(pin.partition("==")[0]) for pin in _pins()}
  closure = _closure(_declared())
  assert {"jaxlib", "numpy", "execnet"} < closure  # Not the direct ones alone.
  assert closure - pinned == set()
  build = PYPROJECT["build-system"]["requires"]
  assert {canonicalize_name(Requirement(r).name) for r in build} <= pinned


# Modules that can load pickles or run code in some other way.
MODULES = {
  *("_pickle", "builtins", "cloudpickle", "dill", "joblib", "marshal"),
  *("pickle", "shelve"),
}
# Functions that must not even be named: `f = eval` is as good as a call.
NAMES = {"__import__", "compile", "eval", "exec"}
# The same, of whatever module.
ATTRIBUTES = {
  *("DEFINE_config_file", "full_load", "full_load_all", "getoutput"),
  *("getstatusoutput", "import_module", "popen", "read_array", "read_pickle"),
  *("run_module", "run_path", "spec_from_file_location", "unsafe_load"),
  "unsafe_load_all",
}
# PyTorch's read pickles, PyYAML's make objects. Their modules keep their names.
QUALIFIED = {"os.system", "torch.load", "yaml.load", "yaml.load_all"}
UNRENAMED = {"os", "torch", "yaml"}

# Allowed exceptions, with the reason.
ALLOWED = {
  ("vit_jax/__main__.py", "run_module"): "of names in the file",
  ("vit_jax/data/batching/workers.py", "cloudpickle"): "between our own "
  "processes",
  ("vit_jax/families/__init__.py", "import_module"): "of names in the file",
  ("vit_jax/models/variants.py", "import_module"): "of a class that a "
  "configuration names; of none that a checkpoint names",
  ("vit_jax/runtime/aliases.py", "import_module"): "of the table beside it",
  ("vit_jax/pretrained/loaded.py", "import_module"): "of a command of ours",
  ("vit_jax/run/in_python.py", "import_module"): "of a command of ours",
  ("scripts/bench/cpu_steps.py", "import_module"): "of another clone of ours",
  ("scripts/bench/first_success.py", "shell"): "of commands in the file",
  ("scripts/bench/recipes.py", "import_module"): "of names in the file",
  ("scripts/parity/reference/encoders.py", "import_module"): "the same",
  ("scripts/mutants/trials.py", "import_module"): "of our own tests",
  ("scripts/mutants/trials.py", "run_path"): "of our own conftest.py",
  ("scripts/bench/scoreboard_models.py", "spec_from_file_location"): "of the "
  "libraries whose folders the reader names",
  ("vit_jax/runtime/extras.py", "import_module"): "of names in our code",
  ("vit_jax/data/reading/sources.py", "import_module"): "of names in our code",
  ("vit_jax/data/reading/tfds/source.py", "import_module"): "the same",
  ("vit_jax/tasks/table.py", "import_module"): "of the table in the file",
  ("vit_jax/tasks/choose.py", "import_module"): "of our own, and of a class "
  "that a configuration or a flag names; of none that a checkpoint names",
  ("vit_jax/tasks/choose.py", "spec_from_file_location"): "the same",
  ("vit_jax/tasks/choose.py", "cloudpickle"): "only says how a task's own file "
  "goes to our processes",
  ("vit_jax/run/flags.py", "DEFINE_config_file"): "a configuration is Python, "
  "and the README says so",
}


def dangers(source):
  """Names in a module's source that can execute their input."""
  found = set()
  for node in ast.walk(ast.parse(source)):
    match node:
      case ast.Import(names):
        found |= {alias.name.partition(".")[0] for alias in names} & MODULES
        found |= {a.name for a in names if a.asname} & UNRENAMED
      case ast.ImportFrom(module, names, 0):
        found |= {module.partition(".")[0]} & MODULES
        found |= {alias.name for alias in names} & ATTRIBUTES
        found |= {f"{module}.{alias.name}" for alias in names} & QUALIFIED
      case ast.Name(name, ast.Load()):
        found |= {name} & NAMES
      case ast.Attribute(_, name):
        found |= {name} & ATTRIBUTES
        if any(one.endswith(f".{name}") for one in QUALIFIED):
          found |= {ast.unparse(node)} & QUALIFIED
      case ast.Call(function, arguments, keywords):
        given = {k.arg: k.value for k in keywords}
        # `allow_pickle` is the third argument of NumPy's.
        hidden = len(arguments) > 2 or None in given
        match function:
          case ast.Attribute(_, "load") if hidden:
            found.add("allow_pickle")
        for name in {"allow_pickle", "shell"} & given.keys():
          if ast.unparse(given[name]) != "False":
            found.add(name)
  return found


def test_nothing_that_a_user_gives_is_executed():
  """Every exception from the rule is still needed."""
  found = set()
  for folder in ("vit_jax", "configs", "scripts"):
    for path in sorted((ROOT / folder).rglob("*.py")):
      name = path.relative_to(ROOT).as_posix()
      found |= {(name, danger) for danger in dangers(path.read_text())}
  assert found == set(ALLOWED)


@pytest.mark.parametrize(
  "source, danger",
  [
    ("f = exec", "exec"),
    ("def f():\n  from cloudpickle import loads as g", "cloudpickle"),
    ("import dill.source as d", "dill"),
    ("import importlib as i\ni.import_module(x)", "import_module"),
    ("import torch\ntorch.load(f, weights_only=True)", "torch.load"),
    ("import torch as t\nt.load(f)", "torch"),
    ("from yaml import load", "yaml.load"),
    ("from yaml import unsafe_load", "unsafe_load"),
    ("np.load(f, allow_pickle=flag)", "allow_pickle"),
    ("np.load(f, None, True)", "allow_pickle"),
    ("numpy.load(f, **options)", "allow_pickle"),
    ("from subprocess import Popen\nPopen(c, shell=1)", "shell"),
    ("import os\nos.system(c)", "os.system"),
  ],
)
def test_the_check_finds(source, danger):
  assert dangers(source) == {danger}
