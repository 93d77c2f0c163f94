"""DeiT (arXiv:2012.12877)."""

from vit_jax.families.family import Timm

FIELDS = dict(
  gelu="exact",
  distilled=True,
)
TIMM = Timm(classes={r"deit(?!3)": "v"})
