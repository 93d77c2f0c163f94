"""The Vision Transformer, "An Image is Worth 16x16 Words" (arXiv:2010.11929).

Symbols are the paper's (Section 3.1, Appendix A): image x of H x W x C, patch
size P, N = HW / P^2 patches, hidden size D, k heads of size D_h = D / k, L
layers. S is the length of the token sequence: N + 1, or N without class token.

Every attention matrix is sown as `attention`: a caller sees all of them with
`model.apply(variables, images, mutable="intermediates")`, and the output of
every module as well with `capture_intermediates=True`.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from vit_jax.models.attention import FORMS, MapHead, Msa, form_of
from vit_jax.models.layer import (
  ACTIVATIONS,
  Images,
  LayerConfig,
  Layers,
  Offsets,
  PatchDropout,
  Pooled,
  TokenValues,
  call_parameters,
  dense,
  each_token,
  layer_norm,
  make_blocks,
)
from vit_jax.models.mask import AttentionMask
from vit_jax.models.model import Inputs, VitFields, check_images, check_units
from vit_jax.models.partitioning import for_cpu, for_tpu, with_axes
from vit_jax.models.parts import ENCODER, Part, Stack, heads
from vit_jax.models.patches import (
  Patches,
  check_any_size,
  check_patches,
  patchify,
)
from vit_jax.models.position import (
  Extent,
  Grid,
  Positions,
  check_position,
  input_position,
  make_positions,
)
from vit_jax.models.tokens import Mask, Tokens, Where, check_mask

POOLINGS = ("token", "gap", "map")
Embedded = Float[Array, "B h w D"] | struct.PyTreeNode
"""The vectors of patches.

Those of images of any size are `Patches`, and those of each channel
`channels.ChannelPatches`.
"""


class PatchEmbedding(nn.Module):
  """The products x_p E of Eq. 1; (B, H, W, C) -> (B, h, w, D), h = H / P.

  Cutting patches and applying one dense layer is the same map as a convolution
  with kernel size and stride P. The rows of `E` are in the order (row, column,
  channel). Pixels of patches that do not count are taken as zeros. Raises
  ValueError if images or mask do not fit the patches.
  """

  patch_size: int
  hidden_size: int
  config: LayerConfig = LayerConfig()
  use_bias: bool = True
  use_norm: bool = False  # Whether a layer norm follows.

  @nn.compact
  def __call__(self, x: Images, mask: Any = None) -> Float[Array, "B h w D"]:
    c, axes = self.config, ("patch", "embed")
    x_p = patchify(x, self.patch_size)  # (B, h, w, P^2 C)
    if mask is not None:
      check_mask(mask, *x_p.shape[:3])
      x_p = jnp.where(mask.reshape(*x_p.shape[:3], 1), x_p, 0)
    E = dense(self.hidden_size, axes, c, use_bias=self.use_bias, name="E")
    return layer_norm(c, name="norm")(E(x_p)) if self.use_norm else E(x_p)


class Mlp(nn.Module):
  """The MLP of Eq. 3: two dense layers, GELU between; (B, S, D) -> (B, S, D).

  Dropout follows GELU and the second dense layer (App. B.1).
  """

  mlp_size: int
  config: LayerConfig = LayerConfig()

  @nn.compact
  def __call__(
    self, z: TokenValues, *, train: bool = False, scale: Any = None
  ) -> TokenValues:
    c = self.config
    D = z.shape[-1]
    expand = dense(
      self.mlp_size, ("embed", "mlp"), c, bias_axis="mlp", name="expand"
    )
    contract = dense(D, ("mlp", "embed"), c, scale=scale, name="contract")
    gelu = ACTIVATIONS[c.gelu]
    dropout = nn.Dropout(c.dropout_rate, deterministic=not train)

    hidden = dropout(gelu(each_token(expand, z)))  # (B, S, mlp_size)
    if for_tpu():
      from vit_jax.models import tpu

      hidden = tpu.keep_unfused(hidden)
    return dropout(each_token(contract, hidden))


class EncoderBlock(nn.Module):
  """One layer of the Transformer, Eq. 2 and 3; (B, S, D) -> (B, T, D).

  T is S, or with `read` the number of the first tokens that the result has.
  `Msa` says what `R`, `mask`, `where` and `read` are.
  """

  num_heads: int
  mlp_size: int
  config: LayerConfig = LayerConfig()
  attention = Msa  # Its self-attention, which a subclass may change.

  @nn.compact
  def __call__(
    self,
    z: TokenValues,
    R: Offsets = None,
    *,
    mask: Mask | AttentionMask = None,
    where: Where = None,
    read: int | None = None,
    train: bool = False,
  ) -> Float[Array, "B T D"]:
    msa = self.attention(self.num_heads, self.config, name="msa")
    mlp = Mlp(self.mlp_size, self.config, name="mlp")
    norm_msa = layer_norm(self.config, name="norm_msa")
    norm_mlp = layer_norm(self.config, name="norm_mlp")
    dropout = nn.Dropout(self.config.dropout_rate, deterministic=not train)

    y = norm_msa(z)
    options = {"mask": mask, "where": where, "read": read}
    if "read" not in call_parameters(msa):
      del options["read"]  # Such a class computes all tokens.
    y = msa(y, R, **options, train=train)[:, :read]
    z = dropout(y) + z[:, :read]  # Eq. 2
    z = mlp(norm_mlp(z), train=train) + z  # Eq. 3
    return z


class BaseVit(VitFields):
  """A Transformer on patches, Eq. 1-4; images -> tokens -> what the head reads.

  These are the paper's tokens, layers and poolings; a family may have its own.

  Attributes:
    channel_tokens: Whether each channel of a patch is a token of its own
      (ChannelViT, arXiv:2309.16108). A channel that an image lacks is NaN, and
      the result is as if its tokens were left out.
    channel_sampling: Whether training leaves out channels of an image at random
      (`channels.ChannelPatches.sampled`).
  """

  channel_tokens: bool = False
  channel_sampling: bool = False
  relative = None  # `Relative.kind` of the biases between patches, if any.

  def __post_init__(self):
    super().__post_init__()
    if self.channel_tokens or self.channel_sampling:
      from vit_jax.models import channels  # Few models have such tokens.

      channels.check_fields(self)

  @property
  def any_size(self) -> bool:
    """Whether a call also takes `Patches`, which images of any size have.

    `patches.check_any_size` refuses them for some values of the fields.
    """
    return True

  @property
  def class_token(self) -> bool:
    """Whether the first token is the class token."""
    return self.pooling == "token"

  @property
  def prefix(self) -> int:
    """Number of tokens before the patches."""
    return int(self.class_token)

  @property
  def reads_normed(self) -> bool:
    """Whether `pool` reads the first of the normed tokens, or their mean."""
    return self.pooling in ("token", "gap")

  def parts(self) -> tuple[Part, ...]:
    stem = "resnet/conv_root" if self.resnet_layers else "patches/E"
    layers = Stack(self.num_layers)
    return Part("", ENCODER, layers, pixels=f"{stem}/kernel"), *heads()

  def attention_form(self, size: tuple[int, int]) -> str | None:
    """How attention is computed; None if unknown or without a choice."""
    if self.block is not None or self.channel_tokens:
      return None
    patches = math.prod(side // self.stride for side in size)
    patches = round((1 - self.patch_dropout_rate) * patches)
    offset = self.relative or self.position == "relative"
    needs_A = self.attention_dropout_rate > 0 or bool(offset)
    tokens = self.prefix + patches
    head_size = self.hidden_size // self.num_heads
    form = FORMS[form_of(tokens, needs_A, self._config, head_size)]
    if not for_tpu():
      if self.attention != "cudnn" and for_cpu():
        return None  # A CPU has no choice.
      from vit_jax.models import gpu

      remark = gpu.remark(self.attention, self.dtype, head_size)
      return f"{form}{remark}" if remark is not None else None
    from vit_jax.models import tpu

    forward = str(tpu.forward_form(self.hidden_size))
    return f"{form}; without gradients, {forward}" if forward else form

  def __call__(
    self, x: Inputs, *, mask: Any = None, train: bool = False
  ) -> Pooled:
    self.check_has_parameters()
    return self.head(self.pooled(x, mask=mask, train=train))

  def pooled(
    self, x: Inputs, *, mask: Any = None, train: bool = False
  ) -> Pooled:
    """The outputs that the head reads, (B, D) or a row for each head.

    They are those of `encode`. If the head reads only a few tokens, the last
    layer computes those alone. With `Patches`, there is a row for each image of
    a row, (B, M, D). Raises ValueError as `embed` and `run` do.
    """
    tokens = self.embed(x, mask=mask, train=train)
    read = tokens.count_leading(self._read)
    tokens = self.run(tokens, train=train, read=read)  # Eq. 2, 3
    return self.pool(tokens)  # Eq. 4

  @property
  def _read(self) -> int | None:
    """How many of the first tokens `pool` reads; None for all tokens.

    A class with a `pool` of its own reads all, unless it has a `_read`, too.
    """
    return 1 if self.pooling == "token" else None

  def __init_subclass__(cls, **options: Any):
    """Makes a subclass read all tokens if it has a `pool` but no `_read`.

    The `pool` may also be that of a mixin.
    """
    owner = next(c for c in cls.__mro__ if {"pool", "_read"} & {*vars(c)})
    if "_read" not in vars(owner):
      reads_all = property(lambda _: None)
      cls._read = reads_all  # pyright: ignore[reportAttributeAccessIssue]
    super().__init_subclass__(**options)

  def encode(
    self, x: Inputs, *, mask: Any = None, train: bool = False
  ) -> tuple[TokenValues, Pooled]:
    """The last layer's output z, before any norm, and what the head reads.

    Its steps `embed`, `run` and `pool` can be called with `method=` of `apply`.
    `run(embed(x).take(keep))` is an encoder that sees the patches `keep` alone.

    Args:
      x: Images of one size, or `Patches` of images of any size.
      mask: Which patches count, booleans (B, N); None if all do. The result is
        as if the others were left out, whatever they show.

    Raises:
      ValueError: as `embed` and `run` do.
    """
    tokens = self.embed(x, mask=mask, train=train)
    tokens = self.run(tokens, train=train)  # Eq. 2, 3
    return tokens.z, self.pool(tokens)  # Eq. 4

  def embed(
    self, x: Inputs, *, mask: Any = None, train: bool = False
  ) -> Tokens:
    """The tokens of images, with their positions, Eq. 1.

    It is `place(patches(x))`.

    Args:
      x: Images (B, H, W, C), or `Patches` of images of any size.
      mask: Which patches count, booleans (B, N); None if all do.

    Raises:
      ValueError: if images or mask are of a wrong shape or type, a hybrid is
        given a mask, or a model that takes images of one size is given
        `Patches`.
    """
    mask = None if mask is None else jnp.asarray(mask)
    return self.place(self.patches(x, mask=mask), mask=mask, train=train)

  @nn.compact
  def patches(self, x: Inputs, *, mask: Any = None) -> Embedded:
    """The products x_p E of Eq. 1, the embedded patches of images.

    If x are `Patches`, so is the result, whose values are the vectors; with
    `channel_tokens`, it is `ChannelPatches`. Arguments and errors are those of
    `embed`.
    """
    if isinstance(x, Patches):
      check_any_size(self)
      check_patches(x, self.patch_size)
      x = x if mask is None else x.only(mask)
      E = self._patches(x.column(self.patch_size), x.layout.counts)
      return x.replace(values=E[:, :, 0])
    check_images(x)
    if self.channel_tokens:
      from vit_jax.models import channels

      return channels.embed(self, x, mask)
    return self._patches(x, mask)

  @nn.compact
  def place(
    self,
    x_p: Embedded,
    *,
    mask: Any = None,
    train: bool = False,
    table: Grid | None = None,
  ) -> Tokens:
    """The tokens of embedded patches, with their positions, Eq. 1.

    Args:
      mask: As in `embed`.
      table: Patches along height and width that learned positions are for;
        they are resized to the grid of `x_p`. None if they are for that grid.
    """
    if self.channel_sampling and train:
      of_channels: Any = x_p
      x_p = of_channels.sampled(self.make_rng("dropout"))
    tokens = self._without_positions(x_p, mask)
    x_p = tokens.z
    E_pos = self._E_pos(tokens.extent, table)
    x_class = self._x_class(x_p.shape[0])
    if tokens.layout is not None:  # Each image of a row has its own.
      x_class = jnp.tile(x_class, (1, tokens.layout.images, 1))
    dropout = nn.Dropout(self._embedding_dropout_rate, deterministic=not train)
    patch_dropout = PatchDropout(self.patch_dropout_rate)
    if not isinstance(E_pos, int):
      E_pos = tokens.table_rows(E_pos, prefix=x_class.shape[1])

    z = jnp.concatenate([x_class, x_p], axis=1) + E_pos  # Eq. 1
    z = dropout(z)
    shared = None
    if self.position_at == "shared" and not isinstance(E_pos, int):
      shared = E_pos  # Every layer adds it again, App. D.4.
    tokens = tokens.replace(z=z, prefix=x_class.shape[1], E_pos=shared)
    return patch_dropout(tokens, train=train)

  @nn.compact
  def run(
    self, tokens: Tokens, *, train: bool = False, read: int | None = None
  ) -> Tokens:
    """The tokens after all layers, before any norm, Eq. 2 and 3.

    Args:
      read: How many of the first tokens are read; None for all. The last layer
        leaves out the others, unless layers are scanned or take no `read`,
        attention is shown or perturbed, or there is dropout, whose draws would
        otherwise depend on `read`.

    Raises:
      ValueError: if the tokens need a `mask`, or relative positions `where`,
        and the class of the layers takes no such argument.
    """
    tokens = tokens.clear_uncounted()
    drops = train and (self.dropout_rate or self.attention_dropout_rate)
    shows = self.is_mutable_collection("intermediates")
    if drops or shows or self.variables.get("perturbations"):
      read = None
    for layer in self._layers(tokens.extent, train, read):
      tokens = layer(tokens)
    return tokens

  @nn.compact
  def run_to(
    self,
    tokens: Tokens,
    layers: Sequence[int],
    *,
    train: bool = False,
    prefix: bool = False,
  ) -> tuple[Tokens, list[Tokens]]:
    """The result of `run`, and the patches after each of these layers.

    Layers are counted from 1. If they are scanned, only the last can be given.
    With `prefix`, the outputs of these layers have the tokens before the
    patches as well.
    """
    tokens = tokens.clear_uncounted()
    functions = self._layers(tokens.extent, train)
    outputs = {}
    # Layers are counted from the last, as the first function may be a norm.
    first = self.num_layers - len(functions) + 1
    for number, layer in enumerate(functions, start=first):
      tokens = layer(tokens)
      outputs[number] = tokens if prefix else tokens.without_prefix()
    return tokens, [outputs[number] for number in layers]

  @nn.compact
  def normed(self, tokens: Tokens) -> Tokens:
    """The outputs of the layers after the final norm, if there is one."""
    if not self.norm_final:
      return tokens
    norm = layer_norm(self._config, name="norm")
    return tokens.replace(z=norm(tokens.z))

  @nn.compact
  def pool(self, tokens: Tokens) -> Pooled:
    """The input of the head, Eq. 4, from the output of the layers.

    It is the class token's output, the average output or the MAP head's.
    """
    norm = layer_norm(self._config, name="norm")
    if self.pooling == "token":
      return norm(tokens.first(0))
    tokens = tokens.replace(z=norm(tokens.z))
    if self.pooling == "gap":
      return tokens.mean()
    return self._map_head()(tokens.z, tokens.pooled_by())

  def _map_head(self) -> MapHead:
    """The attention pooling of "map"."""
    mlp = partial(Mlp, self.mlp_size, self._config)
    return MapHead(self.num_heads, mlp, self._config, name="map_head")

  def _without_positions(self, x_p: Any, mask: Any) -> Tokens:
    """The embedded patches as tokens, without a prefix and positions."""
    if isinstance(x_p, Patches):
      layout = (x_p if mask is None else x_p.only(mask)).layout
      return Tokens(x_p.values, layout, layout.counts)
    if self.channel_tokens:
      return x_p.tokens()
    B, h, w, D = x_p.shape
    return Tokens(x_p.reshape(B, h * w, D), None, mask, grid=(h, w))

  def _patches(self, x: Images, mask: Any) -> Float[Array, "B h w D"]:
    """The embedded patches of images, or of feature maps."""
    embedding = PatchEmbedding(
      self.patch_size,
      self.hidden_size,
      self._config,
      use_bias=self.patch_bias,
      use_norm=self.norm_patches,
      name="patches",
    )
    return embedding(x, mask)

  def _x_class(self, B: Any) -> Float[Array, "B tokens D"]:
    """The learned class token of every image; (B, 0, D) if there is none."""
    if self.pooling != "token":
      return jnp.zeros((B, 0, self.hidden_size), self.dtype)
    zeros = with_axes(nn.initializers.zeros_init(), (None,))
    shape = (self.hidden_size,)
    x_class: Any = self.param("x_class", zeros, shape, self.param_dtype)
    return jnp.tile(x_class.astype(self.dtype), (B, 1, 1))

  def _E_pos(self, grid: Extent, table: Grid | None) -> Array | int:
    """E_pos of Eq. 1, (1, S, D) or (B, S, D); 0 if nothing is added."""
    return input_position(self, grid, self._config, table)

  def _layers(
    self, grid: Extent, train: bool, read: int | None = None
  ) -> Layers:
    """The layers, as functions of tokens to call in turn."""
    positions = self._positions(grid)
    return make_blocks(self, self._layer_builder(grid), positions, train, read)

  def _positions(self, grid: Extent) -> Positions:
    """The position embeddings that the layers use."""
    return make_positions(self, grid, self._config)

  def _layer_builder(self, grid: Extent) -> Callable[..., nn.Module]:
    """A function that builds a layer, given the name of its parameters."""
    block = self.block or EncoderBlock
    options = {"grid": grid} if hasattr(block, "grid") else {}
    return partial(
      block, self.num_heads, self.mlp_size, self._config, **options
    )


class Vit(BaseVit):
  """The paper's Vision Transformer, its hybrids and its ablations; Eq. 1-4.

  Attributes:
    pooling: "token" reads the class token (Eq. 4). The others have no class
      token: "gap" averages the patches' outputs (App. D.3), "map" attends to
      them (`attention.MapHead`).
    position: Kind of position embedding, one of `position.POSITIONS`.
    position_at: Where it is used, one of `position.PLACES` (App. D.4).
    resnet_layers: Blocks in each ResNet stage of a hybrid, whose patches are
      cut from the ResNet's feature map (Section 3.1); () for a pure ViT.
    resnet_width: Channels of that ResNet's root; 64 is "x1".
    resnet_epsilon: Added to the variance of that ResNet's kernels, as timm
      does; None adds 1e-5 to their deviation, as the paper's code does.
    block: Class of the layers, called as `EncoderBlock` is; None takes that
      class. A field `grid` of the class gets the patches along height and
      width. Layers are called with `mask` if there is one, and with `where` if
      patches were left out and they take that argument.
  """

  position_at: str = "input"
  resnet_layers: tuple[int, ...] = ()
  resnet_width: int = 64
  resnet_epsilon: float | None = None
  block: Callable[..., nn.Module] | None = None
  poolings = POOLINGS

  def __post_init__(self):
    super().__post_init__()
    block = self.block or EncoderBlock
    if not (isinstance(block, type) and issubclass(block, nn.Module)):
      raise ValueError(
        f"block={self.block!r} must be a class of layers, a flax Module; the "
        "names of blocks are for make_vit and for --config.model.block."
      )
    check_units("resnet_layers", self.resnet_layers)
    each_layer = self.position == "relative" or self.position_at != "input"
    if self.scan and each_layer:
      raise ValueError(
        "scan=True compiles one block for all layers, so none may have "
        f"positions of its own: with position={self.position!r} and "
        f"position_at={self.position_at!r} set scan=False."
      )
    check_position(self.position, self.position_at, self.hidden_size)

  def _patches(self, x: Images, mask: Any) -> Float[Array, "B h w D"]:
    """The embedded patches of images, or of a hybrid's feature maps.

    Raises ValueError if a hybrid is given a mask.
    """
    if not self.resnet_layers:
      return super()._patches(x, mask)
    if mask is not None:
      raise ValueError(
        "a hybrid's ResNet mixes neighbouring patches, so none can be left "
        "out: give no mask, or take a model without ResNet."
      )
    return super()._patches(self._features(x), None)

  def _features(self, x: Images) -> Float[Array, "B h w features"]:
    """The feature maps of a hybrid's ResNet."""
    from vit_jax.models.resnet import ResNet  # Few models are hybrids.

    options: Any = dict(self._config.dtypes, epsilon=self.resnet_epsilon)
    layers, width = self.resnet_layers, self.resnet_width
    resnet = ResNet(0, layers, width, **options, name="resnet")
    return resnet(x, features=True)
