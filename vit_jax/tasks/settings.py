"""Settings of masked patch prediction, and of the few-shot evaluation."""

import dataclasses

from vit_jax.data.settings import DataSettings
from vit_jax.runtime.checks import BELOW_1, NOT_NEGATIVE, up_to
from vit_jax.runtime.settings import Section, section, setting

TARGETS = ("colour", "colour4x4", "pixels")
_SEEDS = up_to(1_000, "each is a probe at each evaluation")


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
class FewShotSettings(Section):
  """Linear probes fitted at each evaluation (arXiv:2010.11929, Sec. 4.1)."""

  shots: int = setting(
    0,
    "Training images per class; 0 is off.",
    must=NOT_NEGATIVE,
    needs="eval_every",
  )
  seeds: int = setting(3, "Number of draws of the shots.", must=_SEEDS)
  pre_logits: bool = setting(
    True,
    "Probe the output of the representation layer where the model has one, as "
    "big_vision does; else y of Eq. 4.",
    legacy_default=False,
  )
  data: DataSettings = section(DataSettings)
