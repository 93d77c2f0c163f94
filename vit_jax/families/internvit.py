"""InternViT (arXiv:2312.14238)."""

FIELDS = dict(
  layer_scale=0.1,
  gelu="exact",
  norm_final=False,
)
