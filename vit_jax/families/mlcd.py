"""MLCD (arXiv:2407.17331)."""

import dataclasses
from typing import Any

from vit_jax.families import clip
from vit_jax.families.family import Stored

FIELDS = dict(
  gelu="exact",
  norm_pre=True,
  patch_bias=False,
  position="none",
  rope_kind="counted",
  rope_theta=10_000.0,
  rope_first=True,
  layer_norm_epsilon=1e-5,
)


def _fields(file: Stored) -> dict[str, Any]:
  """The fields of our model for a stored file; see `Transformers.fields`."""
  rope = file.section("rope_parameters")
  rope.choice("rope_type", "axial", ("axial",))
  return clip.fields(file) | dict(
    position="none",
    rope_kind="counted",
    rope_theta=rope.number("rope_theta", 10_000.0, positive=True),
    rope_first=True,
  )


def _config(vit: Any, _: Any) -> dict[str, Any]:
  """The family's part of config.json; see `Transformers.config`."""
  rope = dict(rope_type="axial", rope_theta=vit.rope_theta)
  return clip.tower("mlcd", vit, rope_parameters=rope)


TRANSFORMERS = (
  dataclasses.replace(
    clip.CLIP,
    types=("mlcd_vision_model", "mlcd", "mlcd_vision"),
    signature="class_pos_emb",
    fields=_fields,
    config=_config,
    classes=("MLCDVisionModel", None),
    defaults={
      "layer_norm_eps": 1e-5,
      "hidden_act": "gelu",
      "num_attention_heads": 16,
    },
  ),
)
