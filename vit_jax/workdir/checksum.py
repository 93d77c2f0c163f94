"""Checksums of arrays, computed on the devices that hold them."""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, UInt32


def checksums(tree: Any) -> dict[str, int]:
  """The checksum of each array of a tree, by the array's path.

  A checksum is the sum over i of (2 i + 1) x_i, modulo 2^32, where x_i is the
  i-th element in row-major order with its bits taken as an integer. As every
  factor is odd, a change of a single element always changes the sum; a change
  of several goes unnoticed with a probability of 2^-32. The sum does not depend
  on how an array is split over devices.
  """
  # One after the other: if many small programs that each sum over devices run
  # at once, on CPUs they can wait for each other for ever.
  return {
    path: int(_jitted(_whole(array))(array))
    for path, array in named_leaves(tree)
  }


def named_leaves(tree: Any) -> Iterator[tuple[str, Any]]:
  """The leaves of a tree, each with its path such as `params/head/bias`."""
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    yield jax.tree_util.keystr(path, simple=True, separator="/"), leaf


def checksum(array: Array) -> UInt32[Array, ""]:
  """The checksum of one array; `checksums` gives the formula."""
  place = jnp.zeros((), jnp.uint32)  # i; a reshape would gather the parts.
  for axis, length in enumerate(array.shape):
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
  """Puts the sum on every device of the array, so that every host has it."""
  sharding = getattr(array, "sharding", None)
  if isinstance(sharding, NamedSharding):
    return NamedSharding(sharding.mesh, PartitionSpec())
  return None
