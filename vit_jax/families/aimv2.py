"""AIMv2 (arXiv:2411.14402)."""

from typing import Any

from vit_jax.families.family import (
  CLIP_MEAN,
  CLIP_STD,
  Stored,
  Timm,
  Transformers,
)

FIELDS = dict(
  gated_mlp=True,
  gelu="exact",
  class_token=False,
  pooling="gap",
  qkv_bias="",
  branch_bias=False,
  norm_kind="rms",
  norm_patches=True,
  layer_norm_epsilon=1e-5,
)
TIMM = Timm(
  classes={r"aimv2_": "v"},
  own={r"aimv2_": dict(epsilon=1e-5)},
  head_sizes={r"aimv2_": 128},
)
_NAMES = """
root,visual_projection.weight,pre_logits/kernel,O I -> I O
base,embeddings.patch_embed.weight,patches/E/kernel,D C P Q -> (P Q C) D
base,embeddings.patch_embed.bias,patches/E/bias,
base,embeddings.rms_norm.weight,patches/norm/scale,
base,embeddings.position_embedding.weight,position/E_pos,
base,rms_norm.weight,norm/scale,
base,head.cls_token,map_head/query,1 1 (k d) -> k d
base,head.k_proj.weight,map_head/key/kernel,(k d) D -> D k d
base,head.v_proj.weight,map_head/value/kernel,(k d) D -> D k d
base,head.output_proj.weight,map_head/out/kernel,D (k d) -> k d D
base,head.output_proj.bias,map_head/out/bias,
layer,rms_norm1.weight,norm_msa/scale,
layer,rms_norm2.weight,norm_mlp/scale,
layer,attention.q_proj.weight,msa/query/kernel,(k d) D -> D k d
layer,attention.q_proj.bias,msa/query/bias,(k d) -> k d
layer,attention.k_proj.weight,msa/key/kernel,(k d) D -> D k d
layer,attention.k_proj.bias,msa/key/bias,(k d) -> k d
layer,attention.v_proj.weight,msa/value/kernel,(k d) D -> D k d
layer,attention.v_proj.bias,msa/value/bias,(k d) -> k d
layer,attention.out_proj.weight,msa/out/kernel,D (k d) -> k d D
layer,attention.out_proj.bias,msa/out/bias,
gated_mlp,ffn.gate_proj.weight,mlp/gate/kernel,O I -> I O
gated_mlp,ffn.gate_proj.bias,mlp/gate/bias,
gated_mlp,ffn.up_proj.weight,mlp/expand/kernel,O I -> I O
gated_mlp,ffn.up_proj.bias,mlp/expand/bias,
gated_mlp,ffn.down_proj.weight,mlp/contract/kernel,O I -> I O
gated_mlp,ffn.down_proj.bias,mlp/contract/bias,
"""


def _fields(file: Stored) -> dict[str, Any]:
  """The fields of our model for a stored file; see `Transformers.fields`.

  Raises ValueError for an AIMv2 of any size of images ("native").
  """
  if file.config.get("is_native"):
    raise ValueError(
      "its config.json says is_native=true: positions that are computed for "
      "any size of images (AIMv2 native) are not supported."
    )
  width = file.axis("visual_projection.weight", 0)
  layer = "encoder.layers.0."
  return dict(
    class_token=False,
    pooling="query" if "head.cls_token" in file.shapes else "gap",
    gated_mlp=True,
    qkv_bias="qkv" if f"{layer}attention.q_proj.bias" in file.shapes else "",
    branch_bias=f"{layer}ffn.up_proj.bias" in file.shapes,
    norm_kind="rms",
    norm_patches=True,
    projection=width is not None,
    representation_size=width,
  )


def _config(vit: Any, _: Any) -> dict[str, Any]:
  """The family's part of config.json; see `Transformers.config`.

  Raises ValueError for a tower with a projection.
  """
  if vit.representation_size is not None:
    raise ValueError(
      "transformers has no class for a projected image tower without a text "
      "tower."
    )
  return dict(
    model_type="aimv2_vision_model",
    intermediate_size=vit.mlp_size,
    attention_dropout=vit.attention_dropout_rate,
    qkv_bias=bool(vit.qkv_bias),
    mlp_bias=vit.branch_bias,
    use_head=vit.pooling == "query",
    is_native=False,
  )


TRANSFORMERS = (
  Transformers(
    types=("aimv2_vision_model", "aimv2"),
    signature="embeddings.patch_embed.weight",
    bases=("", "vision_model."),
    layers="encoder.layers.{}.",
    names=_NAMES,
    fields=_fields,
    config=_config,
    classes=("Aimv2VisionModel", None),
    defaults={
      "rms_norm_eps": 1e-5,
      "hidden_act": "silu",
      "num_attention_heads": 8,
    },
    epsilon_key="rms_norm_eps",
    gated_by_act=True,
    unused=("text_model.", "text_projection.", "logit_scale"),
    mean=CLIP_MEAN,
    std=CLIP_STD,
  ),
)
