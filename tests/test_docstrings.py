"""The examples in docstrings run, and print what they say."""

import doctest
import inspect

import pytest

import vit_jax
from vit_jax import data

FINDER = doctest.DocTestFinder(recurse=False)
EXAMPLES = {
  test.name: test
  for package in (vit_jax, data)
  for name in package.__all__
  for test in FINDER.find(
    getattr(package, name), f"{package.__name__}.{name}", globs={}
  )
  if test.examples
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_what_it_says(name):
  runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
  printed: list[str] = []
  assert not runner.run(EXAMPLES[name], out=printed.append).failed, printed


def test_functions_on_a_model_and_images_have_an_example():
  functions = {
    name
    for name in vit_jax.__all__
    if getattr(vit_jax, name).__module__.startswith("vit_jax.inference.")
  }
  assert functions == {"export_model", "features", "predict_images"}
  assert {f"vit_jax.{name}" for name in functions} <= {*EXAMPLES}


def test_functions_on_data_have_an_example():
  functions = {
    name for name in data.__all__ if inspect.isfunction(getattr(data, name))
  }
  assert {"as_grain", "open_source"} <= functions
  expected = {*functions, "Loader", "Preprocessing"}
  assert {f"vit_jax.data.{name}" for name in expected} <= {*EXAMPLES}
