"""Settings of what fine-tuning makes of a checkpoint."""

import dataclasses

from vit_jax.runtime.settings import Section, setting

INTERPOLATIONS = ("linear", "bicubic")


@dataclasses.dataclass(frozen=True)
class InterpolationSettings(Section):
  """How a checkpoint's positions are fitted to another image size."""

  interpolation: str = setting(
    "linear",
    "How positions are interpolated to another image size.",
    choices=INTERPOLATIONS,
  )


@dataclasses.dataclass(frozen=True)
class TransferSettings(Section):
  """What is kept of the checkpoint that `pretrained` names."""

  keep_head: bool = setting(
    False, "Keep its head instead of starting a new one of zeros."
  )
  keep_pre_logits: bool = setting(
    False, "Keep its representation layer, if it has one."
  )
  interpolation: str = setting(
    "linear",
    "How positions are interpolated to another image size.",
    choices=INTERPOLATIONS,
  )
