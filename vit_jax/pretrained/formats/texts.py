"""Recognises a text tower by the names of its arrays."""

from collections.abc import Mapping
from typing import Any

from vit_jax.pretrained.formats import hf_text, open_clip_text, two_towers
from vit_jax.pretrained.formats.mapping import Shapes
from vit_jax.pretrained.formats.text_family import TextLayout

# The order is that in which their signatures are looked for.
FAMILIES = (
  hf_text.SIGLIP,
  hf_text.CLIP,
  *open_clip_text.FAMILIES,
  hf_text.TIPS,
)


class NoTextTowerError(ValueError):
  """The checkpoint that the message names has no text tower."""

  def __init__(self, source: str):
    super().__init__(
      f"{source} has no text tower, and cannot compare images with texts: take "
      "a run on pairs, or published weights of images and text, CLIP, SigLIP "
      "or TIPSv2, such as hf_b16_siglip2_224."
    )


def infer(shapes: Shapes, config: Mapping[str, Any], source: str) -> TextLayout:
  """Finds the text tower among the arrays of a file.

  Raises NoTextTowerError, which names `source`, if there is none; and
  ValueError if `config`, the library's configuration, holds a value that is not
  supported, or if an array that tells a size is missing.
  """
  layout = two_towers.infer(shapes)
  if layout is not None:
    return layout
  for family in FAMILIES:
    base = family.base(shapes)
    if base is not None:
      return family.layout(base, shapes, config)
  raise NoTextTowerError(source)
