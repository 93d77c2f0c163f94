"""Reads and writes timm's `NaFlexVit`, for images of any size.

Its arrays are those of a plain `VisionTransformer`, except that the kernel of
the patches usually reads rows of pixels, and that the table of positions has
the two axes of its grid. How that table is resized follows only from the
architecture's name or from `model_args`.
"""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

from vit_jax.data.preprocessing import Preprocessing
from vit_jax.models.extended_vit import ExtendedVit
from vit_jax.models.grid import Grid
from vit_jax.pretrained.formats import architecture, timm_arguments, timm_shared
from vit_jax.pretrained.formats.architecture import Architecture, need
from vit_jax.pretrained.formats.equivalent import changes, shapes_of
from vit_jax.pretrained.formats.mapping import Rule, Shapes
from vit_jax.pretrained.formats.table import Config, unmapped
from vit_jax.runtime.checks import COUNT, checked

FORMAT = "timm NaFlex"
_KERNEL, _TABLE = "embeds.proj.weight", "embeds.pos_embed"
_ROWS, _COLUMNS = f"{_TABLE}_y", f"{_TABLE}_x"
_POOLINGS = {"token": "token", "avg": "gap", "map": "map"}
# Arguments that are not read: the arrays reveal them, or they change no answer.
_TOLD = """
embed_dim depth mlp_ratio qkv_bias qk_norm proj_bias init_values class_token
reg_tokens in_chans num_classes pre_norm final_norm fc_norm embed_proj_type
attn_pool_mlp_ratio pos_embed_grid_size scale_mlp_norm scale_attn_inner_norm
img_size attn_drop_rate drop_rate pos_drop_rate patch_drop_rate proj_drop_rate
drop_path_rate weight_init fix_init use_key_only_attn_mask
enable_patch_interpolator swiglu_align_to qkv_fused rope_temperature
rope_ref_feat_shape rope_grid_offset rope_grid_indexing rope_rotate_half
rope_shift_coords rope_jitter_coords rope_rescale_coords rope_mrope_section
""".split()
_READ = """
patch_size num_heads act_layer global_pool pool_include_prefix
pos_embed_interp_mode pos_embed_ar_preserving pos_embed_antialias
pos_embed_align_corners
""".split()
# Arguments -> the only values that are supported.
_ONLY: dict[str, tuple[Any, ...]] = {
  "pos_embed": ("learned", "factorized", "none"),
  "rope_type": ("", "none"),
  "attn_type": ("standard",),
  "norm_layer": ("layernorm",),
  "attn_layer": ("attn",),
  **dict.fromkeys(
    (
      "dynamic_img_pad",
      "pos_embed_use_grid_sample",
      "attn_gated",
      "swiglu_mlp",
      "attn_only_layer_scale",
    ),
    (False,),
  ),
  "patchify_channels_last": (True,),
  **dict.fromkeys(
    (
      "attn_pool_num_heads",
      "num_kv_heads",
      "input_norm_layer",
      "embed_norm_layer",
      "block_fn",
      "mlp_layer",
    ),
    (),
  ),
}
_POSITIONS = {"learned_grid": "learned"}  # Our positions -> timm's.
_UNNAMED = (
  "no config.json names its architecture: how its positions are resized is "
  "guessed (bicubic, as in most of timm's models)"
)
ARGUMENTS = frozenset((*_TOLD, *_READ, *_ONLY))
"""The arguments of timm's `NaFlexVit`."""
# (mode, keeps proportions, aligns corners) -> `position_resize`.
_RESIZES = {
  ("bicubic", False, False): "bicubic",
  ("bilinear", False, False): "bilinear",
  ("bicubic", True, False): "square_bicubic",
  ("bilinear", True, False): "square",
  ("bilinear", True, True): "square_corners",
}


def prefix(shapes: Shapes) -> str | None:
  """The empty prefix; None for other formats."""
  num_layers = timm_shared.VIT.stacks[0].count(shapes)
  return "" if _KERNEL in shapes and num_layers else None


def infer(
  shapes: Shapes, config: Config | None = None, _: Grid | None = None
) -> Architecture:
  """Infers the model that these arrays are the parameters of.

  Raises ValueError if the configuration is of another library or has a value
  that is not supported, or if an array that shows a size is missing.
  """
  config = config or {}
  architecture.check_timms(config)
  own_arguments = timm_arguments.arguments_of(config)
  _check(own_arguments)
  _check_arrays(shapes)
  name = config.get("architecture")
  arguments = {**timm_arguments.arguments_of_name(name), **own_arguments}
  published = architecture.section(
    "pretrained_cfg", config.get("pretrained_cfg")
  )
  D, P = _width_and_patch(shapes, arguments, name)
  # The heads are those of the plain ViT of this name; the GELU is NaFlexVit's.
  plain_name = str(name or "").removeprefix("naflex")
  usual_heads, gelu, guessed = timm_shared.facts_of_name(plain_name, D)
  gelu = timm_shared.facts_of_name(name, D).gelu
  num_heads = arguments.get("num_heads", usual_heads)
  grid, position = _grid_and_kind(shapes)
  fields: dict[str, Any] = dict(
    kind=ExtendedVit,
    num_classes=architecture.length(shapes, "head.bias", 0),
    patch_size=P,
    hidden_size=D,
    num_layers=timm_shared.VIT.stacks[0].count(shapes),
    mlp_size=need(shapes, "blocks.0.mlp.fc2.weight", 2)[1],
    num_heads=checked("num_heads", int | None, num_heads, COUNT),
    position=position,
    layer_norm_epsilon=1e-6,
    **_fields_of_arrays(shapes),
    **_pooling(shapes, arguments),
    **timm_arguments.activation(own_arguments, gelu, gated=False),
    **_resizing(arguments),
  )
  if position == "factorized":
    fields |= _resizing_of_factors(fields["position_resize"])
  pictures = timm_shared.preprocessing(published or config)
  size = timm_shared.image_size({}, published or config)
  return Architecture(
    FORMAT,
    fields,
    grid and grid[0] * grid[1],
    image_size=grid and (grid[0] * P, grid[1] * P),
    preprocessing=dataclasses.replace(pictures, size=size),
    class_names=timm_shared.class_names(config, published),
    interpolation="bicubic_antialias",
    guessed=frozenset(
      (guessed - own_arguments.keys())
      | timm_shared.guessed_pictures(published or config)
    ),
    notes=() if name else (_UNNAMED,),
  )


def _fields_of_arrays(shapes: Shapes) -> dict[str, Any]:
  """The fields on parts that a model has if the file has their arrays."""
  norm_pooled = "fc_norm.weight" in shapes
  return dict(
    class_token="embeds.cls_token" in shapes,
    registers=shapes.get("embeds.reg_token", (1, 0, 0))[1],
    norm_pre="norm_pre.weight" in shapes,
    norm_pooled=norm_pooled,
    norm_final=norm_pooled or "norm.weight" in shapes,
    norm_inner_msa="blocks.0.attn.norm.weight" in shapes,
    norm_inner_mlp="blocks.0.mlp.norm.weight" in shapes,
    layer_scale=1e-5 if "blocks.0.ls1.gamma" in shapes else None,
    qkv_bias="qkv" if "blocks.0.attn.qkv.bias" in shapes else "",
    qk_norm="blocks.0.attn.q_norm.weight" in shapes,
    patch_bias="embeds.proj.bias" in shapes,
  )


def _pooling(shapes: Shapes, arguments: Config) -> dict[str, Any]:
  """The fields on the pooling.

  Raises ValueError if it is not supported.
  """
  if "attn_pool.latent" in shapes:
    default = "map"
  else:
    default = "avg" if "fc_norm.weight" in shapes else "token"
  global_pool = arguments.get("global_pool", default)
  global_pool = checked("global_pool", str, global_pool, choices=(*_POOLINGS,))
  pool_prefix = arguments.get("pool_include_prefix", False)
  pool_prefix = checked("pool_include_prefix", bool, pool_prefix)
  if pool_prefix and global_pool != "map":
    raise ValueError(
      "its average is over all tokens (pool_include_prefix): this is not "
      "supported."
    )
  return dict(pooling=_POOLINGS[global_pool], pool_prefix=pool_prefix)


def _check(arguments: Config) -> None:
  """Raises ValueError for an argument or a value that is not supported."""
  for key, value in arguments.items():
    if key in _ONLY and value not in _ONLY[key]:
      only = " or ".join(map(repr, _ONLY[key])) or "its own"
      raise timm_arguments.refusal(key, value, f"only {only} is")
    if key not in ARGUMENTS:
      raise timm_arguments.refusal(
        key, value, "timm's NaFlexVit has no such argument"
      )


def _check_arrays(shapes: Shapes) -> None:
  """Raises ValueError if arrays are of parts that are not supported."""
  parts = {
    "blocks.0.gamma_1": "layers like those of EVA",
    "blocks.0.attn.q_proj.weight": "layers like those of EVA",
    "embeds.norm_input.weight": "a norm of pixels",
  }
  for name, part in parts.items():
    if name in shapes:
      raise ValueError(f"it has {part} ({name}): this is not supported.")


def _grid_and_kind(shapes: Shapes) -> tuple[Grid | None, str]:
  """The grid of patches that the positions are for, and their kind."""
  if _TABLE in shapes:
    _, h, w, _ = need(shapes, _TABLE, 4)
    return (h, w), "learned_grid"
  if _ROWS not in shapes:
    return None, "none"
  h, w = (need(shapes, name, 3)[1] for name in (_ROWS, _COLUMNS))
  return (h, w), "factorized"


def _width_and_patch(
  shapes: Shapes, arguments: Config, name: Any
) -> tuple[int, int]:
  """The width of tokens and the side of a patch.

  Raises ValueError if the number of pixels does not fit the side.
  """
  if len(shapes[_KERNEL]) == 4:
    D, _, P, _ = shapes[_KERNEL]
    return D, P
  D, pixels = need(shapes, _KERNEL, 2)
  named = re.search(r"_patch(\d+)(_|$)", str(name or ""))
  P = arguments.get("patch_size", int(named[1]) if named else 16)
  P = checked("patch_size", int, P, COUNT)
  if pixels % (P * P):
    raise ValueError(
      f"its patches have {pixels} values, which are no patches of {P} x {P} "
      "pixels: give patch_size in model_args of its config.json."
    )
  return D, P


def _resizing(arguments: Config) -> dict[str, Any]:
  """The fields on how the table of positions is resized.

  Raises ValueError if it is resized in a way that is not supported.
  """

  def flag(key: str, default: bool) -> bool:
    return checked(key, bool, arguments.get(key, default))

  mode = arguments.get("pos_embed_interp_mode", "bicubic")
  square = flag("pos_embed_ar_preserving", default=False)
  corners = flag("pos_embed_align_corners", default=False)
  antialias = flag("pos_embed_antialias", default=True)
  resize = _RESIZES.get((str(mode), square, corners))
  if resize is None:
    raise timm_arguments.refusal(
      "pos_embed_interp_mode",
      mode,
      "tables of positions are resized bicubically or bilinearly, and corners "
      "are aligned only bilinearly and in a square",
    )
  return dict(position_resize=resize, antialias=antialias)


def _resizing_of_factors(position_resize: str) -> dict[str, Any]:
  """The fields on how tables of rows and columns are resized.

  timm resizes both linearly, and without antialiasing.
  """
  square = position_resize.startswith("square")
  resize = "square" if square else "bilinear"
  return dict(position_resize=resize, antialias=False)


def rules(vit: Any, shapes: Shapes | None = None) -> list[Rule]:
  """The rules for all arrays of a checkpoint to read, or of one to write.

  Patches are written as rows of pixels, as most of timm's have them.
  """
  changes_by_name = {
    "patch_embed.proj.weight": dict(theirs=_KERNEL),
    "patch_embed.proj.bias": dict(theirs="embeds.proj.bias"),
    "cls_token": dict(theirs="embeds.cls_token"),
    "reg_token": dict(theirs="embeds.reg_token"),
    "pos_embed": dict(theirs=_TABLE, pattern="1 y x D -> (y x) D"),
  }
  if shapes is None or len(shapes.get(_KERNEL, ())) == 2:
    changes_by_name["patch_embed.proj.weight"]["pattern"] = "O I -> I O"
  fc = "fc_" if vit.norm_pooled else ""
  all_rules = []
  for rule in timm_shared.VIT.rules(vit):
    theirs = re.sub(r"^norm\.", f"{fc}norm.", rule.theirs)
    rule_changes = {"theirs": theirs, **changes_by_name.get(rule.theirs, {})}
    all_rules.append(dataclasses.replace(rule, **rule_changes))
  if vit.position == "factorized":
    all_rules.append(Rule(_ROWS, ("position/Y_pos",), "1 S D -> S D"))
    all_rules.append(Rule(_COLUMNS, ("position/X_pos",), "1 S D -> S D"))
  return all_rules


def is_naflex(vit: Any) -> bool:
  """Whether a model is written as a `NaFlexVit`, not as a ViT of one size.

  That is so if it was read from one, or has positions that only a `NaFlexVit`
  has.
  """
  if not vit.extended or vit.resnet_layers:
    return False
  was_read_from_one = bool(vit.origin) and vit.origin.format == FORMAT
  has_its_resizing = vit.position_resize == "square_bicubic"
  has_its_table = vit.position == "factorized"
  return was_read_from_one or has_its_resizing or has_its_table


def is_encoder(vit: Any) -> bool:
  """Whether a model has other parts than the paper's ViTs."""
  return vit.extended


def equivalent(vit: Any) -> Any:
  """The model to write instead of `vit`: `vit` itself."""
  return vit


def reasons(vit: Any) -> list[str]:
  """Why timm's `NaFlexVit` cannot express a model; [] if it can."""
  one_layer = vit.clone(num_layers=1)
  written = rules(one_layer)
  if lost := unmapped(one_layer, written):
    return [f"timm's NaFlexVit has no place for {', '.join(lost[:3])}"]
  try:
    fields = infer(shapes_of(one_layer, written), _config(one_layer)).fields
  except ValueError as error:
    return [str(error).removesuffix(".")]
  resize, antialias = vit.position_resize, vit.antialias
  if (fields["position_resize"], fields["antialias"]) != (resize, antialias):
    kind = f"position_resize={resize!r} with antialias={antialias}"
    return [
      f"the model has {kind}, and NaFlexVit cannot resize positions in this way"
    ]
  return [*changes(one_layer, fields)]


def not_kept(vit: Any) -> Iterator[str]:
  """No lines, as the format keeps everything."""
  del vit
  return iter(())


def files(vit: Any, preprocessing: Preprocessing, _: Any) -> dict[str, Any]:
  """The JSON file that timm reads beside the weights."""
  config = _config(vit) | timm_shared.pictures_json(vit, preprocessing)
  config["pretrained_cfg"]["first_conv"] = "embeds.proj"
  return {"config.json": config}


def _config(vit: Any) -> dict[str, Any]:
  """The part of the JSON file that makes the model.

  timm ignores arguments that are null. To have no LayerScale, a model needs the
  name of an architecture without it.
  """
  resizes = {ours: theirs for theirs, ours in _RESIZES.items()}
  mode, in_proportion, corners = resizes.get(
    vit.position_resize, ("", False, False)
  )
  name = "gap" if vit.layer_scale is not None else "siglip"
  more = dict(
    init_values=vit.layer_scale,
    qkv_bias=bool(vit.qkv_bias),
    qk_norm=vit.qk_norm,
    class_token=vit.class_token,
    reg_tokens=vit.registers,
    pre_norm=vit.norm_pre,
    final_norm=vit.norm_final,
    fc_norm=vit.norm_pooled,
    scale_mlp_norm=vit.norm_inner_mlp,
    scale_attn_inner_norm=vit.norm_inner_msa,
    pool_include_prefix=vit.pool_prefix,
    pos_embed=_POSITIONS.get(vit.position, vit.position),
    pos_embed_grid_size=vit.position_grid and [*vit.position_grid],
    pos_embed_interp_mode=mode,
    pos_embed_ar_preserving=in_proportion,
    pos_embed_antialias=vit.antialias,
    pos_embed_align_corners=corners,
  )
  config = timm_shared.configuration(
    vit, f"naflexvit_base_patch16_{name}", more
  )
  del config["model_args"]["img_size"]
  return config
