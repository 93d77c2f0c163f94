"""The L blocks of an encoder, compiled one by one or as a single one.

Unrolled, each block has parameters of its own, `block_0` to `block_{L-1}`.
Scanned, one block is compiled and run L times; the parameters of all layers
are stacked, (L, ...), as `blocks`. `stack` and `unstack` of `parts` turn
either layout into the other.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
from jaxtyping import Array

from vit_jax.models.partitioning import in_use
from vit_jax.models.parts import OURS
from vit_jax.models.position import Positions
from vit_jax.models.tokens import Tokens

Layers = list[Callable[[Tokens], Tokens]]
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
  """The layers of a model, Eq. 2 and 3, as functions of tokens to call in turn.

  If they are scanned, one function that runs them all. They raise ValueError if
  there is a mask and the class of the layers takes none.

  Args:
    make_block: Builds a block from the name of its parameters.
    positions: Position embeddings of the layers; Eq. 1 has added the first.
    train: Whether dropout is on.
  """

  def run(block: Any, tokens: Tokens, R: Array | None) -> Tokens:
    z = in_use(tokens.z, ("batch", None, None))
    z = block(z, R, train=train, **_seen(block, tokens, R))
    return tokens.replace(z=z)

  if policy := REMATS[vit.remat]:
    run = nn.remat(run, policy=policy, prevent_cse=not vit.scan)
  if vit.scan:
    block = make_block(name=OURS.stacked)
    R = positions.relative[0]  # The same for all layers, or none.
    return [partial(_scanned(run, vit.num_layers), block, R)]

  def run_layer(layer: int, tokens: Tokens) -> Tokens:
    E_pos = tokens.E_pos if layer else None
    table = positions.added[layer]
    if table is not None:
      E_pos = tokens.of_places(table)
    if E_pos is not None:  # Positions at every layer, App. D.4.
      tokens = tokens.replace(z=tokens.z + E_pos)
    block = make_block(name=OURS.of(layer))
    return run(block, tokens, positions.relative[layer])

  return [partial(run_layer, layer) for layer in range(vit.num_layers)]


def _seen(
  block: nn.Module, tokens: Tokens, R: Array | None
) -> dict[str, Array]:
  """The arguments of a layer about its tokens, besides their values and R.

  A class of layers that takes no `where` uses no places of patches but in R.
  """
  takes = inspect.signature(block.__call__).parameters
  if tokens.mask is not None and "mask" not in takes:
    raise ValueError(
      f"layers of class {type(block).__name__} take no mask, so they cannot "
      "leave tokens out: give tokens without a mask, or use layers that take "
      "one as EncoderBlock does."
    )
  if tokens.where is not None and R is not None and "where" not in takes:
    raise ValueError(
      f"layers of class {type(block).__name__} take no `where`, so they cannot "
      "tell relative positions once patches were left out: keep all patches, "
      "or use layers that take it as EncoderBlock does."
    )
  seen = {"mask": tokens.seen, "where": tokens.where}
  return {k: v for k, v in seen.items() if v is not None and k in takes}


def _scanned(run: Callable, num_layers: int) -> Callable:
  """A function of (block, R, tokens) that applies `run` L times to tokens."""

  def body(
    block: nn.Module, tokens: Tokens, R: Array | None
  ) -> tuple[Tokens, None]:
    return run(block, tokens, R), None

  scanned = nn.scan(
    body,
    variable_axes={"params": 0, "intermediates": 0},
    split_rngs={"params": True, "dropout": True},
    length=num_layers,
    in_axes=nn.broadcast,  # pyright: ignore[reportArgumentType]
    metadata_params={nn.PARTITION_NAME: "layers"},
  )
  return lambda block, R, tokens: scanned(block, tokens, R)[0]
