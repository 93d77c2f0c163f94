"""BEiT (arXiv:2106.08254)."""

from vit_jax.families.family import Timm

FIELDS = dict(
  layer_scale=0.1,
  gelu="exact",
  position="none",
  relative="table",
  qkv_bias="qv",
  pooling="gap",
  norm_pooled=True,
)
TIMM = Timm(classes={r"beit(v2)?_": "b"})
