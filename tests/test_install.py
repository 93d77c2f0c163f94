"""What a user installs: the wheel alone, and the model with little else."""

import os
import re
import socket
import subprocess
import sys
import tarfile
import zipfile

import pytest

from tests import wheels

ROOT = wheels.ROOT


def _run(*command, cwd, **environment):
  kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
  done = subprocess.run(
    [str(part) for part in command],
    cwd=cwd,
    env={**kept, "JAX_PLATFORMS": "cpu", **environment},
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  return done.stdout


@pytest.fixture
def built(distributions):
  """The source distribution and the wheel."""
  (sdist,), (wheel,) = distributions.glob("*.gz"), distributions.glob("*.whl")
  return sdist, wheel


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_the_configurations(built):
  _, wheel = built
  with zipfile.ZipFile(wheel) as archive:
    names = set(archive.namelist())
    (metadata,) = (n for n in names if n.endswith(".dist-info/METADATA"))
    described = archive.read(metadata).decode()
  package = {
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "vit_jax").rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
  }
  configs = {
    f"vit_jax/{p.relative_to(ROOT)}"
    for p in ROOT.glob("configs/**/*.*")
    if p.suffix in (".py", ".csv")
  }
  assert configs and package
  installed = {name for name in names if ".dist-info/" not in name}
  assert installed == package | configs
  assert any(name.endswith("licenses/LICENSE") for name in names)
  assert "\nLicense-Expression: Apache-2.0" in described
  # Relative links lead nowhere on the page of a package index.
  assert "](docs/" not in described and "](vit_jax/" not in described


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
  """A folder for make's VENV, in which pip-audit and twine are installed."""
  venv = tmp_path_factory.mktemp("tools") / "venv"
  made = (f"VENV={venv}", f"PYTHON={sys.executable}", venv / "audit/.made")
  _run("make", "-s", *made, cwd=ROOT)
  return venv


def _unpacked(sdist, folder):
  with tarfile.open(sdist) as archive:
    archive.extractall(folder, filter="data")
  return folder / sdist.name.removesuffix(".tar.gz")


# What only the repository's host, or git, reads.
_NOT_DISTRIBUTED = (
  ".dockerignore",
  ".gitignore",
  ".pre-commit-config.yaml",
  ".github/",
)


@pytest.mark.slow
def test_the_source_distribution_holds_every_file_of_the_repository(
  built, tmp_path
):
  """So its tests have all that they have in a clone."""
  if not (ROOT / ".git").exists():
    pytest.skip("this is a source distribution; its files came from one")
  names = _run("git", "ls-files", "-z", cwd=ROOT).split("\0")[:-1]
  wanted = [n for n in names if not n.startswith(_NOT_DISTRIBUTED)]
  assert "Makefile" in wanted and "tests/test_install.py" in wanted
  folder = _unpacked(built[0], tmp_path)
  assert [n for n in wanted if not (folder / n).exists()] == []
  for name in wanted:
    held, ours = folder / name, ROOT / name
    assert held.read_bytes() == ours.read_bytes(), name
    assert os.access(held, os.X_OK) == os.access(ours, os.X_OK), name


# Tests of files outside the package, some of which lie in the repository alone.
_OF_FILES = (
  "test_configs.py",
  "test_docstrings.py",
  "test_documents.py",
  "test_project.py",
  "test_scripts.py",
  "test_supply_chain.py",
)


@pytest.mark.slow
def test_the_source_distribution_needs_nothing_of_the_repository(
  built, tmp_path
):
  """Every test's file is imported there, and what looks for files is run.

  Its other tests read nothing that a clone has in another form.
  """
  chosen = " or ".join(_OF_FILES)
  command = (sys.executable, "-m", "pytest", "-q", "-n", "0", "-k", chosen)
  folder = _unpacked(built[0], tmp_path)
  said = _run(*command, "-p", "no:cacheprovider", cwd=folder)
  assert re.search(r"\d{3} passed", said), said


@pytest.mark.slow
def test_another_build_has_the_same_bytes(built, tmp_path):
  """At another time, of files of another date, by a user with other rights."""
  sdist, wheel = built
  unpacked = _unpacked(sdist, tmp_path)
  for path in unpacked.rglob("*"):
    os.utime(path, (10**9, 10**9))
    path.chmod(0o700)
  build = f"umask 077 && '{sys.executable}' -m build -w -o '{tmp_path / 'out'}'"
  pins = str(ROOT / "constraints.txt")
  _run("sh", "-c", build, cwd=unpacked, PIP_CONSTRAINT=pins)
  (again,) = (tmp_path / "out").iterdir()
  assert again.name == wheel.name
  assert again.read_bytes() == wheel.read_bytes()


@pytest.mark.slow
def test_twine_finds_nothing_wrong_with_what_is_released(built, tools):
  twine = tools / "audit/bin/twine"
  said = _run(twine, "check", "--strict", *built, cwd=ROOT, NO_COLOR="1")
  assert said.count("PASSED") == 2


@pytest.mark.slow
def test_no_pin_has_a_known_vulnerability(tools):
  try:
    socket.create_connection(("api.osv.dev", 443), timeout=5).close()
  except OSError as error:
    pytest.skip(f"the database of vulnerabilities cannot be reached: {error}")
  make = ("make", "-s", "audit", f"VENV={tools}", f"PYTHON={sys.executable}")
  _run(*make, cwd=ROOT)


@pytest.mark.slow
def test_a_wheel_trains_and_predicts_without_a_clone(built, tmp_path):
  _, wheel = built
  pins = str(ROOT / "constraints.txt")
  _run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
  python = tmp_path / "venv/bin/python"
  _run(
    *(python, "-m", "pip", "install", "-q", wheel),
    cwd=tmp_path,
    PIP_CONSTRAINT=pins,
  )
  command = tmp_path / "venv/bin/vit_jax"
  folder = tmp_path / "empty"
  folder.mkdir()
  short = ("--config.total_steps=4", "--config.total_epochs=0")
  short += ("--config.optimizer.warmup_epochs=0", "--config.model.num_layers=1")
  trained = _run(
    *(command, "train", "--config", "digits", "--workdir", "runs/digits"),
    *short,
    cwd=folder,
  )
  assert "with: vit_jax evaluate runs/digits" in trained
  resumed = _run(
    *(python, "-m", "vit_jax.train", "--config", "digits"),
    *("--workdir", "runs/digits", *short),
    cwd=folder,
  )
  assert "4 steps are done" in resumed
  import numpy as np
  from PIL import Image

  Image.fromarray(np.full((20, 30, 3), 9, np.uint8)).save(folder / "a.png")
  assert "a.png" in _run(command, "predict", "runs/digits", "a.png", cwd=folder)
  assert "digits" in _run(command, "configs", cwd=folder)


# Hides all packages that jax, flax, optax and jaxtyping do not bring.
_LIGHT = """
import importlib.metadata as metadata, sys
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

allowed, waiting = set(), ["jax", "flax", "optax", "jaxtyping"]
while waiting:
  name = canonicalize_name(waiting.pop())
  if name not in allowed:
    allowed.add(name)
    for text in metadata.requires(name) or ():
      needed = Requirement(text)
      if needed.marker is None or needed.marker.evaluate({"extra": ""}):
        waiting.append(needed.name)
hidden = {
  top
  for top, owners in metadata.packages_distributions().items()
  if not any(canonicalize_name(owner) in allowed for owner in owners)
} - {"vit_jax", "tests"}

class Hide:
  def find_spec(self, name, path=None, target=None):
    if name.partition(".")[0] in hidden:
      raise ModuleNotFoundError(name, name=name)

for name in list(sys.modules):
  if name.partition(".")[0] in hidden:
    del sys.modules[name]
sys.meta_path.insert(0, Hide())

import jax, vit_jax
model = vit_jax.make_vit("Ti/16", num_classes=3)
images = jax.numpy.zeros((1, 32, 32, 3))
params = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
logits = jax.eval_shape(lambda p: model.apply({"params": p}, images), params)
assert {"cv2", "PIL", "ml_collections", "pooch"} <= hidden, hidden
print(logits.shape)
"""


@pytest.mark.slow
def test_the_model_needs_only_jax_flax_optax_and_jaxtyping(tmp_path):
  done = _run(
    *(sys.executable, "-c", _LIGHT), cwd=ROOT, JAX_COMPILATION_CACHE_DIR=""
  )
  assert done == "(1, 3)\n"
