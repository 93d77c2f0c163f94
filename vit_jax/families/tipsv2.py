"""TIPSv2 (arXiv:2604.12012)."""

FIELDS = dict(
  layer_scale=1.0,
  gelu="exact",
  registers=1,
  antialias=True,
  position_resize="bilinear",
)
