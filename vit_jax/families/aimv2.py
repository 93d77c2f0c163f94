"""AIMv2 (arXiv:2411.14402)."""

from vit_jax.families.family import Timm

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
