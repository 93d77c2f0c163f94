"""The mathematics of the paper, and of encoders since, in Flax linen.

Names are imported when first used, so that a module of this folder does not
load all the others.
"""

from etils import epy

with epy.lazy_api_imports(globals()):
  from vit_jax.models.extended_vit import ExtendedVit
  from vit_jax.models.model import Model, Origin
  from vit_jax.models.patches import Patches
  from vit_jax.models.resnet import ResNet
  from vit_jax.models.tokens import Tokens
  from vit_jax.models.variants import (
    from_fields,
    make_model,
    make_resnet,
    make_vit,
    to_fields,
    variant_of,
  )
  from vit_jax.models.vit import BaseVit, Vit

__all__ = [
  "BaseVit",
  "ExtendedVit",
  "Model",
  "Origin",
  "Patches",
  "ResNet",
  "Tokens",
  "Vit",
  "from_fields",
  "make_model",
  "make_resnet",
  "make_vit",
  "to_fields",
  "variant_of",
]
