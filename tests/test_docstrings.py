"""The examples in docstrings run, and print what they say."""

import doctest

import pytest

import vit_jax

FINDER = doctest.DocTestFinder(recurse=False)
EXAMPLES = {
  name: test
  for name in vit_jax.__all__
  for test in FINDER.find(getattr(vit_jax, name), name, globs={})
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
  assert functions <= {*EXAMPLES}
