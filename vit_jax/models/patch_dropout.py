"""PatchDropout: training on a part of each image's patches (arXiv:2208.07220).

Without half of its patches, an image costs a layer half the products, and the
model learns not to depend on single patches. Answers are given from all of
them: outside training nothing is left out.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class PatchDropout(nn.Module):
  """Leaves out a share of the patches; (B, T + N, D) -> (B, T + n, D).

  Of the N patches of each image, n = round((1 - rate) N) stay, at least one:
  every choice of n is equally likely, and drawn anew by the key `dropout`. They
  keep their order. Nothing is scaled, since no layer sums over patches.

  Attributes:
    rate: Share of the patches to leave out, in [0, 1).
    prefix: T, the tokens before the patches, which all stay.
  """

  rate: float
  prefix: int

  @nn.compact
  def __call__(
    self, z: Float[Array, "B S D"], *, train: bool
  ) -> Float[Array, "B s D"]:
    if not train or not self.rate:
      return z
    B, S, _ = z.shape
    N = S - self.prefix
    n = max(round((1 - self.rate) * N), 1)
    draw = jax.random.uniform(self.make_rng("dropout"), (B, N))
    # A sort stays on the device that has the image; `top_k` would gather all.
    highest = jnp.argsort(draw, axis=1, descending=True)[:, :n]
    chosen = jnp.sort(highest, axis=1)  # (B, n)
    patches = jnp.take_along_axis(
      z[:, self.prefix :], chosen[..., None], axis=1
    )
    return jnp.concatenate([z[:, : self.prefix], patches], axis=1)


def check_patch_dropout(vit: Any) -> None:
  """Refuses PatchDropout in a model whose layers need all patches.

  Raises:
    ValueError: if a layer adds positions, or uses the grid of patches.
  """
  if not vit.patch_dropout_rate:
    return
  needs_all = {
    f"position={vit.position!r}": vit.position == "relative",
    f"position_at={vit.position_at!r}": vit.position_at != "input",
    "rope_theta": bool(getattr(vit, "rope_theta", None)),
    f"block={getattr(vit.block, '__name__', None)}": hasattr(vit.block, "grid"),
  }
  if named := [name for name, needs in needs_all.items() if needs]:
    raise ValueError(
      f"patch_dropout_rate={vit.patch_dropout_rate} leaves out patches before "
      f"the first layer, and with {named[0]} each layer needs all of them: set "
      "patch_dropout_rate=0, or positions that are added to the input."
    )
