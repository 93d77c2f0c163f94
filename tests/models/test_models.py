"""The folder as a whole: its names, and what it imports."""

import subprocess
import sys

import pytest

import vit_jax
import vit_jax.models


@pytest.mark.parametrize("module", [vit_jax, vit_jax.models])
def test_the_package_and_the_folder_offer_their_names(module):
  assert set(module.__all__) <= set(dir(module))
  for name in module.__all__:
    assert getattr(module, name).__name__.rpartition(".")[2] == name
  with pytest.raises(AttributeError, match="no attribute 'make_vti'"):
    _ = module.make_vti


@pytest.mark.slow
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
