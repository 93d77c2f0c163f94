"""C-RADIO (arXiv:2412.07679)."""

import dataclasses
from typing import Any

from vit_jax.families.family import (
  CLIP_MEAN,
  CLIP_STD,
  Stored,
  Timm,
  Transformers,
  dropouts,
  mlp_ratio,
)

FIELDS = dict(
  gelu="exact",
  registers=7,
  position="learned_grid",
  position_resize="square",
  norm_final=False,
)
TIMM = Timm(
  own={
    r"naflexvit_\w+_radio_": dict(
      global_pool="token",
      pos_embed_interp_mode="bilinear",
      pos_embed_ar_preserving=True,
      pos_embed_antialias=False,
    ),
    r"naflexvit_(base|huge)_\w+_radio_v3": dict(pos_embed_align_corners=True),
  }
)
_FIRST = "model.blocks.0."
_NAMES = """
base,model.patch_generator.embedder.weight,patches/E/kernel,\
D (C P Q) -> (P Q C) D
base,model.patch_generator.cls_token.token,x_class registers,T D -> D + T D
base,model.patch_generator.pos_embed,position/E_pos,1 S D -> S D
layer,norm1.weight,norm_msa/scale,
layer,norm1.bias,norm_msa/bias,
layer,norm2.weight,norm_mlp/scale,
layer,norm2.bias,norm_mlp/bias,
layer,attn.qkv.weight,msa/query/kernel msa/key/kernel msa/value/kernel,\
(n k d) D -> n D k d
layer,attn.qkv.bias,msa/query/bias msa/key/bias msa/value/bias,(n k d) -> n k d
layer,attn.proj.weight,msa/out/kernel,D (k d) -> k d D
layer,attn.proj.bias,msa/out/bias,
mlp,mlp.fc1.weight,mlp/expand/kernel,O I -> I O
mlp,mlp.fc1.bias,mlp/expand/bias,
mlp,mlp.fc2.weight,mlp/contract/kernel,O I -> I O
mlp,mlp.fc2.bias,mlp/contract/bias,
"""
_HUB = """
layer,layer_scale1.lambda1,scale_msa,
layer,layer_scale2.lambda1,scale_mlp,
"""
_OWN = """
layer,ls1.grandma,scale_msa,
layer,ls2.grandma,scale_mlp,
"""


def _fields(file: Stored) -> dict[str, Any]:
  """The fields of our model for a stored file; see `Transformers.fields`."""
  notes = []
  if file.config.get("summary_idxs") is None:
    notes = ["no summary_idxs in config.json: its summary is tokens 0 and 1"]
  scaled = any(
    f"{_FIRST}{name}" in file.shapes
    for name in ("layer_scale1.lambda1", "ls1.grandma")
  )
  value = file.number("layerscale_value", 1.0)
  return dict(
    pooled_tokens=file.whole_numbers("summary_idxs", (0, 1)),
    registers=file.axis("model.patch_generator.cls_token.token", 0, 1) - 1,
    position="learned_grid",
    patch_bias=False,
    qkv_bias="qkv" if f"{_FIRST}attn.qkv.bias" in file.shapes else "",
    layer_scale=value if scaled else None,
    norm_final=False,
    notes=notes,
  )


def _config(vit: Any, size: tuple[int, int] | None) -> dict[str, Any]:
  """The family's part of config.json; see `Transformers.config`."""
  size_of_origin = vit.origin.image_size if vit.origin else None
  # Only the tokens that are read are known to be class tokens.
  class_tokens = 1 + max(vit.pooled_tokens)
  return dropouts(vit) | dict(
    model_type="radio",
    mlp_ratio=float(mlp_ratio(vit) or 0),
    layerscale_value=1.0,
    drop_path_rate=vit.drop_path_rate,
    image_size=size_of_origin[0] if size_of_origin else None,
    max_img_size=size[0] if size else None,
    num_cls_tokens=class_tokens,
    num_registers=vit.prefix - class_tokens,
    summary_idxs=[*vit.pooled_tokens],
  )


# The arrays of transformers, which has no adaptors. NVIDIA's own code names
# them alike, except those of LayerScale.
_RADIO = Transformers(
  types=("radio",),
  signature="model.patch_generator.pos_embed",
  bases=("radio_model.",),
  layers="model.blocks.{}.",
  names=_NAMES + _HUB,
  fields=_fields,
  config=_config,
  classes=("RadioModel", None),
  # NVIDIA's own files do not tell the number of heads.
  defaults={"layer_norm_eps": 1e-6},
  position_resize="square",
  image_size_key="max_img_size",
  normalizes="radio_model.input_conditioner.",
  unused=(
    "radio_model.input_conditioner.",
    "radio_model.summary_idxs",
    "adaptors.",
    "radio_model.adaptors.",
    "radio_model.model.head.",
    "radio_model.model.patch_generator.video_embedder.",
  ),
  mean=CLIP_MEAN,
  std=CLIP_STD,
)
# NVIDIA's own names of LayerScale, which are only read.
_RADIO_OWN = dataclasses.replace(
  _RADIO,
  signature=f"{_FIRST}ls1.grandma",
  names=_NAMES + _OWN,
  classes=(None, None),
)
TRANSFORMERS = (_RADIO_OWN, _RADIO)
