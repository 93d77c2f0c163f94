"""ViT and its kin (MAE, MSN, I-JEPA, DeiT, DINOv2, DINOv3) of transformers.

The pooler of `ViTModel` and `DeiTModel` is the paper's representation layer
(dense, tanh). Without its distillation token, DeiT is a ViT, for transformers
too; without a head for it, the token is a register that has a position.
"""

import dataclasses
import functools
from typing import Any

from vit_jax.data.preprocessing import HALF
from vit_jax.models import BaseVit
from vit_jax.models.extended_vit import ExtendedVit
from vit_jax.pretrained.formats.architecture import length
from vit_jax.pretrained.formats.mapping import Shapes
from vit_jax.pretrained.formats.table import Config, Family, Layers, Table
from vit_jax.runtime.checks import POSITIVE, checked
from vit_jax.runtime.printable import quoted

_DISTILLED = "embeddings.distillation_token"
REGISTERS = "embeddings.register_tokens"


def _config(name: str, vit: Any) -> dict[str, Any]:
  """The part of a configuration that is the same for ViT, DeiT and DINOv2."""
  return dict(
    model_type=name.lower(),
    hidden_dropout_prob=vit.dropout_rate,
    attention_probs_dropout_prob=vit.attention_dropout_rate,
    qkv_bias=bool(vit.qkv_bias),
  )


def _vit_config(name: str, vit: BaseVit) -> dict[str, Any]:
  config = _config(name, vit) | dict(intermediate_size=vit.mlp_size)
  if (size := vit.representation_size) is None:
    return config
  # The family's class has no pooler, and no head where there are no classes.
  return config | dict(architectures=[f"{name}Model"], pooler_output_size=size)


def _vit(shapes: Shapes, config: Config) -> dict[str, Any]:
  size = length(shapes, "pooler.dense.bias", None)
  pooler = config.get("pooler_act", "tanh")
  if size and pooler != "tanh":
    raise ValueError(
      f"its config.json says pooler_act={quoted(pooler)}; only 'tanh' is the "
      "paper's."
    )
  biased = "encoder.layer.0.attention.attention.query.bias" in shapes
  more = {} if biased else dict(kind=ExtendedVit, qkv_bias="")
  ijepa = config.get("model_type", "ijepa") == "ijepa"
  if ijepa and not {"embeddings.cls_token", _DISTILLED} & shapes.keys():
    more |= dict(pooling="gap")
  return dict(representation_size=size, **more)


def _deit(shapes: Shapes, config: Config) -> dict[str, Any]:
  return _vit(shapes, config) | dict(
    kind=ExtendedVit, registers=1, position="learned_all"
  )


def _teacher(shapes: Shapes, config: Config) -> dict[str, Any]:
  return _vit(shapes, config) | dict(kind=ExtendedVit, distilled=True)


def _layer_scale(config: Config) -> float:
  return checked("layerscale_value", float, config.get("layerscale_value", 1.0))


def _registers(shapes: Shapes) -> int:
  return shapes.get(REGISTERS, (1, 0, 0))[1]


def _dinov2(shapes: Shapes, config: Config) -> dict[str, Any]:
  if "encoder.layer.0.mlp.gate_proj.bias" in shapes:
    raise ValueError(
      "its arrays are named as in state_dict() of transformers 5, which splits "
      "gated MLPs: save it with save_pretrained."
    )
  return _vit(shapes, {}) | dict(
    kind=ExtendedVit,
    pooling="token_gap" if "classifier.bias" in shapes else "token",
    registers=_registers(shapes),
    antialias=config.get("model_type") == "dinov2_with_registers"
    or REGISTERS in shapes,
    layer_scale=_layer_scale(config),
    gated_mlp="encoder.layer.0.mlp.weights_in.bias" in shapes,
  )


def _dinov2_config(vit: ExtendedVit) -> dict[str, Any]:
  D, registers = vit.hidden_size, vit.registers or vit.antialias
  sizes = [ratio * D for ratio in range(65)]
  if vit.gated_mlp:  # Two thirds, rounded up to a multiple of 8.
    sizes = [(int(size * 2 / 3) + 7) // 8 * 8 for size in sizes]
  config = _config("dinov2_with_registers" if registers else "dinov2", vit)
  config |= dict(
    mlp_ratio=sizes.index(vit.mlp_size) if vit.mlp_size in sizes else None,
    use_swiglu_ffn=vit.gated_mlp,
    layerscale_value=vit.layer_scale,
    drop_path_rate=vit.drop_path_rate,
  )
  if registers:
    config["num_register_tokens"] = vit.registers
    name = "ForImageClassification" if vit.num_classes else "Model"
    config["architectures"] = [f"Dinov2WithRegisters{name}"]
  return config


def _dinov3_config(vit: ExtendedVit) -> dict[str, Any]:
  return dict(
    model_type="dinov3_vit",
    intermediate_size=vit.mlp_size,
    use_gated_mlp=vit.gated_mlp,
    layerscale_value=vit.layer_scale,
    drop_path_rate=vit.drop_path_rate,
    attention_dropout=vit.attention_dropout_rate,
    num_register_tokens=vit.registers,
    rope_theta=vit.rope_theta,
    query_bias="q" in vit.qkv_bias,
    key_bias="k" in vit.qkv_bias,
    value_bias="v" in vit.qkv_bias,
    proj_bias=vit.branch_bias,
    mlp_bias=vit.branch_bias,
  )


def _dinov3(shapes: Shapes, config: Config) -> dict[str, Any]:
  theta = config.get("rope_theta", 100.0)
  biased = (x for x in "qkv" if f"layer.0.attention.{x}_proj.bias" in shapes)
  proj = "layer.0.attention.o_proj.bias" in shapes
  if proj != ("layer.0.mlp.up_proj.bias" in shapes):
    raise ValueError(
      f"its config.json says proj_bias={proj} and mlp_bias={not proj}: only "
      "both or neither are supported."
    )
  return dict(
    kind=ExtendedVit,
    position="none",
    registers=_registers(shapes),
    rope_theta=checked("rope_theta", float, theta, POSITIVE),
    layer_scale=_layer_scale(config),
    gated_mlp="layer.0.mlp.gate_proj.weight" in shapes,
    qkv_bias="".join(biased),
    branch_bias=proj,
  )


_TABLE = Table("vit", (Layers("encoder.layer.{}."),))
VIT = Family(
  types=("vit", "vit_mae", "ijepa"),
  signature="embeddings.patch_embeddings.projection.weight",
  table=_TABLE,
  bases=("vit.", "", "ijepa."),
  fields=_vit,
  config=functools.partial(_vit_config, "ViT"),
  classes=("ViTForImageClassification", "ViTForImageClassification"),
  defaults={"layer_norm_eps": 1e-12},
  any_shape=True,
  unused=(
    *("decoder.decoder_", "decoder.mask_token", "decoder.0."),
    *(f"{base}embeddings.mask_token" for base in ("vit.", "", "ijepa.")),
  ),
  mean=HALF,
  std=HALF,
)
MSN = dataclasses.replace(
  VIT,
  types=("vit_msn",),
  classes=("ViTMSNModel", "ViTMSNForImageClassification"),
  defaults={"layer_norm_eps": 1e-6, "num_attention_heads": 12},
)

DEIT = Family(
  types=("deit",),
  signature=_DISTILLED,
  table=_TABLE,
  bases=("deit.", ""),
  fields=_deit,
  config=functools.partial(_vit_config, "DeiT"),
  classes=("DeiTForImageClassification", "DeiTForImageClassification"),
  defaults={"layer_norm_eps": 1e-12, "num_attention_heads": 12},
  any_shape=True,
  unused=("decoder.0.", "deit.embeddings.mask_token", "embeddings.mask_token"),
)
TEACHER = dataclasses.replace(
  DEIT,
  table=Table("teacher", (Layers("encoder.layer.{}."),)),
  fields=_teacher,
  classes=(None, "DeiTForImageClassificationWithTeacher"),
)

DINOV2 = Family(
  types=("dinov2", "dinov2_with_registers"),
  signature="encoder.layer.0.layer_scale1.lambda1",
  table=Table("dinov2", (Layers("encoder.layer.{}."),)),
  bases=("", "dinov2.", "dinov2_with_registers."),
  fields=_dinov2,
  config=_dinov2_config,
  classes=("Dinov2Model", "Dinov2ForImageClassification"),
  defaults={"layer_norm_eps": 1e-6, "num_attention_heads": 12},
  one_base=False,
  mask_token="embeddings.mask_token",
)

DINOV3 = Family(
  types=("dinov3_vit",),
  signature="layer.0.layer_scale1.lambda1",
  table=Table("dinov3", (Layers("layer.{}."),)),
  bases=("",),
  fields=_dinov3,
  config=_dinov3_config,
  classes=("DINOv3ViTModel", None),
  mask_token="embeddings.mask_token",
  mask_axes=2,
  gated_by_act=True,
  defaults={"layer_norm_eps": 1e-5, "num_attention_heads": 6},
)
