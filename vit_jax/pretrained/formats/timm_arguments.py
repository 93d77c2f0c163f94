"""The arguments of timm's Vision Transformers, and how each is treated.

timm records in `model_args` the arguments of a model. Those of an architecture
are in timm's code, and here in `vit_jax.families`. One table says for every
argument whether the arrays reveal it, it changes no answer, it is read, or it
must have certain values. Arguments that are not in the table are refused.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from vit_jax import families
from vit_jax.pretrained.formats import architecture
from vit_jax.pretrained.formats.mapping import Shapes
from vit_jax.pretrained.formats.table import Config
from vit_jax.runtime.checks import COUNT, POSITIVE, checked
from vit_jax.runtime.printable import quoted

# Classes of timm, by the initials that the table has.
_CLASSES = {
  "v": "VisionTransformer",
  "e": "Eva",
  "b": "Beit",
  "r": "VisionTransformerRelPos",
}
# How an argument is treated: the arrays reveal it, it changes no answer, or it
# is read. A tuple instead lists the only values that are supported.
_TOLD, _IDLE, _READ = "told", "idle", "read"
_ROPE = "rope_rotate_half rope_grid_indexing rope_grid_offset rope_temperature"
_TABLE: Mapping[str, tuple[tuple[str, Any], ...]] = {
  "verb": (
    ("patch_size in_chans num_classes embed_dim depth mlp_ratio", _TOLD),
    ("qkv_bias init_values", _TOLD),
    ("drop_rate proj_drop_rate attn_drop_rate drop_path_rate", _IDLE),
    ("img_size num_heads global_pool norm_layer", _READ),
    ("use_naflex", (False,)),
  ),
  "v": (
    ("scale_attn_norm scale_mlp_norm proj_bias", _TOLD),
    ("pos_embed reg_tokens pre_norm final_norm", _TOLD),
    ("pool_include_prefix embed_norm_layer", _READ),
    ("attn_layer", ("attn",)),
    ("mlp_layer", ()),
  ),
  "e": (
    ("num_kv_heads qkv_fused swiglu_align_to scale_attn_inner", _TOLD),
    ("attn_type num_reg_tokens attn_pool_mlp_ratio", _TOLD),
    ("use_pre_transformer_norm use_post_transformer_norm", _TOLD),
    ("rope_shift_coords rope_jitter_coords rope_rescale_coords", _IDLE),
    ("rope_mrope_section", _IDLE),  # For a `rope_type` that is not read.
    (f"use_rot_pos_emb rope_type ref_feat_shape {_ROPE}", _READ),
    ("use_post_norm attn_pool_num_heads", _READ),
    ("attn_only_layer_scale", (False,)),
  ),
  "b": (("use_rel_pos_bias use_shared_rel_pos_bias", _TOLD),),
  "r": (
    ("rel_pos_dim shared_rel_pos", _TOLD),
    ("rel_pos_type", _READ),
  ),
  "ver": (("qk_norm class_token", _TOLD),),
  "ve": (
    ("patch_drop_rate", _IDLE),
    ("dynamic_img_size dynamic_img_pad no_embed_class", _READ),
  ),
  "vr": (
    ("fc_norm", _TOLD),
    ("weight_init fix_init", _IDLE),
    ("act_layer", _READ),
    ("embed_layer block_fn", ()),
  ),
  "eb": (
    ("swiglu_mlp scale_mlp use_abs_pos_emb use_fc_norm", _TOLD),
    ("head_init_scale", _IDLE),
  ),
  "veb": (("pos_drop_rate", _IDLE),),
}
ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
  initial: {
    name: treatment
    for classes, rows in _TABLE.items()
    if initial in classes
    for names, treatment in rows
    for name in names.split()
  }
  for initial in _CLASSES
}
"""Initial of a class -> its arguments -> how each is treated."""

_EVA_DEFAULTS = dict(
  use_rot_pos_emb=False,
  rope_type="cat",
  rope_grid_indexing="ij",
  rope_grid_offset=0.0,
  rope_temperature=10_000.0,
  rope_rotate_half=False,
  use_post_norm=False,
)
# timm's names of norms without underscores -> our kind; all have epsilon 1e-6.
_NORMS = {"layernorm": "layer", "layernormfp32": "layer"}
_NORMS |= {"rmsnorm": "rms", "rmsnormfp32": "rms"}
GELUS = {"gelu": "exact", "gelu_erf": "exact"}
GELUS |= {"gelu_tanh": "tanh", "quick_gelu": "quick"}
GATES = {"silu": "silu", "swish": "silu"}
"""timm's names of activations -> `gelu`, or those of gates alone -> `gate`."""


def arguments_of(config: Config) -> dict[str, Any]:
  """The arguments that a configuration records, without those that are null.

  Raises ValueError if they are not a JSON object.
  """
  arguments = architecture.section("model_args", config.get("model_args"))
  return {key: value for key, value in arguments.items() if value is not None}


def class_of_name(name: Any) -> str | None:
  """The initial of timm's class for an architecture of this name.

  None if the architecture is not known.
  """
  return next(matching(name, "classes"), None)


def arguments_of_name(name: Any) -> dict[str, Any]:
  """The arguments of an architecture of this name that arrays do not reveal."""
  all_arguments: dict[str, Any] = {}
  for arguments in matching(name, "own"):
    all_arguments |= arguments
  return all_arguments


def matching(name: Any, field: str) -> Iterator[Any]:
  """The values of all patterns that match an architecture's name.

  `field` is that of `families.family.Timm` which maps patterns to values.
  """
  for family in families.records("TIMM"):
    for pattern, value in getattr(family, field).items():
      if re.match(pattern, str(name or "")):
        yield value


def check(initial: str, arguments: Config) -> None:
  """Raises ValueError for an argument that timm's class does not have.

  It also does so for a value that is not supported here.
  """
  table = ARGUMENTS[initial]
  for key, value in arguments.items():
    if key not in table:
      raise refusal(
        key, value, f"timm's {_CLASSES[initial]} has no such argument"
      )
    if isinstance(table[key], tuple) and value not in table[key]:
      choices = " or ".join(map(repr, table[key])) or "its own"
      raise refusal(key, value, f"only {choices} is")


def norm(
  shapes: Shapes, arguments: Config, name: Any, default: float
) -> dict[str, Any]:
  """The fields on the kind and the epsilon of all norms.

  `default` is the epsilon of a model that has no known name. Raises ValueError
  for a norm that is not supported, or if the arrays are those of another norm
  than the arguments name.
  """
  kind = _norm_kind(shapes, "blocks.0.norm1")
  usual_epsilon = 1e-6 if class_of_name(name) else default
  epsilon = arguments_of_name(name).get("epsilon", usual_epsilon)
  if layer_norm := arguments.get("norm_layer"):
    _check_norm("norm_layer", layer_norm, kind)
    epsilon = 1e-6
  patches = "patch_embed.norm"
  if f"{patches}.weight" in shapes:
    patch_norm = arguments.get("embed_norm_layer")
    _check_norm("embed_norm_layer", patch_norm or kind + "norm", kind)
    if _norm_kind(shapes, patches) != kind or (patch_norm and epsilon != 1e-6):
      raise ValueError(
        "its patches have another norm than its layers, or another epsilon: "
        "this is not supported."
      )
  return dict(norm_kind=kind, layer_norm_epsilon=epsilon)


def _norm_kind(shapes: Shapes, name: str) -> str:
  """The kind of a norm: "rms" for an RMSNorm, which has no bias, or "layer"."""
  biased = f"{name}.bias" in shapes or f"{name}.weight" not in shapes
  return "layer" if biased else "rms"


def _check_norm(key: str, value: Any, kind: str) -> None:
  """Raises ValueError if timm's name of a norm is not of this kind."""
  name = checked(key, str, value).replace("_", "").lower()
  if _NORMS.get(name) != kind:
    theirs = {"layer": "layer norms", "rms": "RMSNorm"}[kind]
    raise refusal(
      key,
      value,
      f"its arrays are those of {theirs}, so this must name such a norm",
    )


def activation(arguments: Config, default: str, gated: bool) -> dict[str, str]:
  """The activation of the MLPs or of their gates, as fields of the model.

  `default` is the architecture's. Raises ValueError for an activation that is
  not known, or that MLPs without gates do not have.
  """
  value = arguments.get("act_layer", "silu" if gated else default)
  name = checked("act_layer", str, value).lower() or "gelu"
  if gated:
    choices = {**GATES, **GELUS}
    checked("act_layer", str, name, choices=(*choices,))
    return dict(gelu="exact", gate=choices[name])
  if name in GATES:
    raise refusal("act_layer", value, "its MLPs have no gates for it")
  checked("act_layer", str, name, choices=(*GELUS,))
  return dict(gelu=GELUS[name])


def rotary(arguments: Config) -> dict[str, Any]:
  """The fields of rotary positions, from the arguments of an `Eva`.

  Raises ValueError for positions that are not supported.
  """
  values = {**_EVA_DEFAULTS, **arguments}
  for key in ("use_rot_pos_emb", "rope_rotate_half"):
    checked(key, bool, values[key])
  if not values["use_rot_pos_emb"]:
    return dict(rope_theta=None, rope_kind="axial", rope_x_first=False)
  kind = checked("rope_type", str, values["rope_type"])
  indexing = checked("rope_grid_indexing", str, values["rope_grid_indexing"])
  offset = checked("rope_grid_offset", float, values["rope_grid_offset"])
  theta = values["rope_temperature"]
  side = _side(values.get("ref_feat_shape")) if kind == "cat" else None
  if kind == "cat" and not side:
    rope_kind = "counted"
  else:
    rope_kind = "mixed" if kind == "mixed" else "axial"
  fields = dict(
    rope_theta=checked("rope_temperature", float, theta, POSITIVE),
    rope_kind=rope_kind,
    rope_side=side,
    rope_start=int(offset) if kind == "cat" else 0,
    rope_x_first=indexing == "xy" and kind != "mixed",
  )
  indexings = ("xy",) if kind == "mixed" else ("xy", "ij")
  is_supported = dict(
    rope_type=kind in ("cat", "mixed", "dinov3"),
    rope_rotate_half=values["rope_rotate_half"] == (kind == "dinov3"),
    rope_grid_indexing=indexing in indexings,
    rope_grid_offset=offset >= 0 and offset == fields["rope_start"],
  )
  for key, supported in is_supported.items():
    if not supported:
      why = (
        f"rotary positions of type {quoted(kind)} are not read with this value"
      )
      raise refusal(key, values[key], why)
  return fields


def _side(value: Any) -> int | None:
  """The number of patches along a side, from timm's `ref_feat_shape`.

  None if it is not given. Raises ValueError if the sides differ.
  """
  if value is None:
    return None
  sides = value if isinstance(value, list | tuple) else [value]
  if len({*map(str, sides)}) != 1:
    raise refusal("ref_feat_shape", value, "both sides have to be the same")
  return checked("ref_feat_shape", int, sides[0], COUNT)


def refusal(key: str, value: Any, why: str) -> ValueError:
  """The error for an argument that is not supported."""
  return ValueError(
    f"its config.json says {quoted(key)}={quoted(value)} in model_args, which "
    f"is not supported: {why}."
  )
