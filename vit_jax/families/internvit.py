"""InternViT (arXiv:2312.14238)."""

from typing import Any

from vit_jax.families.family import Stored, Transformers

FIELDS = dict(
  layer_scale=0.1,
  gelu="exact",
  norm_final=False,
)
_BASES = ("", "model.vision_tower.")
_NORMS = {"layer_norm": "layer", "rms_norm": "rms"}
_NAMES = """
base,embeddings.patch_embeddings.projection.weight,patches/E/kernel,\
D C P Q -> (P Q C) D
base,embeddings.patch_embeddings.projection.bias,patches/E/bias,
base,embeddings.cls_token,x_class,1 1 D -> D
base,embeddings.position_embeddings,position/E_pos,1 S D -> S D
base,layernorm.weight,norm/scale,
base,layernorm.bias,norm/bias,
layer,layernorm_before.weight,norm_msa/scale,
layer,layernorm_before.bias,norm_msa/bias,
layer,layernorm_after.weight,norm_mlp/scale,
layer,layernorm_after.bias,norm_mlp/bias,
layer,lambda_1,scale_msa,
layer,lambda_2,scale_mlp,
layer,attention.q_proj.weight,msa/query/kernel,(k d) D -> D k d
layer,attention.q_proj.bias,msa/query/bias,(k d) -> k d
layer,attention.k_proj.weight,msa/key/kernel,(k d) D -> D k d
layer,attention.k_proj.bias,msa/key/bias,(k d) -> k d
layer,attention.v_proj.weight,msa/value/kernel,(k d) D -> D k d
layer,attention.v_proj.bias,msa/value/bias,(k d) -> k d
layer,attention.q_norm.weight,msa/norm_query/scale,(k d) -> k d
layer,attention.k_norm.weight,msa/norm_key/scale,(k d) -> k d
layer,attention.projection_layer.weight,msa/out/kernel,D (k d) -> k d D
layer,attention.projection_layer.bias,msa/out/bias,
mlp,mlp.fc1.weight,mlp/expand/kernel,O I -> I O
mlp,mlp.fc1.bias,mlp/expand/bias,
mlp,mlp.fc2.weight,mlp/contract/kernel,O I -> I O
mlp,mlp.fc2.bias,mlp/contract/bias,
"""


def _fields(file: Stored) -> dict[str, Any]:
  """The fields of our model for a stored file; see `Transformers.fields`.

  Raises ValueError for norms of two kinds or of two epsilons.
  """
  layer = "encoder.layer.0."
  kind = file.choice("norm_type", "layer_norm", (*_NORMS,))
  final = "layernorm.weight" in file.shapes
  qk_norm = f"{layer}attention.q_norm.weight" in file.shapes
  epsilon = file.config.get("layer_norm_eps", 1e-6)
  rms = kind == "rms_norm"
  if (rms and final) or (qk_norm and not (rms and epsilon == 1e-6)):
    raise ValueError(
      "it has layer norms beside RMSNorm, or norms of two epsilons, which is "
      "not supported."
    )
  return dict(
    pooling="token" if final else "gap",
    qkv_bias="qkv" if f"{layer}attention.q_proj.bias" in file.shapes else "",
    qk_norm=qk_norm,
    qk_norm_whole=qk_norm,
    layer_scale=file.number("layer_scale_init_value", 0.1),
    norm_kind=_NORMS[kind],
    norm_final=final,
  )


def _config(vit: Any, size: tuple[int, int] | None) -> dict[str, Any]:
  """The family's part of config.json; see `Transformers.config`."""
  return dict(
    image_size=size and [*size],
    patch_size=[vit.patch_size] * 2,
    model_type="internvl_vision",
    intermediate_size=vit.mlp_size,
    hidden_dropout_prob=vit.dropout_rate,
    attention_dropout=vit.attention_dropout_rate,
    attention_bias=bool(vit.qkv_bias),
    use_qk_norm=vit.qk_norm,
    norm_type="rms_norm" if vit.norm_kind == "rms" else "layer_norm",
    layer_scale_init_value=vit.layer_scale,
    use_mean_pooling=not vit.norm_final,
  )


TRANSFORMERS = (
  Transformers(
    types=("internvl_vision", "internvl"),
    signature="encoder.layer.0.attention.projection_layer.weight",
    bases=_BASES,
    layers="encoder.layer.{}.",
    names=_NAMES,
    fields=_fields,
    config=_config,
    classes=("InternVLVisionModel", None),
    defaults={"layer_norm_eps": 1e-6, "num_attention_heads": 16},
    unused=tuple(f"{base}embeddings.mask_token" for base in _BASES),
  ),
)
