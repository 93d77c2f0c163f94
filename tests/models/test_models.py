"""The folder as a whole: its names, and what it imports."""

import ast
import pathlib
import subprocess
import sys

import pytest

import vit_jax.models

FOLDER = pathlib.Path(vit_jax.models.__file__).parent
FILES = sorted(path.name for path in FOLDER.glob("*.py"))


def test_the_folder_offers_its_names():
  assert set(vit_jax.models.__all__) <= set(dir(vit_jax.models))
  for name in vit_jax.models.__all__:
    assert getattr(vit_jax.models, name).__name__ == name
  with pytest.raises(AttributeError, match="no attribute 'make_vti'"):
    _ = vit_jax.models.make_vti


def test_a_module_does_not_load_the_others():
  code = (
    "import sys, vit_jax.models; "
    "assert not {'jax', 'flax'} & set(sys.modules); "
    "import vit_jax.models.partitioning; print(*sorted(sys.modules))"
  )
  done = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, check=True
  )
  loaded = done.stdout.split()
  ours = [name for name in loaded if name.startswith("vit_jax.models.")]
  assert ours == ["vit_jax.models.partitioning"]


@pytest.mark.parametrize("name", FILES)
def test_no_file_imports_another_folder_of_the_package(name):
  for node in ast.walk(ast.parse((FOLDER / name).read_text())):
    if isinstance(node, ast.Import):
      targets = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      assert not node.level  # Names of modules are written in full.
      targets = [f"{node.module}.{alias.name}" for alias in node.names]
    else:
      continue
    for target in targets:
      if target.split(".")[0] == "vit_jax":
        assert target.startswith("vit_jax.models."), target
