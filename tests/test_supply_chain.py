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


def test_every_pin_names_one_version():
  pins = _pins()
  assert [p for p in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", p)] == []
  names = [canonicalize_name(pin.partition("==")[0]) for pin in pins]
  assert len(set(names)) == len(names)


def test_all_that_comes_with_the_package_is_pinned():
  """Other packages that are installed here, such as PyTorch, are ignored."""
  pinned = {canonicalize_name(pin.partition("==")[0]) for pin in _pins()}
  closure = _closure(_declared())
  assert {"jaxlib", "numpy", "execnet"} < closure  # Not the direct ones alone.
  assert closure - pinned == set()
  build = PYPROJECT["build-system"]["requires"]
  assert {canonicalize_name(Requirement(r).name) for r in build} <= pinned


def _lowest():
  """Loads `lowest` from .ci/lowest.py, which belongs to no package."""
  path = ROOT / ".ci" / "lowest.py"
  spec = importlib.util.spec_from_file_location("lowest", path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.lowest


PROJECT = """
build-system.requires = ["setuptools>=77"]
[project]
dependencies = ["numpy>=2.1", "Etils[epath]>=1.15"]
optional-dependencies.dev = ["py_test>=9"]
"""


def test_the_lowest_versions_replace_the_pins():
  pins = "# A comment\nnumpy==2.4.6\nsix==1.17.0\npy-test==9.2\n"
  assert _lowest()(PROJECT, pins) == (
    "etils==1.15\nnumpy==2.1\npy-test==9\nsetuptools==77\nsix==1.17.0\n"
  )


@pytest.mark.parametrize("given", ["numpy", "numpy==2.1", "numpy>=2.1,<3"])
def test_every_dependency_names_its_lowest_version(given):
  with pytest.raises(ValueError, match=f"'{given}' is not given as name>="):
    _lowest()(PROJECT.replace("numpy>=2.1", given), "")


def test_the_lowest_versions_are_no_newer_than_the_pins():
  pins = dict(pin.split("==") for pin in _pins())
  pins = {canonicalize_name(name): version for name, version in pins.items()}
  for text in _declared():
    requirement = Requirement(text)
    assert pins[canonicalize_name(requirement.name)] in requirement.specifier


# Modules that can load pickles or run code in some other way.
PICKLES = {
  "_pickle",
  "cloudpickle",
  "dill",
  "joblib",
  "marshal",
  "pickle",
  "shelve",
}
# Functions that must not even be named: `f = eval` is as good as a call.
NAMES = {
  "__import__",
  "compile",
  "eval",
  "exec",
  "builtins.__import__",
  "builtins.compile",
  "builtins.eval",
  "builtins.exec",
  "importlib.import_module",
  "importlib.util.spec_from_file_location",
  "ml_collections.config_flags.DEFINE_config_file",
  "numpy.lib.format.read_array",  # Has `allow_pickle` by position as well.
  "os.popen",
  "os.system",
  "pandas.read_pickle",
  "runpy.run_module",
  "runpy.run_path",
  "subprocess.getoutput",
  "subprocess.getstatusoutput",
  "torch.load",
  "yaml.full_load",
  "yaml.full_load_all",
  "yaml.unsafe_load",
  "yaml.unsafe_load_all",
}
SAFE_LOADERS = {"yaml.SafeLoader", "yaml.CSafeLoader"}

# Allowed exceptions, with the reason.
ALLOWED = {
  ("vit_jax/__main__.py", "runpy.run_module"): "of names in the file",
  (
    "vit_jax/data/batching/workers.py",
    "cloudpickle",
  ): "between our own processes",
  (
    "vit_jax/models/variants.py",
    "importlib.import_module",
  ): "of a class that a configuration names; of none that a checkpoint names",
  ("scripts/bench_load.py", "importlib.import_module"): "of names in the file",
  (
    "vit_jax/runtime/extras.py",
    "importlib.import_module",
  ): "of names in our code",
  (
    "vit_jax/run/flags.py",
    "ml_collections.config_flags.DEFINE_config_file",
  ): "a configuration is Python, and the README says so",
}


def dangers(source):
  """Names in a module's source that can execute their input."""
  finder = _Finder()
  tree = ast.parse(source)
  for node in ast.walk(tree):  # First, as a function may stand above them.
    if isinstance(node, ast.Import | ast.ImportFrom):
      finder.note_import(node)
  finder.visit(tree)
  return finder.found


class _Finder(ast.NodeVisitor):
  """Resolves names to what was imported, under whatever alias."""

  def __init__(self):
    self.found = set()
    self._imported = {}

  def note_import(self, node):
    for alias in node.names:
      if isinstance(node, ast.Import):
        full = alias.name
        bound = alias.asname or full.partition(".")[0]
        self._imported[bound] = full if alias.asname else bound
      else:
        full = f"{node.module}.{alias.name}"
        self._imported[alias.asname or alias.name] = full
      if full.partition(".")[0] in PICKLES and not getattr(node, "level", 0):
        self.found.add(full.partition(".")[0])
      if full in NAMES:
        self.found.add(full)

  def visit_Name(self, node):
    if isinstance(node.ctx, ast.Load):
      self._note_reference(node)

  def visit_Attribute(self, node):
    self._note_reference(node)
    self.generic_visit(node)

  def visit_Call(self, node):
    function = self._full_name(node.func)
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    for name in ("allow_pickle", "shell"):
      if name in keywords and not _is_false(keywords[name]):
        self.found.add(name)
    # The third argument is `allow_pickle`; ** may hold it as well.
    if function == "numpy.load" and (len(node.args) > 2 or None in keywords):
      self.found.add("allow_pickle")
    if function in ("yaml.load", "yaml.load_all"):
      loader = keywords.get("Loader", node.args[1] if node.args[1:] else None)
      if self._full_name(loader) not in SAFE_LOADERS:
        self.found.add(function)
    self.generic_visit(node)

  def _note_reference(self, node):
    name = self._full_name(node)
    if name in NAMES:
      self.found.add(name)

  def _full_name(self, node):
    """A dotted name such as "numpy.load"; None for other expressions."""
    if isinstance(node, ast.Name):
      return self._imported.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
      value = self._full_name(node.value)
      return value and f"{value}.{node.attr}"
    return None


def _is_false(node):
  return isinstance(node, ast.Constant) and node.value is False


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
    ("eval('1')", "eval"),
    ("f = exec", "exec"),
    ("import builtins as b\nb.compile('', '', 'exec')", "builtins.compile"),
    ("import pickle", "pickle"),
    ("def f():\n  from cloudpickle import loads as g", "cloudpickle"),
    ("import dill.source as d", "dill"),
    ("from marshal import *", "marshal"),
    ("import joblib", "joblib"),
    ("__import__('pickle')", "__import__"),
    ("import importlib as i\ni.import_module(x)", "importlib.import_module"),
    ("import torch\ntorch.load(f, weights_only=True)", "torch.load"),
    ("from torch import load", "torch.load"),
    ("import yaml\nyaml.load(f)", "yaml.load"),
    ("import yaml\nyaml.load(f, Loader=yaml.Loader)", "yaml.load"),
    ("import yaml\nyaml.load_all(f, yaml.FullLoader)", "yaml.load_all"),
    ("from yaml import unsafe_load", "yaml.unsafe_load"),
    ("import numpy as np\nnp.load(f, allow_pickle=True)", "allow_pickle"),
    ("import numpy as np\nnp.load(f, allow_pickle=flag)", "allow_pickle"),
    ("import numpy as np\nnp.load(f, None, True)", "allow_pickle"),
    ("import numpy\nnumpy.load(f, **options)", "allow_pickle"),
    ("import subprocess\nsubprocess.run(c, shell=True)", "shell"),
    ("from subprocess import Popen\nPopen(c, shell=1)", "shell"),
    ("import os\nos.system(c)", "os.system"),
    ("import runpy\nrunpy.run_path(p)", "runpy.run_path"),
  ],
)
def test_the_check_finds(source, danger):
  assert dangers(source) == {danger}


@pytest.mark.parametrize(
  "source",
  [
    "import re\nre.compile('a')",
    "lowered.compile()",
    "model.eval()",
    "pickle = 'pytorch_model.bin'",
    "from vit_jax.pretrained import pickles",
    "from . import pickle",
    "import numpy as np\nnp.load(f, allow_pickle=False)\nnp.load(f, 'r')",
    "import yaml\nyaml.safe_load(f)\nyaml.load(f, yaml.SafeLoader)",
    "import subprocess\nsubprocess.run(['ls'], shell=False)",
    "'eval(1)'",
  ],
)
def test_the_check_passes(source):
  assert dangers(source) == set()
