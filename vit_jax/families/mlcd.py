"""MLCD (arXiv:2407.17331)."""

FIELDS = dict(
  gelu="exact",
  norm_pre=True,
  patch_bias=False,
  position="none",
  rope_kind="counted",
  rope_theta=10_000.0,
  rope_first=True,
  layer_norm_epsilon=1e-5,
)
