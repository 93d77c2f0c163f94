"""Settings for starting a run from a checkpoint."""

import dataclasses

from vit_jax.runtime.settings import Section, setting

INTERPOLATIONS = (
  "linear",
  "bicubic",
  "bicubic_antialias",
  "bicubic_corners",
)


@dataclasses.dataclass(frozen=True)
class InterpolationSettings(Section):
  """How a checkpoint's positions are fitted to another image size."""

  interpolation: str | None = setting(
    None,
    "How positions are interpolated to another image size; None takes the "
    "method of the checkpoint's family.",
    choices=INTERPOLATIONS,
    legacy_default="linear",
  )


def _one_head(transfer: "TransferSettings") -> None:
  """Raises ValueError if the head is to be kept and fitted anew."""
  if transfer.keep_head:
    raise ValueError(
      "probe_head=True needs keep_head=False: a head is either kept or fitted."
    )


@dataclasses.dataclass(frozen=True)
class TransferSettings(InterpolationSettings):
  """How the checkpoint that `pretrained` names is adapted to the new task."""

  keep_head: bool = setting(
    False, "Keep the checkpoint's head, instead of a new head of zeros."
  )
  probe_head: bool = setting(
    False,
    "Start the new head from a linear probe of the training images, instead of "
    "zeros (arXiv:2202.10054); it reads each image once.",
    fits=_one_head,
  )
  keep_pre_logits: bool = setting(
    False, "Keep the checkpoint's representation layer, if it has one."
  )
