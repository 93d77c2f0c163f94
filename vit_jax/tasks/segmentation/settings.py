"""Settings of segmentation; imports the standard library alone."""

import dataclasses
from typing import Any

from vit_jax.runtime.checks import IN_ORDER, WIDTH_OR_0
from vit_jax.runtime.settings import Section, setting

KINDS = ("linear", "small", "dpt")


def _check_head_size(settings: "PatchHeadSettings") -> None:
  """Checks a `head_size` that is set; ValueError if the head has one layer."""
  if settings.head == "linear":
    raise ValueError(
      f"head_size={settings.head_size} is the width of a hidden layer, and "
      "head='linear' has none: leave one of them out."
    )


@dataclasses.dataclass(frozen=True)
class PatchHeadSettings(Section):
  """Settings of a head that reads the patches of an encoder."""

  layers: tuple[int, ...] = setting(
    (),
    "Layers whose patches the head reads, counted from 1, such as (3,6,9,12); "
    "() is the last, or for dpt those at each quarter of the model.",
    must=IN_ORDER,
  )
  head: str | None = setting(
    None,
    'Head that reads the patches: one dense layer ("linear"), two ("small"), '
    "or a DPT head, whose convolutions fuse the patches after four layers at "
    'four resolutions ("dpt", arXiv:2103.13413). None takes small if head_size '
    "is set, and linear if it is not.",
    choices=KINDS,
  )
  head_size: int = setting(
    0,
    "Width of a hidden layer of the head, or of DPT's fused maps; 0 takes 256 "
    "if `head` has such a width, and a linear head if `head` is not set.",
    must=WIDTH_OR_0,
    fits=_check_head_size,
  )

  def of_head(self) -> dict[str, Any]:
    """The arguments of `models.segmenter.segmenter` that the keys set."""
    layers, head, size = self.layers, self.head, self.head_size
    return {"layers": layers, "head": head, "head_size": size}


@dataclasses.dataclass(frozen=True)
class SegmentationSettings(PatchHeadSettings):
  """A class for each pixel, with data.task=segmentation."""
