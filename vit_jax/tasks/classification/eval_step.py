"""The eval step of classes, and totals that count every example once."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from vit_jax.tasks.finite import is_answer
from vit_jax.tasks.outcome import check_readable
from vit_jax.training import losses
from vit_jax.training.losses import Classification

Totals = dict[str, Any]
"""Sums over examples; `count` and `correct` are per class."""


@struct.dataclass
class Predictions:
  """A classifier's answers to the examples of a batch.

  Attributes:
    answer: The likeliest class, or the lowest of several equally likely ones.
    probability: The probability of that class.
    counted: False for padding and for unreadable images.
  """

  label: Int[Array | np.ndarray, " B"]
  answer: Int[Array | np.ndarray, " B"]
  probability: Float[Array | np.ndarray, " B"]
  loss: Float[Array | np.ndarray, " B"]
  counted: Bool[Array | np.ndarray, " B"]


def make_eval_step(
  model: nn.Module,
  objective: Classification,
  class_logits: Callable[[Array], Array] = lambda outputs: outputs,
) -> Callable[..., tuple[Totals, Predictions]]:
  """Returns a function from (params, batch, first) to totals and predictions.

  `first`, the place of the batch in its split, has no effect here. The totals
  are those of the batch, which holds `image`, uint8 (B, H, W, C),
  and `label`, integer (B,). It may hold `mask`, 0 for padding and for
  unreadable images, and `skipped`, true for unreadable images; without them,
  every row counts.

  Args:
    objective: The objective whose loss is reported.
    class_logits: Maps the model's outputs to one logit for each class.
  """

  def eval_step(
    params: Any, batch: Mapping[str, Array], first: Any = 0
  ) -> tuple[Totals, Predictions]:
    del first
    outputs: Any = objective.model_outputs(model, params, batch)
    label = batch["label"]
    mask = batch.get("mask", jnp.ones(label.shape)).astype(jnp.float32)
    skipped = batch.get("skipped", jnp.zeros(label.shape, bool))
    loss, _ = objective.loss_and_score(outputs, objective.targets(label))
    logits = class_logits(outputs)  # (B, K)
    rank = label_rank(logits, label)
    by_class = jax.nn.one_hot(label, logits.shape[1]) * mask[:, None]
    kind = objective.settings.kind
    predictions = Predictions(
      label=label,
      answer=logits.argmax(axis=1),
      probability=losses.probabilities(kind, logits).max(axis=1),
      loss=loss,
      counted=mask > 0,
    )
    is_answered = is_answer(logits) & jnp.isfinite(loss)
    totals = {
      "loss": jnp.where(mask > 0, loss, 0).sum(),
      "top5": (mask * (rank < 5)).sum(),
      "skipped": skipped.sum().astype(jnp.float32),
      "unanswered": (mask * ~is_answered).sum(),
      "count": by_class.sum(0),
      "correct": (by_class * (rank < 1)[:, None]).sum(0),
    }
    return totals, predictions

  return eval_step


def label_rank(
  logits: Float[Array, "B K"], label: Int[Array, " B"]
) -> Int[Array, " B"]:
  """Number of classes ranked above the true one; 0 is a right answer.

  Among equal logits the lower class comes first, as in argmax, so a head of
  zeros does not get every answer right. In a row with a NaN or a positive
  infinity, the true class ranks below the first five.

  >>> import jax.numpy as jnp
  >>> from vit_jax.tasks.classification.eval_step import label_rank
  >>> logits = jnp.array([[0.1, 0.7, 0.2], [0.1, 0.7, 0.2]])
  >>> label_rank(logits, jnp.array([1, 2])).tolist()
  [0, 1]
  """
  true_logit = jnp.take_along_axis(logits, label[:, None], axis=1)  # (B, 1)
  lower = jnp.arange(logits.shape[1])[None, :] < label[:, None]
  is_above: Bool[Array, "B K"] = (logits > true_logit) | (
    (logits == true_logit) & lower
  )
  last = max(logits.shape[1], 5)
  return jnp.where(is_answer(logits), is_above.sum(axis=1), last)


def check_labels(answers: Predictions, num_classes: int) -> None:
  """Raises ValueError if an example's label is `num_classes` or more."""
  label = np.max(answers.label, where=answers.counted, initial=0)
  if label >= num_classes:
    raise ValueError(
      f"an example has the label {label}, and the model has {num_classes} "
      "classes, which are numbered from 0: make it with num_classes="
      f"{label + 1} or more."
    )


def summary(totals: Totals) -> dict[str, float]:
  """Mean loss, top-1 and top-5 in [0, 1], and the number of examples.

  With five classes or fewer, there is no top-5: it would always be 1. Raises
  ValueError if no example was counted.
  """
  count = float(totals["count"].sum())
  check_readable(int(count))
  top5 = {"top5": float(totals["top5"]) / count}
  return {
    "loss": float(totals["loss"]) / count,
    "top1": float(totals["correct"].sum()) / count,
    **(top5 if len(totals["count"]) > 5 else {}),
    "examples": int(count),
    "skipped_images": int(totals["skipped"]),
  }


def class_accuracy(
  totals: Totals, class_names: Sequence[str]
) -> dict[str, float]:
  """Top-1 accuracy of each class that has examples."""
  every = zip(class_names, totals["correct"], totals["count"], strict=False)
  return {name: float(n) / float(seen) for name, n, seen in every if seen}
