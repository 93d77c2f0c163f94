"""C-RADIO (arXiv:2412.07679)."""

FIELDS = dict(
  gelu="exact",
  registers=7,
  position="learned_grid",
  position_resize="square",
  norm_final=False,
)
