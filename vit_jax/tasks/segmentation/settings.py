"""Settings of segmentation; imports the standard library alone."""

import dataclasses

from vit_jax.runtime.checks import IN_ORDER, WIDTH_OR_0
from vit_jax.runtime.settings import Section, setting


@dataclasses.dataclass(frozen=True)
class PatchHeadSettings(Section):
  """A head that reads the patches of an encoder."""

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
class SegmentationSettings(PatchHeadSettings):
  """A class for each pixel, with data.task=segmentation."""
