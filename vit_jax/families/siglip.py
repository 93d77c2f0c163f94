"""SigLIP (arXiv:2303.15343) and SigLIP 2: the paper's ViT with a MAP head."""

from vit_jax.families.family import Timm

TIMM = Timm(
  heads={r"vit_giantopt_patch16_siglip": 16},
  activations={
    r"vit_(base_patch32|giantopt_patch16|so400m_patch16)_siglip_": "gelu_tanh",
    r"vit_large_patch16_siglip_(gap_)?512": "gelu_tanh",
  },
)
