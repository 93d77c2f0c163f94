"""Checksums of arrays, computed where they are, however they are split."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, UInt32


def checksums(tree: Any) -> dict[str, int]:
  """A number below 2^32 for the content of each array, by its path.

  The sum, modulo 2^32, of an array's elements, their bits taken as integers,
  each times 2 i + 1, i its place in row-major order. The factors are odd: a
  change of any one element changes the sum, and of several all but one in 2^32.
  """
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  # One after the other: many small programs with a sum over devices in each,
  # all under way at once, can wait for each other on CPUs for ever.
  return {
    jax.tree_util.keystr(path, simple=True, separator="/"): int(
      _jitted(_whole(array))(array)
    )
    for path, array in leaves
  }


def checksum(array: Array) -> UInt32[Array, ""]:
  """Of one array; see `checksums`."""
  place = jnp.zeros((), jnp.uint32)
  for axis, length in enumerate(array.shape):  # Row-major, without a reshape.
    along = jax.lax.broadcasted_iota(jnp.uint32, array.shape, axis)
    place = place * jnp.uint32(length) + along
  bits = array
  if not jnp.issubdtype(array.dtype, jnp.unsignedinteger):
    width = 8 * array.dtype.itemsize
    bits = jax.lax.bitcast_convert_type(array, jnp.dtype(f"uint{width}"))
  return jnp.sum(bits.astype(jnp.uint32) * (2 * place + 1), dtype=jnp.uint32)


@functools.cache
def _jitted(sharding: NamedSharding | None) -> Any:
  return jax.jit(checksum, out_shardings=sharding)


def _whole(array: Array) -> NamedSharding | None:
  """The sum on every device of the array's, so that every host can read it."""
  sharding = getattr(array, "sharding", None)
  if isinstance(sharding, NamedSharding):
    return NamedSharding(sharding.mesh, PartitionSpec())
  return None
