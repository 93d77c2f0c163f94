"""The Vision Transformer, "An Image is Worth 16x16 Words" (arXiv:2010.11929).

Symbols are the paper's (Section 3.1, Appendix A): image x of H x W x C, patch
size P, N = HW / P^2 patches, hidden size D, k heads of size D_h = D / k, L
layers. S is the length of the token sequence: N + 1, or N without class token.

Every attention matrix is sown as `attention`, so a caller sees them all with
`model.apply(variables, images, mutable="intermediates")`; with
`capture_intermediates=True` also every module's output.
"""

import math
import numbers
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.models import position as positions
from vit_jax.models.attention import init_bias, init_kernel
from vit_jax.models.encoder import GELUS, EncoderBlock, MapHead, layer_norm
from vit_jax.models.origin import Origin
from vit_jax.models.partitioning import Dense, in_use, named
from vit_jax.models.resnet import ResNet, classifier
from vit_jax.models.scan import scan_layers

POOLINGS = ("token", "gap", "map")
# What `remat` keeps of a block for the backward pass, which computes the rest
# again: all of it; the products of dense layers; nothing but its input.
REMATS = {
  "none": None,
  "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  "full": jax.checkpoint_policies.nothing_saveable,
}


class PatchEmbedding(nn.Module):
  """The products x_p E of Eq. 1; (B, H, W, C) -> (B, h, w, D), h = H / P.

  Cutting patches and one dense layer is the same map as a convolution of
  kernel and stride P. `E` has its rows in the order (row, column, channel).
  """

  patch_size: int
  hidden_size: int
  dtype: DTypeLike = jnp.float32
  param_dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: Float[Array, "B H W C"]) -> Float[Array, "B h w D"]:
    E = Dense(
      self.hidden_size,
      kernel_init=named(init_kernel, ("patch", "embed")),
      bias_init=named(init_bias, (None,)),
      dtype=self.dtype,
      param_dtype=self.param_dtype,
      name="E",
    )
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


class Vit(nn.Module):
  """Vision Transformer: images (B, H, W, C) -> logits (B, num_classes).

  Images are floats normalised as the training run was ([-1, 1] by default);
  H and W need only be divisible by the patch size. Logits are float32. With
  `num_classes=0` the result is what the head would see: y of Eq. 4, (B, D), or
  the representation layer's output where there is one.

  Attributes:
    num_classes: Classes of the head; 0 for none.
    patch_size: P, the side of a patch in pixels.
    hidden_size: D, the width of a token.
    num_layers: L, of the encoder.
    mlp_size: Width of the MLP's hidden layer.
    num_heads: k, of each layer's self-attention.
    pooling: "token" reads the class token (Eq. 4). The others have none: "gap"
      averages the patches' outputs (App. D.3), "map" attends to them
      (`MapHead`).
    position: Kind of position embedding, one of `position.POSITIONS`.
    position_at: Where it is used, one of `position.PLACES` (App. D.4).
    representation_size: Width of the pre-training head's hidden tanh layer
      (Section 3.1); None for the single dense layer of fine-tuning.
    head_bias: Initial value of the head's bias.
    dropout_rate: After every dense layer but query, key, value and the heads,
      and after adding position embeddings (App. B.1).
    attention_dropout_rate: On the attention weights A of Eq. 6.
    gelu: "tanh" (the published models' approximation) or "exact".
    layer_norm_epsilon: Added to the variance in every layer norm.
    resnet_layers: Blocks in each ResNet stage of a hybrid; () for none. The
      patches are then cut from its feature map (Section 3.1).
    resnet_width: Channels of that ResNet's root; 64 is "x1".
    scan: Compiles one block for all layers, whose parameters are then stacked
      (L, ...) as `blocks` instead of `block_0` and so on; see `layers`.
    remat: What is computed again in the backward pass to save memory, one of
      `REMATS`.
    dtype: Type of the computation.
    param_dtype: Type of the parameters.
    origin: What its published weights were read as; changes nothing here.

  Raises:
    ValueError: when built with fields, or called with images, that do not fit
      together.
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
  origin: Origin | None = None

  def __post_init__(self):
    _check_fields(self)
    super().__post_init__()

  @nn.compact
  def __call__(
    self, x: Float[Array, "B H W C"], *, train: bool = False
  ) -> Float[Array, "B K"]:
    dtypes: dict[str, Any] = dict(
      dtype=self.dtype, param_dtype=self.param_dtype
    )
    if self.resnet_layers:
      x = ResNet(
        0, self.resnet_layers, self.resnet_width, **dtypes, name="resnet"
      )(x, features=True)
    patches = PatchEmbedding(
      self.patch_size, self.hidden_size, **dtypes, name="patches"
    )
    norm = layer_norm(self.layer_norm_epsilon, **dtypes, name="norm")

    x_p = patches(x)  # (B, h, w, D)
    B, h, w, D = x_p.shape
    z = x_p.reshape(B, h * w, D)
    if self.pooling == "token":
      z = jnp.concatenate([self._x_class(B), z], axis=1)  # (B, N + 1, D)
    z = self._encoder(z, self._positions(h, w), train)
    if self.pooling == "token":
      return self._head(norm(z[:, 0]))  # Eq. 4
    if self.pooling == "gap":
      return self._head(norm(z).mean(axis=1))
    return self._head(self._map_head()(norm(z), train=train))

  def _x_class(self, B: Any) -> Float[Array, "B 1 D"]:
    """The learned class token, once for each image."""
    x_class: Any = self.param(
      "x_class",
      named(nn.initializers.zeros_init(), (None,)),
      (self.hidden_size,),
      self.param_dtype,
    )
    return jnp.tile(x_class.astype(self.dtype), (B, 1, 1))

  def _positions(self, h: int, w: int) -> list[Array | None]:
    """What each layer learns of positions: E_pos, R or None (App. D.4)."""
    class_token = self.pooling == "token"

    def make(name: str) -> Array:
      if self.position == "relative":
        D_h = self.hidden_size // self.num_heads
        return positions.RelativeOffsets(
          h * w + class_token, self.num_heads, D_h, self.param_dtype, name=name
        )()
      return positions.PositionEmbedding(
        self.position,
        (h, w),
        self.hidden_size,
        class_token,
        self.param_dtype,
        name=name,
      )()

    return positions.at_each_layer(
      self.position, self.position_at, self.num_layers, make
    )

  def _encoder(
    self, z: Float[Array, "B S D"], positions: list[Array | None], train: bool
  ) -> Float[Array, "B S D"]:
    """Positions added, and all blocks: Eq. 1 to 3."""
    dropout = nn.Dropout(self.dropout_rate, deterministic=not train)
    relative = self.position == "relative"

    def run(block: EncoderBlock, z: Array, R: Array | None) -> Array:
      return block(in_use(z, ("batch", None, None)), R, train=train)

    if policy := REMATS[self.remat]:
      run = nn.remat(run, policy=policy, prevent_cse=not self.scan)
    for layer, E_pos in enumerate(positions):
      if E_pos is not None and not relative:
        z = z + E_pos[None].astype(z.dtype)  # Eq. 1, where layer = 0
      if layer == 0:
        z = dropout(z)
      if self.scan:  # All layers at once: no other has positions of its own.
        blocks = self._block("blocks")
        return scan_layers(run, self.num_layers)(blocks, z, None)[0]
      z = run(self._block(f"block_{layer}"), z, E_pos if relative else None)
    return z

  def _block(self, name: str) -> EncoderBlock:
    return EncoderBlock(
      self.num_heads,
      self.mlp_size,
      self.dropout_rate,
      self.attention_dropout_rate,
      self.gelu,
      self.layer_norm_epsilon,
      self.dtype,
      self.param_dtype,
      name=name,
    )

  def _map_head(self) -> MapHead:
    return MapHead(
      self.num_heads,
      self.mlp_size,
      self.gelu,
      self.layer_norm_epsilon,
      self.dtype,
      self.param_dtype,
      name="map_head",
    )

  def _head(self, y: Float[Array, "B D"]) -> Float[Array, "B K"]:
    """Section 3.1's head: dense, tanh, dense to pre-train, else one dense."""
    if self.representation_size is not None:
      y = nn.tanh(
        Dense(
          self.representation_size,
          kernel_init=named(init_kernel, ("embed", "representation")),
          bias_init=named(init_bias, (None,)),
          dtype=self.dtype,
          param_dtype=self.param_dtype,
          name="pre_logits",
        )(y)
      )
    if not self.num_classes:
      return y
    return classifier(self.num_classes, self.head_bias, self.param_dtype)(y)


def _check_fields(vit: Vit) -> None:
  """Raises ValueError for fields that cannot make a model."""
  for name in (
    "patch_size",
    "hidden_size",
    "num_layers",
    "mlp_size",
    "num_heads",
  ):
    value = getattr(vit, name)
    if not isinstance(value, numbers.Integral):
      raise ValueError(f"{name}={value!r} must be a whole number.")
    if value < 1:
      raise ValueError(f"{name}={value} must be 1 or more.")
  if vit.num_classes < 0:
    raise ValueError(f"num_classes={vit.num_classes} must be 0 or more.")
  if vit.hidden_size % vit.num_heads:
    D = vit.hidden_size
    small = [k for k in range(1, math.isqrt(D) + 1) if not D % k]
    fits = small + [D // k for k in small]
    nearest = min(fits, key=lambda k: abs(k - vit.num_heads))
    raise ValueError(
      f"hidden_size={vit.hidden_size} does not split over "
      f"num_heads={vit.num_heads}; {nearest} heads would fit."
    )
  for name, known in (
    ("pooling", POOLINGS),
    ("gelu", tuple(GELUS)),
    ("remat", tuple(REMATS)),
  ):
    if getattr(vit, name) not in known:
      raise ValueError(
        f"{name}={getattr(vit, name)!r} is unknown; "
        f"choose one of {', '.join(known)}."
      )
  if not vit.layer_norm_epsilon > 0:
    raise ValueError(
      f"layer_norm_epsilon={vit.layer_norm_epsilon} must be more than 0."
    )
  for name in ("dropout_rate", "attention_dropout_rate"):
    if not 0 <= getattr(vit, name) < 1:
      raise ValueError(f"{name}={getattr(vit, name)} must be in [0, 1).")
  if vit.scan and (vit.position == "relative" or vit.position_at != "input"):
    raise ValueError(
      "scan=True compiles one block for all layers, so none may have positions "
      f"of its own: with position={vit.position!r} and "
      f"position_at={vit.position_at!r} set scan=False."
    )
  positions.check(vit.position, vit.position_at, vit.hidden_size)
