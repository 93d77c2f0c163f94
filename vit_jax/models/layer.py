"""The parts and settings that all layers of the Transformer share."""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.models.partitioning import Dense, for_tpu, named
from vit_jax.models.tokens import Tokens

Images = Float[Array, "B H W C"]
TokenValues = Float[Array, "B S D"]
Pooled = Float[Array, "B ..."]
"""What a head reads: (B, D), or a row for each of several heads or patches."""
Offsets = Float[Array, "offsets k *D_h"] | None
"""R, the relative positions of attention (App. D.4), if there are any.

For each offset and head, it is a vector, or one number (`models.relative`).
"""

init_kernel = nn.initializers.xavier_uniform()
init_zeros = nn.initializers.zeros_init()
# Initializers of a dense layer's kernel and bias: those of both published codes
# for the embedding of patches, a convolution there, and for all others.
_PATCH_INITS = nn.initializers.lecun_normal(), init_zeros
_DENSE_INITS = init_kernel, nn.initializers.normal(1e-6)


def _gelu(x: Float[Array, "*axes"], approximate: bool) -> Float[Array, "*axes"]:
  """GELU, x Phi(x), or its tanh approximation, as in the published models."""
  if not for_tpu():
    return nn.gelu(x, approximate)
  from vit_jax.models import tpu_gelu

  return (tpu_gelu.gelu if approximate else tpu_gelu.gelu_exact)(x)


GELUS = {
  "tanh": functools.partial(_gelu, approximate=True),
  "exact": functools.partial(_gelu, approximate=False),
  "quick": lambda x: x * nn.sigmoid(1.702 * x),  # CLIP's.
}


NORMS = ("layer", "rms")


@dataclasses.dataclass(frozen=True)
class LayerConfig:
  """The settings that every layer takes; `VitFields` says what each is.

  Raises ValueError if one of them has no meaning.
  """

  dropout_rate: float = 0.0
  attention_dropout_rate: float = 0.0
  gelu: str = "tanh"
  layer_norm_epsilon: float = 1e-6
  norm_kind: str = "layer"
  splash: bool = False
  dtype: DTypeLike = jnp.float32
  param_dtype: DTypeLike = jnp.float32

  def __post_init__(self):
    check_choice("gelu", self.gelu, GELUS)
    check_choice("norm_kind", self.norm_kind, NORMS)
    check_rate("dropout_rate", self.dropout_rate)
    check_rate("attention_dropout_rate", self.attention_dropout_rate)
    if not self.layer_norm_epsilon > 0:
      raise ValueError(
        f"layer_norm_epsilon={self.layer_norm_epsilon} must be more than 0."
      )

  @classmethod
  def of(cls, vit: Any) -> "LayerConfig":
    """The settings among the fields of a model."""
    names = [field.name for field in dataclasses.fields(cls)]
    return cls(**{name: getattr(vit, name) for name in names})

  @property
  def dtypes(self) -> dict[str, Any]:
    """The types of computation and parameters, as Flax's layers take them."""
    return {"dtype": self.dtype, "param_dtype": self.param_dtype}


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
  """Raises ValueError, which names the field, for an unknown value."""
  choices = tuple(choices)
  if value not in choices:
    raise ValueError(
      f"{name}={value!r} is unknown; choose one of {', '.join(choices)}."
    )


def check_rate(name: str, value: Any) -> None:
  """Raises ValueError, which names the field, outside [0, 1)."""
  if not 0 <= value < 1:
    raise ValueError(f"{name}={value} must be in [0, 1).")


def dense(
  features: int,
  axes: tuple[str, str],
  config: LayerConfig,
  *,
  bias_axis: str | None = None,
  use_bias: bool = True,
  scale: Any = None,
  name: str,
) -> Dense:
  """A dense layer that starts as those of the published models do.

  Args:
    axes: Logical names of the kernel's axes.
    bias_axis: Logical name of the bias's axis; None keeps the bias whole on
      every device.
  """
  kernel_init, bias_init = _PATCH_INITS if axes[0] == "patch" else _DENSE_INITS
  return Dense(
    features,
    use_bias=use_bias,
    kernel_init=named(kernel_init, axes),
    bias_init=named(bias_init, (bias_axis,)),
    scale=scale,
    **config.dtypes,
    name=name,
  )


def fast_variance() -> bool:
  """Whether a norm takes the mean of x^2 less mean^2 as its variance.

  The mean of (x - mean)^2 is exact where the mean is far larger than the
  deviation. TPUs take the other form, which needs one pass for both means.
  """
  return for_tpu()


def layer_norm(
  config: LayerConfig, name: str, axis: int | tuple[int, ...] = -1
) -> nn.LayerNorm | nn.RMSNorm:
  """LN of Eq. 2-4, with its mean and variance in float32, or RMSNorm.

  RMSNorm is x / sqrt(mean(x^2) + epsilon), times a factor for each channel
  (arXiv:1910.07467).
  """
  axes = (None,) * (len(axis) if isinstance(axis, tuple) else 1)
  options: dict[str, Any] = dict(
    reduction_axes=axis,
    feature_axes=axis,
    epsilon=config.layer_norm_epsilon,
    use_fast_variance=fast_variance(),
    scale_init=named(nn.initializers.ones_init(), axes),
    **config.dtypes,
    name=name,
  )
  if config.norm_kind == "rms":
    return nn.RMSNorm(**options)
  zeros = named(nn.initializers.zeros_init(), axes)
  return nn.LayerNorm(bias_init=zeros, **options)


def each_token(layer: Callable[[Array], Array], z: Array) -> Array:
  """Applies a layer to every token; (B, S, *axes) -> (B, S, *features).

  The tokens of all images become the rows of one matrix: for the gradient of a
  kernel, XLA's CPU compiler would transpose a batch of matrices, which takes as
  long as the products. TPUs tile rows by 8, so there flattening would copy.
  """
  if for_tpu():
    return layer(z)
  B, S = z.shape[:2]
  rows = layer(z.reshape(B * S, *z.shape[2:]))
  return rows.reshape(B, S, *rows.shape[1:])


class PatchDropout(nn.Module):
  """Leaves out a share of the patches; N of them -> n.

  Without half of its patches, an image costs a layer half the products, and the
  model learns not to depend on single patches (PatchDropout, arXiv:2208.07220).
  Outside training nothing is left out. Of the N patches of each image, n =
  round((1 - rate) N) stay, at least one: every choice of n is equally likely,
  and drawn anew by the key `dropout`. They keep their order. Nothing is scaled,
  since no layer sums over patches. Patches that do not count go first.

  Attributes:
    rate: Share of the patches to leave out, in [0, 1).
  """

  rate: float

  @nn.compact
  def __call__(self, tokens: Tokens, *, train: bool) -> Tokens:
    if not train or not self.rate:
      return tokens
    B, S, _ = tokens.z.shape
    N = S - tokens.prefix
    n = max(round((1 - self.rate) * N), 1)
    draw = jax.random.uniform(self.make_rng("dropout"), (B, N))
    if tokens.mask is not None:
      draw = jnp.where(tokens.mask, draw, -1)
    # A sort stays on the device that has the image; `top_k` would gather all.
    highest = jnp.argsort(draw, axis=1, descending=True)[:, :n]
    return tokens.take(jnp.sort(highest, axis=1))
