"""What is read and compared of runs that were saved long ago."""

import json
import pathlib

import jax
import numpy as np
import pytest
from flax import traverse_util

CHECKPOINTS = pathlib.Path(__file__).parent / "checkpoints"
# This bias does not affect the softmax. Its gradient is rounding noise, which
# Adam scales up to steps as large as those of any other parameter.
UNSEEN = "msa/key/bias"


def description_file(workdir):
  """That of the run's first checkpoint."""
  return min((workdir / "checkpoints").glob("*/description/metadata"))


def described(workdir):
  """The checkpoint's description."""
  return json.loads(description_file(workdir).read_text())


def flat(tree):
  """Arrays by paths such as "block_0/msa/out/bias"."""
  leaves = traverse_util.flatten_dict(jax.device_get(tree), sep="/")
  return {path: np.asarray(array) for path, array in leaves.items()}


def outlines(arrays):
  """For each array its norm, which depends on every value, and some values."""
  found = {}
  for path, array in arrays.items():
    chosen = np.linspace(0, array.size - 1, min(array.size, 8)).astype(int)
    norm = float(np.linalg.norm(array.astype(np.float64)))
    found[path] = [norm, *array.reshape(-1)[chosen].astype(float).tolist()]
  return found


def trained(state):
  """The outlines of all parameters of a state, including the averaged ones."""
  tree = {"params": state.params}
  if state.averaged_params is not None:
    tree["averaged_params"] = state.averaged_params
  return outlines(flat(tree))


# The order of summation depends on the CPU, the number of devices and the
# version of XLA. Steps of training add up what that changes.
ROUNDING, TRAINED = 1e-5, 1e-4
# The roots of eigenvalues that are nearly 0 have ten times the error.
ROOTS = "eval/rank"
# Metrics that are measured since, of which the runs have no record.
SINCE = ("eval/auroc",)


def assert_same(found, old, where="", rounding=ROUNDING):
  """Compares values as of JSON, numbers up to rounding (relative)."""
  if isinstance(old, dict):
    assert sorted({*found}.difference(SINCE)) == sorted(old), where
    for key in old:
      if not key.endswith(UNSEEN):
        most = rounding * (10 if key.endswith(ROOTS) else 1)
        assert_same(found[key], old[key], f"{where}/{key}", most)
  elif isinstance(old, list):
    assert len(found) == len(old), where
    for k, (one, other) in enumerate(zip(found, old, strict=True)):
      assert_same(one, other, f"{where}/{k}", rounding)
  elif isinstance(old, float):
    close = pytest.approx(old, rel=rounding, abs=rounding / 10)
    assert found == close, where
  else:
    assert found == old, where
