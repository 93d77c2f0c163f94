"""Pixio (arXiv:2512.15715)."""

FIELDS = dict(
  gelu="exact",
  registers=7,
  position="learned_all",
  pooling="prefix",
)
