"""The names of layers, and trees with their layers stacked or one by one.

A tree is one of parameters or whatever else is kept for each of them, such as
a train state. Unrolled, it has a module for every layer; stacked, a single one
whose arrays run over the layers first, (L, ...).
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class LayerNames:
  """The names of layers, `each` with {} for its number, counted from 0.

  If the layers are scanned, their parameters are stacked, (L, ...), and lie in
  one module that is called `stacked`.
  """

  each: str = "block_{}"
  stacked: str = "blocks"

  def of(self, layer: int) -> str:
    """The name of a layer."""
    return self.each.format(layer)

  def number(self, name: str) -> int | None:
    """The number of the layer with this name; None if it is no layer's."""
    before, _, after = self.each.partition("{}")
    digits = name.removeprefix(before).removesuffix(after)
    is_layer = digits.isdecimal() and name == self.of(int(digits))
    return int(digits) if is_layer else None


OURS = LayerNames()
"""The names that `scan.make_blocks` gives to layers."""


def stack(tree: Any, names: LayerNames = OURS) -> Any:
  """A tree, such as a train state, with its layers in the scanned layout."""

  def holds(node: Any) -> bool:
    return isinstance(node, dict) and names.of(0) in node

  def stacked(node: Any) -> Any:
    if not holds(node):
      return node
    layers = [name for name in node if names.number(name) is not None]
    layers.sort(key=lambda name: names.number(name) or 0)
    one = jax.tree.map(_stacked, *(node[name] for name in layers))
    others = {k: stack(v, names) for k, v in node.items() if k not in layers}
    return {**others, names.stacked: one}

  return jax.tree.map(stacked, tree, is_leaf=holds)


def unstack(tree: Any, names: LayerNames = OURS) -> Any:
  """A tree with its layers in the unrolled layout."""

  def holds(node: Any) -> bool:
    return isinstance(node, dict) and names.stacked in node

  def unrolled(node: Any) -> Any:
    if not holds(node):
      return node
    one = node[names.stacked]
    others = {k: v for k, v in node.items() if k != names.stacked}
    others = {k: unstack(v, names) for k, v in others.items()}
    layers = {
      names.of(i): jax.tree.map(lambda x, i=i: x[i], one)
      for i in range(len(jax.tree.leaves(one)[0]))
    }
    return {**others, **layers}

  return jax.tree.map(unrolled, tree, is_leaf=holds)


def _stacked(*arrays: Any) -> Any:
  on_host = isinstance(arrays[0], np.ndarray)  # NumPy arrays stay on the host.
  return (np if on_host else jnp).stack(arrays)
