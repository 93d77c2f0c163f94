"""TIPSv2, AIMv2, InternViT, C-RADIO and Pixio as transformers saves them.

Of models of images and text, the text's part is left out. C-RADIO comes without
its adaptors, as in transformers and as NVIDIA's own code saves it.
"""

import dataclasses
from typing import Any

from vit_jax.models.extended_vit import ExtendedVit
from vit_jax.pretrained.formats import architecture
from vit_jax.pretrained.formats.mapping import Shapes
from vit_jax.pretrained.formats.table import Config, Family, Layers, Table
from vit_jax.runtime.checks import checked

_FIRST = "blocks.0."  # The first layer of TIPSv2 and C-RADIO.
_NORMS = {"layer_norm": "layer", "rms_norm": "rms"}


def _dropouts(vit: ExtendedVit) -> dict[str, Any]:
  """The part of a configuration that most families share."""
  return dict(
    hidden_dropout_prob=vit.dropout_rate,
    attention_probs_dropout_prob=vit.attention_dropout_rate,
    qkv_bias=bool(vit.qkv_bias),
  )


def _mlp_ratio(vit: ExtendedVit, whole: bool = False) -> float | None:
  """The ratio from which the library computes an MLP's width, rounded down.

  None if there is none. Of a gated MLP's it takes two thirds, rounded up to a
  multiple of 8.
  """
  D, size = vit.hidden_size, vit.mlp_size
  if vit.gated_mlp:
    if size % 8:
      return None
    size = size * 3 // 2
  if not size % D:
    return size // D
  return None if whole else (size + 0.5) / D


def _layer_scale(config: Config, name: str, default: float) -> float:
  return checked(name, float, config.get(name, default))


def _tips(shapes: Shapes, config: Config) -> dict[str, Any]:
  return dict(
    kind=ExtendedVit,
    registers=shapes.get("register_tokens", (1, 0, 0))[1],
    antialias=True,
    qkv_bias="qkv" if f"{_FIRST}attn.qkv.bias" in shapes else "",
    layer_scale=_layer_scale(config, "layerscale_value", 1.0),
    gated_mlp=f"{_FIRST}mlp.w12.bias" in shapes,
  )


def _is_tips(shapes: Shapes, base: str) -> bool:
  """Whether names, most of them DINOv2's own as well, are TIPSv2's.

  It has one register, and DINOv2 has four or none.
  """
  registers = shapes[f"{base}register_tokens"]
  if f"{base}{_FIRST}mlp.c_fc.bias" in shapes:
    return True
  return registers[1:2] == (1,) and f"{base}{_FIRST}mlp.w12.bias" in shapes


def _is_own_tips(shapes: Shapes, base: str) -> bool:
  registers = shapes[f"{base}register_tokens"]
  return registers[1:2] == (1,) and f"{base}{_FIRST}mlp.fc1.bias" in shapes


def _tips_config(vit: ExtendedVit) -> dict[str, Any]:
  return _dropouts(vit) | dict(
    model_type="tipsv2_vision_model",
    mlp_ratio=_mlp_ratio(vit),
    use_swiglu_ffn=vit.gated_mlp,
    layerscale_value=vit.layer_scale,
    drop_path_rate=vit.drop_path_rate,
    num_register_tokens=vit.registers,
  )


TIPS = Family(
  types=("tipsv2_vision_model", "tipsv2"),
  signature="register_tokens",
  fits=_is_tips,
  table=Table("tips", (Layers("blocks.{}."),)),
  bases=("", "vision_encoder."),
  fields=_tips,
  config=_tips_config,
  classes=("Tipsv2VisionModel", None),
  defaults={"layer_norm_eps": 1e-6, "num_attention_heads": 12},
  position_resize="bilinear",
  mask_token="mask_token",
  mask_axes=1,
  unused=("text_encoder.", "temperature"),
  mean=(0.0,) * 3,
  std=(1.0,) * 3,
)
# The authors' file for PyTorch, which is only read.
TIPS_OWN = dataclasses.replace(
  TIPS,
  fits=_is_own_tips,
  table=Table("tips_own", (Layers("blocks.{}."),)),
  classes=(None, None),
)


def _aimv2(shapes: Shapes, config: Config) -> dict[str, Any]:
  if config.get("is_native"):
    raise ValueError(
      "its config.json says is_native=true: positions that are computed for "
      "any size of images (AIMv2 native) are not supported."
    )
  width = shapes.get("visual_projection.weight", (None, 0))[0]
  layer = "encoder.layers.0."
  return dict(
    kind=ExtendedVit,
    class_token=False,
    pooling="query" if "head.cls_token" in shapes else "gap",
    gated_mlp=True,
    qkv_bias="qkv" if f"{layer}attention.q_proj.bias" in shapes else "",
    branch_bias=f"{layer}ffn.up_proj.bias" in shapes,
    norm_kind="rms",
    norm_patches=True,
    projection=width is not None,
    representation_size=width,
  )


def _aimv2_config(vit: ExtendedVit) -> dict[str, Any]:
  if vit.representation_size is not None:
    raise ValueError("it has no class for a projection without a text tower.")
  return dict(
    model_type="aimv2_vision_model",
    intermediate_size=vit.mlp_size,
    attention_dropout=vit.attention_dropout_rate,
    qkv_bias=bool(vit.qkv_bias),
    mlp_bias=vit.branch_bias,
    use_head=vit.pooling == "query",
    is_native=False,
  )


AIMV2 = Family(
  types=("aimv2_vision_model", "aimv2"),
  signature="embeddings.patch_embed.weight",
  table=Table("aimv2", (Layers("encoder.layers.{}."),)),
  bases=("", "vision_model."),
  fields=_aimv2,
  config=_aimv2_config,
  classes=("Aimv2VisionModel", None),
  defaults={
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "num_attention_heads": 8,
  },
  epsilon="rms_norm_eps",
  gated_by_act=True,
  unused=("text_model.", "text_projection.", "logit_scale"),
  mean=architecture.CLIP_MEAN,
  std=architecture.CLIP_STD,
)


def _internvl(shapes: Shapes, config: Config) -> dict[str, Any]:
  layer = "encoder.layer.0."
  kind = config.get("norm_type", "layer_norm")
  kind = checked("norm_type", str, kind, choices=(*_NORMS,))
  final = "layernorm.weight" in shapes
  qk_norm = f"{layer}attention.q_norm.weight" in shapes
  epsilon = config.get("layer_norm_eps", 1e-6)
  rms = kind == "rms_norm"
  if (rms and final) or (qk_norm and not (rms and epsilon == 1e-6)):
    raise ValueError(
      "it has layer norms beside RMSNorm, or norms of two epsilons, which is "
      "not supported."
    )
  return dict(
    kind=ExtendedVit,
    pooling="token" if final else "gap",
    qkv_bias="qkv" if f"{layer}attention.q_proj.bias" in shapes else "",
    qk_norm=qk_norm,
    qk_norm_whole=qk_norm,
    layer_scale=_layer_scale(config, "layer_scale_init_value", 0.1),
    norm_kind=_NORMS[kind],
    norm_final=final,
  )


def _internvl_config(vit: ExtendedVit) -> dict[str, Any]:
  size = architecture.table_size(vit)
  return dict(
    image_size=size and [*size],
    patch_size=[vit.patch_size] * 2,
    model_type="internvl_vision",
    intermediate_size=vit.mlp_size,
    hidden_dropout_prob=vit.dropout_rate,
    attention_dropout=vit.attention_dropout_rate,
    attention_bias=bool(vit.qkv_bias),
    use_qk_norm=vit.qk_norm,
    norm_type="rms_norm" if vit.norm_kind == "rms" else "layer_norm",
    layer_scale_init_value=vit.layer_scale,
    use_mean_pooling=not vit.norm_final,
  )


INTERNVL = Family(
  types=("internvl_vision", "internvl"),
  signature="encoder.layer.0.attention.projection_layer.weight",
  table=Table("internvl", (Layers("encoder.layer.{}."),)),
  bases=("", "model.vision_tower."),
  fields=_internvl,
  config=_internvl_config,
  classes=("InternVLVisionModel", None),
  defaults={"layer_norm_eps": 1e-6, "num_attention_heads": 16},
  unused=("embeddings.mask_token", "model.vision_tower.embeddings.mask_token"),
)


def _radio(shapes: Shapes, config: Config) -> dict[str, Any]:
  tokens = config.get("summary_idxs")
  notes = []
  if tokens is None:
    tokens = [0, 1]
    notes = ["no summary_idxs in config.json: its summary is tokens 0 and 1"]
  tokens = checked("summary_idxs", tuple[int, ...], tokens)
  scaled = any(
    f"model.{_FIRST}{name}" in shapes
    for name in ("layer_scale1.lambda1", "ls1.grandma")
  )
  value = _layer_scale(config, "layerscale_value", 1.0)
  return dict(
    kind=ExtendedVit,
    pooled_tokens=tuple(tokens),
    registers=shapes["model.patch_generator.cls_token.token"][0] - 1,
    position="learned_grid",
    patch_bias=False,
    qkv_bias="qkv" if f"model.{_FIRST}attn.qkv.bias" in shapes else "",
    layer_scale=value if scaled else None,
    norm_final=False,
    notes=notes,
  )


def _radio_config(vit: ExtendedVit) -> dict[str, Any]:
  origin = vit.origin
  size = architecture.table_size(vit)
  class_tokens = 1 + max(vit.pooled_tokens)  # It does not say more of others.
  return _dropouts(vit) | dict(
    model_type="radio",
    mlp_ratio=float(_mlp_ratio(vit) or 0),
    layerscale_value=1.0,
    drop_path_rate=vit.drop_path_rate,
    image_size=origin and origin.image_size and origin.image_size[0],
    max_img_size=size and size[0],
    num_cls_tokens=class_tokens,
    num_registers=vit.prefix - class_tokens,
    summary_idxs=[*vit.pooled_tokens],
  )


RADIO = Family(
  types=("radio",),
  signature="model.patch_generator.pos_embed",
  table=Table("radio", (Layers("model.blocks.{}."),)),
  bases=("radio_model.",),
  fields=_radio,
  config=_radio_config,
  classes=("RadioModel", None),
  defaults={"layer_norm_eps": 1e-6},  # NVIDIA's own files tell no heads.
  position_resize="square",
  positions_for="max_img_size",
  normalizes="radio_model.input_conditioner.",
  unused=(
    *("radio_model.input_conditioner.", "radio_model.summary_idxs"),
    *("adaptors.", "radio_model.adaptors.", "radio_model.model.head."),
    "radio_model.model.patch_generator.video_embedder.",
  ),
  mean=architecture.CLIP_MEAN,
  std=architecture.CLIP_STD,
)
# NVIDIA's own names of LayerScale, which are only read.
RADIO_OWN = dataclasses.replace(
  RADIO,
  signature="model.blocks.0.ls1.grandma",
  table=Table("radio_own", (Layers("model.blocks.{}."),)),
  classes=(None, None),
)


def _pixio(shapes: Shapes, _: Config) -> dict[str, Any]:
  biased = "encoder.layer.0.attention.attention.query.bias" in shapes
  return dict(
    kind=ExtendedVit,
    pooling="prefix",
    registers=shapes.get("embeddings.cls_token", (1, 1, 0))[1] - 1,
    position="learned_all",
    qkv_bias="qkv" if biased else "",
  )


PIXIO = Family(
  types=("pixio",),
  signature="encoder.layer.0.norm1.weight",
  table=Table("pixio", (Layers("encoder.layer.{}."),)),
  bases=("",),
  fields=_pixio,
  config=lambda vit: (
    _dropouts(vit)
    | dict(
      model_type="pixio",
      mlp_ratio=_mlp_ratio(vit, whole=True),
      drop_path_rate=vit.drop_path_rate,
      n_cls_tokens=vit.prefix,
    )
  ),
  classes=("PixioModel", None),
  defaults={"layer_norm_eps": 1e-6, "num_attention_heads": 16},
)
