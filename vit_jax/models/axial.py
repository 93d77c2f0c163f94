"""Axial attention (arXiv:2010.11929, App. D.6; arXiv:1912.12180).

A layer attends along the rows of the grid of patches, and then along its
columns, with an MLP after each. Symbols as in `vit`.
"""

import flax.linen as nn
from jaxtyping import Array, Float

from vit_jax.models.layer import LayerConfig, Offsets
from vit_jax.models.partitioning import lay_out
from vit_jax.models.vit import EncoderBlock


class AxialBlock(nn.Module):
  """A row layer and a column layer; (B, N, D) -> (B, N, D), N = h w.

  `grid` is (h, w); None takes the tokens as one column. The attention weights
  are (B h, k, w, w) and (B w, k, h, h). Raises ValueError if a token is not a
  patch of the grid, patches were left out, or there are relative positions
  along the whole sequence.
  """

  num_heads: int
  mlp_size: int
  config: LayerConfig = LayerConfig()
  grid: tuple[int, int] | None = None

  @nn.compact
  def __call__(
    self, z: Float[Array, "B N D"], R: Offsets = None, *, train: bool = False
  ) -> Float[Array, "B N D"]:
    B, N, D = z.shape
    h, w = self.grid or (N, 1)
    if N < h * w:
      raise ValueError(
        f"axial attention goes along whole rows and columns, and {h * w - N} "
        f"of {h * w} patches were left out: give it all patches."
      )
    if h * w != N or R is not None:
      problem = "a class token lies in neither: set pooling='gap' or 'map'."
      if R is not None:
        problem = (
          "relative positions are for all patches: set another position."
        )
      raise ValueError(
        f"axial attention goes along rows and columns, and {problem}"
      )
    row, column = (
      EncoderBlock(self.num_heads, self.mlp_size, self.config, name=name)
      for name in ("row", "column")
    )

    # Rows and columns lie on the devices as their images do.
    batch = "batch", None, None
    z = lay_out(z.reshape(B * h, w, D), batch)
    z = row(z, train=train).reshape(B, h, w, D)
    z = lay_out(z.swapaxes(1, 2).reshape(B * w, h, D), batch)
    z = column(z, train=train).reshape(B, w, h, D)
    return z.swapaxes(1, 2).reshape(B, N, D)
