"""The mathematics of the paper, in Flax linen."""

from vit_jax.models.resnet import ResNet
from vit_jax.models.variants import make_model, make_resnet, make_vit
from vit_jax.models.vit import Vit

__all__ = ["ResNet", "Vit", "make_model", "make_resnet", "make_vit"]
