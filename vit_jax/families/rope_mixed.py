"""RoPE-ViT with learned frequencies, RoPE-Mixed (arXiv:2403.13298)."""

from vit_jax.families.family import FREQS, FUSED, Eva, Timm

FIELDS = dict(
  layer_scale=1e-5,
  gelu="exact",
  position="none",
  rope_kind="mixed",
  rope_theta=10.0,
)
TIMM = Timm(
  classes={r"vit_\w+_rope_mixed_": "e"},
  own={
    r"vit_\w+_rope_mixed_": dict(
      use_rot_pos_emb=True,
      rope_grid_indexing="xy",
      rope_temperature=10.0,
      rope_type="mixed",
      global_pool="token",
    ),
  },
  evas=(
    Eva(
      architecture="vit_small_patch16_rope_mixed_224",
      table="timm_rope",
      has=(FREQS, FUSED),
      lacks=(),
      fields=dict(rope_kind="mixed", rope_theta=10.0),
      biases=("qkv",),
    ),
  ),
)
