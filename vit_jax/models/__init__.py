"""The mathematics of the paper, in Flax linen."""

from vit_jax.models.origin import Origin
from vit_jax.models.resnet import ResNet
from vit_jax.models.variants import (
  from_fields,
  make_model,
  make_resnet,
  make_vit,
  to_fields,
  variant_of,
)
from vit_jax.models.vit import Vit

__all__ = [
  "Origin",
  "ResNet",
  "Vit",
  "from_fields",
  "make_model",
  "make_resnet",
  "make_vit",
  "to_fields",
  "variant_of",
]
