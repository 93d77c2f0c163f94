"""DeiT-III (arXiv:2204.07118)."""

from vit_jax.families.family import Timm

FIELDS = dict(
  layer_scale=0.0001,
  gelu="exact",
  position="learned_grid",
)
TIMM = Timm(classes={r"deit3": "v"})
