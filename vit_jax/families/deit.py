"""DeiT (arXiv:2012.12877)."""

import dataclasses
from typing import Any

from vit_jax.families import vit
from vit_jax.families.family import Stored, Timm, Transformers

FIELDS = dict(
  gelu="exact",
  distilled=True,
)
TIMM = Timm(classes={r"deit(?!3)": "v"})


def _token_fields(file: Stored) -> dict[str, Any]:
  """The fields of a model whose distillation token has no head."""
  return vit.fields(file) | dict(registers=1, position="learned_all")


def _teacher_fields(file: Stored) -> dict[str, Any]:
  """The fields of a model whose distillation token has a head of its own."""
  return vit.fields(file) | dict(distilled=True)


# Without a head for it, the distillation token is a register with a position.
_DEIT = Transformers(
  types=("deit",),
  signature="embeddings.distillation_token",
  bases=("deit.", ""),
  layers="encoder.layer.{}.",
  table="vit",
  fields=_token_fields,
  config=lambda model, _: vit.config("DeiT", model),
  classes=("DeiTForImageClassification", "DeiTForImageClassification"),
  defaults={"layer_norm_eps": 1e-12, "num_attention_heads": 12},
  any_shape=True,
  unused=("decoder.0.", "deit.embeddings.mask_token", "embeddings.mask_token"),
)
_TEACHER = dataclasses.replace(
  _DEIT,
  fits=lambda shapes, _: "cls_classifier.bias" in shapes,
  table="teacher",
  fields=_teacher_fields,
  classes=(None, "DeiTForImageClassificationWithTeacher"),
)
TRANSFORMERS = (_TEACHER, _DEIT)
