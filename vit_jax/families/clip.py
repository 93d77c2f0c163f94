"""CLIP (arXiv:2103.00020)."""

from vit_jax.families.family import Timm

FIELDS = dict(
  gelu="quick",
  norm_pre=True,
  patch_bias=False,
  layer_norm_epsilon=1e-5,
)
TIMM = Timm(
  own={r"vit_\w+_clip_": dict(epsilon=1e-5)},
  activations={r".*quickgelu": "quick_gelu"},
)
