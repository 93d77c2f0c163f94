"""SigLIP (arXiv:2303.15343) and SigLIP 2: the paper's ViT with a MAP head."""

from typing import Any

from vit_jax.families import clip
from vit_jax.families.family import Stored, Timm, Transformers

TIMM = Timm(
  heads={r"vit_giantopt_patch16_siglip": 16},
  activations={
    r"vit_(base_patch32|giantopt_patch16|so400m_patch16)_siglip_": "gelu_tanh",
    r"vit_large_patch16_siglip_(gap_)?512": "gelu_tanh",
  },
)


def _fields(file: Stored) -> dict[str, Any]:
  if len(file.shapes.get("embeddings.patch_embedding.weight", ())) == 2:
    raise ValueError(
      "it is a SigLIP 2 for any aspect ratio (NaFlex), which is not supported."
    )
  # With a head, the library averages the patches; without, it attends to them.
  shapes = file.shapes
  attends = "head.probe" in shapes and "classifier.bias" not in shapes
  return dict(pooling="map" if attends else "gap")


def _config(vit: Any, _: Any) -> dict[str, Any]:
  return clip.tower("siglip", vit, vision_use_head=vit.pooling == "map")


SIGLIP = Transformers(
  types=("siglip_vision_model", "siglip"),
  signature="embeddings.patch_embedding.weight",
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
TRANSFORMERS = (SIGLIP,)
