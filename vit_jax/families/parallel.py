"""ViTs with attentions and MLPs side by side (arXiv:2203.09795)."""

from vit_jax.families.family import Timm

FIELDS = dict(layer_scale=1e-5, gelu="exact", parallel=2)
TIMM = Timm(
  sides={
    "norm1": "attns.{}.norm",
    "attn": "attns.{}.attn",
    "ls1": "attns.{}.ls",
    "norm2": "ffns.{}.norm",
    "mlp": "ffns.{}.mlp",
    "ls2": "ffns.{}.ls",
  },
)
