"""The objective of pairs: which image belongs to which text of a batch."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from vit_jax.data.reading.captions import TEXT
from vit_jax.models.two_towers import Compared
from vit_jax.training.contrastive import sigmoid_loss, softmax_loss, text_groups
from vit_jax.training.losses import (
  Apply,
  CoupledObjective,
  Loss,
  Moment,
  TakesImages,
)
from vit_jax.training.schedules import RunLength


@dataclasses.dataclass(frozen=True)
class Contrast(TakesImages, CoupledObjective):
  """The objective of two towers, over all pairs of an image and a text.

  The score is the cosine of an image and its text.

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
    """Returns the images and texts, and an id of each text; draws nothing."""
    del key
    texts = batch[TEXT]
    ids = text_groups(texts) if self.distinct else jnp.arange(len(texts))
    return (self.inputs(batch), texts), ids

  def embed(self, apply: Apply, inputs: Any, moment: Moment) -> tuple[Any, Any]:
    """The vectors of images and of texts; the scale's logarithm, the bias."""
    del moment
    compared: Compared = apply(inputs)
    shared = compared.log_scale, compared.bias
    return (compared.image, compared.text), shared

  def couple(self, embeddings: Any, shared: Any, targets: Any) -> Loss:
    image, text = embeddings
    log_scale, bias = shared
    compared = Compared(image, text, log_scale, bias)
    return Loss(*self.compare(compared, targets))

  def compare(self, compared: Compared, ids: Array) -> tuple[Array, Array]:
    """The loss and the cosine, (B,), of the towers' outputs and texts' ids."""
    u, v, log_scale, bias = compared
    assert u is not None and v is not None
    cosine = (u * v).sum(axis=1)
    if self.kind == "softmax":
      return softmax_loss(u, v, log_scale, ids), cosine
    assert bias is not None
    return sigmoid_loss(u, v, log_scale, bias, ids), cosine
