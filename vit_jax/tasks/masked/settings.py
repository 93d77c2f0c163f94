"""Settings of masked patches; imports the standard library alone."""

import dataclasses

from vit_jax.runtime.checks import BELOW_1
from vit_jax.runtime.settings import Section, setting

TARGETS = ("colour", "colour4x4", "pixels")


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
