"""Checksums against the formula, in NumPy."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from tests import tiny
from vit_jax.data.reading.mask_folder import MASKS
from vit_jax.training.sharding import make_mesh
from vit_jax.workdir import description
from vit_jax.workdir.description import (
  check_same_run,
  checksum_on_host,
  checksums,
)

checksum = jax.jit(description.checksum)

ARRAYS = [
  np.random.default_rng(0).normal(size=(4, 6, 5)).astype(np.float32),
  np.random.default_rng(1).normal(size=(8, 3)).astype(ml_dtypes.bfloat16),
  np.random.default_rng(2).integers(-99, 99, 17).astype(np.int32),
  np.array(7, np.int32),
  np.array([0.0, -0.0, np.inf, np.nan], np.float32),
  np.zeros((0, 3), np.float32),
  np.array([True, False, True]),
  np.random.default_rng(3).integers(0, 256, 140_000, np.uint8),  # In parts.
  np.random.default_rng(4).normal(size=(300, 501)).astype(np.float32),
]


@pytest.mark.parametrize(
  "array",
  [*ARRAYS[:-1], pytest.param(ARRAYS[-1], marks=pytest.mark.slow)],
  ids=lambda a: f"{a.dtype}{a.shape}",
)
def test_the_formula(array):
  bits = np.ascontiguousarray(array).reshape(-1)
  bits = bits.view(f"uint{8 * array.dtype.itemsize}").tolist()
  expected = sum(b * (2 * i + 1) for i, b in enumerate(bits)) % 2**32
  assert int(checksum(jnp.asarray(array))) == expected
  assert (
    checksum_on_host(array) == checksum_on_host(jnp.asarray(array)) == expected
  )
  turned = np.asarray(array).T  # Its elements do not lie one after the other.
  assert checksum_on_host(turned) == int(checksum(jnp.asarray(turned)))


def test_on_one_cpu_nothing_is_compiled():
  array = np.random.default_rng(0).normal(size=(16, 23)).astype(np.float32)
  on_device = jnp.asarray(array)
  with tiny.compilations() as found:
    assert checksums({"a": on_device}) == {"a": checksum_on_host(array)}
  assert not found


@pytest.mark.parametrize("spec", [("data",), (None, "data"), ()])
def test_the_same_wherever_the_parts_are(spec):
  array = np.random.default_rng(0).normal(size=(16, 24)).astype(np.float32)
  sharding = jax.sharding.NamedSharding(make_mesh(), PartitionSpec(*spec))
  found = checksums({"a": {"b": jax.device_put(array, sharding)}})
  assert found == {"a/b": int(checksum(jnp.asarray(array)))}


def test_every_flip_of_a_bit_shows():
  array = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
  original = int(checksum(jnp.asarray(array)))
  for byte in range(array.nbytes):
    for bit in range(0, 8, 3):
      raw = bytearray(array.tobytes())
      raw[byte] ^= 1 << bit
      flipped = np.frombuffer(bytes(raw), np.float32).reshape(array.shape)
      assert int(checksum(jnp.asarray(flipped))) != original


def test_two_elements_that_change_places_show():
  array = np.arange(6, dtype=np.float32)
  swapped = array[[0, 2, 1, 3, 4, 5]]
  assert checksum(jnp.asarray(array)) != checksum(jnp.asarray(swapped))


def test_a_folder_that_is_read_otherwise_today_is_said():
  config = {"data": {"root": "scenes", "labels_file": None}}
  saved = {"config": config, "class_names": ["seg_test", "seg_train"]}
  now = saved | {"class_names": ["forest", "sea"]}
  with pytest.raises(ValueError, match="fewer names of splits, .* seg_train"):
    check_same_run(saved, now, "run")
  with pytest.raises(
    ValueError, match="classes of the run come from a classes.txt"
  ):
    check_same_run(saved, now, "run", MASKS)
  with pytest.raises(ValueError, match="fewer names of splits, .* seg_train"):
    check_same_run(
      saved | {"train_examples": 8}, saved | {"train_examples": 9}, "run", MASKS
    )
  labels = {"data": {"root": "scenes", "labels_file": "l.csv"}}
  with pytest.raises(
    ValueError, match="unless layers .* pass --allow_changes[.]$"
  ):
    check_same_run(saved | {"config": labels}, now | {"config": labels}, "run")
