"""The objective of pairs: which image belongs to which text of a batch."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from vit_jax.data.reading.captions import TEXT
from vit_jax.models.two_towers import Compared
from vit_jax.training.contrastive import sigmoid_loss, softmax_loss, text_groups
from vit_jax.training.inputs import TakesImages, weights_of
from vit_jax.training.losses import Apply, CoupledObjective, Loss, StepContext
from vit_jax.training.schedules import RunLength


class PairTargets(NamedTuple):
  """The facts about the pairs of a batch that the loss takes.

  Attributes:
    groups: The group of each text, (B,): images of equal texts are no negatives
      of each other.
    weight: 1 for each pair that exists, and 0 for others, (B,); None if every
      row of the batch holds one pair.
  """

  groups: Array
  weight: Array | None


@dataclasses.dataclass(frozen=True)
class Contrast(TakesImages, CoupledObjective):
  """The objective of two towers, over all pairs of an image and a text.

  The score is the cosine of an image and its text. The loss is `couple` after
  `embed`, by `CoupledObjective.loss`; with `accumulation_steps`, a batch is
  embedded part after part. `PairsTask.objective` makes this object, for a
  `TwoTowers`.

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
  ) -> tuple[Any, PairTargets]:
    """Returns images and texts, and the `PairTargets`; draws nothing.

    The batch has `image`, uint8 (B, H, W, C), which is normalised, and `text`,
    the ids of the tokens of one caption each, (B, T), or (B, M, T) for rows of
    several images.
    """
    del key
    images = self.inputs(batch)
    ids = batch[TEXT]
    texts = ids.reshape(-1, ids.shape[-1])
    groups = text_groups(texts) if self.distinct else jnp.arange(len(texts))
    return (images, ids), PairTargets(groups, weights_of(images))

  def embed(
    self, apply: Apply, inputs: Any, context: StepContext
  ) -> tuple[Any, Any]:
    """The vectors of images and texts, and what all pairs share.

    All pairs share the logarithm of the scale, and the bias. `apply` is that of
    a `models.two_towers.TwoTowers`. Rows of several images have a vector for
    each image and each text, (B, M, R).
    """
    del context
    images, ids = inputs
    compared: Compared = apply((images, ids.reshape(-1, ids.shape[-1])))
    by_row: Any = *ids.shape[:-1], -1
    image, text = compared.image, compared.text
    assert image is not None and text is not None
    shared = compared.log_scale, compared.bias
    return (image.reshape(by_row), text.reshape(by_row)), shared

  def couple(self, embeddings: Any, shared: Any, targets: Any) -> Loss:
    """The loss of all pairs of a batch; the targets are `PairTargets`."""
    image, text = (x.reshape(-1, x.shape[-1]) for x in embeddings)
    log_scale, bias = shared
    compared = Compared(image, text, log_scale, bias)
    loss, cosine = self.compare(compared, *targets)
    return Loss(loss, cosine, weight=targets.weight)

  def compare(
    self, compared: Compared, groups: Array, weight: Array | None = None
  ) -> tuple[Array, Array]:
    """The loss and the cosine of each pair, (B,); see `PairTargets`."""
    u, v, log_scale, bias = compared
    assert u is not None and v is not None
    cosine = (u * v).sum(axis=1)
    counts = None if weight is None else weight > 0
    if self.kind == "softmax":
      return softmax_loss(u, v, log_scale, groups, counts), cosine
    assert bias is not None
    return sigmoid_loss(u, v, log_scale, bias, groups, counts), cosine
