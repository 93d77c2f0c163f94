"""The objective of pairs: which image belongs to which text of a batch."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from vit_jax.data.reading.captions import TEXT
from vit_jax.models.two_towers import Compared
from vit_jax.training.contrastive import sigmoid_loss, softmax_loss, text_groups
from vit_jax.training.inputs import TakesImages
from vit_jax.training.losses import Apply, CoupledObjective, Loss, StepContext
from vit_jax.training.schedules import RunLength


@dataclasses.dataclass(frozen=True)
class Contrast(TakesImages, CoupledObjective):
  """The objective of two towers, over all pairs of an image and a text.

  The score is the cosine of an image and its text. The loss is `couple` after
  `embed`; with `accumulation_steps`, a batch is embedded part after part.
  `PairsTask.objective` makes this object, for a `TwoTowers`.

  Attributes:
    kind: "sigmoid" or "softmax".
    distinct: Whether images of equal texts are left out as negatives.
    mean, std: As in `losses.Classification`.
  """

  kind: str
  distinct: bool
  mean: Sequence[float]
  std: Sequence[float]
  metric = "cosine"

  def for_run(self, model: Any, length: RunLength) -> "Contrast":
    """The objective; raises ValueError for a batch of one pair."""
    del model
    if length.batch_size < 2:
      raise ValueError(
        f"batch_size={length.batch_size}: a pair is compared with the others "
        "of its batch, so take 2 or more."
      )
    return self

  def prepare(
    self, batch: Mapping[str, Array], key: Array
  ) -> tuple[Any, Array]:
    """Returns images and texts, and the group of each text; draws nothing.

    The batch has `image`, uint8 (B, H, W, C), which is normalised, and `text`,
    the ids of the tokens of one caption each, (B, T). The groups (B,) are the
    targets: images of equal texts are no negatives of each other.
    """
    del key
    ids = batch[TEXT]
    groups = text_groups(ids) if self.distinct else jnp.arange(len(ids))
    return (self.inputs(batch), ids), groups

  def embed(
    self, apply: Apply, inputs: Any, context: StepContext
  ) -> tuple[Any, Any]:
    """The vectors of images and texts, and what all pairs share.

    The latter are the logarithm of the scale, and the bias. `apply` is that of
    a `models.two_towers.TwoTowers`.
    """
    del context
    compared: Compared = apply(inputs)
    shared = compared.log_scale, compared.bias
    return (compared.image, compared.text), shared

  def couple(self, embeddings: Any, shared: Any, targets: Any) -> Loss:
    """The loss of all pairs of a batch; the targets are the texts' groups."""
    image, text = embeddings
    log_scale, bias = shared
    compared = Compared(image, text, log_scale, bias)
    return Loss(*self.compare(compared, targets))

  def compare(self, compared: Compared, groups: Array) -> tuple[Array, Array]:
    """The loss and the cosine of each pair, (B,); `groups` are the texts'."""
    u, v, log_scale, bias = compared
    assert u is not None and v is not None
    cosine = (u * v).sum(axis=1)
    if self.kind == "softmax":
      return softmax_loss(u, v, log_scale, groups), cosine
    assert bias is not None
    return sigmoid_loss(u, v, log_scale, bias, groups), cosine
