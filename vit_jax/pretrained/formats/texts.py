"""Recognises a text tower by the names of its arrays."""

from collections.abc import Mapping
from typing import Any

from vit_jax.pretrained.formats import hf_text, open_clip, two_towers
from vit_jax.pretrained.formats.architecture import section
from vit_jax.pretrained.formats.mapping import Shapes
from vit_jax.pretrained.formats.text_family import TextLayout

# In the order in which their signatures are looked for.
FAMILIES = (hf_text.SIGLIP, hf_text.CLIP, *open_clip.FAMILIES, hf_text.TIPS)


def infer(shapes: Shapes, config: Mapping[str, Any]) -> TextLayout:
  """Finds the text tower among the arrays of a file.

  Raises ValueError if there is none, `config`, the library's configuration,
  holds a value that is not supported, or an array that tells a size is missing.
  """
  layout = two_towers.infer(shapes)
  if layout is not None:
    return layout
  for family in FAMILIES:
    base = family.base(shapes)
    if base is not None:
      text = section("text_config", config.get("text_config")) or config
      return family.layout(base, shapes, text)
  raise ValueError(
    f"its {len(shapes)} arrays ({', '.join([*shapes][:3])}, ...) hold no "
    "text tower of CLIP, SigLIP or TIPSv2 as transformers, open_clip or "
    "big_vision saves them: take a model of images and text."
  )
