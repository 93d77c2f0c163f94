"""BEiT (arXiv:2106.08254), BEiT v2 and data2vec (arXiv:2202.03555).

transformers has the same model for all of them. It reads the class token, or
the average over the patches, which a norm follows. A model that was pre-trained
alone has that norm in its objective, with which it is left out: its tokens are
those of the last layer, as `BeitModel` and `Data2VecVisionModel` give them.
"""

import dataclasses
from typing import Any

from vit_jax.data.preprocessing import HALF
from vit_jax.models.extended_vit import ExtendedVit
from vit_jax.pretrained.formats import relative
from vit_jax.pretrained.formats.architecture import square
from vit_jax.pretrained.formats.mapping import Shapes
from vit_jax.pretrained.formats.table import Config, Family, Layers, Table
from vit_jax.runtime.checks import checked

_LAYERS = (Layers("encoder.layer.{}."),)
_POSITIONS = "embeddings.position_embeddings"
_BASES = ("beit.", "", "data2vec_vision.")


def _token(shapes: Shapes, config: Config) -> dict[str, Any]:
  return _beit(TOKEN.table, shapes, config)


def _mean(shapes: Shapes, config: Config) -> dict[str, Any]:
  fields = _beit(MEAN.table, shapes, config)
  return fields | dict(pooling="gap", norm_pooled=True)


def _beit(table: Table, shapes: Shapes, config: Config) -> dict[str, Any]:
  patches = relative.tokens(table, shapes, True)
  if patches and square(patches) is None:
    raise ValueError(
      "its relative positions are not for a square of patches, and "
      "transformers mixes up height and width then: it is not read."
    )
  scaled = "encoder.layer.0.lambda_1" in shapes
  normed = any(f"{x}layernorm.weight" in shapes for x in ("", "pooler."))
  bare = {} if normed else dict(norm_final=False, pooling="gap")
  initial = config.get("layer_scale_init_value", 0.1)
  return dict(
    kind=ExtendedVit,
    position="learned" if _POSITIONS in shapes else "none",
    layer_scale=checked("layer_scale_init_value", float, initial)
    if scaled
    else None,
    qkv_bias="qv",  # Always, with these classes.
    relative_bilinear=True,
    **relative.fields(table, shapes),
    **bare,
  )


def _config(vit: Any) -> dict[str, Any]:
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


TOKEN = Family(
  types=("beit", "data2vec-vision"),
  signature="encoder.layer.0.lambda_1",
  table=Table("beit", _LAYERS),
  bases=_BASES,
  fields=_token,
  config=_config,
  classes=("BeitModel", "BeitForImageClassification"),
  defaults={
    "layer_norm_eps": 1e-12,
    "layer_scale_init_value": 0.1,
    "num_attention_heads": 12,
  },
  relative=True,
  one_base=False,
  unused=tuple(f"{base}embeddings.mask_token" for base in _BASES),
  objective=("lm_head.", "layernorm."),
  mean=HALF,
  std=HALF,
)
MEAN = dataclasses.replace(
  TOKEN,
  signature="pooler.layernorm.weight",
  table=Table("beit_mean", _LAYERS),
  fields=_mean,
)
