"""Settings of LeJEPA; imports the standard library alone."""

import dataclasses

from vit_jax.runtime.checks import BELOW_1, BETWEEN_0_AND_1, WIDTH, up_to
from vit_jax.runtime.settings import Section, setting
from vit_jax.tasks.crops import fit_areas


@dataclasses.dataclass(frozen=True)
class LeJepaSettings(Section):
  """LeJEPA, in place of labels (arXiv:2511.08544).

  Large crops have the run's `image_size`.
  """

  weight: float = setting(
    0.0,
    "Weight w of the distance to a normal distribution in the loss, the "
    "paper's lambda, such as 0.05; the error of the prediction has the weight "
    "1 - w. 0 trains on labels.",
    must=BELOW_1,
  )
  projections: int = setting(
    128,
    "Width of the projector's outputs, which the loss compares.",
    must=WIDTH,
    needs="weight",
  )
  projector_size: int = setting(
    2048,
    "Width of the projector's two hidden layers.",
    must=WIDTH,
    needs="weight",
  )
  directions: int = setting(
    1024,
    "Number of random directions in which the distribution is tested.",
    must=up_to(100_000, "each is a projection of every crop"),
    needs="weight",
  )
  small_crops: int = setting(
    6,
    "Number of small crops of an image, beside two large ones.",
    must=up_to(100, "each goes through the encoder", 0),
    needs="weight",
  )
  small_size: int = setting(
    96,
    "Side of a small crop in pixels, a multiple of the patch size.",
    must=WIDTH,
    needs="weight",
    tunes="small_crops",
  )
  area: float = setting(
    0.3,
    "Large crops cover more than this share of an image, small ones less.",
    must=BETWEEN_0_AND_1,
    needs="weight",
    fits=fit_areas,
  )
  min_area: float = setting(
    0.05,
    "Least share of an image's area that a small crop shows.",
    must=BETWEEN_0_AND_1,
    needs="weight",
    tunes="small_crops",
    fits=fit_areas,
  )
  colours: bool = setting(
    True,
    "Change the colours of crops, make some grey, blur and solarize some; for "
    "images of 1 or 3 channels.",
    needs="weight",
  )
