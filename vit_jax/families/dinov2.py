"""DINOv2 (arXiv:2304.07193), with registers (arXiv:2309.16588)."""

from typing import Any

from vit_jax.families.family import Stored, Transformers, dropouts

FIELDS = dict(
  layer_scale=1e-5,
  gelu="exact",
)


def _fields(file: Stored) -> dict[str, Any]:
  """The fields of our model for a stored file; see `Transformers.fields`.

  Raises ValueError for the split names of `state_dict()` of transformers 5.
  """
  layer = "encoder.layer.0."
  if f"{layer}mlp.gate_proj.bias" in file.shapes:
    raise ValueError(
      "its arrays are named as in state_dict() of transformers 5, which splits "
      "gated MLPs: save it with save_pretrained."
    )
  registers = "embeddings.register_tokens"
  biased = f"{layer}attention.attention.query.bias" in file.shapes
  return dict(
    **({} if biased else dict(qkv_bias="")),
    representation_size=file.length("pooler.dense.bias"),
    pooling="token_gap" if "classifier.bias" in file.shapes else "token",
    registers=file.axis(registers, 1, 0),
    antialias=file.config.get("model_type") == "dinov2_with_registers"
    or registers in file.shapes,
    layer_scale=file.number("layerscale_value", 1.0),
    gated_mlp=f"{layer}mlp.weights_in.bias" in file.shapes,
  )


def _config(vit: Any, _: Any) -> dict[str, Any]:
  """The family's part of config.json; see `Transformers.config`."""
  D, registers = vit.hidden_size, vit.registers or vit.antialias
  sizes = [ratio * D for ratio in range(65)]
  if vit.gated_mlp:  # Two thirds, rounded up to a multiple of 8.
    sizes = [(int(size * 2 / 3) + 7) // 8 * 8 for size in sizes]
  name = "dinov2_with_registers" if registers else "dinov2"
  config = dict(model_type=name) | dropouts(vit)
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


TRANSFORMERS = (
  Transformers(
    types=("dinov2", "dinov2_with_registers"),
    signature="encoder.layer.0.layer_scale1.lambda1",
    bases=("", "dinov2.", "dinov2_with_registers."),
    one_base=False,
    layers="encoder.layer.{}.",
    table="dinov2",
    fields=_fields,
    config=_config,
    classes=("Dinov2Model", "Dinov2ForImageClassification"),
    defaults={"layer_norm_eps": 1e-6, "num_attention_heads": 12},
    antialiased=True,
    mask_token="embeddings.mask_token",
  ),
)
