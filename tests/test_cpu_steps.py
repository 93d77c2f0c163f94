"""The script that times train steps beside those of an earlier clone."""

import importlib
import sys

import vit_jax
from scripts.bench.cpu_steps import imported_from


def test_an_earlier_clone_is_imported_beside_ours(tmp_path):
  package = tmp_path / "vit_jax"
  package.mkdir()
  (package / "__init__.py").write_text("from vit_jax.part import AGE\n")
  (package / "part.py").write_text("AGE = 'earlier'\n")
  before, paths = dict(sys.modules), list(sys.path)
  with imported_from(tmp_path):
    earlier = importlib.import_module("vit_jax")
    assert earlier is not vit_jax
    assert earlier.AGE == "earlier"
  assert importlib.import_module("vit_jax") is vit_jax
  assert sys.modules == before
  assert sys.path == paths
