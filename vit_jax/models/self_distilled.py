"""A Vision Transformer that learns from an average of itself, without labels.

DINO (arXiv:2104.14294), iBOT (arXiv:2111.07832) and DINOv2 (arXiv:2304.07193).
Heads map the outputs of the class token and of masked patches to K prototypes.
`tasks.self_distillation` has the losses. Symbols as in `vit`; at most M of the
N patches of an image are masked.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from vit_jax.models.composed import (
  Composed,
  Needs,
  encoder_of,
  with_resized_positions,
)
from vit_jax.models.layer import GELUS, Images, LayerConfig
from vit_jax.models.model import check_size, unit
from vit_jax.models.partitioning import Dense, lay_out, with_axes
from vit_jax.models.parts import HEAD, INPUT, Part
from vit_jax.models.position import Grid
from vit_jax.models.tokens import Tokens

_NEEDS = Needs(
  "self_distillation.prototypes", hides=True, two_sizes=True, features=True
)
_init_kernel = nn.initializers.truncated_normal(0.02)


@dataclasses.dataclass(frozen=True)
class Heads:
  """The sizes of the heads.

  Attributes:
    prototypes: K, the outputs of a head.
    hidden: Width of its MLP.
    layers: Layers of its MLP.
    bottleneck: Width of the MLP's output, which is scaled to length 1.
    separate: Whether patches have a head of their own.
  """

  prototypes: int
  hidden: int
  layers: int
  bottleneck: int
  separate: bool

  def __post_init__(self):
    for field in dataclasses.fields(self)[:-1]:
      check_size(field.name, getattr(self, field.name))


class PrototypeHead(nn.Module):
  """An MLP, then cosines with K prototypes times a factor; (R, D) -> (R, K).

  The last layer is v g / |v| for each prototype: its direction is learned apart
  from its length (arXiv:1602.07868), which starts at 1. Outputs are float32,
  and each of several devices has a part of the prototypes.
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
        kernel_init=with_axes(_init_kernel, axes),
        bias_init=with_axes(nn.initializers.zeros_init(), (bias_axis,)),
        **c.dtypes,
        name=f"layer_{layer}",
      )
      x = linear(x)
      if not last:
        x = GELUS["exact"](x)
    x = unit(x).astype(c.dtype)

    axes = ("embed", "prototypes")
    shape = (sizes.bottleneck, sizes.prototypes)
    normal = with_axes(nn.initializers.normal(1.0), axes)
    ones = with_axes(nn.initializers.ones_init(), axes[1:])
    v: Any = self.param("direction", normal, shape, c.param_dtype)
    g: Any = self.param("length", ones, shape[1:], c.param_dtype)
    W = unit(v, axis=0) * g.astype(jnp.float32)[None]
    W = lay_out(W.astype(c.dtype), (None, "prototypes"))
    return lay_out((x @ W).astype(jnp.float32), ("batch", "prototypes"))


class SelfDistilled(Composed):
  """An encoder with a mask token and heads, as student and as teacher.

  Images (B, H, W, C) -> a dictionary with `y`, the normalised output of the
  class token (or what else the encoder's head would read), (B, D), `answers`,
  the outputs of its prototype head, (B, K), and `features`, the normalised
  outputs of the patches, (B, N, D). The draw is given as a collection of
  variables, `model.apply({"params": params, "draw": draw}, images)`:

  - `masks`, booleans (B, N): which patches a learned vector replaces;
  - `where`, integers (B, M): the patches for which the result has the outputs
    of the patches' prototype head, as `patches`, (B, M, K).

  Attributes:
    heads: The sizes of the heads.
    position_grid: Patches along height and width of a large crop. Positions are
      interpolated from there to a small crop's.
  """

  heads: Heads
  position_grid: Grid | None = None

  def parts(self) -> tuple[Part, ...]:
    """The encoder's parts, the mask token and the two heads."""
    parts = [Part("mask_token", INPUT, own_task=True)]
    names = ("class_head", "patch_head")
    parts += [Part(name, HEAD, own_task=True) for name in names]
    return *super().parts(), *parts

  def __call__(
    self, x: Images, *, mask: Any = None, train: bool = False
  ) -> Any:
    """The dictionary that the class describes.

    Raises ValueError if there is a `mask`: a draw says which patches to
    replace.
    """
    if mask is not None:
      raise ValueError(
        "self-distillation takes no mask of patches that count: give those to "
        "replace as the collection `draw`."
      )
    vit: Any = self.encoder
    x_p = self.mask_patches(vit.patches(x))
    tokens = vit.place(x_p, train=train, table=self.position_grid)
    tokens = vit.run(tokens, train=train)
    return self.answer(tokens, vit.normed(tokens))

  def patch_features(self, x: Images) -> Float[Array, "B N D"]:
    """The normalised outputs of the patches, without masking any."""
    vit: Any = self.encoder
    tokens = vit.place(vit.patches(x), table=self.position_grid)
    return vit.normed(vit.run(tokens)).patches

  @nn.compact
  def mask_patches(
    self, x_p: Float[Array, "B h w D"]
  ) -> Float[Array, "B h w D"]:
    """The embedded patches, with a learned vector where the draw masks them."""
    masks: Any = self.get_variable("draw", "masks")
    if masks is None and not self.is_initializing():
      return x_p
    zeros = with_axes(nn.initializers.zeros_init(), (None,))
    shape = x_p.shape[-1:]
    token: Any = self.param("mask_token", zeros, shape, self.param_dtype)
    if masks is None:
      return x_p
    token = token.astype(x_p.dtype).reshape(1, 1, 1, -1)
    return jnp.where(masks.reshape(*x_p.shape[:3], 1), token, x_p)

  @nn.compact
  def answer(self, tokens: Tokens, normed: Tokens) -> dict[str, Array]:
    """The result for images: `y`, `answers`, `features` and `patches`.

    These keys are those that the class describes; without a draw of `where`
    there are no `patches`. `tokens` are the last layer's outputs, and `normed`
    are the same after the final norm.
    """
    y = self._head_input(tokens, normed)
    config = LayerConfig.of(self.encoder)
    class_head = PrototypeHead(self.heads, config, name="class_head")
    patch_head = class_head
    if self.heads.separate:
      patch_head = PrototypeHead(self.heads, config, name="patch_head")
    answers = {"y": y, "answers": class_head(y), "features": normed.patches}
    where: Any = self.get_variable("draw", "where")
    if where is not None:
      B, M = where.shape
      patches = jnp.take_along_axis(normed.patches, where[..., None], axis=1)
      rows = patch_head(patches.reshape(B * M, -1))
      answers["patches"] = rows.reshape(B, M, -1)
    elif self.is_initializing():
      patch_head(normed.patches[:, 0])
    return answers

  def _head_input(self, tokens: Tokens, normed: Tokens) -> Float[Array, "B D"]:
    """The outputs that the encoder's head would read."""
    vit: Any = self.encoder
    if vit.reads_normed:
      return normed.mean() if vit.pooling == "gap" else normed.z[:, 0]
    return vit.representation(vit.pool(tokens))


def self_distilled(
  vit: nn.Module, heads: Heads, position_grid: Grid | None
) -> SelfDistilled:
  """A model of this encoder with heads of these sizes.

  `position_grid` has the patches of a large crop, for a model without a grid of
  its own. Raises ValueError if `vit` is no Vision Transformer, leaves out
  patches, has a representation layer, or cannot hide patches or take crops of
  two sizes. It is also raised if the class head reads more than a patch's
  output and is to serve the patches as well.
  """
  encoder: Any = encoder_of(vit, _NEEDS)
  both = encoder.pooling == "token_gap" or len(encoder.pooled_tokens) > 1
  if both and not heads.separate:
    raise ValueError(
      f"pooling={encoder.pooling!r} reads several outputs, so what the class "
      "head reads is wider than a patch's output: set "
      "self_distillation.separate_head=True."
    )
  encoder, grid = with_resized_positions(encoder, position_grid)
  return SelfDistilled(0, encoder, heads, grid)
