"""DINOv3 (arXiv:2508.10104), and LingBot-Vision, which has its layers."""

from vit_jax.families.family import APART, FUSED, GAMMA, Eva, Timm

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
