"""The mask of attention: which keys a query sees.

Every form of attention converts the mask to what it needs: the plain form and
XLA's form for TPUs to a boolean for each pair of query and key, kernels to the
segments of tokens, or to the number of keys that count. A row has T queries and
S keys, which are its tokens.
"""

from typing import Any, NamedTuple, Self

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

# Segments that no token of the other side has: these keys are not seen, and
# these queries see nothing.
NO_KEY, NO_QUERY = -1, -2


class Segments(NamedTuple):
  """A mask as kernels take it: a query sees the keys of its own segment.

  Attributes:
    query: The segment of each query, (B, T).
    key: The segment of each key, (B, S).
    order: The place of each query among the keys, (T,), if no query sees later
      keys; else None.
  """

  query: Int[Array, "B T"]
  key: Int[Array, "B S"]
  order: Int[Array, " T"] | None

  @property
  def axes(self) -> "Segments":
    """The logical axes of each array, as `partitioning` names them."""
    rows: Any = ("batch", None)
    order: Any = None if self.order is None else (None,)
    return Segments(rows, rows, order)

  def cut(self, start: int, count: int) -> "Segments":
    """The segments for `count` of the queries, the first being `start`."""
    cut = slice(start, start + count)
    order = None if self.order is None else self.order[cut]
    return Segments(self.query[:, cut], self.key, order)


class AttentionMask(struct.PyTreeNode):
  """Which keys each query sees: those that every given field lets it see.

  Attributes:
    counts: Which keys count, booleans (B, S).
    lengths: How many of the first keys count, integers (B,).
    image: Which image of its row each token is of, integers (B, S), -1 for
      padding: images of a row do not see each other. Text is one "image".
    causal: Whether a token sees only itself and earlier tokens.
    queries: Which image each query sees, integers (b, T), if the queries are
      not tokens of the row, but read whole images.

  The queries are the first T of the tokens, unless there are `queries` or
  `of_keys` was asked for.

  >>> import jax.numpy as jnp
  >>> two_images = AttentionMask(image=jnp.array([[0, 0, 1, -1]]))
  >>> two_images.pairs(4, 4)[0].astype(int).tolist()
  [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
  """

  counts: Bool[Array, "B S"] | None = None
  lengths: Int[Array, " B"] | None = None
  image: Int[Array, "B S"] | None = None
  causal: bool = struct.field(pytree_node=False, default=False)
  queries: Int[Array, "b T"] | None = None

  @classmethod
  def of(cls, mask: Any) -> Self:
    """The mask itself, or one of booleans (B, S); None masks nothing."""
    if isinstance(mask, cls):
      return mask
    return cls(counts=None if mask is None else jnp.asarray(mask))

  @property
  def hides(self) -> bool:
    """Whether the mask may hide keys from a query."""
    return self.causal or self._by_key or self.image is not None

  @property
  def _by_key(self) -> bool:
    """Whether the mask may hide a key from all queries of a row."""
    return self.counts is not None or self.lengths is not None

  def keys(self, S: int) -> Bool[Array, "B S"] | None:
    """Which keys count at all, whatever the query; None if all do."""
    counts = self.counts
    if self.lengths is not None:
      counts = _both(counts, jnp.arange(S)[None] < self.lengths[:, None])
    if self.image is not None:
      counts = _both(counts, self.image >= 0)
    return counts

  def of_keys(self, S: int) -> "AttentionMask":
    """The mask for queries that are not tokens: each sees all keys that count.

    If queries read images, each sees the keys that count of its own image.
    """
    if self.queries is not None:
      return self
    return AttentionMask(counts=self.keys(S))

  def pairs(self, T: int, S: int) -> Bool[Array, "b t S"] | None:
    """Whether a query sees a key; None if every query sees all keys.

    b is 1 if the mask is the same for all rows, and t is 1 if it is the same
    for all queries.
    """
    seen = self.keys(S)
    seen = None if seen is None else seen[:, None]
    if self.image is not None:
      query = self.image[:, :T] if self.queries is None else self.queries
      same = query[..., None] == self.image[:, None]
      seen = _both(seen, same)
    if self.causal:
      seen = _both(seen, jnp.tril(jnp.ones((T, S), bool))[None])
    return seen

  @property
  def is_at_end(self) -> bool:
    """Whether it hides only the last keys of a row, or those after a query."""
    return self.counts is None and self.image is None

  @property
  def each_sees_itself(self) -> bool:
    """Whether each token sees itself at least."""
    return not self._by_key and self.image is None

  def sees(self, T: int, S: int) -> Bool[Array, "b t"] | None:
    """Whether a query sees any key; None if each sees at least itself."""
    pairs = None if self.each_sees_itself else self.pairs(T, S)
    return None if pairs is None else pairs.any(axis=-1)

  def segments(self, B: int, T: int, S: int) -> Segments | None:
    """The mask as kernels take it; None if each query sees all keys."""
    if not self.hides:
      return None
    query = key = jnp.zeros((B, S), jnp.int32)
    if self.image is not None:
      key = self.image.astype(jnp.int32)
      query = jnp.where(key < 0, NO_QUERY, key)
      if self.queries is not None:
        query = jnp.broadcast_to(self.queries, (B, T)).astype(jnp.int32)
    counts = self.keys(S)
    if counts is not None:
      key = jnp.where(counts, key, NO_KEY)
    return Segments(query[:, :T], key, jnp.arange(T) if self.causal else None)


def _both(a: Bool[Array, "..."] | None, b: Array) -> Bool[Array, "..."]:
  """Where both are true; a = None is true everywhere."""
  return b if a is None else a & b
