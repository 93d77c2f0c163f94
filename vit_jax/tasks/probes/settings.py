"""Settings of the probes in a run; imports the standard library alone."""

import dataclasses

from vit_jax.runtime.checks import COUNT, NOT_NEGATIVE, up_to
from vit_jax.runtime.settings import Section, section, setting
from vit_jax.tasks.settings import DataSettings

_SEEDS = up_to(1_000, "each is a probe at each evaluation")


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
    "Number of nearest training images that vote for the class of an "
    "evaluation image (k-NN); 0 is off. Without labels, a run that starts from "
    "a checkpoint compares this many nearest neighbours of each evaluation "
    "image with those that it had at the start.",
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
  data: DataSettings = section(
    DataSettings,
    needs="fewshot.data.name or fewshot.data.root or fewshot.data.dir",
  )

  def __post_init__(self):
    super().__post_init__()
    if self.data.tokens is not None:
      raise ValueError(
        f"data.tokens={self.data.tokens}: the images of a probe are prepared "
        "like those of the run, so leave this out, and set the run's own "
        "data.tokens."
      )
