"""Losses of pairs of vectors, such as those of images and of their texts.

The sigmoid loss is SigLIP's (arXiv:2303.15343), the softmax loss CLIP's
(arXiv:2103.00020). Each device compares its own examples with the whole batch,
a block of examples at a time, so that no array is B x B.

Examples of one group, such as two images of one caption, are no negatives of
each other: both losses leave these comparisons out. They do not become
positives: equal captions have equal vectors, so an image compared with a copy
of its caption is its own pair again. It would count twice, and frequent
captions, which say least, would weigh most.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from vit_jax.models.partitioning import mesh_axes, on_each_device

Vectors = Float[Array, "B R"]
Losses = Float[Array, " B"]
Number = Float[Array, ""]
Groups = Int[Array, " B"] | UInt32[Array, " B"]
Counts = Bool[Array, " B"]
BLOCK = 2**22  # The most logits that a device holds at a time: 16 MiB.


def sigmoid_loss(
  u: Vectors,
  v: Vectors,
  log_scale: Number,
  bias: Number,
  groups: Groups | None = None,
  counts: Counts | None = None,
) -> Losses:
  """SigLIP's loss of each example, a sum over the texts of the batch.

  It is -sum_j log sigmoid(z_ij l_ij) with l_ij = exp(log_scale) u_i v_j + bias,
  where z is 1 for the example's own text and -1 for others.

  >>> import jax.numpy as jnp
  >>> from vit_jax.training.contrastive import sigmoid_loss
  >>> u = v = jnp.eye(2)
  >>> loss = sigmoid_loss(u, v, jnp.log(10.0), jnp.array(-10.0))
  >>> [round(float(x), 4) for x in loss]  # log(2) + log(1 + exp(-10))
  [0.6932, 0.6932]

  Args:
    u, v: Unit vectors of the images and of their texts, (B, R).
    log_scale: Logarithm of the factor of the cosines.
    bias: Added to the scaled cosines; in SigLIP it is -10 at first.
    groups: The number of each example's group, as from `text_groups`; sums
      leave out others of the same group. By default each example is a group of
      its own.
    counts: Which rows are examples, and not padding; by default all. Sums leave
      out padding, whose own losses are finite and mean nothing.
  """
  x = jnp.exp(log_scale) * u
  shift = jnp.broadcast_to(bias, len(x))
  positive = (x * v).sum(axis=1) + shift

  def add(total: Array, logits: Array) -> Array:
    return total + jax.nn.softplus(logits).sum(axis=1)

  start = jnp.zeros_like(positive)
  others = _over_others(add, start, x, v, shift, groups, counts)
  return jax.nn.softplus(-positive) + others


def softmax_loss(
  u: Vectors,
  v: Vectors,
  log_scale: Number,
  groups: Groups | None = None,
  counts: Counts | None = None,
) -> Losses:
  """CLIP's loss of each example, the mean of both directions.

  It is the cross-entropy of the example's own text among those of the batch,
  and of its own image among the images, with logits exp(log_scale) u_i v_j.

  >>> import jax.numpy as jnp
  >>> from vit_jax.training.contrastive import softmax_loss
  >>> u = v = jnp.eye(2)
  >>> loss = softmax_loss(u, v, jnp.array(0.0))
  >>> [round(float(x), 4) for x in loss]  # log(1 + exp(-1))
  [0.3133, 0.3133]

  Args:
    u, v, log_scale: As in `sigmoid_loss`.
    groups, counts: As in `sigmoid_loss`; the denominators leave out others of
      the same group, and examples that do not count.
  """
  scale = jnp.exp(log_scale)
  positive = scale * (u * v).sum(axis=1)

  def add(total: tuple[Array, Array], logits: Array) -> tuple[Array, Array]:
    """Adds exponentials of a block; a total is exp(highest) * relative."""
    highest, relative = total
    top = jax.lax.stop_gradient(jnp.maximum(highest, logits.max(axis=1)))
    rescaled = relative * jnp.exp(highest - top)
    return top, rescaled + jnp.exp(logits - top[:, None]).sum(axis=1)

  def denominator(x: Vectors, y: Vectors) -> Array:
    """The logarithm of the softmax's denominator, for each row of x.

    The sum goes over the row's own pair and its negatives.
    """
    first = jax.lax.stop_gradient(positive)
    start = first, jnp.exp(positive - first)
    zeros = jnp.zeros_like(positive)
    highest, relative = _over_others(
      add, start, scale * x, y, zeros, groups, counts
    )
    return highest + jnp.log(relative)

  return (denominator(u, v) + denominator(v, u)) / 2 - positive


def text_groups(tokens: Int[Array, "B T"]) -> UInt32[Array, " B"]:
  """The number of each text's group; equal texts, by their tokens, are a group.

  The number is a hash of 32 bits: of 500 batches with 4,096 different texts,
  about one has two texts with the same number.

  >>> import jax.numpy as jnp
  >>> from vit_jax.training.contrastive import text_groups
  >>> groups = text_groups(jnp.array([[1, 2], [2, 1], [1, 2]]))
  >>> bool(groups[0] == groups[2]), bool(groups[0] == groups[1])
  (True, False)
  """
  places = jnp.arange(tokens.shape[1], dtype=jnp.uint32)
  x = tokens.astype(jnp.uint32) + places[None] * jnp.uint32(0x9E3779B9)
  for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
    x = (x ^ (x >> shift)) * jnp.uint32(factor)
  return (x ^ (x >> 16)).sum(axis=1, dtype=jnp.uint32)


def _over_others(
  add: Callable[[Any, Float[Array, "b c"]], Any],
  start: Any,
  x: Vectors,
  y: Vectors,
  shift: Losses,
  groups: Groups | None,
  counts: Counts | None,
) -> Any:
  """The total over the logits x y^T + shift of each row, block by block.

  `add` maps a total and the logits of a block to the next total. Logits within
  a group, among them a row's own, are -inf, and so are those of columns that do
  not count. `start` is the first total, whose arrays have a row for each
  example. The backward pass computes the logits again.
  """
  groups = jnp.arange(len(x)) if groups is None else groups
  axes = mesh_axes("batch")

  def on_device(
    start: Any, x: Array, y: Array, shift: Array, groups: Array, counts: Any
  ):
    """The totals of the device's rows, over the columns of all devices."""
    every = y, groups, counts
    if axes:
      every = jax.tree.map(
        lambda array: jax.lax.all_gather(array, axes, tiled=True), every
      )
    blocks = _cut_columns(len(x), *every)

    @jax.checkpoint
    def add_block(total: Any, columns: _Columns):
      """Adds the logits of a block of columns to the totals."""
      y, column_groups, counts = columns
      # Cosines times 100 need more than the bfloat16 that TPUs multiply in.
      logits = jnp.matmul(x, y.T, precision="highest") + shift[:, None]
      others = (groups[:, None] != column_groups[None]) & counts[None]
      return add(total, jnp.where(others, logits, -jnp.inf)), None

    return jax.lax.scan(add_block, start, blocks)[0]

  on_devices = on_each_device(on_device, ("batch",))
  return on_devices(start, x, y, shift, groups, counts)


class _Columns(NamedTuple):
  """Columns of the logits, in n equal blocks of c columns.

  Attributes:
    y: The vectors of the columns, (n, c, R).
    groups: The groups of the columns, (n, c).
    counts: Which columns count and are no padding, booleans (n, c).
  """

  y: Array
  groups: Array
  counts: Array


def _cut_columns(
  rows: int, y: Vectors, groups: Array, counts: Counts | None
) -> _Columns:
  """Cuts the columns into blocks of at most `BLOCK` logits with all `rows`.

  Columns of padding, which do not count, fill up the last block.
  """
  count = -(-rows * len(y) // BLOCK)
  size = -(-len(y) // count)
  padding = count * size - len(y)

  def cut(array: Array) -> Array:
    padded = jnp.pad(array, [(0, padding)] + [(0, 0)] * (array.ndim - 1))
    return padded.reshape(count, size, *array.shape[1:])

  counts = jnp.ones(len(y), bool) if counts is None else counts
  return _Columns(cut(y), cut(groups), cut(counts))
