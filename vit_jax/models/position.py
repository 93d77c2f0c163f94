"""Position embeddings of the Vision Transformer (arXiv:2010.11929, App. D.4).

Everything here is added to the token sequence, except the relative offsets,
which `attention.Msa` turns into attention logits.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.models.partitioning import Axes, named

LEARNED = ("learned", "learned_grid", "learned2d")
FIXED = ("sincos1d", "sincos2d")
POSITIONS = (*LEARNED, *FIXED, "relative", "none")
PLACES = ("input", "every_layer", "shared")

_init_E_pos = nn.initializers.normal(0.02)


class PositionEmbedding(nn.Module):
  """`E_pos` of Eq. 1: one vector for each token, (S, D).

  S = N + 1 with a class token, N without. The class token has an entry of its
  own in the 1-D kinds; in the others it has no place on the grid and gets
  zeros. "learned_grid" is "learned" but for that.

  Attributes:
    kind: One of `LEARNED` or `FIXED`.
    grid: Patches along height and width, (h, w); N = h w.
    hidden_size: D.
    class_token: Whether the sequence starts with a class token.
    param_dtype: Type of the learned parameters and of the result.
  """

  kind: str
  grid: tuple[int, int]
  hidden_size: int
  class_token: bool = True
  param_dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(self) -> Float[Array, "S D"]:
    (h, w), D = self.grid, self.hidden_size
    S, axes = h * w + self.class_token, ("position", None)
    if self.kind == "learned":
      return _table(self, "E_pos", (S, D), axes)
    if self.kind == "sincos1d":
      return sincos1d(S, D).astype(self.param_dtype)
    if self.kind == "learned_grid":
      E_pos = _table(self, "E_pos", (h * w, D), axes)
    elif self.kind == "learned2d":
      X = _table(self, "X_pos", (w, D // 2), axes)
      Y = _table(self, "Y_pos", (h, D // 2), axes)
      E_pos = jnp.concatenate(
        [jnp.tile(X, (h, 1)), jnp.repeat(Y, w, axis=0)], axis=1
      )  # (N, D)
    else:
      E_pos = sincos2d(h, w, D).astype(self.param_dtype)  # (N, D)
    if self.class_token:
      E_pos = jnp.pad(E_pos, ((1, 0), (0, 0)))  # (N + 1, D)
    return E_pos


class RelativeOffsets(nn.Module):
  """Learned embedding of every offset between two tokens, for each head.

  Returns `R` of shape (2S - 1, k, D_h); row `q - s + S - 1` belongs to the
  query at position q and the key at position s (App. D.4).
  """

  num_tokens: int
  num_heads: int
  head_size: int
  param_dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(self) -> Float[Array, "offsets k D_h"]:
    shape = (2 * self.num_tokens - 1, self.num_heads, self.head_size)
    return _table(self, "R", shape, ("position", "heads", "head_size"))


def _table(module: Any, name: str, shape: tuple[int, ...], axes: Axes) -> Array:
  """A learned table; says so if the one loaded is of another size."""
  if module.has_variable("params", name):
    stored = nn.unbox(module.get_variable("params", name)).shape
    if stored != shape:
      raise ValueError(
        f"{name} was learned with shape {stored}, and these images need "
        f"{shape}: use images of the size the model was trained on, or resize "
        "the table."
      )
  return module.param(name, named(_init_E_pos, axes), shape, module.param_dtype)


def relative_logits(
  q: Float[Array, "B k S D_h"], R: Float[Array, "offsets k D_h"]
) -> Float[Array, "B k S S"]:
  """Inner product of each query with the embedding of its offset to each key.

  Queries meet all 2S - 1 offsets in one matrix product; each row then keeps
  the S it needs.
  """
  S = q.shape[2]
  every_offset = jnp.einsum("bkqd,okd->bkqo", q, R)  # (B, k, S, 2S - 1)
  offset = jnp.arange(S)[:, None] - jnp.arange(S)[None, :] + S - 1  # (S, S)
  return jnp.take_along_axis(every_offset, offset[None, None], axis=-1)


def sincos1d(S: int, D: int) -> Float[Array, "S D"]:
  """Sines and cosines interleaved ("Attention is all you need", Sec. 3.5).

  Entry 2i of position p is sin(p / 10000^(2i / D)), entry 2i + 1 its cosine.
  """
  frequency = 10_000.0 ** (-jnp.arange(0, D, 2) / D)  # (D / 2,)
  angle = jnp.arange(S)[:, None] * frequency[None, :]
  return jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1).reshape(S, D)


def sincos2d(
  h: int, w: int, D: int, temperature: float = 10_000.0
) -> Float[Array, "N D"]:
  """Sine and cosine of x, then of y, a quarter of D each (big_vision).

  Frequencies fall geometrically from 1 to 1 / temperature.
  """
  frequency = temperature ** -jnp.linspace(0.0, 1.0, D // 4)  # (D / 4,)
  y, x = jnp.meshgrid(jnp.arange(h), jnp.arange(w), indexing="ij")
  x = x.reshape(-1, 1) * frequency[None, :]  # (N, D / 4)
  y = y.reshape(-1, 1) * frequency[None, :]  # (N, D / 4)
  waves = [jnp.sin(x), jnp.cos(x), jnp.sin(y), jnp.cos(y)]
  return jnp.concatenate(waves, axis=1)


def check(kind: str, place: str, hidden_size: int) -> None:
  """Raises ValueError unless these position embeddings can be built."""
  if kind not in POSITIONS:
    raise ValueError(
      f"position={kind!r} is unknown; choose one of {', '.join(POSITIONS)}."
    )
  if place not in PLACES:
    raise ValueError(
      f"position_at={place!r} is unknown; choose one of {', '.join(PLACES)}."
    )
  divisor = {"learned2d": 2, "sincos1d": 2, "sincos2d": 4}.get(kind, 1)
  if hidden_size % divisor:
    raise ValueError(
      f"position={kind!r} needs a hidden_size divisible by {divisor}, "
      f"not {hidden_size}."
    )
  if kind == "sincos2d" and hidden_size < 8:
    raise ValueError(
      "position='sincos2d' needs a hidden_size of 8 or more, "
      f"not {hidden_size}."
    )


def at_each_layer(kind: str, place: str, num_layers: int, make) -> list:
  """The position parameters that each layer uses, None where it uses none.

  Args:
    kind: One of `POSITIONS`.
    place: One of `PLACES`. Relative offsets act inside every layer's
      attention, so "input" gives each layer its own, as "every_layer" does.
    num_layers: L.
    make: Called with a name for the parameters; returns their array.
  """
  name = "relative" if kind == "relative" else "position"
  if kind == "none":
    return [None] * num_layers
  if place == "shared":
    return [make(name)] * num_layers
  if place == "every_layer" or kind == "relative":
    return [make(f"{name}_{layer}") for layer in range(num_layers)]
  return [make(name)] + [None] * (num_layers - 1)
