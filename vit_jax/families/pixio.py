"""Pixio (arXiv:2512.15715)."""

from typing import Any

from vit_jax.families.family import Stored, Transformers, dropouts, mlp_ratio

FIELDS = dict(
  gelu="exact",
  registers=7,
  position="learned_all",
  pooling="prefix",
)
_NAMES = """
base,embeddings.patch_embeddings.projection.weight,patches/E/kernel,\
D C P Q -> (P Q C) D
base,embeddings.patch_embeddings.projection.bias,patches/E/bias,
base,embeddings.cls_token,x_class registers,1 T D -> D + T D
base,embeddings.position_embeddings,position/E_pos,1 S D -> S D
base,layernorm.weight,norm/scale,
base,layernorm.bias,norm/bias,
layer,norm1.weight,norm_msa/scale,
layer,norm1.bias,norm_msa/bias,
layer,norm2.weight,norm_mlp/scale,
layer,norm2.bias,norm_mlp/bias,
layer,attention.attention.query.weight,msa/query/kernel,(k d) D -> D k d
layer,attention.attention.query.bias,msa/query/bias,(k d) -> k d
layer,attention.attention.key.weight,msa/key/kernel,(k d) D -> D k d
layer,attention.attention.key.bias,msa/key/bias,(k d) -> k d
layer,attention.attention.value.weight,msa/value/kernel,(k d) D -> D k d
layer,attention.attention.value.bias,msa/value/bias,(k d) -> k d
layer,attention.output.dense.weight,msa/out/kernel,D (k d) -> k d D
layer,attention.output.dense.bias,msa/out/bias,
mlp,intermediate.dense.weight,mlp/expand/kernel,O I -> I O
mlp,intermediate.dense.bias,mlp/expand/bias,
mlp,output.dense.weight,mlp/contract/kernel,O I -> I O
mlp,output.dense.bias,mlp/contract/bias,
"""


def _fields(file: Stored) -> dict[str, Any]:
  """The fields of our model for a stored file; see `Transformers.fields`."""
  biased = "encoder.layer.0.attention.attention.query.bias" in file.shapes
  return dict(
    pooling="prefix",
    registers=file.axis("embeddings.cls_token", 1, 1) - 1,
    position="learned_all",
    qkv_bias="qkv" if biased else "",
  )


def _config(vit: Any, _: Any) -> dict[str, Any]:
  """The family's part of config.json; see `Transformers.config`."""
  return dropouts(vit) | dict(
    model_type="pixio",
    mlp_ratio=mlp_ratio(vit, whole=True),
    drop_path_rate=vit.drop_path_rate,
    n_cls_tokens=vit.prefix,
  )


TRANSFORMERS = (
  Transformers(
    types=("pixio",),
    signature="encoder.layer.0.norm1.weight",
    layers="encoder.layer.{}.",
    names=_NAMES,
    fields=_fields,
    config=_config,
    classes=("PixioModel", None),
    defaults={"layer_norm_eps": 1e-6, "num_attention_heads": 16},
  ),
)
