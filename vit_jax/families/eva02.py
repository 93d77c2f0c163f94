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
      "vit_betwixt_patch16_rope_reg4_gap_256",
      "timm_eva",
      (GAMMA,),
      (FUSED, APART, "pos_embed", "cls_token"),
      dict(
        rope_theta=10_000.0, rope_side=16, position="none", class_token=False
      ),
      ("qv", ""),
    ),
    Eva(
      "eva02_base_patch14_224",
      "timm_eva02",
      (APART, "blocks.0.mlp.norm.weight"),
      (GAMMA,),
      dict(_ROTARY, norm_inner_mlp=True),
      ("qv", ""),
      gated=True,
    ),
    Eva(
      "eva02_tiny_patch14_224",
      "timm_eva02_tiny",
      (Q_BIAS,),
      (GAMMA,),
      dict(_ROTARY, norm_inner_mlp=False),
      gated=True,
    ),
  ),
)
