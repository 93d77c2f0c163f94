"""Encoders as timm saves them: ViTs with all of its options, and EVAs.

Most of the architecture follows from the arrays; `config.json` gives the heads,
the activation and the pooling. `timm_evas` reads EVAs. BEiTs have the names of
EVAs, and ViTs with relative positions (relpos) those of ViTs. Both tables of
names are rows of `names.csv`: those of `timm_any` and `timm` are for ViTs
(`timm_shared.VIT`), those of `timm_any` and `timm_eva` for EVAs.

A row of the part `root` or `base` is for an array outside the layers; timm has
no base, so both have timm's whole name. A row of the part `layer` is for every
layer i, below `blocks.i.` in the file and `block_i/` in our model. Here, `D`
is the width of a token, `k` the number of heads, `d` the width of a head, and
`n` counts our parameters in one array: `(n k d) D -> n D k d` reads the fused
`attn.qkv.weight` as the kernels of query, key and value. `table.Table.rows` and
`mapping.axis_sizes` describe all parts and axes.
"""

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from vit_jax.data.preprocessing import Preprocessing
from vit_jax.families.family import Eva
from vit_jax.models.extended_vit import ExtendedVit
from vit_jax.models.grid import Grid
from vit_jax.models.model import stem_stride
from vit_jax.models.paths import within
from vit_jax.pretrained.formats import (
  architecture,
  relative,
  timm_arguments,
  timm_evas,
  timm_shared,
)
from vit_jax.pretrained.formats.architecture import Architecture, need
from vit_jax.pretrained.formats.equivalent import changes, shapes_of
from vit_jax.pretrained.formats.mapping import Rule, Shapes
from vit_jax.pretrained.formats.table import Config, Table, unmapped
from vit_jax.runtime.checks import COUNT, checked

# Names of arrays that the paper's model does not have.
_SIGNATURES = (
  "reg_token",
  "dist_token",
  "norm_pre.weight",
  "patch_embed.norm.weight",
  "fc_norm.weight",
  "blocks.0.ls1.gamma",
  "blocks.0.attn.q_norm.weight",
  "blocks.0.attn.norm.weight",
  "blocks.0.mlp.norm.weight",
  *timm_evas.SIGNATURES,
)
# Names that EVAs and BEiTs have, but not ViTs.
_EVA = (
  "blocks.0.gamma_1",
  "blocks.0.attn.relative_position_bias_table",
  "rel_pos_bias.relative_position_bias_table",
)
# Names of arrays that no model of timm's with relative positions has.
_NOT_RELATIVE = (
  "norm_pre.weight",
  "reg_token",
  "dist_token",
  "attn_pool.latent",
)
# A part of the names of models whose norms follow the branches.
_RES_POST_NORM = "_rpn_"
_AIM, _AIM_HEAD_SIZE = "patch_embed.norm.weight", 128  # Only AIMv2 has these.
# `rel_pos_type` -> `ExtendedVit.relative`.
_RELATIVE = {"mlp": "mlp", "bias": "table"}
# Poolings that timm's models do not have -> a reason for the message.
_UNPOOLED = {
  "token_gap": "timm cannot pool both the class token and the patches' "
  "average: train with model.pooling=token for it",
  "query": "timm has no attention pooling with a query of its own",
  "prefix": "timm cannot average the tokens before the patches",
}
_POOLINGS = {"token": "token", "avg": "gap", "map": "map"}


def prefix(shapes: Shapes) -> str | None:
  """The empty prefix; None for other formats."""
  num_layers = timm_shared.VIT.stacks[0].count(shapes)
  starts = ("patch_embed.proj.weight", "patch_embed.backbone.")
  embedded = any(name.startswith(starts) for name in shapes)
  return "" if embedded and num_layers else None


def unused(shapes: Shapes) -> list[str]:
  """Names of the arrays that only MAE needs, and of those that we compute."""
  beginnings = ("mask_token", "decoder_")
  index = "relative_position_index"  # Old files have it; we compute it.
  return [
    name
    for name in shapes
    if name.startswith(beginnings) or name.endswith(index)
  ]


def _table(shapes: Shapes) -> Table:
  """The table of the names of these arrays."""
  is_eva = any(name in shapes for name in _EVA)
  return timm_shared.EVA if is_eva else timm_shared.VIT


def _is_plain(shapes: Shapes) -> bool:
  """Whether these are the arrays of the paper's model, or of a SigLIP."""
  fused = [name for name in shapes if ".attn.qkv." in name]
  unbiased = fused and all(name.endswith(".weight") for name in fused)
  if unbiased or relative.fields(_table(shapes), shapes):
    return False
  for layer in ("blocks.0.norm1", "blocks.0.attn.proj"):
    if f"{layer}.weight" in shapes and f"{layer}.bias" not in shapes:
      return False
  return not any(name in shapes for name in _SIGNATURES)


def _pools_plainly(shapes: Shapes, config: Config, arguments: Config) -> bool:
  """Whether the positions and the pooling are the paper's, or a SigLIP's."""
  if "pos_embed" not in shapes or "norm.weight" not in shapes:
    return False
  if any(name.startswith("patch_embed.backbone.") for name in shapes):
    return True  # timm has no other hybrids than the paper's.
  pool = arguments.get("global_pool", config.get("global_pool"))
  return "cls_token" not in shapes or pool not in ("map", "avg")


def _is_papers(shapes: Shapes, config: Config, arguments: Config) -> bool:
  """Whether the layers and the pooling are the paper's, or a SigLIP's."""
  plain = _is_plain(shapes) and _pools_plainly(shapes, config, arguments)
  return plain and not _norms_follow(config)


def _norms_follow(config: Config) -> bool:
  """Whether the norms come after the branches."""
  return _RES_POST_NORM in str(config.get("architecture"))


def _extended_fields(
  shapes: Shapes,
  config: Config,
  arguments: Config,
  eva: Eva | None,
  sides: int,
) -> dict[str, Any]:
  """The fields of a model that the paper's `Vit` cannot express.

  `sides` is the number of parallel parts of a layer. Raises ValueError if
  nothing tells whether norms follow the branches, or a value of the arguments
  is not supported.
  """
  if eva is None:
    _check_place_of_norms(shapes, config)
  fields = _encoder_fields(shapes, config, arguments, eva)
  if _norms_follow(config):
    fields |= {"norm_after": True}
  if sides > 1:
    fields |= {"parallel": sides}
  return fields


def infer(
  shapes: Shapes, config: Config | None = None, patches: Grid | None = None
) -> Architecture:
  """Infers the model that these arrays are the parameters of.

  Args:
    shapes: The shape of each array.
    config: timm's config.json, if there is one.
    patches: The patches of an image along height and width, if a user gives
      them.

  Raises:
    ValueError: if the configuration is of another library or has a value that
      is not supported, if an array that shows a size is missing, or if the
      positions could be of several kinds.
  """
  # For the paper's ViT these find nothing, or are not called: `check_parts`,
  # `first_side`, `units.layers` (a ResNet), `relative.tokens`, `_find_eva`,
  # `_check_padding`, `timm_arguments.check`, `_norms_follow` and
  # `_extended_fields`.
  config = config or {}
  architecture.check_timms(config)
  # Three views of one config.json: `config` is all of it, `arguments` are those
  # of timm's class, and `published` describes the weights and their images.
  arguments = timm_arguments.arguments_of(config)
  published = architecture.section(
    "pretrained_cfg", config.get("pretrained_cfg")
  )
  published = published or config
  timm_shared.check_parts(shapes)
  shapes, sides = timm_shared.first_side(shapes)
  D, _, P, _ = need(shapes, "patch_embed.proj.weight", 4)
  facts = _heads_and_activation(config, arguments, shapes, D)
  size = timm_shared.image_size(arguments, published)
  assert timm_shared.VIT.units
  resnet_layers = timm_shared.VIT.units.layers(shapes)
  stride = P * stem_stride(resnet_layers)
  patches = patches or (size and (size[0] // stride, size[1] // stride))
  num_patches = math.prod(patches) if patches else None
  pictures = timm_shared.preprocessing(published, shapes)
  tokens, position = _positions(shapes, arguments, config, num_patches)
  _check_padding(arguments, size, stride)
  eva = _find_eva(shapes, config)
  timm_arguments.check(_class_initial(shapes, config), arguments)
  if eva is None and sides == 1 and _is_papers(shapes, config, arguments):
    particular = _paper_fields(shapes, config, arguments, resnet_layers)
  else:
    particular = _extended_fields(shapes, config, arguments, eva, sides)
    if arguments.get("dynamic_img_size") or tokens is None:
      pictures = dataclasses.replace(
        pictures, size=timm_shared.image_size({}, published)
      )
  fields: dict[str, Any] = dict(
    num_classes=architecture.length(shapes, "head.bias", 0),
    patch_size=P,
    hidden_size=D,
    num_layers=timm_shared.VIT.stacks[0].count(shapes),
    mlp_size=need(shapes, "blocks.0.mlp.fc2.weight", 2)[1],
    num_heads=checked("num_heads", int | None, facts.num_heads, COUNT),
    representation_size=architecture.length(shapes, "pre_logits.fc.bias", None),
    position=position,
    **particular,
    **facts.activation,
  )
  return Architecture(
    "timm",
    fields,
    tokens,
    image_size=size,
    preprocessing=pictures,
    class_names=timm_shared.class_names(config, published),
    interpolation="bicubic_antialias",
    guessed=frozenset(facts.guessed | timm_shared.guessed_pictures(published)),
  )


def _positions(
  shapes: Shapes, arguments: Config, config: Config, num_patches: int | None
) -> tuple[int | None, str]:
  """The number of patches that the positions are for, and their kind.

  The positions may be stored in a table of relative positions. The number is
  None if there are none. Raises ValueError as `timm_shared.positions` does.
  """
  tokens, position = timm_shared.positions(
    shapes, arguments, config, num_patches
  )
  if tokens is None:
    class_token = "cls_token" in shapes
    tokens = relative.tokens(_table(shapes), shapes, class_token, num_patches)
  return tokens, position


def _find_eva(shapes: Shapes, config: Config) -> Eva | None:
  """The EVA that these arrays belong to; None for others, such as BEiTs."""
  if _AIM in shapes or relative.fields(_table(shapes), shapes):
    return None
  return timm_evas.find(shapes, config)


def _paper_fields(
  shapes: Shapes,
  config: Config,
  arguments: Config,
  resnet_layers: tuple[int, ...],
) -> dict[str, Any]:
  """The pooling, ResNet and epsilon of the paper's model or a SigLIP."""
  if "attn_pool.latent" in shapes:
    fields: dict[str, Any] = dict(pooling=_pooling(config, arguments, "map"))
  else:
    fields = dict(pooling=timm_shared.pooling(shapes, arguments, config))
  if resnet_layers:
    stem = need(shapes, f"{timm_shared.STEM}.weight", 4)
    fields |= dict(resnet_layers=resnet_layers, resnet_width=stem[0])
    fields["resnet_epsilon"] = 1e-8
  norms = timm_arguments.norm(
    shapes, arguments, config.get("architecture"), 1e-6
  )
  return fields | dict(layer_norm_epsilon=norms["layer_norm_epsilon"])


def _pooling(config: Config, arguments: Config, default: str) -> str:
  """The pooling of the configuration, or else the default.

  Raises ValueError for a pooling that is not supported.
  """
  name = config.get("architecture")
  default = timm_arguments.arguments_of_name(name).get("global_pool", default)
  theirs = arguments.get("global_pool", config.get("global_pool")) or default
  return _POOLINGS[checked("global_pool", str, theirs, choices=(*_POOLINGS,))]


def _class_initial(shapes: Shapes, config: Config) -> str:
  """The initial of timm's class, by the architecture's name or the arrays."""
  if initial := timm_arguments.class_of_name(config.get("architecture")):
    return initial
  if relative.fields(table := _table(shapes), shapes):
    return "b" if table is timm_shared.EVA else "r"
  return "e" if any(name in shapes for name in timm_evas.SIGNATURES) else "v"


class _Facts(NamedTuple):
  """Facts that shapes of arrays do not reveal.

  Attributes:
    activation: The fields of the model on its activation.
    guessed: The facts that are guesses.
  """

  num_heads: Any
  activation: dict[str, str]
  guessed: set[str]


def _heads_and_activation(
  config: Config, arguments: Config, shapes: Shapes, width: int
) -> _Facts:
  """The heads and the activation, by the configuration or as guesses.

  The arguments in the configuration come before what `facts_of_name` finds.

  Raises ValueError if an activation is not supported.
  """
  num_heads, gelu, guessed = timm_shared.facts_of_name(
    config.get("architecture"), width
  )
  if "num_heads" in arguments:
    num_heads = arguments["num_heads"]
  name = config.get("architecture")
  if "act_layer" in arguments or timm_arguments.class_of_name(name):
    guessed -= {"gelu"}
  if "norm_layer" in arguments or timm_arguments.class_of_name(name):
    guessed -= {"layer_norm_epsilon"}
  guessed -= arguments.keys()
  gated = timm_evas.is_gated(shapes)
  activation = timm_arguments.activation(arguments, gelu, gated)
  if relative_heads := relative.num_heads(_table(shapes), shapes):
    num_heads = relative_heads
    guessed -= {"num_heads"}
  if _AIM in shapes and not (name or "num_heads" in arguments):
    num_heads = width // _AIM_HEAD_SIZE
  has_silu = "silu" in activation.values()
  if gated and "attn_pool.latent" in shapes and has_silu:
    if _class_initial(shapes, config) != "e":
      raise ValueError(
        "it has attention pooling and gated MLPs, which would share an "
        "activation: this is not supported."
      )
  return _Facts(num_heads, activation, guessed)


def _check_padding(
  arguments: Config, size: tuple[int, int] | None, patch_size: int
) -> None:
  """Raises ValueError if images would be padded with zeros to whole patches."""
  padded = arguments.get("dynamic_img_pad")
  if padded and size and any(side % patch_size for side in size):
    raise ValueError(
      f"its config.json says dynamic_img_pad, and patches of {patch_size} do "
      f"not fill {size[0]} x {size[1]}: padding images with zeros is not "
      "supported."
    )


def _encoder_fields(
  shapes: Shapes,
  config: Config,
  arguments: Config,
  eva: Eva | None,
) -> dict[str, Any]:
  """The fields that only an `ExtendedVit` has, and the pooling.

  Raises ValueError for values of the arguments that are not supported.
  """
  gated = timm_evas.is_gated(shapes)
  class_token = "cls_token" in shapes
  norm_pooled = "fc_norm.weight" in shapes
  if "attn_pool.latent" in shapes:
    default = "map"
  elif norm_pooled or not class_token:
    default = "avg"
  else:
    default = eva.pooling if eva else "token"
  # Arrays of CLIPs, AIMv2 and BEiT-3, whose epsilon is 1e-5.
  coarse = {
    "norm_pre.weight",
    _AIM,
    "blocks.0.attn.norm.weight",
    "blocks.0.mlp.norm.weight",
  } & shapes.keys()
  name = config.get("architecture")
  pooling = _pooling(config, arguments, default)
  all_arguments = {**timm_arguments.arguments_of_name(name), **arguments}
  pool_prefix = all_arguments.get("pool_include_prefix")
  if pool_prefix and pooling != "map":
    raise ValueError(
      "its average is over all tokens (pool_include_prefix): this is not "
      "supported."
    )
  fields: dict[str, Any] = dict(
    kind=ExtendedVit,
    pooling=pooling,
    pool_prefix=bool(pool_prefix),
    antialias=True,
    class_token=class_token,
    registers=shapes.get("reg_token", (1, 0, 0))[1],
    distilled="dist_token" in shapes,
    norm_pre="norm_pre.weight" in shapes,
    norm_pooled=norm_pooled,
    qkv_bias=_projections_with_bias(shapes),
    patch_bias="patch_embed.proj.bias" in shapes,
    qk_norm="blocks.0.attn.q_norm.weight" in shapes,
    gated_mlp=gated,
    branch_bias="blocks.0.attn.proj.bias" in shapes,
    norm_patches=_AIM in shapes,
    norm_final=norm_pooled or "norm.weight" in shapes,
    norm_inner_msa="blocks.0.attn.norm.weight" in shapes,
    norm_inner_mlp="blocks.0.mlp.norm.weight" in shapes,
  )
  epsilon = 1e-5 if coarse else 1e-6
  if eva is not None:
    epsilon = eva.fields.get("layer_norm_epsilon", 1e-6)
  fields |= timm_arguments.norm(shapes, arguments, name, epsilon)
  if {"blocks.0.gamma_1", "blocks.0.ls1.gamma"} & shapes.keys():
    fields["layer_scale"] = 1e-5
  if eva is not None:
    fields |= timm_evas.fields(eva, shapes, config, arguments)
  return fields | _relative_fields(shapes, arguments)


def _relative_fields(shapes: Shapes, arguments: Config) -> dict[str, Any]:
  """The fields of relative positions, {} if there are none.

  Raises ValueError if no model of timm's has them with the other arrays, or if
  they are of a kind that is not supported.
  """
  table = _table(shapes)
  fields = relative.fields(table, shapes)
  if not fields:
    return {}
  kind = arguments.get("rel_pos_type", "mlp")
  checked("rel_pos_type", str, kind, choices=(*_RELATIVE,))
  others = [*_NOT_RELATIVE]
  if table is timm_shared.VIT:
    others.append("pos_embed")
  if absolute := [name for name in others if name in shapes]:
    raise ValueError(
      f"it has relative positions beside {absolute[0]}, which none of timm's "
      "models has."
    )
  return fields


def _check_place_of_norms(shapes: Shapes, config: Config) -> None:
  """Raises ValueError if nothing tells whether layer norms follow the branches.

  Norms that follow a branch have arrays of the same names and shapes as norms
  that precede it. None of timm's post-norm models outside its class Eva has one
  of the arrays that are looked for here; if a file has none of them, `config`
  has to name the architecture.
  """
  if {"cls_token", "reg_token", "blocks.0.ls1.gamma"} & shapes.keys():
    return
  if _AIM in shapes:
    return
  timm_evas.check_place_of_norms(config.get("architecture"))


def _projections_with_bias(shapes: Shapes) -> str:
  """The initials of query, key and value whose projections have a bias."""
  if "blocks.0.attn.qkv.bias" in shapes:
    return "qkv"
  query_biases = {"blocks.0.attn.q_bias", "blocks.0.attn.q_proj.bias"}
  return "qv" if query_biases & shapes.keys() else ""


def rules(vit: Any, shapes: Shapes | None = None) -> list[Rule]:
  """The rules for all arrays of a checkpoint to read, or of one to write.

  There is one for each row of the table whose parameters the model has, and for
  each of the parts that a layer has in parallel. `vit` is the model that
  `infer` describes.
  """
  fc = "fc_" if getattr(vit, "norm_pooled", False) else ""
  all_rules = [
    dataclasses.replace(
      rule, theirs=re.sub(r"^norm\.", f"{fc}norm.", rule.theirs)
    )
    for rule in _table_for(vit, shapes).rules(vit)
  ]
  if (sides := getattr(vit, "parallel", 1)) > 1:
    all_rules = timm_shared.repeat_on_sides(all_rules, sides)
  rope = getattr(vit, "rope_theta", None)
  rotates_pairs = rope and (vit.rope_side or vit.rope_kind != "axial")
  return [*map(_to_halves, all_rules)] if rotates_pairs else all_rules


def _table_for(vit: Any, shapes: Shapes | None) -> Table:
  """The table of the names of the arrays to read, or of those to write."""
  if shapes and relative.fields(table := _table(shapes), shapes):
    return table
  if vit.relative:
    return timm_shared.EVA if _is_beit(vit) else timm_shared.VIT
  if vit.norm_patches:  # AIMv2's names are an EVA's.
    return timm_shared.EVA
  return timm_evas.table_of(vit) if vit.extended else timm_shared.VIT


def _is_beit(vit: Any) -> bool:
  """Whether a model with relative positions is a BEiT; others are relpos."""
  return vit.relative == "table" and vit.qkv_bias == "qv"


def _to_halves(rule: Rule) -> Rule:
  """The rule with the numbers of each head in our order.

  timm rotates pairs of neighbours in a head, and we rotate its first half with
  its second. Values are reordered as queries and keys are, and so are the rows
  of `out` that read them: the result is the same. The heads of attention
  pooling are not rotated, and stay as they are.
  """
  if within(rule.ours[0], "map_head"):
    return rule
  left, right = rule.pattern.split("->")
  left = left.replace("k d", "k e m")
  right = right.replace("k d", "k (m e)")
  return dataclasses.replace(rule, pattern=f"{left}->{right}")


def is_encoder(vit: Any) -> bool:
  """Whether a model has other parts than the paper's ViTs.

  That is so for extended models, for hybrids that add positions to their input,
  and for SigLIPs, which have a MAP head.
  """
  if vit.resnet_layers:
    return vit.position != "relative" and vit.position_at == "input"
  return vit.extended or (vit.position == "learned" and vit.pooling == "map")


def equivalent(vit: Any) -> Any:
  """The model to write instead of `vit`; it gives the same answers."""
  if not vit.extended:
    is_native = vit.position in ("learned", "learned_grid")
    return vit if is_native else vit.clone(position="learned")
  if vit.registers and vit.position == "learned" and not vit.distilled:
    vit = vit.clone(position="learned_grid")  # Registers have no position.
  if vit.relative and vit.position == "learned_grid":
    vit = vit.clone(position="learned")
  width = vit.representation_size
  if width and vit.projection and not vit.num_classes:
    # timm has the projection as a head.
    vit = vit.clone(
      num_classes=width, projection=False, representation_size=None
    )
  return timm_evas.equivalent(vit)


def reasons(vit: Any) -> list[str]:
  """Why timm cannot express a model; [] if it can."""
  one_layer = equivalent(vit).clone(num_layers=1)
  if one_layer.representation_size is not None:
    return ["it has a representation layer (pre_logits), and timm has none"]
  written = rules(one_layer)
  if vit.pooling not in _POOLINGS.values():
    return [_UNPOOLED[vit.pooling]]
  if lost := unmapped(one_layer, written):
    return [f"timm has no place for {', '.join(lost[:3])}"]
  shapes, sides = timm_shared.first_side(shapes_of(one_layer, written))
  looks_plain = sides == 1 and _is_plain(shapes)
  looks_plain = looks_plain and vit.extended and not vit.norm_after
  is_rms = vit.norm_kind == "rms"
  # AIMv2 has all of these parts, and timm's other models have none of them.
  aim_parts = (
    vit.norm_patches,
    not getattr(vit, "branch_bias", True),
    is_rms and getattr(vit, "gated_mlp", False),
  )
  is_mixed = any(aim_parts) and not all(aim_parts)
  is_mixed = is_mixed or (vit.extended and _is_mixed(one_layer))
  if looks_plain or is_mixed or (vit.registers and vit.distilled):
    return ["none of timm's models has these parts together"]
  try:
    named = shapes_of(one_layer, written)
    return [*changes(one_layer, infer(named, _config(one_layer)).fields)]
  except ValueError as error:
    return [str(error).removesuffix(".")]


def _is_mixed(vit: Any) -> bool:
  """Whether none of timm's models combines these norms and other parts."""
  inner = vit.norm_inner_msa or vit.norm_inner_mlp
  if vit.relative and (vit.parallel > 1 or not vit.norm_final):
    return True
  if timm_evas.closest(vit) is not timm_evas.VIT:
    return vit.parallel > 1
  others = [vit.gated_mlp, vit.distilled, vit.norm_patches]
  others.append(vit.norm_kind == "rms")
  if vit.parallel > 1:
    return vit.parallel > 2 or inner or vit.norm_after or any(others)
  if vit.norm_after:
    return inner or vit.norm_pre or any(others)
  return inner and (any(others) or bool(vit.relative))


def not_kept(vit: Any) -> Iterator[str]:
  """Lines on what the format does not keep."""
  if equivalent(vit).num_classes != vit.num_classes:
    yield "timm keeps the projection as a head, with a bias of zeros"
  has_table = getattr(vit, "position_grid", None)
  if has_table and vit.position_resize != "bicubic":
    yield (
      "timm resizes positions by another rule, so pictures of another size "
      "than the one they were learned for get other positions: give the size "
      "of your pictures to timm's img_size"
    )
  elif has_table and not vit.antialias:
    yield (
      "timm smooths positions that it shrinks, so pictures smaller than the "
      "size they were learned for get other positions, and probabilities may "
      "differ by some points; --to hf keeps the positions"
    )


def files(vit: Any, preprocessing: Preprocessing, _: Any) -> dict[str, Any]:
  """The JSON file that timm reads beside the weights; it records no loss."""
  config = _config(vit) | timm_shared.pictures_json(vit, preprocessing)
  return {"config.json": config}


def _config(vit: Any) -> dict[str, Any]:
  """The part of config.json that makes the model."""
  if vit.extended:
    name, arguments = _encoder_arguments(vit)
  elif vit.pooling == "map":
    name, arguments = "vit_base_patch16_siglip_224", {}
  else:
    name = _paper_name(vit)
    arguments = {"no_embed_class": vit.position == "learned_grid"}
    if vit.pooling == "gap":
      arguments |= {"class_token": False, "fc_norm": False}
  config = timm_shared.configuration(vit, name, arguments)
  arguments = config["model_args"]
  table = timm_arguments.ARGUMENTS[timm_arguments.class_of_name(name) or "v"]
  if "act_layer" not in table:  # An Eva's and a Beit's activation is fixed.
    del arguments["act_layer"]
  epsilon = timm_arguments.arguments_of_name(name).get("epsilon", 1e-6)
  if epsilon != vit.layer_norm_epsilon and "norm_layer" in table:
    rms = getattr(vit, "norm_kind", "layer") == "rms"
    arguments["norm_layer"] = "rmsnorm" if rms else "layernorm"
  return config


def _paper_name(vit: Any) -> str:
  """The name of timm's architecture of a model of the paper.

  Raises ValueError if timm has no architecture with the model's ResNet.
  """
  layers = tuple(vit.resnet_layers)
  if not layers:
    return "vit_base_patch16_224"
  if layers not in timm_shared.HYBRIDS or vit.resnet_width != 64:
    hybrids = ", ".join(
      "-".join(map(str, stem)) for stem in timm_shared.HYBRIDS
    )
    raise ValueError(
      f"its ResNet has {'-'.join(map(str, layers))} units of width "
      f"{vit.resnet_width}, and timm's hybrids have {hybrids} of width 64"
    )
  return timm_shared.HYBRIDS[layers]


def _encoder_arguments(vit: Any) -> tuple[str, dict[str, Any]]:
  """The name of a similar architecture of timm's, and arguments to change."""
  if vit.relative:
    return _relative_arguments(vit)
  size = architecture.table_size(vit) or (0, 0)
  # With dynamic_img_size, timm refuses sizes that patches do not fill.
  filled = all(side % vit.patch_size == 0 for side in size)
  if timm_evas.closest(vit) is not timm_evas.VIT:
    name, arguments = timm_evas.arguments_of(vit)
    return name, arguments | {"dynamic_img_size": filled}
  arguments: dict[str, Any] = {"qkv_bias": bool(vit.qkv_bias)}
  arguments |= {"init_values": vit.layer_scale, "dynamic_img_size": filled}
  arguments["class_token"] = vit.class_token
  arguments |= {"no_embed_class": vit.position == "learned_grid"}
  arguments["reg_tokens"] = vit.registers
  if vit.pooling == "map":
    arguments["pool_include_prefix"] = vit.pool_prefix
  arguments |= {"pre_norm": vit.norm_pre, "fc_norm": vit.norm_pooled}
  arguments["qk_norm"] = vit.qk_norm
  arguments["final_norm"] = vit.norm_final
  if vit.norm_after:
    return "vit_base_patch16_rpn_224", arguments
  if vit.parallel > 1:
    return "vit_small_patch16_18x2_224", arguments
  if vit.norm_inner_msa or vit.norm_inner_mlp:
    arguments["scale_attn_norm"] = vit.norm_inner_msa
    arguments["scale_mlp_norm"] = vit.norm_inner_mlp
    return "beit3_base_patch16_224", arguments
  if vit.norm_patches:
    return "aimv2_large_patch14_224", arguments
  if vit.norm_kind == "rms":
    arguments["norm_layer"] = "rmsnorm"
  if vit.gated_mlp:  # Gate and expansion are one layer.
    arguments["mlp_ratio"] = (2 * vit.mlp_size + 0.5) / vit.hidden_size
  if vit.distilled:
    return "deit_small_distilled_patch16_224", arguments
  if vit.norm_pre:  # CLIP's layer norms have an epsilon of 1e-5.
    return "vit_base_patch16_clip_224", arguments
  size = "giant" if vit.gated_mlp else "small"
  return f"vit_{size}_patch14_dinov2", arguments


def _relative_arguments(vit: Any) -> tuple[str, dict[str, Any]]:
  """As `_encoder_arguments`, for models with relative positions."""
  shared = vit.relative_shared
  both = {"qkv_bias": bool(vit.qkv_bias), "init_values": vit.layer_scale}
  if _is_beit(vit):
    return "beit_base_patch16_224", both | {
      "use_abs_pos_emb": vit.position != "none",
      "use_rel_pos_bias": not shared,
      "use_shared_rel_pos_bias": shared,
      "use_fc_norm": vit.norm_pooled,
      "swiglu_mlp": vit.gated_mlp,
    }
  names = {ours: theirs for theirs, ours in _RELATIVE.items()}
  base = "vit_relpos_base_patch16"
  return f"{base}{'_rpn' if vit.norm_after else ''}_224", both | {
    "rel_pos_type": names[vit.relative],
    "rel_pos_dim": vit.relative_hidden,
    "shared_rel_pos": shared,
    "class_token": vit.class_token,
    "fc_norm": vit.norm_pooled,
    "qk_norm": vit.qk_norm,
  }
