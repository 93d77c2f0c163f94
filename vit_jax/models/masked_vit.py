"""A Vision Transformer that predicts masked patches (arXiv:2010.11929, B.1.2).

Some of an image's patch embeddings, x_p E of Eq. 1, are corrupted before E_pos
is added, and the model predicts what those patches show. `tasks.masked` draws
the patches and computes the loss. Symbols as in `vit`; M of the N patches of
an image are corrupted.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from vit_jax.models.composed import Composed, Needs, encoder_of
from vit_jax.models.layer import Images, Pooled
from vit_jax.models.model import classifier
from vit_jax.models.partitioning import with_axes
from vit_jax.models.parts import INPUT, Part

MASK = -1
"""In `source`, the place of a patch that the [mask] embedding replaces."""
_NEEDS = Needs("masked.rate", tokens=True, features=True)


class MaskedVit(Composed):
  """An encoder whose head predicts patches; images (B, H, W, C) -> (B, M, K).

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

  def parts(self) -> tuple[Part, ...]:
    return *super().parts(), Part("mask", INPUT, own_task=True)

  def __call__(
    self, x: Images, *, mask: Any = None, train: bool = False
  ) -> Pooled:
    self.check_has_parameters()
    return self.head(self.pooled(x, mask=mask, train=train))

  def pooled(
    self, x: Images, *, mask: Any = None, train: bool = False
  ) -> Pooled:
    """The outputs of the patches to predict, or without a head their mean.

    That mean is over the patches that count, booleans `mask`, (B, N).
    """
    return self.encode(x, mask=mask, train=train)[1]

  def encode(
    self, x: Images, *, mask: Any = None, train: bool = False
  ) -> tuple[Array, Pooled]:
    """The last layer's output z, before any norm, and `pooled`."""
    vit: Any = self.encoder
    mask = None if mask is None else jnp.asarray(mask)
    x_p = self.corrupt(vit.patches(x, mask=mask))
    tokens = vit.run(vit.place(x_p, mask=mask, train=train), train=train)
    read = vit.normed(tokens)
    where = self.get_variable("corruption", "where")
    if where is not None:
      read = read.take(where)
    return tokens.z, read.patches if self.num_classes else read.mean()

  @nn.compact
  def corrupt(self, x_p: Float[Array, "B h w D"]) -> Float[Array, "B h w D"]:
    """The embedded patches, corrupted as the draw says."""
    source = self.get_variable("corruption", "source")
    if source is None and not self.is_initializing():
      return x_p
    B, h, w, D = x_p.shape
    init = with_axes(nn.initializers.normal(0.02), (None,))
    embedding: Any = self.param("mask", init, (D,), self.param_dtype)
    if source is None:
      return x_p
    embedding = embedding.astype(x_p.dtype).reshape(1, 1, D)
    x_p = corrupt_patches(x_p.reshape(B, h * w, D), embedding, source)
    return x_p.reshape(B, h, w, D)

  @nn.compact
  def head(self, y: Pooled) -> Pooled:
    """The values predicted for each patch, (B, M, K).

    Without classes, it gives the features of an image, (B, D).
    """
    if not self.num_classes:
      return self.representation(y)
    return classifier(self.num_classes, self.head_bias, self.param_dtype)(y)

  def representation(self, y: Pooled) -> Float[Array, "B D"]:
    """Features of an image: the mean of its patches' outputs."""
    return y.mean(axis=1) if y.ndim == 3 else y


def corrupt_patches(
  x_p: Float[Array, "B N D"], mask: Float[Array, "1 1 D"], source: Any
) -> Float[Array, "B N D"]:
  """Puts at each place the embedding of patch `source`, or `mask` for `MASK`.

  `source` has integers (B, N).
  """
  taken = jnp.take_along_axis(x_p, jnp.maximum(source, 0)[..., None], axis=1)
  return jnp.where((source == MASK)[..., None], mask, taken)


def masked_vit(vit: nn.Module, outputs: int) -> MaskedVit:
  """A model of this encoder that predicts `outputs` values per masked patch.

  Raises ValueError if the encoder has no outputs of patches, leaves patches
  out, or has layers after these outputs, which would not be trained.
  """
  return MaskedVit(outputs, encoder_of(vit, _NEEDS))
