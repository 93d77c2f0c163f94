"""RoPE-ViT with frequencies along each axis, RoPE-Axial (arXiv:2403.13298)."""

from vit_jax.families.family import FREQS, FUSED, GAMMA, Eva, Timm

FIELDS = dict(
  layer_scale=1e-5,
  gelu="exact",
  position="none",
  rope_kind="counted",
  rope_theta=100.0,
  rope_x_first=True,
)
TIMM = Timm(
  classes={r"vit_\w+_rope_": "e"},
  own={
    r"vit_\w+_rope_(ape_)?\d": dict(
      use_rot_pos_emb=True, rope_grid_indexing="xy", rope_temperature=100.0
    ),
    r"vit_\w+_rope_(ape_|\d)": dict(global_pool="token"),
  },
  evas=(
    Eva(
      architecture="vit_small_patch16_rope_224",
      table="timm_rope",
      has=(GAMMA, FUSED),
      lacks=("norm_pre.weight", FREQS),
      fields=dict(rope_kind="counted", rope_theta=100.0, rope_x_first=True),
      biases=("qkv",),
    ),
  ),
)
