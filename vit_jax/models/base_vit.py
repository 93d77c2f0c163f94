"""The fields that all families of Vision Transformers share.

Symbols as in `vit`. A family adds its own fields and `encode`.
"""

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.models import checks
from vit_jax.models.gelu import GELUS
from vit_jax.models.layer import LayerConfig, dense
from vit_jax.models.model import Model
from vit_jax.models.origin import Origin
from vit_jax.models.patch_dropout import check_patch_dropout
from vit_jax.models.scan import REMATS

_SIZES = ("patch_size", "hidden_size", "num_layers", "mlp_size", "num_heads")


class BaseVit(Model):
  """A Transformer on patches; H and W need only be divisible by their size.

  Its representation is y of Eq. 4, (B, D), or the representation layer's output
  if there is one.

  Attributes:
    patch_size: P, the side of a patch in pixels.
    hidden_size: D, the width of a token.
    num_layers: L, the layers of the encoder.
    mlp_size: Width of the MLP's hidden layer.
    num_heads: k, the heads of each layer's self-attention.
    pooling: How the head's input is read from the tokens' outputs.
    position: Kind of position embedding.
    representation_size: Width of the pre-training head's hidden tanh layer
      (Section 3.1); None for the single dense layer of fine-tuning.
    head_bias: Initial value of the head's bias.
    dropout_rate: Dropout after every dense layer except query, key, value and
      the heads, and after adding position embeddings (App. B.1).
    embedding_dropout_rate: The latter, if it should differ.
    attention_dropout_rate: Dropout on the attention weights A of Eq. 6.
    patch_dropout_rate: Share of the patches that training leaves out of an
      image (`patch_dropout.PatchDropout`).
    gelu: "tanh" (the published models' approximation), "exact" or "quick".
    layer_norm_epsilon: Added to the variance in every layer norm.
    scan: Compiles one block for all layers, with their parameters stacked
      (L, ...) as `blocks` instead of `block_0` and so on; see `models.scan`.
    remat: How much the backward pass computes again to save memory, one of
      `scan.REMATS`.
    dtype: Type of the computation.
    param_dtype: Type of the parameters.
    origin: Where published weights came from; the model ignores it.

  Raises:
    ValueError: if fields, or a call's images, do not fit together.
  """

  patch_size: int
  hidden_size: int
  num_layers: int
  mlp_size: int
  num_heads: int
  pooling: str = "token"
  position: str = "learned"
  representation_size: int | None = None
  head_bias: float = 0.0
  dropout_rate: float = 0.0
  attention_dropout_rate: float = 0.0
  gelu: str = "tanh"
  layer_norm_epsilon: float = 1e-6
  scan: bool = False
  remat: str = "none"
  dtype: DTypeLike = jnp.float32
  param_dtype: DTypeLike = jnp.float32
  embedding_dropout_rate: float | None = None
  patch_dropout_rate: float = 0.0
  origin: Origin | None = None
  poolings = ()

  def __post_init__(self):
    for name in _SIZES:
      checks.check_size(name, getattr(self, name))
    checks.check_size("num_classes", self.num_classes, least=0)
    checks.check_heads(self.hidden_size, self.num_heads)
    checks.check_choice("pooling", self.pooling, self.poolings)
    checks.check_choice("gelu", self.gelu, GELUS)
    checks.check_choice("remat", self.remat, REMATS)
    checks.check_positive("layer_norm_epsilon", self.layer_norm_epsilon)
    checks.check_rate("dropout_rate", self.dropout_rate)
    checks.check_rate("attention_dropout_rate", self.attention_dropout_rate)
    checks.check_rate("embedding_dropout_rate", self._embedding_dropout_rate)
    checks.check_rate("patch_dropout_rate", self.patch_dropout_rate)
    check_patch_dropout(self)
    super().__post_init__()

  @property
  def stride(self) -> int:
    """Pixels between neighbouring patches."""
    return self.patch_size * super().stride

  @nn.compact
  def representation(self, y: Float[Array, "B ..."]) -> Float[Array, "B R"]:
    """Features of an image: y, or to pre-train an MLP's hidden layer of it."""
    if self.representation_size is None:
      return y
    axes = "embed", "representation"
    pre_logits = dense(
      self.representation_size, axes, self._config, name="pre_logits"
    )
    return nn.tanh(pre_logits(y))

  @property
  def _embedding_dropout_rate(self) -> float:
    own = self.embedding_dropout_rate
    return self.dropout_rate if own is None else own

  @property
  def _config(self) -> LayerConfig:
    return LayerConfig.of(self)
