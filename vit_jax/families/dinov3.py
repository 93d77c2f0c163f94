"""DINOv3 (arXiv:2508.10104), and LingBot-Vision, which has its layers."""

from typing import Any

from vit_jax.families.family import (
  APART,
  FUSED,
  GAMMA,
  Eva,
  Stored,
  Timm,
  Transformers,
)

FIELDS = dict(
  layer_scale=1e-5,
  gelu="exact",
  registers=4,
  position="none",
  rope_theta=100.0,
  qkv_bias="qv",
  layer_norm_epsilon=1e-5,
)
TIMM = Timm(
  classes={r"vit_\w+_(dinov3|lingbot|sapiens2)": "e"},
  own={
    r"vit_\w+_(dinov3|lingbot)": dict(
      use_rot_pos_emb=True,
      rope_type="dinov3",
      rope_temperature=100.0,
      rope_rotate_half=True,
      epsilon=1e-5,
    ),
    r"vit_\w+_lingbot": dict(global_pool="token"),
  },
  heads={r"vit_huge_plus_patch16_dinov3": 20, r"vit_7b_patch16_dinov3": 32},
  evas=(
    Eva(
      architecture="vit_small_plus_patch16_dinov3",
      table="timm_eva",
      has=(GAMMA, "cls_token"),
      lacks=(FUSED, APART, "pos_embed"),
      fields=dict(
        rope_theta=100.0,
        rope_side=None,
        rope_kind="axial",
        position="none",
        class_token=True,
        layer_norm_epsilon=1e-5,
      ),
      biases=("qv", ""),
      pooling="avg",
    ),
  ),
)
_NAMES = """
base,embeddings.patch_embeddings.weight,patches/E/kernel,D C P Q -> (P Q C) D
base,embeddings.patch_embeddings.bias,patches/E/bias,
base,embeddings.cls_token,x_class,1 1 D -> D
base,embeddings.register_tokens,registers,1 R D -> R D
base,norm.weight,norm/scale,
base,norm.bias,norm/bias,
layer,norm1.weight,norm_msa/scale,
layer,norm1.bias,norm_msa/bias,
layer,norm2.weight,norm_mlp/scale,
layer,norm2.bias,norm_mlp/bias,
layer,layer_scale1.lambda1,scale_msa,
layer,layer_scale2.lambda1,scale_mlp,
layer,attention.q_proj.weight,msa/query/kernel,(k d) D -> D k d
layer,attention.q_proj.bias,msa/query/bias,(k d) -> k d
layer,attention.k_proj.weight,msa/key/kernel,(k d) D -> D k d
layer,attention.k_proj.bias,msa/key/bias,(k d) -> k d
layer,attention.v_proj.weight,msa/value/kernel,(k d) D -> D k d
layer,attention.v_proj.bias,msa/value/bias,(k d) -> k d
layer,attention.o_proj.weight,msa/out/kernel,D (k d) -> k d D
layer,attention.o_proj.bias,msa/out/bias,
mlp,mlp.up_proj.weight,mlp/expand/kernel,O I -> I O
mlp,mlp.up_proj.bias,mlp/expand/bias,
mlp,mlp.down_proj.weight,mlp/contract/kernel,O I -> I O
mlp,mlp.down_proj.bias,mlp/contract/bias,
gated_mlp,mlp.gate_proj.weight,mlp/gate/kernel,O I -> I O
gated_mlp,mlp.gate_proj.bias,mlp/gate/bias,
gated_mlp,mlp.up_proj.weight,mlp/expand/kernel,O I -> I O
gated_mlp,mlp.up_proj.bias,mlp/expand/bias,
gated_mlp,mlp.down_proj.weight,mlp/contract/kernel,O I -> I O
gated_mlp,mlp.down_proj.bias,mlp/contract/bias,
"""


def _fields(file: Stored) -> dict[str, Any]:
  """The fields of our model for a stored file; see `Transformers.fields`.

  Raises ValueError if only one of the projections has a bias.
  """
  layer, shapes = "layer.0.", file.shapes
  biased = (x for x in "qkv" if f"{layer}attention.{x}_proj.bias" in shapes)
  proj = f"{layer}attention.o_proj.bias" in shapes
  if proj != (f"{layer}mlp.up_proj.bias" in shapes):
    raise ValueError(
      f"its arrays are those of proj_bias={proj} and mlp_bias={not proj}: only "
      "both or neither are supported."
    )
  return dict(
    position="none",
    registers=file.axis("embeddings.register_tokens", 1, 0),
    rope_theta=file.number("rope_theta", 100.0, positive=True),
    layer_scale=file.number("layerscale_value", 1.0),
    gated_mlp=f"{layer}mlp.gate_proj.weight" in shapes,
    qkv_bias="".join(biased),
    branch_bias=proj,
  )


def _config(vit: Any, _: Any) -> dict[str, Any]:
  """The family's part of config.json; see `Transformers.config`."""
  return dict(
    model_type="dinov3_vit",
    intermediate_size=vit.mlp_size,
    use_gated_mlp=vit.gated_mlp,
    layerscale_value=vit.layer_scale,
    drop_path_rate=vit.drop_path_rate,
    attention_dropout=vit.attention_dropout_rate,
    num_register_tokens=vit.registers,
    rope_theta=vit.rope_theta,
    query_bias="q" in vit.qkv_bias,
    key_bias="k" in vit.qkv_bias,
    value_bias="v" in vit.qkv_bias,
    proj_bias=vit.branch_bias,
    mlp_bias=vit.branch_bias,
  )


TRANSFORMERS = (
  Transformers(
    types=("dinov3_vit",),
    signature="layer.0.layer_scale1.lambda1",
    layers="layer.{}.",
    names=_NAMES,
    fields=_fields,
    config=_config,
    classes=("DINOv3ViTModel", None),
    mask_token="embeddings.mask_token",
    mask_axes=2,
    gated_by_act=True,
    defaults={"layer_norm_eps": 1e-5, "num_attention_heads": 6},
  ),
)
