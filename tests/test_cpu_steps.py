"""The script that times train steps beside those of an earlier clone."""

import importlib
import sys

import scripts
import vit_jax
from scripts.bench.cpu_steps import imported_from


def test_an_earlier_clone_is_imported_beside_ours(tmp_path):
  for package in ("vit_jax", "scripts"):
    folder = tmp_path / package
    folder.mkdir()
    (folder / "__init__.py").write_text(f"from {package}.part import AGE\n")
    (folder / "part.py").write_text("AGE = 'earlier'\n")
  before, paths = dict(sys.modules), list(sys.path)
  with imported_from(tmp_path):
    for package in (vit_jax, scripts):
      earlier = importlib.import_module(package.__name__)
      assert earlier is not package
      assert earlier.AGE == "earlier"
  assert importlib.import_module("vit_jax") is vit_jax
  assert sys.modules == before
  assert sys.path == paths
