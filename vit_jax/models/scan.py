"""The L blocks of an encoder, one compiled block or L of them.

Unrolled, each block has parameters of its own, `block_0` to `block_{L-1}`.
Scanned, one block is compiled and run L times; its parameters are those of all
layers, stacked (L, ...), as `blocks`. Either layout turns into the other.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

STACKED = "blocks"
_FIRST = "block_0"


def scan_layers(run: Callable, num_layers: int) -> Callable:
  """A function of (block, z, R) that runs `run` of them L times over z."""

  def body(block: nn.Module, z: Any, R: Any) -> tuple[Any, None]:
    return run(block, z, R), None

  return nn.scan(
    body,
    variable_axes={"params": 0, "intermediates": 0},
    split_rngs={"params": True, "dropout": True},
    length=num_layers,
    metadata_params={nn.PARTITION_NAME: "layers"},
  )


def stack(tree: Any) -> Any:
  """The scanned layout of all parameters in a tree, such as a train state."""

  def stacked(params: Any) -> Any:
    if not _holds(params, _FIRST):
      return params
    names = [name for name in params if name.startswith("block_")]
    names.sort(key=lambda name: int(name.removeprefix("block_")))
    blocks = [params[name] for name in names]
    others = {k: v for k, v in params.items() if k not in names}
    return {**others, STACKED: jax.tree.map(_stack, *blocks)}

  return jax.tree.map(stacked, tree, is_leaf=lambda t: _holds(t, _FIRST))


def unstack(tree: Any) -> Any:
  """The unrolled layout of all parameters in a tree."""

  def unrolled(params: Any) -> Any:
    if not _holds(params, STACKED):
      return params
    others = {k: v for k, v in params.items() if k != STACKED}
    num_layers = len(jax.tree.leaves(params[STACKED])[0])
    blocks = {
      f"block_{i}": jax.tree.map(lambda x, i=i: x[i], params[STACKED])
      for i in range(num_layers)
    }
    return {**others, **blocks}

  return jax.tree.map(unrolled, tree, is_leaf=lambda t: _holds(t, STACKED))


def _stack(*arrays: Any) -> Any:
  numpy = isinstance(arrays[0], np.ndarray)  # And stays on the host.
  return (np if numpy else jnp).stack(arrays)


def _holds(tree: Any, name: str) -> bool:
  return isinstance(tree, dict) and name in tree
