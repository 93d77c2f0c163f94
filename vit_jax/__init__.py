"""vit_jax: the Vision Transformer (arXiv:2010.11929) in JAX and Flax linen.

Names are imported when they are first used, so that data workers, which need
only `vit_jax.data`, do not load the models and Flax.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from vit_jax.inference.exporter import export_model
  from vit_jax.models import ResNet, Vit, make_model, make_resnet, make_vit
  from vit_jax.models.normalize import normalize
  from vit_jax.pretrained.load import load_pretrained

_HOME = {
  "ResNet": "vit_jax.models",
  "Vit": "vit_jax.models",
  "export_model": "vit_jax.inference.exporter",
  "load_pretrained": "vit_jax.pretrained.load",
  "make_model": "vit_jax.models",
  "make_resnet": "vit_jax.models",
  "make_vit": "vit_jax.models",
  "normalize": "vit_jax.models.normalize",
}
__version__ = "0.1.0"
__all__ = [
  "ResNet",
  "Vit",
  "export_model",
  "load_pretrained",
  "make_model",
  "make_resnet",
  "make_vit",
  "normalize",
]


def __getattr__(name: str):
  if name in _HOME:
    return getattr(importlib.import_module(_HOME[name]), name)
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
  return __all__
