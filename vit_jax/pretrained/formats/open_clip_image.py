"""The image tower of open_clip's own Transformer, which is only read.

That of CLIP's models; SigLIP's and others have one of timm's, under
`visual.trunk.`.
"""

from typing import Any

from vit_jax.models.extended_vit import ExtendedVit
from vit_jax.pretrained.formats import architecture, open_clip
from vit_jax.pretrained.formats.mapping import Shapes
from vit_jax.pretrained.formats.table import Config, Family, Layers, Table


def _fields(shapes: Shapes, _: Config) -> dict[str, Any]:
  width = shapes.get("proj", (0, None))[-1]
  return dict(
    kind=ExtendedVit,
    pooling="token",
    norm_pre=True,
    patch_bias=False,
    projection=width is not None,
    representation_size=width,
  )


def _no_config(vit: Any) -> dict[str, Any]:
  raise ValueError("open_clip's files are not written here.")


OPEN_CLIP = Family(
  types=(open_clip.NAME,),
  signature="class_embedding",
  table=Table("open_clip", (Layers("transformer.resblocks.{}."),)),
  bases=("visual.",),
  fields=_fields,
  config=_no_config,
  classes=(None, None),
  defaults={"layer_norm_eps": 1e-5, "hidden_act": "gelu"},
  unused=(
    *("transformer.", "token_embedding.", "positional_embedding", "ln_final."),
    *("text_projection", "text.", "logit_scale", "logit_bias"),
  ),
  mean=architecture.CLIP_MEAN,
  std=architecture.CLIP_STD,
)
