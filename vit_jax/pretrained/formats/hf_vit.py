"""DeiT with its distillation token, as transformers saves it.

Without this token, DeiT is a ViT, for transformers too.
"""

from typing import Any

from vit_jax.models.modern_vit import ModernVit
from vit_jax.pretrained.formats.huggingface import BASE, LAYERS
from vit_jax.pretrained.formats.mapping import Rule, Shapes
from vit_jax.pretrained.formats.table import Config, Family, Table, dense, rows


def _fields(shapes: Shapes, config: Config) -> dict[str, Any]:
  del config
  if "classifier.bias" in shapes:
    raise ValueError(
      "DeiTForImageClassification, which has a distillation token and no head "
      "for it, is not supported: DeiTForImageClassificationWithTeacher is."
    )
  return dict(kind="ModernVit", distilled=True)


def _config(vit: ModernVit) -> dict[str, Any]:
  return dict(
    model_type="deit",
    intermediate_size=vit.mlp_size,
    hidden_dropout_prob=vit.dropout_rate,
    attention_probs_dropout_prob=vit.attention_dropout_rate,
  )


DEIT = Family(
  types=("deit",),
  mark="embeddings.distillation_token",
  table=Table(
    root=rows(
      dense("cls_classifier.", "head"),
      dense("distillation_classifier.", "head_dist"),
    ),
    base=rows(
      *BASE,
      Rule("embeddings.distillation_token", ("x_dist",), "1 1 D -> D"),
    ),
    **LAYERS,
  ),
  bases=("deit.", ""),
  fields=_fields,
  config=_config,
  classes=(None, "DeiTForImageClassificationWithTeacher"),
  defaults={"layer_norm_eps": 1e-12, "num_attention_heads": 12},
  one_base=True,
  mask_token="",
  unused=("pooler.", "deit.pooler."),
)
