"""Masked patch prediction as a task (arXiv:2010.11929, Sec. 4.6, B.1.2).

`models.masked_vit` has the model. Labels are not used.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from vit_jax.data.preprocessing import HALF, Preprocessing
from vit_jax.models.grid import grid_of
from vit_jax.models.masked_vit import masked_vit
from vit_jax.runtime.display import Metric, Split
from vit_jax.tasks.finite import NO_ANSWER
from vit_jax.tasks.hidden import hidden_measure, report_panels
from vit_jax.tasks.masked.objective import COLOURS, Masking, num_corrupted
from vit_jax.tasks.masked.pictures import make_panels
from vit_jax.tasks.masked.settings import MaskedSettings
from vit_jax.tasks.means import SumsOutcome, sums_of
from vit_jax.tasks.metrics import Measure
from vit_jax.tasks.outcome import Curves, Stream
from vit_jax.tasks.scores import Scores
from vit_jax.tasks.task import UNLABELLED
from vit_jax.tasks.unlabelled import UnlabelledTask


class ColourScores(Scores):
  """The share of colours that are right, and that of the commonest colour."""

  def result(self, metrics: Mapping[str, Any]) -> str:
    """The share of colours that are right, beside the commonest colour's."""
    scores = Split.EVAL.scores(metrics)
    correct, common = (scores.get(metric.key) for metric in self.metrics)
    share = f"{correct:.1%} of the masked patches' colours are right"
    if common is None:
      return share
    return f"{share}, where the commonest alone is {common:.1%}"


@dataclasses.dataclass(frozen=True)
class MaskedPatchesTask(UnlabelledTask):
  """Predicting the colours or the pixels of corrupted patches."""

  masked: MaskedSettings = MaskedSettings()
  name = "masked"
  scores = ColourScores(
    (
      Metric("colours_right", "colours right"),
      Metric(
        "commonest_colour",
        "commonest colour",
        higher_is_better=None,
        words="the commonest alone",
      ),
    ),
    curves=(
      Curves(
        "Colours of masked patches",
        {
          Split.TRAIN.key("colours_right"): "training",
          Split.EVAL.key("colours_right"): "evaluation",
          Split.EVAL.key("commonest_colour"): "the commonest alone",
        },
        percent=True,
      ),
      Curves(
        "Top-1 accuracy",
        {
          Split.FEW_SHOT.key("top1"): "few-shot",
          Split.FEW_SHOT.key("top1_class_token"): "few-shot by the class token",
        },
        percent=True,
      ),
    ),
  )
  panels = report_panels(make_panels)
  refuses = (*UNLABELLED, "lora.rank", "distill.teacher")
  probe_note = (
    "The probe reads the mean of the patches: masked patches did not train the "
    "class token's output."
  )

  def adapted(self, model: Any) -> Any:
    """A model of the encoder that predicts masked patches."""
    masking = Masking(
      rate=self.masked.rate,
      target=self.masked.target,
      patch_size=model.stride,
      mean=HALF,
      std=HALF,
    )
    return masked_vit(model, masking.outputs)

  def probed(self, model: Any) -> dict[str, Any]:
    """A model that reads the mean of the patches, and one with the class token.

    The loss never reads the class token's output. A model that does not pool by
    the class token is probed as it is.
    """
    if model.pooling != "token":
      return {"": model}
    plain = model.trunk
    return {"": masked_vit(plain, 0), "_class_token": plain}

  def objective(self, model: Any, preprocessing: Preprocessing) -> Masking:
    """The objective of masked patches.

    Raises ValueError if the images are not of three channels, or the rate
    corrupts none of their patches.
    """
    rate, channels = self.masked.rate, preprocessing.channels
    if channels != 3:
      raise ValueError(
        f"masked.rate={rate} predicts colours, and the images have {channels} "
        "channel(s): leave channels and normalization out."
      )
    h, w = grid_of(model, preprocessing.image_size)
    if h * w < 2 or not num_corrupted(h * w, rate):
      raise ValueError(
        f"masked.rate={rate} corrupts none of the {h} x {w} patches: set a "
        "higher rate, or a larger image_size for more patches."
      )
    return Masking(
      rate=rate,
      target=self.masked.target,
      patch_size=model.stride,
      mean=preprocessing.mean,
      std=preprocessing.std,
    )

  def measure(self, model: Any, stream: Stream) -> Measure:
    masking = self.objective(model, stream.preprocessing)
    return hidden_measure(model, masking, sums, MaskedOutcome)


def sums(
  masking: Masking, batch: Mapping[str, Array], targets: Any, predicted: Array
) -> dict[str, Array]:
  """The sums of a batch, as `sums_of`, from its targets and predictions.

  `colours` counts the true colours by their number, and `answered` the
  predicted ones.
  """
  counts = batch["mask"] > 0  # (B,)
  loss = masking.loss_of(predicted, targets)
  true = targets["colours"]  # (B, M, parts)
  weight = jnp.broadcast_to(counts[:, None, None], true.shape).astype(int)
  answers = masking.colours(predicted)
  answered = weight * (answers != NO_ANSWER)
  zeros = jnp.zeros(COLOURS, jnp.int32)
  return {
    **sums_of(batch, loss, {}),
    "correct": ((answers == true) * weight).sum(),
    "colours": zeros.at[true].add(weight),
    "answered": zeros.at[answers].add(answered),
  }


@dataclasses.dataclass(frozen=True)
class MaskedOutcome(SumsOutcome):
  """The outcome of an evaluation of masked patches.

  `colours_right` is the share of colours predicted right, and
  `commonest_colour` what always naming the commonest one would score.
  """

  @property
  def constant(self) -> bool:
    """Whether one colour is predicted for patches of several true colours."""
    answered, true = (
      int((self.totals[key] > 0).sum()) for key in ("answered", "colours")
    )
    return answered == 1 < true

  @property
  def chance(self) -> float:
    return self.scores["commonest_colour"]

  @property
  def scores(self) -> dict[str, Any]:
    """The loss, the share of colours that are right, and the commonest's."""
    loss = self.mean("loss")
    correct = self.totals["correct"]
    colours = self.totals["colours"]
    total = int(colours.sum())
    return self.with_counts(
      {
        "loss": loss,
        "colours_right": int(correct) / total,
        "commonest_colour": int(colours.max()) / total,
      }
    )
