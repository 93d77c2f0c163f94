"""Self-distillation as a task (DINO, iBOT, DINOv2): no labels, no pixels.

`models.self_distilled` has the model, and `data.transforming.multi_crop` the
crops. The model that a run gives is the teacher's encoder.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import optax
from jaxtyping import Array

from vit_jax.data.batch import Mixture
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.settings import TrainTransformSettings
from vit_jax.data.transforming.multi_crop import MultiCrop
from vit_jax.models.grid import grid_of
from vit_jax.models.parts import Parts
from vit_jax.models.paths import ends_with
from vit_jax.models.self_distilled import Heads, self_distilled
from vit_jax.runtime.display import Metric, Split
from vit_jax.tasks.crops import (
  check_side,
  check_small_size,
  large_grid,
  multi_crop,
  unread,
)
from vit_jax.tasks.features import (
  DEVIATION,
  RANK,
  RANKS,
  RANKS_NOTHING,
  features_measure,
)
from vit_jax.tasks.metrics import Measure
from vit_jax.tasks.outcome import PROBES, SINCE_START, Curves, Stream
from vit_jax.tasks.pictures import Panels
from vit_jax.tasks.scores import Scores
from vit_jax.tasks.self_distillation.objective import SelfDistillation
from vit_jax.tasks.self_distillation.pictures import make_panels
from vit_jax.tasks.self_distillation.settings import SelfDistillationSettings
from vit_jax.tasks.task import UNLABELLED, Task
from vit_jax.tasks.unlabelled import UnlabelledTask
from vit_jax.training.optimizer import map_paths
from vit_jax.training.schedules import RunLength

_ADVICE = ", raise ema_decay, or take self_distillation.centering=sinkhorn"


@dataclasses.dataclass(frozen=True)
class SelfDistillationTask(UnlabelledTask):
  """Learning the answers of the model's own average to other crops of an image.

  `image_size` and `ema_decay` are those of the run, where there is one.
  """

  self_distillation: SelfDistillationSettings = SelfDistillationSettings()
  image_size: tuple[int, int] | None = dataclasses.field(
    default=None, compare=False
  )
  ema_decay: float | None = dataclasses.field(default=None, compare=False)
  name = "self_distillation"
  scores = Scores(
    (
      RANK,
      Metric("entropy", "entropy of the answers", higher_is_better=None),
      DEVIATION,
    ),
    curves=(
      RANKS,
      Curves(
        "Deviation of the features, 0 if all images get the same",
        {
          Split.TRAIN.key("deviation"): "training",
          Split.EVAL.key("deviation"): "evaluation",
        },
      ),
      Curves(
        "Entropy of the teacher's answers",
        {
          Split.TRAIN.key("entropy"): "of an image",
          Split.TRAIN.key("entropy_of_mean"): "of the batch's mean",
        },
        percent=True,
      ),
      Curves(
        "Parts of the loss",
        {
          Split.TRAIN.key("class_loss"): "class token",
          Split.TRAIN.key("patch_loss"): "masked patches",
          Split.TRAIN.key("koleo_loss"): "KoLeo",
          Split.TRAIN.key("gram_loss"): "Gram anchoring",
        },
      ),
      PROBES,
      SINCE_START,
    ),
    ranks_nothing=RANKS_NOTHING,
  )
  refuses = (*UNLABELLED, "distill.teacher")
  panels = Panels(
    make_panels,
    "Features of patches",
    "The image is on the left, then the teacher's features of its patches, "
    "whose first three principal components over these images are red, green "
    "and blue.",
    "Two panels: the image, and its patches' features as colours",
  )

  @classmethod
  def configured(cls, sections: Mapping[str, Any]) -> Task:
    """The task of a configuration.

    Raises ValueError if it keeps no average, which is the teacher.
    """
    if sections.get("ema_decay") == 0:
      raise ValueError(
        "ema_decay=0.0 leaves self-distillation without its teacher, the "
        "average of the parameters: set it, such as 0.992."
      )
    return super().configured(sections)

  @property
  def unread(self) -> dict[str, str]:
    why = "as the teacher's own decay rises from ema_decay to 1"
    keys = {**unread(self.name), "ema_warmup": why}
    if self.self_distillation.crop_sizes:
      sizes = "as self_distillation.crop_sizes has the sizes"
      keys["self_distillation.small_size"] = sizes
    return keys

  def adapted(self, model: Any) -> Any:
    """The model with a mask token and the heads of the settings."""
    s = self.self_distillation
    heads = Heads(
      prototypes=s.prototypes,
      hidden=s.head_size,
      layers=s.head_layers,
      bottleneck=s.bottleneck,
      separate=s.separate_head,
    )
    return self_distilled(model, heads, large_grid(model, self.image_size))

  def train_transform(
    self, preprocessing: Preprocessing, settings: TrainTransformSettings
  ) -> MultiCrop | Mixture:
    """The crops; with `crop_sizes`, a mixture of crops of each size."""
    s = self.self_distillation
    crops = multi_crop(self.name, s, preprocessing, flip=settings.flip)
    if not s.crop_sizes:
      height, width = (s.gram_scale * side for side in crops.size)
      detail = (height, width) if s.gram_scale > 1 else None
      return dataclasses.replace(crops, detail=detail)
    sized = [
      dataclasses.replace(
        crops,
        size=(large, large),
        small=(small, small),
        detail=(gram, gram) if gram > large else None,
      )
      for large, small, gram, _ in s.crop_sizes
    ]
    return Mixture((*sized,), tuple(share for *_, share in s.crop_sizes))

  def objective(
    self, model: Any, preprocessing: Preprocessing
  ) -> SelfDistillation:
    """The objective, without the lengths of a run.

    Raises ValueError if the patches do not divide the crops, or a small crop is
    larger than a large one.
    """
    s = self.self_distillation
    size = preprocessing.image_size
    if not s.crop_sizes:
      check_small_size(self.name, s, model, size)
    for side in itertools.chain(*(row[:3] for row in s.crop_sizes)):
      given = f"{self.name}.crop_sizes has {side}, which"
      check_side(given, side, model)
    return SelfDistillation(
      model,
      s,
      grid=grid_of(model, size),
      mean=preprocessing.mean,
      std=preprocessing.std,
      momentum=self.ema_decay or 0.0,
    )

  def optimizer(
    self, tx: optax.GradientTransformation, parts: Parts, length: RunLength
  ) -> optax.GradientTransformation:
    """The optimizer `tx`, with gradients clipped by part.

    It leaves the heads' last layers as they are during `freeze_last`.
    """
    s = self.self_distillation
    chain = [tx]
    if s.clip_norm:
      chain.insert(0, clip_by_part(s.clip_norm, parts))
    if frozen_steps := length.steps(s.freeze_last):
      constants = map(optax.constant_schedule, (0.0, 1.0))
      later = optax.scale_by_schedule(
        optax.join_schedules([*constants], [frozen_steps])
      )
      chain.append(optax.masked(later, last_layers))
    return optax.chain(*chain) if len(chain) > 1 else tx

  def measure(self, model: Any, stream: Stream) -> Measure:
    objective = self.objective(model, stream.preprocessing)
    return features_measure(model, objective, _ADVICE)


def last_layers(params: Any) -> Any:
  """A tree that says whether each parameter belongs to a head's last layer."""
  names = "direction", "length"
  return map_paths(
    lambda path, _: any(ends_with(path, name) for name in names), params
  )


def clip_by_part(norm: float, parts: Parts) -> optax.GradientTransformation:
  """Scales the gradient of the encoder, and of each head, to at most `norm`."""

  def clip(updates: Any, _: Any) -> Any:
    """The gradients, scaled part by part."""

    def prefix(path: str) -> str:
      return parts.part(path).prefix if parts.is_head(path) else ""

    totals: dict[str, Any] = {}

    def add(path: str, update: Array) -> None:
      total = totals.get(prefix(path), 0.0)
      totals[prefix(path)] = total + jnp.sum(jnp.square(update))

    map_paths(add, updates)
    factors = {
      name: jnp.minimum(1.0, norm / (jnp.sqrt(total) + 1e-6))
      for name, total in totals.items()
    }
    return map_paths(lambda path, x: x * factors[prefix(path)], updates)

  return optax.stateless(clip)
