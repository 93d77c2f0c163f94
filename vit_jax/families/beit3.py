"""BEiT-3 (arXiv:2208.10442)."""

from vit_jax.families.family import Timm

FIELDS = dict(
  gelu="exact",
  norm_inner_msa=True,
  norm_inner_mlp=True,
  pooling="gap",
  norm_pooled=True,
  layer_norm_epsilon=1e-5,
)
TIMM = Timm(classes={r"beit3_": "v"}, own={r"beit3_": dict(epsilon=1e-5)})
