"""The paper's ViT (arXiv:2010.11929), and whatever else is a plain ViT."""

from vit_jax.families.family import Timm

TIMM = Timm(
  classes={r"vit_|flexivit_|test_vit": "v"},  # After the others.
  own={r"test_vit3$": dict(pool_include_prefix=True)},
  heads={
    r"vit_base_patch16_gap_224": 16,
    r"test_vit2?$": 2,
    r"test_vit[34]$": 3,
  },
)
