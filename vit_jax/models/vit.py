"""The Vision Transformer, "An Image is Worth 16x16 Words" (arXiv:2010.11929).

Symbols are the paper's (Section 3.1, Appendix A): image x of H x W x C, patch
size P, N = HW / P^2 patches, hidden size D, k heads of size D_h = D / k, L
layers. S is the length of the token sequence: N + 1, or N without class token.

Every attention matrix is sown as `attention`: a caller sees all of them with
`model.apply(variables, images, mutable="intermediates")`, and the output of
every module as well with `capture_intermediates=True`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.models import checks, tpu
from vit_jax.models.attention import Msa
from vit_jax.models.layer import LayerConfig, dense, each_token, layer_norm
from vit_jax.models.map_head import MapHead
from vit_jax.models.normalize import check_images
from vit_jax.models.origin import Origin
from vit_jax.models.partitioning import for_tpu, named
from vit_jax.models.patch_dropout import PatchDropout, check_patch_dropout
from vit_jax.models.position import Positions, check_position, make_positions
from vit_jax.models.resnet import ResNet, classifier
from vit_jax.models.scan import REMATS, make_blocks

POOLINGS = ("token", "gap", "map")
_SIZES = ("patch_size", "hidden_size", "num_layers", "mlp_size", "num_heads")


class PatchEmbedding(nn.Module):
  """The products x_p E of Eq. 1; (B, H, W, C) -> (B, h, w, D), h = H / P.

  Cutting patches and applying one dense layer is the same map as a convolution
  with kernel size and stride P. The rows of `E` are in the order (row, column,
  channel).
  """

  patch_size: int
  hidden_size: int
  config: LayerConfig = LayerConfig()
  use_bias: bool = True

  @nn.compact
  def __call__(self, x: Float[Array, "B H W C"]) -> Float[Array, "B h w D"]:
    c, axes, use_bias = self.config, ("patch", "embed"), self.use_bias
    E = dense(self.hidden_size, axes, c, use_bias=use_bias, name="E")
    return E(patchify(x, self.patch_size))


def patchify(x: Float[Array, "B H W C"], P: int) -> Float[Array, "B h w P2C"]:
  """Cuts images into patches of P x P pixels, each flattened to P^2 C values.

  Raises:
    ValueError: if P does not divide height and width.
  """
  B, H, W, C = x.shape
  if H % P or W % P or not H or not W:
    fits = [max(P, side // P * P) for side in (H, W)]
    raise ValueError(
      f"images of {H} x {W} do not split into patches of {P} x {P}; "
      f"{fits[0]} x {fits[1]} would."
    )
  h, w = H // P, W // P
  x = x.reshape(B, h, P, w, P, C).transpose(0, 1, 3, 2, 4, 5)
  return x.reshape(B, h, w, P * P * C)


def gelu_tanh(x: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
  """GELU by the tanh approximation, as in the published models."""
  return tpu.gelu(x) if for_tpu() else nn.gelu(x)


GELUS = {
  "tanh": gelu_tanh,
  "exact": partial(nn.gelu, approximate=False),
  "quick": lambda x: x * nn.sigmoid(1.702 * x),  # CLIP's.
}


class Mlp(nn.Module):
  """The MLP of Eq. 3: two dense layers, GELU between; (B, S, D) -> (B, S, D).

  Dropout follows GELU and the second dense layer (App. B.1).
  """

  mlp_size: int
  config: LayerConfig = LayerConfig()

  @nn.compact
  def __call__(
    self, z: Float[Array, "B S D"], *, train: bool = False
  ) -> Float[Array, "B S D"]:
    c, D = self.config, z.shape[-1]
    expand = dense(
      self.mlp_size, ("embed", "mlp"), c, bias_axis="mlp", name="expand"
    )
    contract = dense(D, ("mlp", "embed"), c, name="contract")
    gelu = GELUS[c.gelu]
    dropout = nn.Dropout(c.dropout_rate, deterministic=not train)

    hidden = dropout(gelu(each_token(expand, z)))  # (B, S, mlp_size)
    return dropout(each_token(contract, hidden))


class EncoderBlock(nn.Module):
  """One layer of the Transformer, Eq. 2 and 3; (B, S, D) -> (B, S, D)."""

  num_heads: int
  mlp_size: int
  config: LayerConfig = LayerConfig()

  @nn.compact
  def __call__(
    self,
    z: Float[Array, "B S D"],
    R: Float[Array, "offsets k D_h"] | None = None,
    *,
    train: bool = False,
  ) -> Float[Array, "B S D"]:
    attention = tpu.TpuMsa if tpu.replaces_msa(self, R, train) else Msa
    msa = attention(self.num_heads, self.config, name="msa")
    mlp = Mlp(self.mlp_size, self.config, name="mlp")
    norm_msa = layer_norm(self.config, name="norm_msa")
    norm_mlp = layer_norm(self.config, name="norm_mlp")
    dropout = nn.Dropout(self.config.dropout_rate, deterministic=not train)

    z = dropout(msa(norm_msa(z), R, train=train)) + z  # Eq. 2
    z = mlp(norm_mlp(z), train=train) + z  # Eq. 3
    return z


class Vit(nn.Module):
  """Vision Transformer, Eq. 1-4; images (B, H, W, C) -> logits (B, K).

  K is `num_classes`. Images are floats, normalised as in the training run
  ([-1, 1] by default); H and W need only be divisible by the patch size. Logits
  are float32. With `num_classes=0` the result is the input of the head: y of
  Eq. 4, (B, D), or the representation layer's output if there is one.

  Attributes:
    num_classes: Classes of the head; 0 builds no head.
    patch_size: P, the side of a patch in pixels.
    hidden_size: D, the width of a token.
    num_layers: L, the layers of the encoder.
    mlp_size: Width of the MLP's hidden layer.
    num_heads: k, the heads of each layer's self-attention.
    pooling: "token" reads the class token (Eq. 4). The others have no class
      token: "gap" averages the patches' outputs (App. D.3), "map" attends to
      them (`map_head.MapHead`).
    position: Kind of position embedding, one of `position.POSITIONS`.
    position_at: Where it is used, one of `position.PLACES` (App. D.4).
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
    resnet_layers: Blocks in each ResNet stage of a hybrid, whose patches are
      cut from the ResNet's feature map (Section 3.1); () for a pure ViT.
    resnet_width: Channels of that ResNet's root; 64 is "x1".
    scan: Compiles one block for all layers, with their parameters stacked
      (L, ...) as `blocks` instead of `block_0` and so on; see `models.scan`.
    remat: How much the backward pass computes again to save memory, one of
      `scan.REMATS`.
    dtype: Type of the computation.
    param_dtype: Type of the parameters.
    block: Class of the layers, called as `EncoderBlock` is, which None takes. A
      field `grid` of it gets the patches along height and width.
    origin: Where published weights came from; the model ignores it.

  Raises:
    ValueError: if fields, or a call's images, do not fit together.
  """

  num_classes: int
  patch_size: int
  hidden_size: int
  num_layers: int
  mlp_size: int
  num_heads: int
  pooling: str = "token"
  position: str = "learned"
  position_at: str = "input"
  representation_size: int | None = None
  head_bias: float = 0.0
  dropout_rate: float = 0.0
  attention_dropout_rate: float = 0.0
  gelu: str = "tanh"
  layer_norm_epsilon: float = 1e-6
  resnet_layers: tuple[int, ...] = ()
  resnet_width: int = 64
  scan: bool = False
  remat: str = "none"
  dtype: DTypeLike = jnp.float32
  param_dtype: DTypeLike = jnp.float32
  embedding_dropout_rate: float | None = None
  patch_dropout_rate: float = 0.0
  block: Callable[..., nn.Module] | None = None
  origin: Origin | None = None
  poolings = POOLINGS

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
    checks.check_block(self.block)
    checks.check_scan(self.scan, self.position, self.position_at)
    check_position(self.position, self.position_at, self.hidden_size)
    check_patch_dropout(self)
    super().__post_init__()

  def __call__(
    self, x: Float[Array, "B H W C"], *, train: bool = False
  ) -> Float[Array, "B ..."]:
    return self.head(self.encode(x, train=train)[1])

  @nn.compact
  def encode(
    self, x: Float[Array, "B H W C"], *, train: bool = False
  ) -> tuple[Float[Array, "B S D"], Float[Array, "B ..."]]:
    """The last layer's output z, before its norm, and what the head reads."""
    check_images(x)
    x_p = self._patches(x)  # (B, h, w, D)
    B, h, w, D = x_p.shape
    x_p = x_p.reshape(B, h * w, D)
    positions = self._positions(h, w)
    x_class, E_pos = self._x_class(B), positions.E_pos
    dropout = nn.Dropout(self._embedding_dropout_rate, deterministic=not train)
    patch_dropout = PatchDropout(self.patch_dropout_rate, x_class.shape[1])
    blocks = self._blocks(positions, train)
    norm = layer_norm(self._config, name="norm")

    z = jnp.concatenate([x_class, x_p], axis=1) + E_pos  # Eq. 1
    z = dropout(z)
    z = patch_dropout(z, train=train)
    for block in blocks:
      z = block(z)  # Eq. 2, 3
    y = self._pool(norm, z)  # Eq. 4
    return z, y

  @nn.compact
  def head(self, y: Float[Array, "B ..."]) -> Float[Array, "B K"]:
    """The logits; without classes the representation."""
    y = self.representation(y)
    if not self.num_classes:
      return y
    return classifier(self.num_classes, self.head_bias, self.param_dtype)(y)

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

  def _patches(self, x: Float[Array, "B H W C"]) -> Float[Array, "B h w D"]:
    """The embedded patches of images, or of their feature maps in a hybrid."""
    if self.resnet_layers:
      resnet = ResNet(
        num_classes=0,
        layers=self.resnet_layers,
        width=self.resnet_width,
        **self._config.dtypes,
        name="resnet",
      )
      x = resnet(x, features=True)
    embed = PatchEmbedding(
      self.patch_size, self.hidden_size, self._config, name="patches"
    )
    return embed(x)

  def _x_class(self, B: Any) -> Float[Array, "B tokens D"]:
    """The learned class token of every image; (B, 0, D) if there is none."""
    if self.pooling != "token":
      return jnp.zeros((B, 0, self.hidden_size), self.dtype)
    x_class: Any = self.param(
      "x_class",
      named(nn.initializers.zeros_init(), (None,)),
      (self.hidden_size,),
      self.param_dtype,
    )
    return jnp.tile(x_class.astype(self.dtype), (B, 1, 1))

  def _positions(self, h: int, w: int) -> Positions:
    return make_positions(self, (h, w), self._config)

  def _blocks(
    self, positions: Positions, train: bool
  ) -> list[Callable[[Array], Array]]:
    """The layers, as functions of z to call in turn."""
    block = self.block or EncoderBlock
    options = {"grid": positions.grid} if hasattr(block, "grid") else {}
    return make_blocks(
      partial(block, self.num_heads, self.mlp_size, self._config, **options),
      positions,
      self.num_layers,
      scan=self.scan,
      remat=self.remat,
      train=train,
    )

  def _pool(
    self, norm: nn.LayerNorm, z: Float[Array, "B S D"]
  ) -> Float[Array, "B D"]:
    """The class token's output, the average output, or the MAP head's."""
    if self.pooling == "token":
      return norm(z[:, 0])
    if self.pooling == "gap":
      return norm(z).mean(axis=1)
    mlp = partial(Mlp, self.mlp_size, self._config)
    return MapHead(self.num_heads, mlp, self._config, name="map_head")(norm(z))
