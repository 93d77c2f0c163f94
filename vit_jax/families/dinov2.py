"""DINOv2 (arXiv:2304.07193), with registers (arXiv:2309.16588)."""

FIELDS = dict(
  layer_scale=1e-5,
  gelu="exact",
)
