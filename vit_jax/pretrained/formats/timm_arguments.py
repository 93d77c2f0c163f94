"""The arguments of timm's Vision Transformers, and what is made of each.

timm records in `model_args` what a model was made with, and its code what each
architecture has, which `vit_jax.families` say. One table says of every argument
whether the arrays tell it, it changes no answer, or it is read; any other is
refused, whatever its value.
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
# An argument is one of four: the names and shapes of arrays tell it; it changes
# no answer; it is read; or it has to have one of these values.
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
    ("rope_mrope_section", _IDLE),  # That of a type that is not read.
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
    name: what
    for classes, rows in _TABLE.items()
    if initial in classes
    for names, what in rows
    for name in names.split()
  }
  for initial in _CLASSES
}
"""Initial of a class -> its arguments -> what is made of each."""

_EVA_DEFAULTS = dict(
  use_rot_pos_emb=False,
  rope_type="cat",
  rope_grid_indexing="ij",
  rope_grid_offset=0.0,
  rope_temperature=10_000.0,
  rope_rotate_half=False,
  use_post_norm=False,
)
# timm's names of norms, without underscores -> our kind; their epsilon is 1e-6.
_NORMS = {"layernorm": "layer", "layernormfp32": "layer"}
_NORMS |= {"rmsnorm": "rms", "rmsnormfp32": "rms"}
GELUS = {"gelu": "exact", "gelu_erf": "exact"}
GELUS |= {"gelu_tanh": "tanh", "quick_gelu": "quick"}
GATES = {"silu": "silu", "swish": "silu"}
"""timm's names of activations -> `gelu`, or those of gates alone -> `gate`."""


def arguments_of(config: Config) -> dict[str, Any]:
  """The arguments that a configuration records; timm takes null for none.

  Raises ValueError if they are no JSON object.
  """
  arguments = architecture.section("model_args", config.get("model_args"))
  return {key: value for key, value in arguments.items() if value is not None}


def class_of_name(name: Any) -> str | None:
  """The initial of timm's class for an architecture of this name, if known."""
  return next(matching(name, "classes"), None)


def arguments_of_name(name: Any) -> dict[str, Any]:
  """The arguments that an architecture of this name has and no array tells."""
  found: dict[str, Any] = {}
  for arguments in matching(name, "own"):
    found |= arguments
  return found


def matching(name: Any, what: str) -> Iterator[Any]:
  """The values that patterns of families give a name, by a field of `Timm`."""
  for family in families.records("TIMM"):
    for start, told in getattr(family, what).items():
      if re.match(start, str(name or "")):
        yield told


def check(initial: str, arguments: Config) -> None:
  """Raises ValueError for an argument that timm's class does not have.

  Also for one whose value is not supported here.
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
  """The kind and the epsilon of all norms.

  `default` is the epsilon of a model that has no known name. Raises ValueError
  for another norm, or if the arrays are of another than the arguments say.
  """
  kind = _norm_kind(shapes, "blocks.0.norm1")
  usual = 1e-6 if class_of_name(name) else default
  epsilon = arguments_of_name(name).get("epsilon", usual)
  if told := arguments.get("norm_layer"):
    _check_norm("norm_layer", told, kind)
    epsilon = 1e-6
  patches = "patch_embed.norm"
  if f"{patches}.weight" in shapes:
    told = arguments.get("embed_norm_layer")
    _check_norm("embed_norm_layer", told or kind + "norm", kind)
    if _norm_kind(shapes, patches) != kind or (told and epsilon != 1e-6):
      raise ValueError(
        "its patches have another norm than its layers, or another epsilon: "
        "this is not supported."
      )
  return dict(norm_kind=kind, layer_norm_epsilon=epsilon)


def _norm_kind(shapes: Shapes, name: str) -> str:
  """Whether a norm is RMSNorm, which has no bias, or a layer norm."""
  biased = f"{name}.bias" in shapes or f"{name}.weight" not in shapes
  return "layer" if biased else "rms"


def _check_norm(key: str, value: Any, kind: str) -> None:
  name = checked(key, str, value).replace("_", "").lower()
  if _NORMS.get(name) != kind:
    theirs = {"layer": "layer norms", "rms": "RMSNorm"}[kind]
    raise refusal(
      key, value, f"its arrays are those of {theirs}, so it must be one"
    )


def activation(arguments: Config, default: str, gated: bool) -> dict[str, str]:
  """The activation of the MLPs or of their gates, as fields of the model.

  `default` is the architecture's. Raises ValueError for one that is not known,
  or that MLPs without gates do not have.
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
  a = {**_EVA_DEFAULTS, **arguments}
  for key in ("use_rot_pos_emb", "rope_rotate_half"):
    checked(key, bool, a[key])
  if not a["use_rot_pos_emb"]:
    return dict(rope_theta=None, rope_kind="axial", rope_x_first=False)
  kind = checked("rope_type", str, a["rope_type"])
  places = checked("rope_grid_indexing", str, a["rope_grid_indexing"])
  offset = checked("rope_grid_offset", float, a["rope_grid_offset"])
  side = _side(a.get("ref_feat_shape")) if kind == "cat" else None
  fields = dict(
    rope_theta=checked(
      "rope_temperature", float, a["rope_temperature"], POSITIVE
    ),
    rope_kind={"mixed": "mixed", "cat": "axial" if side else "counted"}.get(
      kind, "axial"
    ),
    rope_side=side if kind == "cat" else None,
    rope_start=int(offset) if kind == "cat" else 0,
    rope_x_first=places == "xy" and kind != "mixed",
  )
  told = dict(
    rope_type=kind in ("cat", "mixed", "dinov3"),
    rope_rotate_half=a["rope_rotate_half"] == (kind == "dinov3"),
    rope_grid_indexing=places in ("xy",) + ("ij",) * (kind != "mixed"),
    rope_grid_offset=offset == fields["rope_start"] >= 0,
  )
  for key, supported in told.items():
    if not supported:
      why = f"rotary positions of type {quoted(kind)} like that are not read"
      raise refusal(key, a[key], why)
  return fields


def _side(value: Any) -> int | None:
  """Patches along a side, from timm's `ref_feat_shape`."""
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
