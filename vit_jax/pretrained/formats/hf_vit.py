"""ViT, also of a masked autoencoder (MAE), and DeiT as transformers saves them.

`ViTModel`'s pooler is the paper's representation layer (dense, tanh). Without
its distillation token, DeiT is a ViT, for transformers too.
"""

from typing import Any

from vit_jax.data.preprocessing import HALF
from vit_jax.models import BaseVit
from vit_jax.models.modern_vit import ModernVit
from vit_jax.pretrained.formats import table
from vit_jax.pretrained.formats.architecture import length, one_or_both
from vit_jax.pretrained.formats.mapping import Rule, Shapes
from vit_jax.pretrained.formats.table import Config, Family, Table
from vit_jax.runtime.printable import quoted

_BASE = table.rows(
  table.patches("embeddings.patch_embeddings.projection."),
  Rule("embeddings.cls_token", ("x_class",), "1 1 D -> D"),
  Rule("embeddings.position_embeddings", ("position/E_pos",), "1 S D -> S D"),
  table.layer_norm("layernorm.", "norm"),
)
_LAYERS: dict[str, Any] = dict(
  layers="encoder.layer.{}.",
  layer=table.rows(
    table.layer_norm("layernorm_before.", "norm_msa"),
    table.layer_norm("layernorm_after.", "norm_mlp"),
    table.attention("attention.attention.", "query", "key", "value"),
    table.heads_out("attention.output.dense."),
  ),
  mlp=table.rows(
    table.dense("intermediate.dense.", "mlp/expand"),
    table.dense("output.dense.", "mlp/contract"),
  ),
)


def _vit(shapes: Shapes, config: Config) -> dict[str, Any]:
  size = length(shapes, "pooler.dense.bias", None)
  pooler = config.get("pooler_act", "tanh")
  if size and pooler != "tanh":
    raise ValueError(
      f"its config.json says pooler_act={quoted(pooler)}; only 'tanh' is the "
      "paper's."
    )
  return dict(representation_size=size)


def _vit_config(vit: BaseVit) -> dict[str, Any]:
  return dict(
    model_type="vit",
    intermediate_size=vit.mlp_size,
    hidden_dropout_prob=vit.dropout_rate,
    attention_probs_dropout_prob=vit.attention_dropout_rate,
    image_size=one_or_both(vit),
    qkv_bias=True,
  )


def _deit(shapes: Shapes, config: Config) -> dict[str, Any]:
  del config
  if "classifier.bias" in shapes:
    raise ValueError(
      "DeiTForImageClassification, which has a distillation token and no head "
      "for it, is not supported: DeiTForImageClassificationWithTeacher is."
    )
  return dict(kind="ModernVit", distilled=True)


def _deit_config(vit: ModernVit) -> dict[str, Any]:
  return dict(
    model_type="deit",
    intermediate_size=vit.mlp_size,
    hidden_dropout_prob=vit.dropout_rate,
    attention_probs_dropout_prob=vit.attention_dropout_rate,
  )


VIT = Family(
  types=("vit", "vit_mae"),
  signature="embeddings.patch_embeddings.projection.weight",
  table=Table(
    root=table.rows(table.dense("classifier.", "head")),
    base=table.rows(*_BASE, table.dense("pooler.dense.", "pre_logits")),
    **_LAYERS,
  ),
  bases=("vit.", ""),
  fields=_vit,
  config=_vit_config,
  classes=("ViTModel", "ViTForImageClassification"),
  defaults={"layer_norm_eps": 1e-12},
  modern=False,
  one_base=True,
  mask_token="",
  unused=("decoder.decoder_", "decoder.mask_token"),
  mean=HALF,
  std=HALF,
)

DEIT = Family(
  types=("deit",),
  signature="embeddings.distillation_token",
  table=Table(
    root=table.rows(
      table.dense("cls_classifier.", "head"),
      table.dense("distillation_classifier.", "head_dist"),
    ),
    base=table.rows(
      *_BASE, Rule("embeddings.distillation_token", ("x_dist",), "1 1 D -> D")
    ),
    **_LAYERS,
  ),
  bases=("deit.", ""),
  fields=_deit,
  config=_deit_config,
  classes=(None, "DeiTForImageClassificationWithTeacher"),
  defaults={"layer_norm_eps": 1e-12, "num_attention_heads": 12},
  one_base=True,
  mask_token="",
  unused=("pooler.", "deit.pooler."),
)
