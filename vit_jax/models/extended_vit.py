"""The Vision Transformer with what encoders have added since the paper.

DINOv2 (arXiv:2304.07193), with registers (arXiv:2309.16588), DINOv3
(arXiv:2508.10104), CLIP (arXiv:2103.00020), DeiT (arXiv:2012.12877), DeiT-III
(arXiv:2204.07118), EVA (arXiv:2211.07636), EVA-02 (arXiv:2303.11331), BEiT-3
(arXiv:2208.10442), RoPE-ViT (arXiv:2403.13298), the Perception Encoder (PE,
arXiv:2504.13181), TIPSv2 (arXiv:2604.12012), AIMv2 (arXiv:2411.14402),
InternViT (arXiv:2312.14238), C-RADIO (arXiv:2412.07679), Pixio
(arXiv:2512.15715) and MLCD (arXiv:2407.17331) are all `ExtendedVit`s. Symbols
as in `vit`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from vit_jax.models.attention import MapHead, QueryPool
from vit_jax.models.extended_block import (
  GATES,
  QKV_BIASES,
  BlockFields,
  ExtendedBlock,
  ExtendedConfig,
)
from vit_jax.models.layer import (
  Layers,
  Pooled,
  check_choice,
  check_rate,
  layer_norm,
)
from vit_jax.models.model import Inputs, check_size, classifier
from vit_jax.models.partitioning import with_axes
from vit_jax.models.parts import HEAD, OURS, Part
from vit_jax.models.patches import Layout, table_grid
from vit_jax.models.placed import repeat_prefix
from vit_jax.models.position import (
  RESIZES,
  Extent,
  Grid,
  Positions,
  ResizedPositions,
)
from vit_jax.models.relative import KINDS, Relative, RelativeBiases
from vit_jax.models.rotary import ROPE_KINDS, Rope
from vit_jax.models.tokens import Tokens
from vit_jax.models.vit import BaseVit, Mlp

POOLINGS = ("token", "gap", "token_gap", "map", "query", "prefix")
_POSITIONS = ("learned", "learned_grid", "learned_all", "factorized", "none")


class ExtendedVit(BaseVit, BlockFields):
  """A Vision Transformer with what encoders have added since the paper.

  Tokens are in the order: class, distillation, registers, patches. Its layers
  have fields of their own, `BlockFields`.

  Attributes:
    pooling: "token" reads the class token, "gap" the average over the patches,
      "token_gap" both, one after the other; "map" and "query" attend to the
      patches (`attention.MapHead`, `attention.QueryPool`), and "prefix" is the
      average over the tokens before them.
    pooled_tokens: The tokens that "token" reads, one after the other.
    pool_heads: Heads of "map"; None for those of the layers.
    pool_mlp_size: Width of the hidden layer of the MLP of "map"; None for that
      of the layers' MLPs.
    pool_prefix: Whether "map" attends to the tokens before the patches, too.
    position: "learned", with vectors for class and distillation token,
      "learned_all", for registers as well, "learned_grid", for patches alone,
      "factorized", the sum of a vector for the row and one for the column, or
      "none".
    position_grid: Patches along height and width that the positions are for;
      the positions are interpolated to the grid of an image. None takes the
      grid of the images.
    antialias: Whether that interpolation is smoothed when the grid shrinks.
    position_resize: The kind of interpolation, one of `placed.RESIZES`.
    class_token: Whether there is a class token.
    registers: Number of register tokens.
    distilled: Whether there is a distillation token. It has a head of its own,
      and the logits are the average of both heads'.
    norm_kind: "layer" for layer norms, "rms" for RMSNorm in their place.
    norm_patches: Whether a norm follows the embedding of patches.
    norm_final: Whether a norm follows the last layer.
    rope_theta: The base of the patches' rotary positions, whose periods grow
      from the shortest towards `rope_theta` times as long; None for no rotary
      positions.
    rope_kind: The kind of rotary positions, one of `rotary.ROPE_KINDS`.
      `rotary.Rope` explains this field and the next three.
    rope_side: The number that rows and columns count up to; None scales them
      as DINOv3 does.
    rope_start: The number that rows and columns count from.
    rope_x_first: Whether the first half of the angles is of x.
    rope_first: Whether the class token is rotated, too, by learned angles.
    relative: "table" or "mlp", the kind of `relative.RelativeBiases` that
      attention adds to its logits for the offset between two patches; None for
      no biases. A table is for `position_grid`, too.
    relative_hidden: Hidden units of "mlp".
    relative_shared: Whether all layers share these biases.
    relative_bilinear: Whether a table is resized as the library transformers
      resizes it.
    norm_pre: Whether a layer norm precedes the first layer.
    patch_bias: Whether the embedding of patches has a bias.
    projection: Whether the representation layer is linear and without bias, as
      CLIP's projection.
    norm_pooled: Whether the last layer norm follows the average over the
      patches instead of preceding it.
    pool_unnormed: Whether that average is taken before the last layer norm,
      which no answer then depends on.
    drop_path_rate: Chance that a training example skips a residual branch.
    drop_path_grows: Whether that chance rises linearly from 0 in the first
      layer to `drop_path_rate` in the last.
  """

  pooled_tokens: tuple[int, ...] = (0,)
  pool_heads: int | None = None
  pool_mlp_size: int | None = None
  pool_prefix: bool = False
  position_grid: Grid | None = None
  antialias: bool = False
  position_resize: str = "bicubic"
  class_token: bool = True  # pyright: ignore[reportIncompatibleMethodOverride]
  registers: int = 0
  distilled: bool = False
  norm_kind: str = "layer"
  norm_patches: bool = False
  norm_final: bool = True
  rope_theta: float | None = None
  rope_kind: str = "axial"
  rope_side: int | None = None
  rope_start: int = 0
  rope_x_first: bool = False
  rope_first: bool = False
  relative: str | None = None
  relative_hidden: int = 128
  relative_shared: bool = False
  relative_bilinear: bool = False
  norm_pre: bool = False
  patch_bias: bool = True
  projection: bool = False
  norm_pooled: bool = False
  pool_unnormed: bool = False
  drop_path_rate: float = 0.0
  drop_path_grows: bool = False
  poolings = POOLINGS
  extended = resizes_positions = True

  def __post_init__(self):
    super().__post_init__()
    check_size("registers", self.registers, least=0)
    check_size("parallel", self.parallel)
    check_choice("position", self.position, _POSITIONS)
    check_choice("position_resize", self.position_resize, RESIZES)
    check_choice("qkv_bias", self.qkv_bias, QKV_BIASES)
    check_choice("gate", self.gate, GATES)
    if self.gate != "silu" and not self.gated_mlp:
      raise ValueError(f"gate={self.gate!r} needs gated_mlp=True.")
    self._check_norms_and_pooling()
    check_rate("drop_path_rate", self.drop_path_rate)
    if self.relative is not None:
      check_choice("relative", self.relative, KINDS)
    if self.relative and self.registers + self.distilled:
      raise ValueError(
        f"relative={self.relative!r} knows one token before the patches, the "
        "class token: set registers=0 and distilled=False."
      )
    if self.distilled and self.pooling != "token":
      raise ValueError(
        f"pooling={self.pooling!r} leaves the distillation token unused: "
        "set pooling='token' or distilled=False."
      )
    average = dict(norm_pooled=True, pool_unnormed=True)
    if self.pooling not in ("map", "query", "prefix"):
      average["class_token"] = False
    for name, value in average.items():
      if getattr(self, name) is value and self.pooling != "gap":
        raise ValueError(
          f"{name}={value} needs pooling='gap', not {self.pooling!r}."
        )
    if self.drop_path_grows and self.scan:
      raise ValueError(
        "drop_path_grows=True makes the layers differ, and scan=True compiles "
        "one for all: set one of them to False."
      )
    self._check_rope()

  @nn.nowrap
  def _check_rope(self) -> None:
    """Raises ValueError if the fields of rotary positions are invalid."""
    check_choice("rope_kind", self.rope_kind, ROPE_KINDS)
    if self.rope_theta and self.hidden_size // self.num_heads % 4:
      raise ValueError(
        f"rope_theta needs heads of a size divisible by 4, not "
        f"{self.hidden_size // self.num_heads}: choose another num_heads."
      )
    if self.rope_first and not (self.rope_theta and self.class_token):
      raise ValueError("rope_first=True needs rope_theta and a class token.")
    if self.rope_kind == "axial":
      return
    if not self.rope_theta:
      raise ValueError(
        f"rope_kind={self.rope_kind!r} needs rope_theta, which is "
        f"{self.rope_theta!r}: set rope_theta, or leave rope_kind out."
      )
    if self.rope_side:
      raise ValueError(
        f"rope_side={self.rope_side} is for rope_kind='axial', not "
        f"{self.rope_kind!r}: leave out rope_side."
      )

  @nn.nowrap
  def _check_norms_and_pooling(self) -> None:
    """Raises ValueError if the fields of norms or pooling are invalid."""
    if self.qk_norm_whole and not self.qk_norm:
      raise ValueError("qk_norm_whole=True needs qk_norm=True.")
    if self.norm_after and self.layer_scale is not None:
      raise ValueError(
        "norm_after=True needs layer_scale=None: the norms after the branches "
        "have factors of their own."
      )
    if self.pool_heads and self.hidden_size % self.pool_heads:
      raise ValueError(
        f"hidden_size={self.hidden_size} does not split over "
        f"pool_heads={self.pool_heads}: choose another number."
      )
    for name in ("norm_pooled", "pool_unnormed"):
      if getattr(self, name) and not self.norm_final:
        raise ValueError(f"{name}=True needs norm_final=True.")
    last = self.prefix - 1
    tokens = self.pooled_tokens
    if self.pooling == "prefix" and last < 0:
      raise ValueError("pooling='prefix' needs a class token or registers.")
    read = self.pooling == "token" and self.class_token
    if not tokens or (read and not all(0 <= i <= last for i in tokens)):
      raise ValueError(
        f"pooled_tokens={tokens} must be numbers of tokens before the patches, "
        f"from 0 to {last}."
      )
    if tokens != (0,) and (self.pooling != "token" or self.distilled):
      raise ValueError(
        f"pooled_tokens={tokens} needs pooling='token' and no distillation "
        "token."
      )

  @property
  def prefix(self) -> int:
    """Number of tokens before the patches."""
    return self.class_token + self.distilled + self.registers

  @property
  def reads_normed(self) -> bool:
    """Whether `pool` reads the first of the normed tokens, or their mean."""
    other = self.distilled or self.norm_pooled or self.pooled_tokens != (0,)
    return super().reads_normed and not other

  @property
  def _config(self) -> ExtendedConfig:
    return ExtendedConfig.of(self)

  def parts(self) -> tuple[Part, ...]:
    return *super().parts(), Part("head_dist", HEAD, own_task=True)

  def _x_class(self, B: Any) -> Float[Array, "B tokens D"]:
    """The tokens before the patches: class, distillation, registers."""
    if not self.prefix:
      return jnp.zeros((B, 0, self.hidden_size), self.dtype)
    has = {"x_class": self.class_token, "x_dist": self.distilled}
    zeros = nn.initializers.zeros
    normal = nn.initializers.normal(0.02)
    tokens = [self._token(name, zeros) for name in has if has[name]]
    if self.registers:
      tokens.append(self._token("registers", normal, self.registers))
    return jnp.tile(jnp.concatenate(tokens)[None], (B, 1, 1))

  def _token(self, name: str, init: Any, *count: int) -> Float[Array, "T D"]:
    """A learned token, or `count` of them, from the parameter `name`."""
    shape = (*count, self.hidden_size)
    init = with_axes(init, (None,) * len(shape))
    token: Any = self.param(name, init, shape, self.param_dtype)
    return token.astype(self.dtype).reshape(-1, self.hidden_size)

  def _E_pos(self, grid: Extent, table: Grid | None) -> Array | int:
    """The position embeddings to add, (1, S, D); 0 if there are none.

    Tokens before the patches that have no position get zeros. For a `Layout`
    they are those of each row's tokens, (B, S, D).
    """
    if self.position == "none":
      return 0
    entries = {
      "learned": self.prefix - self.registers,
      "learned_all": self.prefix,
    }
    prefix = entries.get(self.position, 0)  # Rows of tokens before the patches.
    resized = ResizedPositions(
      self.position_grid or table or table_grid(grid),
      self.hidden_size,
      prefix=prefix,
      antialias=self.antialias,
      resize=self.position_resize,
      param_dtype=self.param_dtype,
      factorized=self.position == "factorized",
      name="position",
    )
    first, patches = jnp.split(resized(grid), [prefix], axis=-2)
    shape = (self.prefix - prefix, self.hidden_size)
    no_place = jnp.zeros((*first.shape[:-2], *shape), first.dtype)
    E_pos = jnp.concatenate([first, no_place, patches], axis=-2)
    E_pos = E_pos.astype(self.dtype)
    if isinstance(grid, Layout):
      return repeat_prefix(E_pos, self.prefix, grid)
    return E_pos[None]

  def _positions(self, grid: Extent) -> Positions:
    """The relative bias that all layers share, if they share one."""
    none: list[Array | None] = [None] * self.num_layers
    relative = self._relative(grid)
    if relative is None or not self.relative_shared:
      return Positions(none, none)
    biases = RelativeBiases(
      self.num_heads, relative, self.param_dtype, name="relative"
    )()
    return Positions(none, [biases] * self.num_layers)

  def _relative(self, grid: Extent) -> Relative | None:
    """The settings of the relative biases for this grid; None for no biases."""
    if self.relative is None:
      return None
    any_size = isinstance(grid, Layout)
    computed = self.relative == "mlp"
    if any_size and computed:
      table = (1, 1)  # An MLP has no table.
    else:
      table = self.position_grid or table_grid(grid)
    return Relative(
      kind=self.relative,
      grid=table if any_size else grid,
      table=table,
      class_token=self.class_token,
      hidden=self.relative_hidden,
      bilinear=self.relative_bilinear,
      most=grid.most if any_size and computed else None,
    )

  def _layers(
    self, grid: Extent, train: bool, read: int | None = None
  ) -> Layers:
    """The layers, after the norm before them if there is one."""
    layers = super()._layers(grid, train, read)
    if not self.norm_pre:
      return layers
    norm = layer_norm(self._config, name="norm_pre")
    return [lambda tokens: tokens.replace(z=norm(tokens.z)), *layers]

  def _layer_builder(self, grid: Extent) -> Callable[..., nn.Module]:
    """Returns a function from a layer's name to its `ExtendedBlock`."""
    rope = None
    if self.rope_theta:
      rope = Rope(
        grid=None if isinstance(grid, Layout) else grid,
        theta=self.rope_theta,
        side=self.rope_side,
        kind=self.rope_kind,
        start=self.rope_start,
        x_first=self.rope_x_first,
        first=self._first_angles() if self.rope_first else None,
      )

    def make_block(name: str) -> ExtendedBlock:
      drop_path = self.drop_path_rate
      if self.drop_path_grows:
        layer = OURS.number(name)
        assert layer is not None
        drop_path = drop_path * layer / max(self.num_layers - 1, 1)
      return ExtendedBlock(
        self.num_heads,
        self.mlp_size,
        self._config,
        drop_path_rate=drop_path,
        rope=rope,
        relative=self._relative(grid),
        name=name,
      )

    return make_block

  def _first_angles(self) -> Float[Array, " half"]:
    """The angles that rotate the class token in all heads and layers."""
    half = self.hidden_size // self.num_heads // 2
    init = with_axes(nn.initializers.normal(half**-0.5), (None,))
    angles: Any = self.param("x_class_angles", init, (half,), self.param_dtype)
    return angles

  @property
  def _read(self) -> int | None:
    """How many first tokens the head reads; None if it reads all."""
    if self.distilled:
      return 2
    read = {"token": max(self.pooled_tokens) + 1, "prefix": self.prefix}
    return read.get(self.pooling)

  @nn.compact
  def pool(self, tokens: Tokens) -> Pooled:
    """The outputs that the head reads, Eq. 4; two rows if there are two heads.

    "gap" and "token_gap" average over the patches that count.
    """
    if self.norm_final:
      norm = layer_norm(self._config, name="norm")
      if self.norm_pooled:
        return norm(tokens.mean())
      # It is computed even if nothing reads it: its parameters have to exist.
      normed = norm(tokens.z)
      if not self.pool_unnormed:
        tokens = tokens.replace(z=normed)
    if self.distilled:
      return tokens.prefixes(2)
    if self.pooling == "token":
      read = [tokens.first(i) for i in self.pooled_tokens]
      return jnp.concatenate(read, axis=-1) if len(read) > 1 else read[0]
    if self.pooling == "prefix":
      return tokens.prefixes(self.prefix).mean(axis=-2)
    if self.pooling == "query":
      attend = QueryPool(self.num_heads, self._config, name="map_head")
      return attend(tokens.patches, tokens.pooled_by(prefix=False))
    if self.pooling == "map":
      if self.pool_prefix:
        return self._map_head()(tokens.z, tokens.pooled_by())
      return self._map_head()(tokens.patches, tokens.pooled_by(prefix=False))
    mean = tokens.mean()
    both = self.pooling == "token_gap"
    return jnp.concatenate([tokens.first(0), mean], axis=-1) if both else mean

  def _map_head(self) -> MapHead:
    """The MAP head, with its own numbers of heads and width if set."""
    size = self.pool_mlp_size or self.mlp_size
    num_heads = self.pool_heads or self.num_heads
    mlp = partial(Mlp, size, self._config)
    return MapHead(num_heads, mlp, self._config, name="map_head")

  @nn.compact
  def head(self, y: Pooled) -> Float[Array, "B *M K"]:
    """The logits, the average of both heads' if there are two."""
    if not self.distilled or not self.num_classes:
      return super().head(y)
    first, second = self._heads(y)
    return (first + second) / 2

  @nn.compact
  def _heads(self, y: Pooled) -> list[Float[Array, "B *M K"]]:
    """The logits of the class token's head and of the distillation token's."""
    options = self.num_classes, self.head_bias, self.param_dtype
    names = "head", "head_dist"
    return [classifier(*options, n)(y[..., i, :]) for i, n in enumerate(names)]

  def by_head(self, x: Inputs, *, train: bool = False) -> list[Array]:
    """The logits (B, K) of the class and of the distillation token."""
    return self._heads(self.pooled(x, train=train))

  @nn.compact
  def representation(self, y: Pooled) -> Float[Array, "B *M R"]:
    """Features of an image; with two heads, the average of the rows of y."""
    if self.distilled:
      return y.mean(axis=-2)
    return super().representation(y)
