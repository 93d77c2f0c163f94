"""The paper's ViT (arXiv:2010.11929), and all other plain ViTs."""

import dataclasses
from typing import Any

from vit_jax.families.family import Stored, Timm, Transformers, dropouts

TIMM = Timm(
  classes={r"vit_|flexivit_|test_vit": "v"},  # Tried after all other families.
  own={
    r"test_vit3$": dict(pool_include_prefix=True),
    r"naflexvit_\w+_par(fac)?_gap": dict(pos_embed_ar_preserving=True),
  },
  heads={
    r"vit_base_patch16_gap_224": 16,
    r"test_vit2?$": 2,
    r"test_vit[34]$": 3,
  },
)


def fields(file: Stored) -> dict[str, Any]:
  """Fields of a ViT in transformers, whose pooler is our representation layer.

  Raises ValueError if the pooler has another activation than the paper's.
  """
  size = file.length("pooler.dense.bias")
  if size and file.config.get("pooler_act", "tanh") != "tanh":
    raise ValueError(f"{file.says('pooler_act')}; only 'tanh' is the paper's.")
  biased = "encoder.layer.0.attention.attention.query.bias" in file.shapes
  more = {} if biased else dict(qkv_bias="")
  ijepa = file.config.get("model_type", "ijepa") == "ijepa"
  tokens = {"embeddings.cls_token", "embeddings.distillation_token"}
  if ijepa and not tokens & file.shapes.keys():
    more |= dict(pooling="gap")
  return dict(representation_size=size, **more)


def config(name: str, vit: Any) -> dict[str, Any]:
  """The configuration for the classes whose names begin with `name`."""
  values = dict(model_type=name.lower()) | dropouts(vit)
  values |= dict(intermediate_size=vit.mlp_size)
  if (size := vit.representation_size) is None:
    return values
  # The library's class with a classifier has no pooler, and its plain one has.
  return values | dict(architectures=[f"{name}Model"], pooler_output_size=size)


VIT = Transformers(
  types=("vit", "vit_mae", "ijepa"),
  signature="embeddings.patch_embeddings.projection.weight",
  bases=("vit.", "", "ijepa."),
  layers="encoder.layer.{}.",
  table="vit",
  fields=fields,
  config=lambda vit, _: config("ViT", vit),
  classes=("ViTForImageClassification", "ViTForImageClassification"),
  defaults={"layer_norm_eps": 1e-12},
  any_shape=True,
  unused=(
    "decoder.decoder_",
    "decoder.mask_token",
    "decoder.0.",
    *(f"{base}embeddings.mask_token" for base in ("vit.", "", "ijepa.")),
  ),
  mean=(0.5,) * 3,
  std=(0.5,) * 3,
)
_MSN = dataclasses.replace(
  VIT,
  types=("vit_msn",),
  classes=("ViTMSNModel", "ViTMSNForImageClassification"),
  defaults={"layer_norm_eps": 1e-6, "num_attention_heads": 12},
)
TRANSFORMERS = (VIT, _MSN)
