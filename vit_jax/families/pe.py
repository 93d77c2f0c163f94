"""The Perception Encoder (PE, arXiv:2504.13181)."""

from vit_jax.families.family import FREQS, FUSED, Eva, Timm

FIELDS = dict(
  gelu="exact",
  norm_pre=True,
  patch_bias=False,
  rope_theta=10_000.0,
  rope_side=24,
  rope_start=1,
  rope_x_first=True,
  pooling="map",
  pool_heads=8,
  pool_prefix=True,
  layer_norm_epsilon=1e-5,
)
TIMM = Timm(
  classes={r"vit_pe_": "e"},
  own={
    r"vit_pe_": dict(
      use_rot_pos_emb=True,
      rope_grid_indexing="xy",
      ref_feat_shape=32,
      epsilon=1e-5,
    ),
    r"vit_pe_core_base": dict(ref_feat_shape=14),
    r"vit_pe_core_(large|small|tiny)": dict(ref_feat_shape=24),
    r"vit_pe_(?!\w+_gigantic)": dict(rope_grid_offset=1.0),
    r"vit_pe_core_": dict(global_pool="map", attn_pool_num_heads=8),
  },
  heads={r"vit_pe_\w+_gigantic": 16},
  evas=(
    Eva(
      architecture="vit_pe_",
      table="timm_rope",
      has=("norm_pre.weight", FUSED),
      lacks=(FREQS,),
      fields=dict(
        rope_theta=10_000.0,
        rope_x_first=True,
        norm_pre=True,
        layer_norm_epsilon=1e-5,
      ),
      biases=("qkv",),
      named="vit_pe_",
      pooling="avg",
    ),
  ),
)
