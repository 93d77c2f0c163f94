"""The image towers of CLIP and SigLIP as transformers saves them.

They come alone or with a text tower, which is left out. MetaCLIP 2 is a CLIP,
and MLCD is one with rotary positions, for its class token as well.
SigLIP 2 is a SigLIP here, except for its models of any aspect ratio (NaFlex),
which are refused.
"""

import dataclasses
from typing import Any

from vit_jax.data.preprocessing import HALF
from vit_jax.models import BaseVit
from vit_jax.models.extended_vit import ExtendedVit
from vit_jax.pretrained.formats import architecture
from vit_jax.pretrained.formats.mapping import Shapes
from vit_jax.pretrained.formats.table import Config, Family, Layers, Table
from vit_jax.runtime.checks import POSITIVE, checked

_TEXT = ("text_model.", "text_projection.", "logit_scale", "logit_bias")


def _clip(shapes: Shapes, _: Config) -> dict[str, Any]:
  headed = "classifier.bias" in shapes
  projection = shapes.get("visual_projection.weight", (None, 0))
  width = None if headed else projection[0]
  return dict(
    kind=ExtendedVit,
    pooling="gap" if headed else "token",
    pool_unnormed=headed,
    norm_pre=True,
    patch_bias=False,
    projection=width is not None,
    representation_size=width,
  )


def _clip_config(vit: ExtendedVit) -> dict[str, Any]:
  tower = _tower("clip", vit)
  size = vit.representation_size
  if size is None:
    return tower
  name = "CLIPVisionModelWithProjection"
  return tower | dict(architectures=[name], projection_dim=size)


def _tower(name: str, vit: BaseVit, **more: Any) -> dict[str, Any]:
  """The configuration of an image tower, alone or as a classifier's part."""
  tower = dict(
    model_type=f"{name}_vision_model",
    intermediate_size=vit.mlp_size,
    attention_dropout=vit.attention_dropout_rate,
    **more,
  )
  if not vit.num_classes:
    return tower
  return {"model_type": name, "vision_config": tower}


def _siglip(shapes: Shapes, _: Config) -> dict[str, Any]:
  if len(shapes.get("embeddings.patch_embedding.weight", ())) == 2:
    raise ValueError(f"it is a {architecture.NAFLEX}, which is not supported.")
  # With a head, the library averages the patches; without, it attends to them.
  attends = "head.probe" in shapes and "classifier.bias" not in shapes
  return dict(pooling="map" if attends else "gap")


_BASES = ("vision_model.", "", "vision_model.vision_model.")

CLIP = Family(
  types=(
    *("clip_vision_model", "clip"),
    *("metaclip_2_vision_model", "metaclip_2"),  # arXiv:2507.22062
  ),
  signature="pre_layrnorm.weight",  # Sic.
  table=Table("clip", (Layers("encoder.layers.{}."),)),
  bases=_BASES,
  fields=_clip,
  config=_clip_config,
  classes=("CLIPVisionModel", "CLIPForImageClassification"),
  defaults={
    "layer_norm_eps": 1e-5,
    "hidden_act": "quick_gelu",
    "num_attention_heads": 12,
  },
  unused=_TEXT,
  mean=architecture.CLIP_MEAN,
  std=architecture.CLIP_STD,
)


def _mlcd(shapes: Shapes, config: Config) -> dict[str, Any]:
  rope = config.get("rope_parameters")
  rope = architecture.section("rope_parameters", rope)
  checked("rope_type", str, rope.get("rope_type", "axial"), choices=("axial",))
  theta = rope.get("rope_theta", 10_000.0)
  return _clip(shapes, config) | dict(
    position="none",
    rope_kind="counted",
    rope_theta=checked("rope_theta", float, theta, POSITIVE),
    rope_first=True,
  )


def _mlcd_config(vit: ExtendedVit) -> dict[str, Any]:
  rope = dict(rope_type="axial", rope_theta=vit.rope_theta)
  return _tower("mlcd", vit, rope_parameters=rope)


MLCD = dataclasses.replace(
  CLIP,
  types=("mlcd_vision_model", "mlcd", "mlcd_vision"),
  signature="class_pos_emb",
  fields=_mlcd,
  config=_mlcd_config,
  classes=("MLCDVisionModel", None),
  defaults={
    "layer_norm_eps": 1e-5,
    "hidden_act": "gelu",
    "num_attention_heads": 16,
  },
)

SIGLIP = Family(
  types=("siglip_vision_model", "siglip"),
  signature="embeddings.patch_embedding.weight",
  table=Table("siglip", (Layers("encoder.layers.{}."),)),
  bases=_BASES,
  fields=_siglip,
  config=lambda vit: _tower(
    "siglip", vit, vision_use_head=vit.pooling == "map"
  ),
  classes=("SiglipVisionModel", "SiglipForImageClassification"),
  defaults={
    "layer_norm_eps": 1e-6,
    "hidden_act": "gelu_pytorch_tanh",
    "num_attention_heads": 12,
  },
  extended=False,
  unused=_TEXT,
  mean=HALF,
  std=HALF,
)
