"""LeJEPA as a task (arXiv:2511.08544): no labels, no teacher.

`objective` has the loss, `model` the projector, and
`data.transforming.multi_crop` the crops. The model that a run gives is the
encoder.
"""

import dataclasses
from typing import Any

from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.settings import TrainTransformSettings
from vit_jax.data.transforming.multi_crop import MultiCrop
from vit_jax.runtime.display import Metric, Split
from vit_jax.tasks.crops import check_small_size, large_grid, multi_crop, unread
from vit_jax.tasks.features import (
  DEVIATION,
  RANK,
  RANKS,
  RANKS_NOTHING,
  features_measure,
)
from vit_jax.tasks.lejepa.model import Projected, with_projector
from vit_jax.tasks.lejepa.objective import LeJepa
from vit_jax.tasks.lejepa.settings import LeJepaSettings
from vit_jax.tasks.metrics import Measure
from vit_jax.tasks.outcome import PROBES, SINCE_START, Curves, Stream
from vit_jax.tasks.scores import Scores
from vit_jax.tasks.task import UNLABELLED
from vit_jax.tasks.unlabelled import UnlabelledTask

_PLAIN = LeJepaSettings()
_BLUR_AND_SOLARIZE = 0.5, 0.2  # Chances of the two, for every crop.


@dataclasses.dataclass(frozen=True)
class LeJepaTask(UnlabelledTask):
  """Learning features in which all crops of an image are alike.

  `image_size` is that of the run, where there is one.
  """

  lejepa: LeJepaSettings = _PLAIN
  image_size: tuple[int, int] | None = dataclasses.field(
    default=None, compare=False
  )
  name = "lejepa"
  scores = Scores(
    (
      RANK,
      Metric(
        "prediction",
        "distance from the mean",
        format="{:.4f}",
        higher_is_better=False,
      ),
      DEVIATION,
    ),
    curves=(
      RANKS,
      Curves(
        "Parts of the loss",
        {
          Split.TRAIN.key("prediction"): "distance from the mean",
          Split.TRAIN.key("normality"): "distance to a normal distribution",
        },
      ),
      PROBES,
      SINCE_START,
    ),
    ranks_nothing=RANKS_NOTHING,
  )
  refuses = (*UNLABELLED, "eval_pictures", "distill.teacher")

  @property
  def unread(self) -> dict[str, str]:
    return unread(self.name)

  def adapted(self, model: Any) -> Projected:
    """The encoder with a projector."""
    return with_projector(
      model,
      width=self.lejepa.projections,
      hidden=self.lejepa.projector_size,
      position_grid=large_grid(model, self.image_size),
    )

  def train_transform(
    self, preprocessing: Preprocessing, settings: TrainTransformSettings
  ) -> MultiCrop:
    return multi_crop(
      self.name,
      self.lejepa,
      preprocessing,
      flip=settings.flip,
      chances=(_BLUR_AND_SOLARIZE,) * 3,
    )

  def objective(self, model: Any, preprocessing: Preprocessing) -> LeJepa:
    """The objective.

    Raises ValueError if the small crops do not fit the patches or the large
    crops.
    """
    s = self.lejepa
    check_small_size(self.name, s, model, preprocessing.image_size)
    return LeJepa(s, preprocessing.mean, preprocessing.std)

  def measure(self, model: Any, stream: Stream) -> Measure:
    objective = self.objective(model, stream.preprocessing)
    return features_measure(model, objective, " or raise lejepa.weight")
