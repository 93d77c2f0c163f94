"""Settings of the tasks: which one, the sections of some, few-shot evaluation.

Only the standard library is imported, here and by `Section`.
"""

import dataclasses
import importlib
from typing import Any

from vit_jax.data import settings as data_settings
from vit_jax.runtime.checks import (
  BELOW_1,
  BETWEEN_0_AND_1,
  COUNT,
  DEPTH,
  IN_ORDER,
  NOT_NEGATIVE,
  POSITIVE,
  WIDTH,
  WIDTH_OR_0,
  Rule,
  up_to,
)
from vit_jax.runtime.settings import Duration, Section, section, setting
from vit_jax.tasks.pairs.settings import PairsSettings

LEARNED = ("both", "class", "patches")
CENTERINGS = ("mean", "sinkhorn")
TARGETS = ("colour", "colour4x4", "pixels")
_SEEDS = up_to(1_000, "each is a probe at each evaluation")
# A task that `data.task` names -> its labels in a module of `data.reading`.
_LABELS = {
  "classification": "labels.SINGLE",
  "multilabel": "several.SEVERAL",
  "regression": "targets.NUMBERS",
  "pairs": "captions.CAPTIONS",
  "segmentation": "mask_folder.MASKS",
}
TASKS = tuple(_LABELS)


def labels_of(task: str) -> Any:
  """The kind of labels of a task by its name, `data.reading.labels.Labels`.

  For a class of the user's own they are single classes, unless its `labels` are
  given to what opens the data.
  """
  module, _, name = _LABELS.get(task, "labels.SINGLE").rpartition(".")
  return getattr(
    importlib.import_module(f"vit_jax.data.reading.{module}"), name
  )


@dataclasses.dataclass(frozen=True)
class DataSettings(data_settings.DataSettings):
  """Where the images come from, and the task, which says what labels they have.

  A folder takes precedence over a name. Images and packed images exclude each
  other.
  """

  _of_labels_file = (*data_settings.DataSettings._of_labels_file, "task")

  task: str = setting(
    "classification",
    "What the file of labels has for an image: a class, several labels "
    '("multilabel"), numbers ("regression"), or captions ("pairs"); masks in a '
    'folder of their own ("segmentation"); or a task of your own, as '
    '"file.py:Class".',
    must=Rule(
      f"be one of {', '.join(TASKS)}, or file.py:Class",
      lambda name: name in TASKS or ":" in name,
    ),
  )

  @property
  def label_kind(self) -> Any:
    """The `Labels` that the task reads of a file of labels."""
    return labels_of(self.task)

  def _reads_labels(self, name: str) -> bool:
    if name != "task":
      return True
    if self.task not in TASKS:
      return False
    kind = labels_of(self.task)
    # A reader of their own takes labels from folders, not from a file.
    are_there = kind.reader or (kind.records and (self.dir or self.name))
    return not are_there

  def _or_else(self, name: str) -> str:
    if name == "task" and labels_of(self.task).records:
      return ", or dir, which vit_jax pack wrote (of .tar files too)"
    return ""


@dataclasses.dataclass(frozen=True)
class MaskedSettings(Section):
  """Masked patch prediction, in place of labels (Section 4.6, App. B.1.2)."""

  rate: float = setting(
    0.0,
    "Share of the patches to corrupt and to predict; 0 trains on labels.",
    must=BELOW_1,
  )
  target: str = setting(
    "colour",
    'Prediction for a patch: its mean colour of 3 bits a channel ("colour"), '
    'those of its 4 x 4 parts ("colour4x4"), or all its "pixels".',
    choices=TARGETS,
    needs="rate",
  )


@dataclasses.dataclass(frozen=True)
class AutoencoderSettings(Section):
  """A masked autoencoder, in place of labels (arXiv:2111.06377)."""

  rate: float = setting(
    0.0,
    "Share of the patches to hide from the encoder and to predict, 0.75 in the "
    "paper; 0 trains on labels.",
    must=BELOW_1,
  )
  norm_pixels: bool = setting(
    True,
    "Predict the pixels of a patch less their mean, over their standard "
    "deviation.",
    needs="rate",
  )
  decoder_size: int = setting(
    512, "Width of the decoder's tokens.", must=WIDTH, needs="rate"
  )
  decoder_layers: int = setting(
    8, "Layers of the decoder.", must=DEPTH, needs="rate"
  )
  decoder_heads: int = setting(
    16, "Heads of each layer of the decoder.", must=WIDTH, needs="rate"
  )


@dataclasses.dataclass(frozen=True)
class SegmentationSettings(Section):
  """A class for each pixel, with data.task=segmentation."""

  layers: tuple[int, ...] = setting(
    (),
    "Layers whose patches the head reads, counted from 1, such as (3,6,9,12); "
    "() is the last.",
    must=IN_ORDER,
  )
  head_size: int = setting(
    0,
    "Width of a hidden layer of the head; 0 is a linear head.",
    must=WIDTH_OR_0,
  )


@dataclasses.dataclass(frozen=True)
class StudentSettings(Section):
  """A student of a frozen encoder, `distill.teacher`, in place of labels."""

  learns: str | None = setting(
    None,
    'Outputs of the teacher that are learned: what its head reads ("class"), '
    'those of the "patches", or "both"; None trains on labels.',
    choices=LEARNED,
  )
  smooth_l1: float = setting(
    0.1,
    "Share of the smooth L1 distance in the loss; the cosine distance has the "
    "rest.",
    must=Rule("lie in [0, 1]", lambda x: 0 <= x <= 1),
    needs="learns",
  )
  patch_weight: float = setting(
    1.0,
    "Weight of the patches' loss, beside that of the class token.",
    must=POSITIVE,
    needs="learns",
  )


def _fit_masks(settings: "SelfDistillationSettings") -> None:
  if settings.mask_from > settings.mask_to:
    raise ValueError(
      f"mask_from={settings.mask_from} is more than "
      f"mask_to={settings.mask_to}: swap them."
    )


def _fit_areas(settings: "SelfDistillationSettings") -> None:
  if settings.min_area >= settings.area:
    raise ValueError(
      f"min_area={settings.min_area} leaves no small crop below "
      f"area={settings.area}: set it lower."
    )


@dataclasses.dataclass(frozen=True)
class SelfDistillationSettings(Section):
  """Self-distillation, in place of labels (DINO, iBOT, DINOv2).

  The teacher is the average of the model's parameters, whose decay at the first
  step is `ema_decay` and rises to 1. Large crops have the run's `image_size`.
  """

  prototypes: int = setting(
    0,
    "Number of outputs of the heads, 65,536 in the papers; 0 trains on labels.",
    must=up_to(1_000_000, "the heads have a column for each", 0),
  )
  head_size: int = setting(
    2048, "Width of the heads' MLPs.", must=WIDTH, needs="prototypes"
  )
  head_layers: int = setting(
    3, "Number of layers of the heads' MLPs.", must=DEPTH, needs="prototypes"
  )
  bottleneck: int = setting(
    256,
    "Width of the MLPs' outputs, which are compared with the prototypes.",
    must=WIDTH,
    needs="prototypes",
  )
  separate_head: bool = setting(
    False, "Give patches a head of their own.", needs="prototypes"
  )
  small_crops: int = setting(
    8,
    "Number of small crops of an image, beside two large ones.",
    must=up_to(100, "each goes through the encoder", 0),
    needs="prototypes",
  )
  small_size: int = setting(
    96,
    "Side of a small crop in pixels, a multiple of the patch size.",
    must=WIDTH,
    needs="prototypes",
  )
  area: float = setting(
    0.32,
    "Share of an image's area that divides large crops from small ones.",
    must=BETWEEN_0_AND_1,
    needs="prototypes",
    fits=_fit_areas,
  )
  min_area: float = setting(
    0.05,
    "Least share of an image's area that a small crop shows.",
    must=BETWEEN_0_AND_1,
    needs="prototypes",
    fits=_fit_areas,
  )
  colours: bool = setting(
    True,
    "Change the colours of crops, make some grey, blur and solarize some; for "
    "images of 1 or 3 channels.",
    needs="prototypes",
  )
  class_weight: float = setting(
    1.0,
    "Weight of the class token's loss.",
    must=NOT_NEGATIVE,
    needs="prototypes",
    deprecated="weigh the other losses by patch_weight and koleo_weight.",
  )
  patch_weight: float = setting(
    1.0,
    "Weight of the loss of masked patches; 0 masks none, as DINO.",
    must=NOT_NEGATIVE,
    needs="prototypes",
  )
  koleo_weight: float = setting(
    0.1,
    "Weight of the loss that keeps features of different images apart (KoLeo).",
    must=NOT_NEGATIVE,
    needs="prototypes",
  )
  mask_probability: float = setting(
    0.5,
    "Share of the large crops with masked patches.",
    must=Rule("lie in [0, 1]", lambda x: 0 <= x <= 1),
    needs="prototypes",
  )
  mask_from: float = setting(
    0.1,
    "Least share of the patches to mask in such a crop.",
    must=BELOW_1,
    needs="prototypes",
    fits=_fit_masks,
  )
  mask_to: float = setting(
    0.5,
    "Largest share of the patches to mask.",
    must=BETWEEN_0_AND_1,
    needs="prototypes",
    fits=_fit_masks,
  )
  centering: str = setting(
    "mean",
    "What keeps the teacher from one answer for all: its mean is subtracted "
    '("mean"), or prototypes are used alike ("sinkhorn").',
    choices=CENTERINGS,
    needs="prototypes",
  )
  center_momentum: float = setting(
    0.9,
    "Decay of the center.",
    must=BELOW_1,
    needs="prototypes",
    deprecated="leave it out; it is 0.9 in DINO, iBOT and DINOv2.",
  )
  student_temperature: float = setting(
    0.1,
    "Divides the student's answers.",
    must=POSITIVE,
    needs="prototypes",
    deprecated="leave it out; it is 0.1 in DINO, iBOT and DINOv2.",
  )
  first_temperature: float = setting(
    0.04,
    "Temperature that divides the teacher's logits at the first step.",
    must=POSITIVE,
    needs="temperature_warmup",
  )
  teacher_temperature: float = setting(
    0.07,
    "Temperature that divides them after the warm-up.",
    must=POSITIVE,
    needs="prototypes",
  )
  temperature_warmup: Duration = setting(
    Duration(),
    "Time over which that temperature rises, 30 of 100 epochs in DINOv2.",
  )
  freeze_last: Duration = setting(
    Duration(),
    "Time in which the heads' last layer stays as it is, one epoch in DINOv2.",
  )
  clip_norm: float = setting(
    3.0,
    "Largest norm of the gradient of the encoder, and of each head; 0 is off. "
    "It comes before optimizer.clip_norm.",
    must=NOT_NEGATIVE,
    needs="prototypes",
  )


@dataclasses.dataclass(frozen=True)
class FewShotSettings(Section):
  """Probes at each evaluation: linear (arXiv:2010.11929, 4.1), and k-NN."""

  shots: int = setting(
    0,
    "Training images per class; 0 is off.",
    must=NOT_NEGATIVE,
    needs="eval_every",
  )
  seeds: int = setting(
    3, "Number of draws of the shots.", must=_SEEDS, needs="shots"
  )
  neighbours: int = setting(
    0,
    "Nearest training images that vote for the class of an evaluation image "
    "(k-NN), where there are labels; 0 is off.",
    must=NOT_NEGATIVE,
    needs="eval_every",
  )
  most_images: int = setting(
    10_000,
    "Largest number of images of each split that k-NN reads, drawn at random.",
    must=COUNT,
    needs="neighbours",
  )
  pre_logits: bool = setting(
    True,
    "Probe the output of the representation layer where the model has one, as "
    "big_vision does; else y of Eq. 4.",
    legacy_default=False,
  )
  data: DataSettings = section(DataSettings)


SECTIONS: dict[str, type[Section]] = {
  "masked": MaskedSettings,
  "autoencoder": AutoencoderSettings,
  "student": StudentSettings,
  "self_distillation": SelfDistillationSettings,
  "pairs": PairsSettings,
  "segmentation": SegmentationSettings,
}
"""The section of the configuration that a task of the same name has.

The first key of a section turns its task on, but for a task that `data.task`
names. `run.settings.Settings` has a field for each.
"""


def switches() -> tuple[str, ...]:
  """The dotted keys that turn on tasks, such as "masked.rate"."""
  first = {
    name: dataclasses.fields(kind)[0]
    for name, kind in SECTIONS.items()
    if name not in TASKS
  }
  return tuple(f"{name}.{field.name}" for name, field in first.items())
