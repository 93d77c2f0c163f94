"""EVA-02 (arXiv:2303.11331), and timm's own ViTs with its rotary positions."""

from vit_jax.families.family import APART, FUSED, GAMMA, Q_BIAS, Eva, Timm

FIELDS = dict(
  gelu="exact",
  gated_mlp=True,
  norm_inner_mlp=True,
  qkv_bias="qv",
  rope_theta=10_000.0,
  rope_side=16,
  pooling="gap",
  norm_pooled=True,
)
_ROTARY = dict(rope_theta=10_000.0, rope_side=16, class_token=True)
TIMM = Timm(
  classes={r"eva02_": "e"},
  own={
    r"eva02_(?!enormous)|vit_\w+_rope_reg": dict(
      use_rot_pos_emb=True, ref_feat_shape=16
    ),
    r"eva02_enormous": dict(use_post_norm=True),
    r"eva\w+_clip_": dict(global_pool="token"),
  },
  heads={r"eva02_enormous": 16},
  evas=(
    Eva(
      architecture="vit_betwixt_patch16_rope_reg4_gap_256",
      table="timm_eva",
      has=(GAMMA,),
      lacks=(FUSED, APART, "pos_embed", "cls_token"),
      fields=dict(
        rope_theta=10_000.0, rope_side=16, position="none", class_token=False
      ),
      biases=("qv", ""),
    ),
    Eva(
      architecture="eva02_base_patch14_224",
      table="timm_eva02",
      has=(APART, "blocks.0.mlp.norm.weight"),
      lacks=(GAMMA,),
      fields=dict(_ROTARY, norm_inner_mlp=True),
      biases=("qv", ""),
      gated=True,
    ),
    Eva(
      architecture="eva02_tiny_patch14_224",
      table="timm_eva02_tiny",
      has=(Q_BIAS,),
      lacks=(GAMMA,),
      fields=dict(_ROTARY, norm_inner_mlp=False),
      gated=True,
    ),
  ),
)
