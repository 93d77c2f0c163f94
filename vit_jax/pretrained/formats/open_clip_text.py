"""Text towers as open_clip saves them, beside an image tower.

They are its own Transformer, as in its models of CLIP, PE and SigLIP.
"""

from typing import Any

from vit_jax.pretrained.formats import open_clip
from vit_jax.pretrained.formats.architecture import need
from vit_jax.pretrained.formats.mapping import Shapes
from vit_jax.pretrained.formats.table import Config, Layers, Table
from vit_jax.pretrained.formats.text_family import TextFamily, width
from vit_jax.runtime.checks import COUNT, checked


def _fields(local: Shapes, _: Shapes, config: Config) -> dict[str, Any]:
  """The fields of a tower of open_clip's; see `TextFamily.fields`."""
  size = width(local, "text_projection.weight")
  if size is None:
    size = need(local, "text_projection", 2)[1]
  end = checked("eos_id", int | None, config["eos_token_id"], COUNT)
  return dict(
    pooling=open_clip.POOLINGS[config["pool_type"]],
    causal=config["causal"],
    end_token=end,
    representation_size=size,
    projection_bias="text_projection.bias" in local,
  )


def _family(signature: str, table: str) -> TextFamily:
  """The towers that have the array `signature`, with the names of `table`."""
  layers = (Layers("transformer.resblocks.{}."),)
  return TextFamily(
    name=open_clip.NAME,
    signature=signature,
    table=Table(table, layers, shared="open_text"),
    bases=("", "text."),
    defaults={},
    fields=_fields,
    others=("visual.",),
    configuration=open_clip.text_config,
  )


# CLIP's projection is a matrix, and SigLIP's a layer.
FAMILIES = (
  _family("text_projection", "open_clip_text"),
  _family("text_projection.weight", "open_siglip_text"),
)
