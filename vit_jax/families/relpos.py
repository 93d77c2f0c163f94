"""timm's ViTs with relative positions."""

from vit_jax.families.family import Timm

TIMM = Timm(classes={r"(test_)?vit_s?relpos": "r"})
