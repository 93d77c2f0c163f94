"""What all models are: an encoder of images and a head; symbols as in `vit`."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.models.partitioning import Dense, named


class Model(nn.Module):
  """Images (B, H, W, C) -> logits (B, K), K = `num_classes`.

  Images are floats, normalised as in the training run ([-1, 1] by default).
  Logits are float32. With `num_classes=0` the result is the representation.

  Attributes:
    num_classes: Classes of the head; 0 builds no head.
  """

  num_classes: int
  # What is a field of some families has this value in the others.
  head_bias, param_dtype = 0.0, jnp.float32
  resnet_layers, position_at, position_grid, representation_size = (
    (),
    "input",
    None,
    None,
  )
  block, distilled, scan = None, False, False
  # Whether it may have what encoders have added since the paper, and whether it
  # interpolates its positions to the grid of each image.
  modern = resizes_positions = False

  def __call__(
    self, x: Float[Array, "B H W C"], *, train: bool = False
  ) -> Float[Array, "B ..."]:
    return self.head(self.encode(x, train=train)[1])

  def encode(
    self, x: Float[Array, "B H W C"], *, train: bool = False
  ) -> tuple[Float[Array, "B ..."], Float[Array, "B ..."]]:
    """The last layer's output z, before any norm, and what the head reads."""
    raise NotImplementedError

  @nn.compact
  def head(self, y: Float[Array, "B ..."]) -> Float[Array, "B K"]:
    """The logits; without classes the representation."""
    y = self.representation(y)
    if not self.num_classes:
      return y
    return classifier(self.num_classes, self.head_bias, self.param_dtype)(y)

  def representation(self, y: Float[Array, "B ..."]) -> Float[Array, "B R"]:
    """Features of an image, from what the head reads."""
    return y

  @property
  def prefix(self) -> int:
    """Number of tokens before the patches."""
    raise NotImplementedError

  @property
  def stride(self) -> int:
    """Pixels between neighbouring patches, or cells of a feature map."""
    stages = len(self.resnet_layers)
    return 4 * 2 ** (stages - 1) if stages else 1


def classifier(
  num_classes: int, bias: float, param_dtype: DTypeLike, name: str = "head"
) -> Dense:
  """The last dense layer, which starts at zero and computes in float32."""
  return Dense(
    num_classes,
    kernel_init=named(nn.initializers.zeros_init(), ("embed", "classes")),
    bias_init=named(nn.initializers.constant(bias), ("classes",)),
    dtype=jnp.float32,
    param_dtype=param_dtype,
    name=name,
  )


def represent(
  model: Model,
  params: Any,
  images: Float[Array, "B H W C"],
  *,
  pre_logits: bool = True,
) -> Float[Array, "B R"]:
  """The representation of normalised images, below the head's last layer.

  Args:
    model: The model, with or without a head.
    params: Its parameters; the head's are not used, and may be absent.
    images: Floats, normalised as the model expects.
    pre_logits: Whether a representation layer, if any, is applied; y of Eq. 4
      is the representation otherwise.
  """
  if model.representation_size is not None and not pre_logits:
    model = model.clone(representation_size=None)

  def run(bound: Any, x: Array) -> Array:
    return bound.representation(bound.encode(x)[1])

  y: Any = model.apply({"params": params}, images, method=run)
  return y
