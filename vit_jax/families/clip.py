"""CLIP (arXiv:2103.00020)."""

from typing import Any

from vit_jax.families.family import (
  CLIP_MEAN,
  CLIP_STD,
  Stored,
  Timm,
  Transformers,
)

FIELDS = dict(
  gelu="quick",
  norm_pre=True,
  patch_bias=False,
  layer_norm_epsilon=1e-5,
)
TIMM = Timm(
  own={r"vit_\w+_clip_": dict(epsilon=1e-5)},
  activations={r".*quickgelu": "quick_gelu"},
)
BASES = ("vision_model.", "", "vision_model.vision_model.")
TEXT = ("text_model.", "text_projection.", "logit_scale", "logit_bias")


def fields(file: Stored) -> dict[str, Any]:
  """Fields of an image tower of CLIP, or of a family like it."""
  has_head = "classifier.bias" in file.shapes
  width = None if has_head else file.axis("visual_projection.weight", 0)
  return dict(
    pooling="gap" if has_head else "token",
    pool_unnormed=has_head,
    norm_pre=True,
    patch_bias=False,
    projection=width is not None,
    representation_size=width,
  )


def tower(name: str, vit: Any, **more: Any) -> dict[str, Any]:
  """The configuration of an image tower, or of a classifier that has it.

  `name` begins the library's `model_type`, and `more` are the tower's own keys.
  """
  values = dict(
    model_type=f"{name}_vision_model",
    intermediate_size=vit.mlp_size,
    attention_dropout=vit.attention_dropout_rate,
    **more,
  )
  if not vit.num_classes:
    return values
  return {"model_type": name, "vision_config": values}


def _config(vit: Any, _: Any) -> dict[str, Any]:
  """The family's part of config.json; see `Transformers.config`."""
  size = vit.representation_size
  if size is None:
    return tower("clip", vit)
  name = "CLIPVisionModelWithProjection"
  return tower("clip", vit) | dict(architectures=[name], projection_dim=size)


CLIP = Transformers(
  types=(
    "clip_vision_model",
    "clip",
    "metaclip_2_vision_model",
    "metaclip_2",  # arXiv:2507.22062
  ),
  signature="pre_layrnorm.weight",  # Sic.
  bases=BASES,
  layers="encoder.layers.{}.",
  table="clip",
  fields=fields,
  config=_config,
  classes=("CLIPVisionModel", "CLIPForImageClassification"),
  defaults={
    "layer_norm_eps": 1e-5,
    "hidden_act": "quick_gelu",
    "num_attention_heads": 12,
  },
  unused=TEXT,
  mean=CLIP_MEAN,
  std=CLIP_STD,
)


def _open_fields(file: Stored) -> dict[str, Any]:
  """The fields of our model for a stored file; see `Transformers.fields`."""
  width = file.axis("proj", -1)
  return dict(
    pooling="token",
    norm_pre=True,
    patch_bias=False,
    projection=width is not None,
    representation_size=width,
  )


def _no_config(vit: Any, _: Any) -> dict[str, Any]:
  """Raises ValueError, as such files are only read."""
  raise ValueError("open_clip's files are not written here.")


# The image tower of open_clip's own Transformer, which is only read. SigLIP's
# image towers, and others, are timm's and lie below `visual.trunk.`.
_OPEN_CLIP = Transformers(
  types=("open_clip",),
  signature="class_embedding",
  bases=("visual.",),
  layers="transformer.resblocks.{}.",
  table="open_clip",
  fields=_open_fields,
  config=_no_config,
  classes=(None, None),
  defaults={"layer_norm_eps": 1e-5, "hidden_act": "gelu"},
  unused=(
    "transformer.",
    "token_embedding.",
    "positional_embedding",
    "ln_final.",
    "text_projection",
    "text.",
    "logit_scale",
    "logit_bias",
  ),
  mean=CLIP_MEAN,
  std=CLIP_STD,
)
TRANSFORMERS = (CLIP, _OPEN_CLIP)
