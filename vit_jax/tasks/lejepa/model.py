"""The model of LeJEPA: an encoder and a projector."""

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
from vit_jax.models.layer import (
  GELUS,
  Images,
  LayerConfig,
  Pooled,
  dense,
  layer_norm,
)
from vit_jax.models.model import Model
from vit_jax.models.parts import HEAD, Part
from vit_jax.models.position import Grid

_NEEDS = Needs(
  "lejepa.weight", patches=False, all_patches=False, two_sizes=True
)


class Projected(Composed):
  """An encoder and a projector of its features.

  Images (B, H, W, C) -> a dictionary with `y`, the features (B, D), and `z`,
  their projections (B, K), float32.

  Attributes:
    width: K.
    hidden: Width of the projector's two hidden layers.
    position_grid: Patches along height and width of a large crop. Positions are
      interpolated from this grid to a small crop's.
  """

  width: int = 128
  hidden: int = 2048
  position_grid: Grid | None = None

  def parts(self) -> tuple[Part, ...]:
    return *super().parts(), Part("projector", HEAD, own_task=True)

  def __call__(self, x: Images, *, train: bool = False) -> Any:
    """The features and their projections, a dictionary."""
    y = self.representation(self.pooled(x, train=train))
    return {"y": y, "z": self.project(y)}

  def pooled(self, x: Images, *, train: bool = False) -> Pooled:
    """The outputs that the encoder's head would read."""
    if not self.num_layers:
      return super().pooled(x, train=train)
    vit: Any = self.encoder
    table = self.position_grid
    tokens = vit.place(vit.patches(x), train=train, table=table)
    return vit.pool(vit.run(tokens, train=train))

  @nn.compact
  def project(self, y: Float[Array, "B D"]) -> Float[Array, "B K"]:
    """The projections of features."""
    config = LayerConfig(dtype=self.dtype, param_dtype=self.param_dtype)
    widths = self.hidden, self.hidden, self.width
    projector = Projector(widths, config, name="projector")
    return projector(y).astype(jnp.float32)


class Projector(nn.Module):
  """An MLP, (B, D) -> (B, K).

  Its norms are layer norms, so the projection of an image depends on no other
  image; the authors' code normalises over the batch instead.

  Attributes:
    widths: Those of its layers; the last is K.
    config: The settings of its layers.
  """

  widths: tuple[int, ...]
  config: LayerConfig = LayerConfig()

  @nn.compact
  def __call__(self, y: Float[Array, "B D"]) -> Float[Array, "B K"]:
    axes, other = ("embed", "mlp"), ("mlp", "embed")
    last = len(self.widths) - 1
    for layer, width in enumerate(self.widths):
      y = dense(width, axes, self.config, name=f"layer_{layer}")(y)
      axes, other = other, axes
      if layer < last:
        norm = layer_norm(self.config, name=f"norm_{layer}")
        y = GELUS["exact"](norm(y))
    return y


def with_projector(
  model: Model, width: int, hidden: int, position_grid: Grid | None = None
) -> Projected:
  """A model of this encoder and a projector of these widths.

  `position_grid` is the grid of patches of a large crop, for a model that has
  none. Raises ValueError if the model takes images of one size alone.
  """
  encoder, grid = with_resized_positions(
    encoder_of(model, _NEEDS), position_grid
  )
  return Projected(0, encoder, width=width, hidden=hidden, position_grid=grid)
