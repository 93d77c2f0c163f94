"""A Vision Transformer that predicts masked patches (arXiv:2010.11929, B.1.2).

Some of an image's patch embeddings, x_p E of Eq. 1, are corrupted before E_pos
is added, and the model predicts what those patches show. `tasks.masking`
draws which, and computes the loss. Symbols as in `vit`; M of the N patches of
an image are corrupted.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from vit_jax.models.layer import Images, Pooled, layer_norm
from vit_jax.models.model import Model, classifier
from vit_jax.models.partitioning import named
from vit_jax.models.parts import INPUT, Part
from vit_jax.models.tokens import Tokens
from vit_jax.models.vit import Vit

MASK = -1
"""In `source`, the place of a patch that the [mask] embedding replaces."""


class MaskedVit(Vit):
  """A `Vit` whose head predicts patches; images (B, H, W, C) -> (B, M, K).

  K is `num_classes`, the values to predict for a patch. The draw is given as a
  collection of variables,
  `model.apply({"params": params, "corruption": draw}, images)`:

  - `source`, integer (B, N): the patch whose embedding is put at each place, or
    `MASK`;
  - `where`, integer (B, M): the patches to predict.

  Without a draw, nothing is corrupted and all patches are predicted. With
  `num_classes=0` the result is the mean of the patches' outputs, (B, D), even
  with a class token, whose output the loss never reads.
  """

  def __post_init__(self):
    if self.pooling == "map" or self.representation_size is not None:
      raise ValueError(
        f"pooling={self.pooling!r} and representation_size="
        f"{self.representation_size}: masked patches are predicted from each "
        "patch's output, so take pooling='token' or 'gap', and no "
        "representation_size."
      )
    if self.patch_dropout_rate:
      raise ValueError(
        f"patch_dropout_rate={self.patch_dropout_rate} would leave out patches "
        "that are to be predicted: set it to 0 for masked patches."
      )
    super().__post_init__()

  def parts(self) -> tuple[Part, ...]:
    return *super().parts(), Part("mask", INPUT, own_task=True)

  @property
  def trunk(self) -> Model:
    """The plain model, without what only predicts masked patches."""
    return Vit.like(self, num_classes=0)

  def _patches(self, x: Images, mask: Any) -> Float[Array, "B h w D"]:
    """The embedded patches, corrupted as the draw says."""
    x_p = super()._patches(x, mask)
    source = self.get_variable("corruption", "source")
    if source is None and not self.is_initializing():
      return x_p
    B, h, w, D = x_p.shape
    init = named(nn.initializers.normal(0.02), (None,))
    embedding: Any = self.param("mask", init, (D,), self.param_dtype)
    if source is None:
      return x_p
    embedding = embedding.astype(x_p.dtype).reshape(1, 1, D)
    x_p = corrupted(x_p.reshape(B, h * w, D), embedding, source)
    return x_p.reshape(B, h, w, D)

  @nn.compact
  def pool(self, tokens: Tokens) -> Pooled:
    """The outputs of the patches to predict, or without a head their mean.

    That mean is over the patches that count.
    """
    norm = layer_norm(self._config, name="norm")
    tokens = tokens.replace(z=norm(tokens.z))
    where = self.get_variable("corruption", "where")
    if where is not None:
      tokens = tokens.take(where)
    return tokens.patches if self.num_classes else tokens.mean()

  @nn.compact
  def head(self, y: Pooled) -> Pooled:
    """The values predicted for each patch, (B, M, K)."""
    if not self.num_classes:
      return self.representation(y)
    return classifier(self.num_classes, self.head_bias, self.param_dtype)(y)

  def representation(self, y: Pooled) -> Float[Array, "B D"]:
    """Features of an image: the mean of its patches' outputs."""
    return y.mean(axis=1) if y.ndim == 3 else y


def corrupted(
  x_p: Float[Array, "B N D"], mask: Float[Array, "1 1 D"], source: Any
) -> Float[Array, "B N D"]:
  """Puts at each place the embedding of patch `source`, or `mask` at `MASK`."""
  taken = jnp.take_along_axis(x_p, jnp.maximum(source, 0)[..., None], axis=1)
  return jnp.where((source == MASK)[..., None], mask, taken)


def masked(vit: nn.Module, outputs: int) -> MaskedVit:
  """A model like `vit` that predicts so many values for each masked patch.

  Raises ValueError if `vit` is not the paper's ViT.
  """
  if type(vit) is not Vit:
    raise ValueError(
      f"masked.rate: masked patches train the paper's ViT, not "
      f"{type(vit).__name__}: choose such as model.variant=B/16, without "
      "model.block=dinov2 and the like."
    )
  return MaskedVit.like(vit, num_classes=outputs, head_bias=0.0)
