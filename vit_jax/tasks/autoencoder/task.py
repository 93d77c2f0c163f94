"""Masked autoencoding as a task (arXiv:2111.06377): pixels of hidden patches.

`models.autoencoder` has the model. Labels are not used.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxtyping import Array

from vit_jax.data.preprocessing import Preprocessing
from vit_jax.models.autoencoder import autoencoder
from vit_jax.models.grid import grid_of
from vit_jax.runtime.display import Metric, Split
from vit_jax.tasks.autoencoder.objective import (
  LEAST,
  Reconstruction,
  error_targets,
  num_seen,
)
from vit_jax.tasks.autoencoder.pictures import make_panels
from vit_jax.tasks.autoencoder.settings import AutoencoderSettings
from vit_jax.tasks.hidden import hidden_measure, report_panels
from vit_jax.tasks.means import SumsOutcome, sums_of
from vit_jax.tasks.metrics import Measure
from vit_jax.tasks.outcome import PROBES, SINCE_START, Curves, Stream
from vit_jax.tasks.scores import Scores
from vit_jax.tasks.task import UNLABELLED
from vit_jax.tasks.unlabelled import UnlabelledTask


@dataclasses.dataclass(frozen=True)
class AutoencoderTask(UnlabelledTask):
  """Reconstructing the pixels of most patches from the others."""

  autoencoder: AutoencoderSettings = AutoencoderSettings()
  name = "autoencoder"
  any_size = True
  scores = Scores(
    (Metric("explained", "variance explained"),),
    curves=(
      Curves(
        "Variance of hidden patches explained",
        {
          Split.TRAIN.key("explained"): "training",
          Split.EVAL.key("explained"): "evaluation",
        },
        percent=True,
      ),
      PROBES,
      SINCE_START,
    ),
    sentence=(
      "{explained:.1%} of the hidden pixels' variance is explained on "
      "{examples:,} images"
    ),
  )
  panels = report_panels(make_panels)
  refuses = (*UNLABELLED, "lora.rank", "distill.teacher")

  def adapted(self, model: Any) -> Any:
    """The autoencoder of a model, with the decoder of the settings."""
    settings = self.autoencoder
    sizes = {
      name: getattr(settings, name)
      for name in ("decoder_size", "decoder_layers", "decoder_heads")
    }
    return autoencoder(model, **sizes)

  def objective(
    self, model: Any, preprocessing: Preprocessing
  ) -> Reconstruction:
    """The objective of a masked autoencoder.

    Raises ValueError if the rate hides all patches of an image, or none.
    """
    settings, rate = self.autoencoder, self.autoencoder.rate
    if preprocessing.patches is None:
      h, w = grid_of(model, preprocessing.image_size)
      N = h * w
      patches, larger = f"{h} x {w}", "image_size"
    else:
      N = preprocessing.patches.tokens
      patches, larger = f"at most {N}", "data.tokens"
    seen = num_seen(N, rate)
    if not 0 < seen < N:
      hidden = "none" if seen else "all"
      raise ValueError(
        f"autoencoder.rate={rate} hides {hidden} of the {patches} patches: set "
        f"a {'higher' if seen else 'lower'} rate, or a larger {larger} for "
        "more patches."
      )
    return Reconstruction(
      rate=rate,
      norm_pixels=settings.norm_pixels,
      patch_size=model.patch_size,
      mean=preprocessing.mean,
      std=preprocessing.std,
    )

  def measure(self, model: Any, stream: Stream) -> Measure:
    objective = self.objective(model, stream.preprocessing)
    return hidden_measure(model, objective, sums, ReconstructionOutcome)


def sums(
  objective: Reconstruction,
  batch: Mapping[str, Array],
  targets: Any,
  predicted: Array,
) -> dict[str, Array]:
  """The sums of a batch, as `sums_of`, from its targets and predictions."""
  error, variance = objective.errors(predicted, **error_targets(targets))
  return sums_of(batch, error, {"variance": variance}, predicted.mean(axis=1))


@dataclasses.dataclass(frozen=True)
class ReconstructionOutcome(SumsOutcome):
  """The outcome of an evaluation of a masked autoencoder.

  `explained` is the share of the variance of the hidden patches' values that
  the predictions explain: 0 for their mean, 1 for the truth.
  """

  @property
  def scores(self) -> dict[str, Any]:
    """The loss, and the share of the pixels' variance that is explained."""
    error = float(self.totals["loss"])
    variance = max(float(self.totals["variance"]), LEAST * self.examples)
    scores = {"loss": self.mean("loss"), "explained": 1 - error / variance}
    return self.with_counts(scores)
