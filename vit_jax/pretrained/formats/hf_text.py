"""Text towers as transformers saves them, alone or beside an image tower.

The families are CLIP and MetaCLIP 2, SigLIP and SigLIP 2, and TIPSv2.
"""

from typing import Any

from vit_jax.pretrained.formats.architecture import need
from vit_jax.pretrained.formats.mapping import Shapes
from vit_jax.pretrained.formats.table import Config, Layers, Table
from vit_jax.pretrained.formats.text_family import TextFamily, width
from vit_jax.runtime.checks import checked

# The end token's id in configurations of CLIP before transformers 4.31. It is
# wrong for CLIP, for which the library then takes the largest id of a text, and
# right for MetaCLIP 2.
WRONG_END = 2


def _clip(_: Shapes, whole: Shapes, config: Config) -> dict[str, Any]:
  """The fields of CLIP's and MetaCLIP 2's towers; see `TextFamily.fields`."""
  end = checked("eos_token_id", int | None, config["eos_token_id"])
  is_clip = not str(config.get("model_type", "")).startswith("metaclip_2")
  return dict(
    pooling="end",
    causal=True,
    end_token=None if is_clip and end == WRONG_END else end,
    representation_size=width(whole, "text_projection.weight"),
  )


def _siglip(local: Shapes, _: Shapes, __: Config) -> dict[str, Any]:
  """The fields of SigLIP's towers; see `TextFamily.fields`."""
  return dict(
    pooling="last",
    representation_size=width(local, "head.weight"),
    projection_bias="head.bias" in local,
  )


def _tips(local: Shapes, _: Shapes, config: Config) -> dict[str, Any]:
  """The fields of TIPSv2's towers; see `TextFamily.fields`."""
  D = need(local, "token_embedding.weight", 2)[1]
  scaled = checked("scale_sqrt_depth", bool, config["scale_sqrt_depth"])
  return dict(
    pooling="mean",
    position="sincos1d",
    pad_token=checked("pad_token_id", int, config["pad_token_id"]),
    embedding_scale=D**0.5 if scaled else 1.0,
  )


_HF = ("text_model.", "", "text_model.text_model.", "model.text_model.")
SIGLIP = TextFamily(
  name="SigLIP",
  signature="head.weight",
  table=Table("siglip_text", (Layers("encoder.layers.{}."),), shared="hf_text"),
  bases=_HF,
  defaults={
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
    "num_attention_heads": 12,
  },
  fields=_siglip,
)
CLIP = TextFamily(
  name="CLIP",
  signature="embeddings.position_embedding.weight",
  table=Table("clip_text", (Layers("encoder.layers.{}."),), shared="hf_text"),
  bases=_HF,
  defaults={
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
    "num_attention_heads": 8,
    "eos_token_id": 49407,
  },
  fields=_clip,
)
TIPS = TextFamily(
  name="TIPSv2",
  signature="transformer.resblocks.0.attn.in_proj_weight",
  table=Table("open_text", (Layers("transformer.resblocks.{}."),)),
  bases=("text_encoder.", ""),
  defaults={
    "hidden_act": "relu",
    "layer_norm_eps": 1e-5,
    "num_attention_heads": 12,
    "max_position_embeddings": 64,
    "scale_sqrt_depth": True,
    "pad_token_id": 0,
  },
  fields=_tips,
)
