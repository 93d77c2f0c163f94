"""The items of msgpack are counted before they take memory."""

import msgpack
import numpy as np
import pytest
from flax import serialization

from tests.memory import bounded_memory
from vit_jax.pretrained import msgpack_items
from vit_jax.pretrained.arrays import UnreadableFileError, open_arrays


def _random(rng, depth):
  """A random value of any of msgpack's types, and its number of items."""
  kind = rng.integers(0, 9 if depth else 7)
  size = int(rng.choice([0, 3, 31, 32, 300, 70_000]))
  values = [
    *(None, True, int(rng.integers(-(2**62), 2**62)), float(rng.normal())),
    *("x" * size, b"x" * size, msgpack.ExtType(5, b"x" * max(1, size % 99))),
  ]
  if kind < 7:
    return values[kind], 1
  parts = [
    _random(rng, depth - 1) for _ in range(rng.choice([0, 2, 15, 16, 40]))
  ]
  count = 1 + sum(n for _, n in parts)
  if kind == 7:
    return [value for value, _ in parts], count
  return {k: value for k, (value, _) in enumerate(parts)}, count + len(parts)


@pytest.mark.parametrize("seed", range(20))
def test_every_item_is_counted(seed):
  value, count = _random(np.random.default_rng(seed), 2)
  content = msgpack.packb(value)
  assert msgpack_items.count_items(content, 0, len(content), 10**6) == count
  if count > 1:
    with pytest.raises(UnreadableFileError, match="more than .* parts, which"):
      msgpack_items.count_items(content, 0, len(content), count - 1)


def test_weights_pass():
  tree = {"a": {"kernel": np.ones((3, 4, 5), np.float32)}, "b": np.float32(1)}
  msgpack_items.check(serialization.msgpack_serialize(tree))


def _map_of(count):
  return b"\xdf" + count.to_bytes(4, "big")


def _array_of(count):
  return b"\xdd" + count.to_bytes(4, "big")


MANY = 20_000


@pytest.mark.parametrize(
  "content",
  [
    b"\x81\xa1a" + _array_of(MANY) + b"\x80" * MANY,
    b"\x81\xa1a" + _map_of(MANY) + b"\x01\x80" * MANY,
    b"\x81\xa1a" + _array_of(2**32 - 1) + b"\x80" * MANY,
    # In the place of an array.
    b"\x81\xa1a\xc9"
    + (MANY + 5).to_bytes(4, "big")
    + b"\x01"
    + _array_of(MANY)
    + b"\x80" * MANY,
    b"\x81\xa1a" + b"\x81\xa1a" * MANY + b"\x80",
  ],
)
def test_many_small_parts_take_no_memory(tmp_path, content, monkeypatch):
  """Thirty million empty maps took 2.3 GB."""
  monkeypatch.setattr(msgpack_items, "MOST", 10_000)
  path = tmp_path / "flax_model.msgpack"
  path.write_bytes(content)
  with (
    bounded_memory(2**20),
    pytest.raises(UnreadableFileError, match="holds more than .* parts, which"),
    open_arrays(path),
  ):
    pass


def test_names_are_printable(tmp_path):
  path = tmp_path / "flax_model.msgpack"
  path.write_bytes(serialization.msgpack_serialize({"a\x1b[31m\n": "text"}))
  with (
    pytest.raises(
      UnreadableFileError, match=r"'a\\x1b\[31m\\n' is not an ar"
    ) as e,
    open_arrays(path),
  ):
    pass
  assert str(e.value).isprintable()
