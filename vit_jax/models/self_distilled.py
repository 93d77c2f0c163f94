"""A Vision Transformer that learns from an average of itself, without labels.

DINO (arXiv:2104.14294), iBOT (arXiv:2111.07832) and DINOv2 (arXiv:2304.07193).
Heads map the outputs of the class token and of masked patches to K prototypes.
`tasks.self_distillation_objective` has the losses. Symbols as in `vit`; M of
the N patches of an image are masked at most.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from vit_jax.models.extended_vit import ExtendedVit
from vit_jax.models.layer import GELUS, Images, LayerConfig, layer_norm
from vit_jax.models.model import Model, check_size, unit
from vit_jax.models.partitioning import Dense, in_use, named
from vit_jax.models.parts import HEAD, INPUT, Part
from vit_jax.models.position import Grid, ResizedPositions
from vit_jax.models.tokens import Tokens
from vit_jax.models.vit import BaseVit, Vit

# Positions that small crops can have as well as large ones.
_POSITIONS = ("learned", "learned_grid", "sincos2d", "none")
_init_kernel = nn.initializers.truncated_normal(0.02)


@dataclasses.dataclass(frozen=True)
class Heads:
  """The sizes of the heads.

  Attributes:
    prototypes: K, the outputs of a head.
    hidden: Width of its MLP.
    layers: Layers of its MLP.
    bottleneck: Width of the MLP's output, of which the length is dropped.
    separate: Whether patches have a head of their own.
  """

  prototypes: int = 65_536
  hidden: int = 2048
  layers: int = 3
  bottleneck: int = 256
  separate: bool = False

  def __post_init__(self):
    for field in dataclasses.fields(self)[:-1]:
      check_size(field.name, getattr(self, field.name))


class PrototypeHead(nn.Module):
  """An MLP, then cosines with K prototypes times a factor; (R, D) -> (R, K).

  The last layer is v g / |v| for each prototype: its direction is learned apart
  from its length (arXiv:1602.07868), which starts at 1. Outputs are float32,
  and over several devices each has a part of the prototypes.
  """

  sizes: Heads
  config: LayerConfig = LayerConfig()

  @nn.compact
  def __call__(self, x: Float[Array, "R D"]) -> Float[Array, "R K"]:
    c, sizes = self.config, self.sizes
    for layer in range(sizes.layers):
      last = layer == sizes.layers - 1
      width = sizes.bottleneck if last else sizes.hidden
      axes = ("mlp", "embed") if last and layer else ("embed", "mlp")
      bias_axis = None if axes[1] == "embed" else "mlp"
      linear = Dense(
        width,
        kernel_init=named(_init_kernel, axes),
        bias_init=named(nn.initializers.zeros_init(), (bias_axis,)),
        **c.dtypes,
        name=f"layer_{layer}",
      )
      x = linear(x)
      if not last:
        x = GELUS["exact"](x)
    x = unit(x).astype(c.dtype)

    axes = ("embed", "prototypes")
    shape = (sizes.bottleneck, sizes.prototypes)
    normal = named(nn.initializers.normal(1.0), axes)
    ones = named(nn.initializers.ones_init(), axes[1:])
    v: Any = self.param("direction", normal, shape, c.param_dtype)
    g: Any = self.param("length", ones, shape[1:], c.param_dtype)
    W = unit(v, axis=0) * g.astype(jnp.float32)[None]
    W = in_use(W.astype(c.dtype), (None, "prototypes"))
    return in_use((x @ W).astype(jnp.float32), ("batch", "prototypes"))


class SelfDistilled(BaseVit):
  """The base of `SelfDistilledVit` and `SelfDistilledExtendedVit`.

  Images (B, H, W, C) -> a dictionary with `y`, the normalised output of the
  class token (or the mean of the patches', with the pooling "gap"), (B, D), and
  `answers`, those of its head, (B, K). The draw is given as a collection of
  variables, `model.apply({"params": params, "draw": draw}, images)`:

  - `masks`, booleans (B, N): which patches a learned vector replaces;
  - `where`, integers (B, M): the patches to answer for, whose answers are
    `patches`, (B, M, K).

  Attributes:
    heads: The sizes of the heads.
    position_grid: Patches along height and width of a large crop. Positions are
      interpolated from there to a small crop's.
  """

  heads: Heads = Heads()
  position_grid: Grid | None = None
  plain = BaseVit

  def __post_init__(self):
    _check(self)
    super().__post_init__()

  @property
  def trunk(self) -> Model:
    """The encoder alone."""
    return self.plain.like(self)

  def parts(self) -> tuple[Part, ...]:
    parts = [Part("mask_token", INPUT, own_task=True)]
    names = ("class_head", "patch_head")
    parts += [Part(name, HEAD, own_task=True) for name in names]
    return *super().parts(), *parts

  def __call__(
    self, x: Images, *, mask: Any = None, train: bool = False
  ) -> Any:
    """The representation and the answers, a dictionary.

    Raises ValueError if there is a `mask`, which a draw has in its place.
    """
    if mask is not None:
      raise ValueError(
        "self-distillation takes no mask of patches that count: give those to "
        "replace as the collection `draw`."
      )
    return self.answer(self.normed(x, train=train))

  @nn.compact
  def normed(self, x: Images, *, train: bool = False) -> Tokens:
    """The normalised output of the last layer."""
    tokens = self.run(self.embed(x, train=train), train=train)
    if self.norm_final:
      norm = layer_norm(self._config, name="norm")
      tokens = tokens.replace(z=norm(tokens.z))
    return tokens

  @nn.compact
  def answer(self, tokens: Tokens) -> dict[str, Array]:
    """The representation and the answers, from `normed`."""
    y = tokens.mean() if self.pooling == "gap" else tokens.z[:, 0]
    head = PrototypeHead(self.heads, self._config, name="class_head")
    of_patches = head
    if self.heads.separate:
      of_patches = PrototypeHead(self.heads, self._config, name="patch_head")
    answers = {"y": y, "answers": head(y)}
    where: Any = self.get_variable("draw", "where")
    if where is not None:
      B, M = where.shape
      patches = jnp.take_along_axis(tokens.patches, where[..., None], axis=1)
      rows = of_patches(patches.reshape(B * M, -1))
      answers["patches"] = rows.reshape(B, M, -1)
    elif self.is_initializing():
      of_patches(y)
    return answers

  def _patches(self, x: Images, mask: Any) -> Float[Array, "B h w D"]:
    """The embedded patches, with the mask's vector as the draw says."""
    x_p = super()._patches(x, mask)
    masks: Any = self.get_variable("draw", "masks")
    if masks is None and not self.is_initializing():
      return x_p
    zeros = named(nn.initializers.zeros_init(), (None,))
    shape = (self.hidden_size,)
    token: Any = self.param("mask_token", zeros, shape, self.param_dtype)
    if masks is None:
      return x_p
    token = token.astype(x_p.dtype).reshape(1, 1, 1, -1)
    return jnp.where(masks.reshape(*x_p.shape[:3], 1), token, x_p)


class SelfDistilledVit(SelfDistilled, Vit):
  """A `Vit` that is trained by self-distillation; see `SelfDistilled`."""

  plain = Vit
  resizes_positions = True

  def _E_pos(self, grid: Grid, table: Grid | None) -> Array | int:
    whole = self.position_grid
    if whole in (None, grid) or not self.position.startswith("learned"):
      return super()._E_pos(grid, table)
    class_has_place = self.class_token and self.position == "learned"
    resized = ResizedPositions(
      whole,
      self.hidden_size,
      prefix=int(class_has_place),
      antialias=False,
      param_dtype=self.param_dtype,
      name="position",
    )
    E_pos = resized(grid).astype(self.dtype)
    no_place = self.prefix - class_has_place
    return jnp.pad(E_pos, ((no_place, 0), (0, 0)))[None]


class SelfDistilledExtendedVit(SelfDistilled, ExtendedVit):
  """An `ExtendedVit` trained by self-distillation; see `SelfDistilled`."""

  plain = ExtendedVit


def self_distilled(
  vit: nn.Module, heads: Heads, position_grid: Grid | None
) -> SelfDistilled:
  """A model like `vit` with heads of these sizes.

  `position_grid` has the patches of a large crop, for a model whose own is not
  set. Raises ValueError if `vit` is no Vision Transformer, or its fields leave
  no class token or patches to learn from.
  """
  kinds = {Vit: SelfDistilledVit, ExtendedVit: SelfDistilledExtendedVit}
  model: Any = vit
  kind: Any = kinds.get(type(vit))
  if kind is None:
    raise ValueError(
      "self_distillation.prototypes: self-distillation trains a Vision "
      f"Transformer, not {type(vit).__name__}: choose such as "
      "model.variant=B/16."
    )
  grid = model.position_grid or position_grid
  return kind.like(
    vit, num_classes=0, head_bias=0.0, heads=heads, position_grid=grid
  )


def _check(vit: Any) -> None:
  """Raises ValueError if the fields do not fit self-distillation."""
  other = vit.pooling not in ("token", "gap") or vit.distilled
  pooled = getattr(vit, "norm_pooled", False) or vit.pooled_tokens != (0,)
  if other or pooled or vit.representation_size is not None:
    raise ValueError(
      f"pooling={vit.pooling!r} and representation_size="
      f"{vit.representation_size}: self-distillation reads the normalised "
      "output of the class token, or of the patches, so take pooling='token' "
      "or 'gap', no distillation token and no representation_size."
    )
  if vit.patch_dropout_rate:
    raise ValueError(
      f"patch_dropout_rate={vit.patch_dropout_rate} would leave out patches "
      "that are to be answered for: set it to 0 for self-distillation."
    )
  if vit.resnet_layers or vit.position_at != "input":
    raise ValueError(
      f"resnet_layers={vit.resnet_layers} and position_at={vit.position_at!r}: "
      "self-distillation masks patches before their positions are added, so "
      "take a model without ResNet and position_at='input'."
    )
  positions = (*_POSITIONS, "learned_all")
  if vit.position not in positions:
    raise ValueError(
      f"position={vit.position!r} does not fit crops of two sizes: take one of "
      f"{', '.join(_POSITIONS)}."
    )
  if hasattr(vit.block, "grid"):
    raise ValueError(
      f"block={vit.block.__name__}: its layers are for one grid of patches, "
      "and small crops have another: take another block."
    )
