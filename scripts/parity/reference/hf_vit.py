"""The ViT of transformers, which holds query, key and value by themselves."""

from typing import Any

import torch_draws  # noqa: F401  # It lets transformers be imported.
import transformers


def make_model(c: dict) -> Any:
  config = transformers.ViTConfig(
    hidden_size=c["hidden"],
    num_hidden_layers=c["layers"],
    num_attention_heads=c["heads"],
    intermediate_size=c["mlp"],
    hidden_act="gelu_new",
    image_size=c["side"],
    patch_size=c["patch"],
    num_labels=c["classes"],
    layer_norm_eps=1e-6,
    attn_implementation="eager",
  )
  return transformers.ViTForImageClassification(config)


def today(name: str, model: Any) -> str:
  """The name that this version of transformers gives an array of a file."""
  known = model.state_dict()
  for old, new in (
    ("", ""),
    ("encoder.layer.", "layers."),
    ("attention.attention.query", "attention.q_proj"),
    ("attention.attention.key", "attention.k_proj"),
    ("attention.attention.value", "attention.v_proj"),
    ("attention.output.dense", "attention.o_proj"),
    ("intermediate.dense", "mlp.fc1"),
    ("output.dense", "mlp.fc2"),
  ):
    name = name.replace(old, new) if old else name
    if name in known:
      return name
  raise KeyError(f"{name} is none of {sorted(known)[:40]}")
