"""Settings of students; imports the standard library alone."""

import dataclasses

from vit_jax.runtime.checks import POSITIVE, Rule
from vit_jax.runtime.settings import Section, setting

LEARNED = ("both", "class", "patches")


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
    "Weight of the patches' loss; that of the class token is 1.",
    must=POSITIVE,
    needs="learns",
    tunes="learns=both or learns=patches",
  )
