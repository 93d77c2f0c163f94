"""Settings for starting a run from a checkpoint."""

import dataclasses

from vit_jax.runtime.settings import Section, setting

INTERPOLATIONS = (
  *("linear", "bicubic", "bicubic_antialias", "bicubic_corners"),
)


@dataclasses.dataclass(frozen=True)
class InterpolationSettings(Section):
  """How a checkpoint's positions are fitted to another image size."""

  interpolation: str | None = setting(
    None,
    "How positions are interpolated to another image size; None takes the way "
    "of the checkpoint's family.",
    choices=INTERPOLATIONS,
    legacy_default="linear",
  )


@dataclasses.dataclass(frozen=True)
class TransferSettings(InterpolationSettings):
  """How the checkpoint that `pretrained` names is adapted to the new task."""

  keep_head: bool = setting(
    False, "Keep the checkpoint's head, instead of a new head of zeros."
  )
  keep_pre_logits: bool = setting(
    False, "Keep the checkpoint's representation layer, if it has one."
  )
