"""The parts and settings that all layers of the Transformer share."""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.models.partitioning import Dense, for_tpu, named

init_kernel = nn.initializers.xavier_uniform()
init_zeros = nn.initializers.zeros_init()
# Initializers of a dense layer's kernel and bias: those of both published codes
# for the embedding of patches, a convolution there, and for all others.
_PATCH_INITS = nn.initializers.lecun_normal(), init_zeros
_DENSE_INITS = init_kernel, nn.initializers.normal(1e-6)


@dataclasses.dataclass(frozen=True)
class LayerConfig:
  """The settings that every layer takes; `Vit` says what each of them is."""

  dropout_rate: float = 0.0
  attention_dropout_rate: float = 0.0
  gelu: str = "tanh"
  layer_norm_epsilon: float = 1e-6
  dtype: DTypeLike = jnp.float32
  param_dtype: DTypeLike = jnp.float32

  @classmethod
  def of(cls, vit: Any) -> "LayerConfig":
    """The settings among the fields of a `Vit`."""
    names = [field.name for field in dataclasses.fields(cls)]
    return cls(**{name: getattr(vit, name) for name in names})

  @property
  def dtypes(self) -> dict[str, Any]:
    """The types of computation and parameters, as Flax's layers take them."""
    return {"dtype": self.dtype, "param_dtype": self.param_dtype}


def dense(
  features: int,
  axes: tuple[str, str],
  config: LayerConfig,
  *,
  bias_axis: str | None = None,
  use_bias: bool = True,
  name: str,
) -> Dense:
  """A dense layer that starts as those of the published models do.

  Args:
    features: Size of the output.
    axes: Logical names of the kernel's axes.
    config: Its types.
    bias_axis: Logical name of the bias's axis; None keeps the bias whole on
      every device.
    use_bias: Whether it adds a bias.
    name: Name of its parameters.
  """
  kernel_init, bias_init = _PATCH_INITS if axes[0] == "patch" else _DENSE_INITS
  return Dense(
    features,
    use_bias=use_bias,
    kernel_init=named(kernel_init, axes),
    bias_init=named(bias_init, (bias_axis,)),
    **config.dtypes,
    name=name,
  )


def layer_norm(config: LayerConfig, name: str) -> nn.LayerNorm:
  """LN of Eq. 2-4."""
  return nn.LayerNorm(
    epsilon=config.layer_norm_epsilon,
    scale_init=named(nn.initializers.ones_init(), (None,)),
    bias_init=named(nn.initializers.zeros_init(), (None,)),
    **config.dtypes,
    name=name,
  )


def each_token(
  layer: Callable[[Array], Array], z: Float[Array, "B S *axes"]
) -> Float[Array, "B S *features"]:
  """Applies a layer to every token, as `layer(z)` does.

  The tokens of all images become the rows of one matrix: for the gradient of a
  kernel, XLA's CPU compiler would transpose a batch of matrices, which takes as
  long as the products. TPUs tile rows by 8, so there flattening would copy.
  """
  if for_tpu():
    return layer(z)
  B, S = z.shape[:2]
  rows = layer(z.reshape(B * S, *z.shape[2:]))
  return rows.reshape(B, S, *rows.shape[1:])
