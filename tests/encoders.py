"""Tiny encoders made by their publishers' own code, with what they compute.

tests/checkpoints/encoders/make.py made them; README.md there says more.
"""

import atexit
import functools
import json
import pathlib
import shutil
import tempfile

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.checkpoints.encoders import drawn
from vit_jax import load_pretrained

FOLDER = pathlib.Path(__file__).parent / "checkpoints" / "encoders"
NAMES = sorted(path.parent.name for path in FOLDER.glob("*/config.json"))
# The table of positions is for the first.
SIZES = (
  pytest.param("32x32", marks=pytest.mark.slow),
  "24x40",
  pytest.param("48x48", marks=pytest.mark.slow),
)


def path(name):
  """The folder of an encoder, as its library saved it."""
  return _with_weights(name) if name in drawn.TIMES else str(FOLDER / name)


@functools.cache
def _with_weights(name):
  """A copy of an encoder's folder, with the weights that are drawn."""
  scratch = tempfile.TemporaryDirectory()
  atexit.register(scratch.cleanup)
  folder = pathlib.Path(scratch.name) / name
  shutil.copytree(FOLDER / name, folder)
  shapes = json.loads((folder / drawn.FILE).read_text())
  save_file(drawn.parameters(shapes), folder / "model.safetensors")
  return str(folder)


def expected(name, size):
  """Normalised images, all tokens after the last norm, logits or features."""
  tokens, answer = (stored(name, f"{x}_{size}") for x in ("tokens", "answer"))
  images = stored(name, f"images_{size}", elsewhere="hf_clip")
  times = drawn.TIMES.get(name, 1)
  images = images.repeat(times, axis=1).repeat(times, axis=2)
  return images.astype(np.float32), tokens, answer


def stored(name, array, elsewhere=""):
  """An array beside an encoder, or if it has none, beside another."""
  with np.load(FOLDER / name / "expected.npz") as arrays:
    return arrays[array] if array in arrays else stored(elsewhere, array)


def computed(model, params, images):
  """What our model computes: all tokens after any last norm, and the result."""

  @jax.jit
  def run(params, images):
    answer, seen = model.apply(
      {"params": params},
      images,
      capture_intermediates=lambda module, _: module.name == "norm",
      mutable="intermediates",
    )
    if "norm" not in seen["intermediates"]:
      return model.apply({"params": params}, images, method="encode")[0], answer
    return seen["intermediates"]["norm"]["__call__"][0], answer

  return run(params, images)


def assert_close(found, expected, share=1e-4):
  """Checks that arrays differ by at most a share of the largest value."""
  assert found.shape == expected.shape
  assert np.abs(found - expected).max() <= share * np.abs(expected).max()


@functools.cache
def loaded(name):
  """An encoder, loaded once."""
  return load_pretrained(path(name))


def assert_the_publishers(name, size):
  """Checks all tokens and the answer of an encoder."""
  images, tokens, answer = expected(name, size)
  found = computed(*loaded(name), images)
  assert_close(found[0], tokens)
  assert_close(found[1], answer)
