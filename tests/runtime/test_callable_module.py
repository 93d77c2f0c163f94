"""Commands' modules as functions, whichever way they are imported first."""

import inspect
import subprocess
import sys

import pytest

import vit_jax

CALLABLE = ("convert", "evaluate", "find_lr", "report", "train", "visualize")
BOTH = """
{first}
import inspect
import vit_jax
{called} = vit_jax.{called}
import vit_jax.{called}
from vit_jax import {called} as again
assert vit_jax.{called} is {called} is again
assert callable({called}) and {called}.__name__ == "vit_jax.{called}"
assert inspect.getmodule({called}) is {called}
assert "jax" not in __import__("sys").modules
"""


@pytest.mark.parametrize(
  "first", ["", "import vit_jax.{}", "from vit_jax import {}"]
)
def test_it_is_one_object_in_every_order_of_imports(first):
  code = "".join(
    BOTH.format(first=first.format(name), called=name) for name in CALLABLE
  )
  done = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, done.stderr


def test_it_has_the_signature_and_the_description_of_the_function():
  parameters = inspect.signature(vit_jax.convert).parameters
  assert [*parameters] == ["source", "folder", "to", "options"]
  assert "or a loaded model" in type(vit_jax.convert).__doc__
  for name in CALLABLE:
    text = getattr(vit_jax, name).__doc__
    assert f"vit_jax.{name}(" in text and " --" not in text, name
