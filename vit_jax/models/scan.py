"""The L blocks of an encoder, compiled one by one or as a single one.

Unrolled, each block has parameters of its own, `block_0` to `block_{L-1}`.
Scanned, one block is compiled and run L times; the parameters of all layers
are stacked, (L, ...), as `blocks`. `parts.stack` and `parts.unstack` turn
either layout into the other.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
from jaxtyping import Array

from vit_jax.models.partitioning import in_use
from vit_jax.models.parts import OURS
from vit_jax.models.parts import stack as stack
from vit_jax.models.parts import unstack as unstack
from vit_jax.models.position import Positions

Layers = list[Callable[[Array], Array]]
# Values that each block saves for the backward pass; the rest is recomputed:
# all activations, the products of the dense layers, or the block's input alone.
REMATS = {
  "none": None,
  "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  "full": jax.checkpoint_policies.nothing_saveable,
}


def make_blocks(
  vit: Any,
  make_block: Callable[..., nn.Module],
  positions: Positions,
  train: bool,
) -> Layers:
  """The layers of a model, Eq. 2 and 3, as functions of z to call in turn.

  If they are scanned, one function that runs them all.

  Args:
    make_block: Builds a block from the name of its parameters.
    positions: Position embeddings of the layers; Eq. 1 has added the first.
    train: Whether dropout is on.
  """

  def run(block: nn.Module, z: Array, R: Array | None) -> Array:
    return block(in_use(z, ("batch", None, None)), R, train=train)

  if policy := REMATS[vit.remat]:
    run = nn.remat(run, policy=policy, prevent_cse=not vit.scan)
  if vit.scan:
    block = make_block(name=OURS.stacked)
    return [partial(_scanned(run, vit.num_layers), block)]

  def run_layer(layer: int, z: Array) -> Array:
    E_pos = positions.added[layer] if layer else None
    z = z if E_pos is None else z + E_pos  # Positions at every layer, App. D.4.
    block = make_block(name=OURS.of(layer))
    return run(block, z, positions.relative[layer])

  return [partial(run_layer, layer) for layer in range(vit.num_layers)]


def _scanned(run: Callable, num_layers: int) -> Callable:
  """A function of (block, z) that applies `run` L times to z."""

  def body(block: nn.Module, z: Any) -> tuple[Any, None]:
    return run(block, z, None), None

  scanned = nn.scan(
    body,
    variable_axes={"params": 0, "intermediates": 0},
    split_rngs={"params": True, "dropout": True},
    length=num_layers,
    metadata_params={nn.PARTITION_NAME: "layers"},
  )
  return lambda block, z: scanned(block, z)[0]
