"""BEiT (arXiv:2106.08254)."""

import dataclasses
from typing import Any

from vit_jax.families.family import Stored, Timm, Transformers

FIELDS = dict(
  layer_scale=0.1,
  gelu="exact",
  position="none",
  relative="table",
  qkv_bias="qv",
  pooling="gap",
  norm_pooled=True,
)
TIMM = Timm(classes={r"beit(v2)?_": "b"})
_BASES = ("beit.", "", "data2vec_vision.")


def _token_fields(file: Stored) -> dict[str, Any]:
  """The fields of our model for a stored file; see `Transformers.fields`."""
  shapes = file.shapes
  scaled = "encoder.layer.0.lambda_1" in shapes
  normed = any(f"{x}layernorm.weight" in shapes for x in ("", "pooler."))
  bare = {} if normed else dict(norm_final=False, pooling="gap")
  positions = "embeddings.position_embeddings"
  return dict(
    position="learned" if positions in shapes else "none",
    layer_scale=file.number("layer_scale_init_value", 0.1) if scaled else None,
    qkv_bias="qv",  # The library's classes always have these biases.
    relative_bilinear=True,
    **bare,
  )


def _mean_fields(file: Stored) -> dict[str, Any]:
  """As `_token_fields`, for models that read the average over the patches."""
  return _token_fields(file) | dict(pooling="gap", norm_pooled=True)


def _config(vit: Any, _: Any) -> dict[str, Any]:
  """The family's part of config.json; see `Transformers.config`.

  Raises ValueError for a model without a norm after the last layer.
  """
  if not vit.norm_final:
    raise ValueError(
      "it has no norm after the last layer, and BeitModel has one."
    )
  return dict(
    model_type="beit",
    intermediate_size=vit.mlp_size,
    hidden_dropout_prob=vit.dropout_rate,
    attention_probs_dropout_prob=vit.attention_dropout_rate,
    drop_path_rate=vit.drop_path_rate,
    layer_scale_init_value=vit.layer_scale or 0.0,
    use_mask_token=False,
    use_mean_pooling=vit.norm_pooled,
    use_absolute_position_embeddings=vit.position != "none",
    use_relative_position_bias=bool(vit.relative and not vit.relative_shared),
    use_shared_relative_position_bias=bool(vit.relative_shared),
  )


# `_TOKEN` reads the class token, and `_MEAN` the average over the patches,
# which a norm follows. A model that was only pre-trained has that norm in its
# objective, which is not read: its outputs are those of the last layer, as
# `BeitModel` and `Data2VecVisionModel` return them.
_TOKEN = Transformers(
  types=("beit", "data2vec-vision"),
  signature="encoder.layer.0.lambda_1",
  bases=_BASES,
  one_base=False,
  layers="encoder.layer.{}.",
  table="beit",
  fields=_token_fields,
  config=_config,
  classes=("BeitModel", "BeitForImageClassification"),
  defaults={
    "layer_norm_eps": 1e-12,
    "layer_scale_init_value": 0.1,
    "num_attention_heads": 12,
  },
  relative=True,
  unused=tuple(f"{base}embeddings.mask_token" for base in _BASES),
  objective=("lm_head.", "layernorm."),
  mean=(0.5,) * 3,
  std=(0.5,) * 3,
)
_MEAN = dataclasses.replace(
  _TOKEN,
  signature="pooler.layernorm.weight",
  table="beit_mean",
  fields=_mean_fields,
)
TRANSFORMERS = (_MEAN, _TOKEN)
