"""SigLIP (arXiv:2303.15343) and SigLIP 2: the paper's ViT with a MAP head.

SigLIP 2 for images of any size (NaFlex, arXiv:2502.14786) takes rows of
patches.
"""

import dataclasses
from typing import Any

from vit_jax.families import clip
from vit_jax.families.family import Stored, Timm, Transformers

TIMM = Timm(
  own={r"naflexvit_\w+_siglip": dict(pos_embed_interp_mode="bilinear")},
  heads={r"vit_giantopt_patch16_siglip": 16},
  activations={
    r"vit_(base_patch32|giantopt_patch16|so400m_patch16)_siglip_": "gelu_tanh",
    r"vit_large_patch16_siglip_(gap_)?512": "gelu_tanh",
    r"naflexvit_\w+_siglip": "gelu_tanh",
  },
)


def _fields(file: Stored) -> dict[str, Any]:
  """The fields of our model for a stored file; see `Transformers.fields`."""
  # With a classifier, the library averages the patches; without one, it attends
  # to them.
  shapes = file.shapes
  attends = "head.probe" in shapes and "classifier.bias" not in shapes
  return dict(pooling="map" if attends else "gap")


def _config(vit: Any, _: Any) -> dict[str, Any]:
  """The family's part of config.json; see `Transformers.config`."""
  return clip.tower("siglip", vit, vision_use_head=vit.pooling == "map")


def _naflex_fields(file: Stored) -> dict[str, Any]:
  """The fields of our model for a stored file; see `Transformers.fields`."""
  return _fields(file) | dict(
    class_token=False, position="learned", antialias=True
  )


def _naflex_config(vit: Any, _: Any) -> dict[str, Any]:
  """The family's part of config.json; see `Transformers.config`."""
  h, w = vit.position_grid or (0, 0)
  attends = vit.pooling == "map"
  return clip.tower("siglip2", vit, vision_use_head=attends, num_patches=h * w)


_KERNEL = "embeddings.patch_embedding.weight"
SIGLIP = Transformers(
  types=("siglip_vision_model", "siglip"),
  signature=_KERNEL,
  fits=lambda shapes, base: len(shapes[base + _KERNEL]) != 2,
  bases=clip.BASES,
  layers="encoder.layers.{}.",
  table="siglip",
  fields=_fields,
  config=_config,
  classes=("SiglipVisionModel", "SiglipForImageClassification"),
  defaults={
    "layer_norm_eps": 1e-6,
    "hidden_act": "gelu_pytorch_tanh",
    "num_attention_heads": 12,
  },
  extended=False,
  unused=clip.TEXT,
  mean=(0.5,) * 3,
  std=(0.5,) * 3,
)
NAFLEX = dataclasses.replace(
  SIGLIP,
  types=("siglip2_vision_model", "siglip2"),
  fits=lambda shapes, base: len(shapes[base + _KERNEL]) == 2,
  table="siglip2",
  names=f"base,{_KERNEL},patches/E/kernel,O I -> I O",
  fields=_naflex_fields,
  config=_naflex_config,
  classes=("Siglip2VisionModel", "Siglip2ForImageClassification"),
  position_resize="bilinear",
  antialiased=True,
  any_size=True,
  extended=True,
)
TRANSFORMERS = (SIGLIP, NAFLEX)
