"""Settings of the few-shot evaluation during training."""

import dataclasses

from vit_jax.data.settings import DataSettings
from vit_jax.runtime.checks import NOT_NEGATIVE, up_to
from vit_jax.runtime.settings import Section, section, setting

_SEEDS = up_to(1_000, "each is a probe at each evaluation")


@dataclasses.dataclass(frozen=True)
class FewShotSettings(Section):
  """Linear probes fitted at each evaluation (arXiv:2010.11929, Sec. 4.1)."""

  shots: int = setting(
    0, "Training images per class; 0 is off.", must=NOT_NEGATIVE
  )
  seeds: int = setting(3, "Number of draws of the shots.", must=_SEEDS)
  pre_logits: bool = setting(
    True,
    "Probe the output of the representation layer where the model has one, as "
    "big_vision does; else y of Eq. 4.",
    legacy_default=False,
  )
  data: DataSettings = section(DataSettings)
