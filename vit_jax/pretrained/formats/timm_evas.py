"""timm's class `Eva` as rows: EVA, EVA-02, DINOv3, RoPE-ViT and PE.

The names of arrays select a row of `vit_jax.families`. The row has the facts
that are only in timm's code, such as the kind of rotary positions.
"""

from typing import Any

from vit_jax import families
from vit_jax.families.family import APART, FREQS, GAMMA, Q_BIAS, Eva
from vit_jax.pretrained.formats import architecture, timm_arguments, timm_shared
from vit_jax.pretrained.formats.architecture import need
from vit_jax.pretrained.formats.mapping import Shapes
from vit_jax.pretrained.formats.table import Config, Table
from vit_jax.runtime.checks import COUNT, checked
from vit_jax.runtime.printable import quoted

# Arrays that timm's other classes do not have.
SIGNATURES = (GAMMA, FREQS, APART, Q_BIAS, "blocks.0.mlp.fc1_g.weight")
_PE = "vit_pe_"
# timm's other classes, which `find` never returns.
VIT = Eva(
  architecture="",
  table="timm",
  has=(),
  lacks=(),
  fields=dict(rope_theta=None),
  biases=("qkv", ""),
)
ROWS = tuple(row for x in families.records("TIMM") for row in x.evas)


def _fits(row: Eva, shapes: Shapes, gated: bool, name: str) -> bool:
  """Whether the arrays are of a row's architectures."""
  return (
    all(array in shapes for array in row.has)
    and not any(array in shapes for array in row.lacks)
    and row.gated in (None, gated)
    and name.startswith(row.named)
  )


def _differs(row: Eva, vit: Any) -> tuple[bool, int]:
  """How a row differs from a model.

  The first value is whether only one of the two has rotary positions, and the
  second how many fields differ.
  """
  is_rotary = row.fields["rope_theta"] is not None
  differences = [
    getattr(vit, name) != value for name, value in row.fields.items()
  ]
  differences.append(vit.qkv_bias not in row.biases)
  differences.append(row.gated not in (None, vit.gated_mlp))
  return is_rotary != bool(vit.rope_theta), sum(differences)


def table_of(vit: Any) -> Table:
  """The table of the names under which a model's arrays are written."""
  row = closest(vit)
  return timm_shared.VIT if row is VIT else timm_shared.table(row.table)


def is_gated(shapes: Shapes) -> bool:
  """Whether MLPs are gated: by two layers, or by one of twice the width.

  Raises ValueError if an array of the first MLP is missing or has other axes.
  """
  if "blocks.0.mlp.fc1_g.weight" in shapes:
    return True
  expanded = need(shapes, "blocks.0.mlp.fc1.weight", 2)[0]
  return expanded == 2 * need(shapes, "blocks.0.mlp.fc2.weight", 2)[1]


def find(shapes: Shapes, config: Config) -> Eva | None:
  """The row of these arrays; None if they are not of timm's class `Eva`.

  Raises ValueError if they are of the class and fit no row, if heads share keys
  and values, or if only the architecture's name could select the row, and there
  is none.
  """
  name = str(config.get("architecture") or "")
  if "sapiens2" in name:
    raise ValueError(
      f"its config.json says architecture={quoted(name)}: Sapiens2, whose "
      "heads share keys and values, is not supported."
    )
  has_signature = any(array in shapes for array in SIGNATURES)
  if not has_signature and timm_arguments.class_of_name(name) != "e":
    if _may_be_pe(shapes) and not name:
      raise ValueError(
        "it may be a Perception Encoder, and no config.json beside it names "
        "its architecture, which tells its rotary positions: add that file."
      )
    return None
  _check_heads(shapes)
  gated = is_gated(shapes)
  rows = [row for row in ROWS if _fits(row, shapes, gated, name)]
  if not rows:
    raise ValueError(
      "no supported EVA, DINOv3, RoPE-ViT or PE of timm's has all of its "
      "arrays."
    )
  if rows[0].architecture.startswith("eva_giant"):
    check_place_of_norms(name)
  return rows[0]


def closest(vit: Any) -> Eva:
  """The row that differs least from a model; `VIT` for timm's other classes."""
  if vit.relative or vit.norm_patches:
    return VIT
  return min([VIT, *ROWS], key=lambda row: _differs(row, vit))


def fields(
  row: Eva, shapes: Shapes, config: Config, arguments: Config
) -> dict[str, Any]:
  """The fields of the model that timm's other classes do not have.

  Raises ValueError if an argument contradicts the arrays of such models.
  """
  read_elsewhere = ("position", "layer_norm_epsilon", "class_token")
  values = {k: v for k, v in row.fields.items() if k not in read_elsewhere}
  name = config.get("architecture")
  if not timm_arguments.class_of_name(name):
    name = row.architecture
  arguments = {**timm_arguments.arguments_of_name(name), **arguments}
  rotary = timm_arguments.rotary(arguments)
  if (rotary["rope_theta"] is None) != (row.fields["rope_theta"] is None):
    is_rotary = rotary["rope_theta"] is not None
    raise timm_arguments.refusal(
      "use_rot_pos_emb", is_rotary, "models with such arrays have another value"
    )
  values |= rotary
  norm_after = arguments.get("use_post_norm", False)
  values["norm_after"] = checked("use_post_norm", bool, norm_after)
  if "attn_pool.latent" in shapes:
    num_heads = arguments.get("attn_pool_num_heads")
    num_heads = checked("attn_pool_num_heads", int | None, num_heads, COUNT)
    size = architecture.length(shapes, "attn_pool.mlp.fc1.bias", None)
    values |= dict(pool_heads=num_heads, pool_mlp_size=size, pool_prefix=True)
  else:
    values["pool_prefix"] = False
  return values


def equivalent(vit: Any) -> Any:
  """The model to write instead of `vit`; it gives the same answers."""
  row = closest(vit)
  if row is VIT:
    return vit
  if vit.pooling == "map":
    return vit.clone(
      pool_heads=vit.pool_heads or vit.num_heads,
      pool_mlp_size=vit.pool_mlp_size or vit.mlp_size,
      pool_prefix=vit.pool_prefix or not vit.prefix,
    )
  return vit.clone(pool_heads=None, pool_mlp_size=None, pool_prefix=False)


def arguments_of(vit: Any) -> tuple[str, dict[str, Any]]:
  """The name of a similar architecture, and the arguments to change."""
  row = closest(vit)
  name = row.architecture
  if row.named == _PE:
    name = "vit_pe_core_base_patch16_224"
    if not vit.class_token:
      name = "vit_pe_core_gigantic_patch14_448"
  arguments: dict[str, Any] = {
    "qkv_bias": bool(vit.qkv_bias),
    "init_values": vit.layer_scale,
    "class_token": vit.class_token,
    "num_reg_tokens": vit.registers,
    "use_abs_pos_emb": vit.position != "none",
    "no_embed_class": vit.position == "learned_grid",
    "swiglu_mlp": vit.gated_mlp,
    # Whether gate and expansion are two layers.
    "swiglu_align_to": int(row.table == timm_shared.EVA.name),
    "use_post_norm": vit.norm_after,
    "scale_mlp": vit.norm_inner_mlp,
    "scale_attn_inner": vit.norm_inner_msa,
    "use_pre_transformer_norm": vit.norm_pre,
    "use_fc_norm": vit.norm_pooled,
    "use_post_transformer_norm": vit.norm_final and not vit.norm_pooled,
  }
  if vit.rope_side:
    arguments["ref_feat_shape"] = [vit.rope_side, vit.rope_side]
  if vit.pooling == "map":
    arguments["attn_pool_num_heads"] = vit.pool_heads
    arguments["attn_pool_mlp_ratio"] = (
      vit.pool_mlp_size + 0.5
    ) / vit.hidden_size
  return name, arguments


def _may_be_pe(shapes: Shapes) -> bool:
  """Whether the arrays may be those of a Perception Encoder.

  A CLIP's arrays have the same names, but a CLIP has a last norm and no
  attention pooling. A Perception Encoder has the pooling, or no last norm.
  """
  has_last_norm = {"norm.weight", "fc_norm.weight"} & shapes.keys()
  has_pooling = "attn_pool.latent" in shapes
  return "norm_pre.weight" in shapes and (has_pooling or not has_last_norm)


def _check_heads(shapes: Shapes) -> None:
  """Raises ValueError if heads share keys and values, in any layer."""
  for name, shape in shapes.items():
    queries = shapes.get(name.replace(".k_proj.", ".q_proj."), shape)
    if name.endswith(".attn.k_proj.weight") and shape != queries:
      raise ValueError(
        "its heads share keys and values (grouped-query attention, as "
        "Sapiens2's do): this is not supported."
      )


def check_place_of_norms(name: str | None) -> None:
  """Raises ValueError if no architecture is named.

  Nothing else says whether norms come before or after the branches.
  """
  if not name:
    raise ValueError(
      "its layers may be pre-norm or post-norm, and no config.json beside it "
      "names its architecture: add that file."
    )
