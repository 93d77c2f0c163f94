"""TIPSv2 (arXiv:2604.12012)."""

import dataclasses
from typing import Any

from vit_jax.families.family import (
  Shapes,
  Stored,
  Transformers,
  dropouts,
  mlp_ratio,
)

FIELDS = dict(
  layer_scale=1.0,
  gelu="exact",
  registers=1,
  antialias=True,
  position_resize="bilinear",
)
_FIRST = "blocks.0."
_NAMES = """
base,patch_embed.proj.weight,patches/E/kernel,D C P Q -> (P Q C) D
base,patch_embed.proj.bias,patches/E/bias,
base,cls_token,x_class,1 1 D -> D
base,register_tokens,registers,1 R D -> R D
base,pos_embed,position/E_pos,1 S D -> S D
base,norm.weight,norm/scale,
base,norm.bias,norm/bias,
layer,norm1.weight,norm_msa/scale,
layer,norm1.bias,norm_msa/bias,
layer,norm2.weight,norm_mlp/scale,
layer,norm2.bias,norm_mlp/bias,
layer,attn.qkv.weight,msa/query/kernel msa/key/kernel msa/value/kernel,\
(n k d) D -> n D k d
layer,attn.qkv.bias,msa/query/bias msa/key/bias msa/value/bias,(n k d) -> n k d
layer,attn.proj.weight,msa/out/kernel,D (k d) -> k d D
layer,attn.proj.bias,msa/out/bias,
layer,ls1.gamma,scale_msa,
layer,ls2.gamma,scale_mlp,
gated_mlp,mlp.w12.weight,mlp/gate/kernel mlp/expand/kernel,(m O) I -> m I O
gated_mlp,mlp.w12.bias,mlp/gate/bias mlp/expand/bias,(m O) -> m O
gated_mlp,mlp.w3.weight,mlp/contract/kernel,O I -> I O
gated_mlp,mlp.w3.bias,mlp/contract/bias,
"""
_HUB = """
mlp,mlp.c_fc.weight,mlp/expand/kernel,O I -> I O
mlp,mlp.c_fc.bias,mlp/expand/bias,
mlp,mlp.c_proj.weight,mlp/contract/kernel,O I -> I O
mlp,mlp.c_proj.bias,mlp/contract/bias,
"""
_OWN = """
mlp,mlp.fc1.weight,mlp/expand/kernel,O I -> I O
mlp,mlp.fc1.bias,mlp/expand/bias,
mlp,mlp.fc2.weight,mlp/contract/kernel,O I -> I O
mlp,mlp.fc2.bias,mlp/contract/bias,
"""


def _fields(file: Stored) -> dict[str, Any]:
  """The fields of our model for a stored file; see `Transformers.fields`."""
  return dict(
    registers=file.axis("register_tokens", 1, 0),
    antialias=True,
    qkv_bias="qkv" if f"{_FIRST}attn.qkv.bias" in file.shapes else "",
    layer_scale=file.number("layerscale_value", 1.0),
    gated_mlp=f"{_FIRST}mlp.w12.bias" in file.shapes,
  )


def _fits(shapes: Shapes, base: str) -> bool:
  """Whether arrays are TIPSv2's in transformers.

  Most names are those of DINOv2's own code, but TIPSv2 has one register, and
  DINOv2 has four or none.
  """
  registers = shapes[f"{base}register_tokens"]
  if f"{base}{_FIRST}mlp.c_fc.bias" in shapes:
    return True
  return registers[1:2] == (1,) and f"{base}{_FIRST}mlp.w12.bias" in shapes


def _fits_own(shapes: Shapes, base: str) -> bool:
  """Whether arrays are those of TIPSv2's authors; see `_fits`."""
  registers = shapes[f"{base}register_tokens"]
  return registers[1:2] == (1,) and f"{base}{_FIRST}mlp.fc1.bias" in shapes


def _config(vit: Any, _: Any) -> dict[str, Any]:
  """The family's part of config.json; see `Transformers.config`."""
  return dropouts(vit) | dict(
    model_type="tipsv2_vision_model",
    mlp_ratio=mlp_ratio(vit),
    use_swiglu_ffn=vit.gated_mlp,
    layerscale_value=vit.layer_scale,
    drop_path_rate=vit.drop_path_rate,
    num_register_tokens=vit.registers,
  )


TIPS = Transformers(
  types=("tipsv2_vision_model", "tipsv2"),
  signature="register_tokens",
  fits=_fits,
  bases=("", "vision_encoder."),
  layers="blocks.{}.",
  names=_NAMES + _HUB,
  fields=_fields,
  config=_config,
  classes=("Tipsv2VisionModel", None),
  defaults={"layer_norm_eps": 1e-6, "num_attention_heads": 12},
  position_resize="bilinear",
  antialiased=True,
  mask_token="mask_token",
  unused=("text_encoder.", "temperature"),
  mean=(0.0,) * 3,
  std=(1.0,) * 3,
)
# The authors' file for PyTorch, which is only read.
_TIPS_OWN = dataclasses.replace(
  TIPS, fits=_fits_own, names=_NAMES + _OWN, classes=(None, None)
)
TRANSFORMERS = (TIPS, _TIPS_OWN)
