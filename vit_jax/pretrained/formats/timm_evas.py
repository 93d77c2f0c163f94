"""timm's class `Eva` as rows: EVA, EVA-02, DINOv3, RoPE-ViT and PE.

The arrays tell a row, and the row what only the code of its architectures
tells, such as the kind of their rotary positions.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from vit_jax.pretrained.formats import architecture, timm, timm_arguments
from vit_jax.pretrained.formats.architecture import need
from vit_jax.pretrained.formats.mapping import Shapes
from vit_jax.pretrained.formats.table import Config, Table
from vit_jax.runtime.checks import COUNT, checked
from vit_jax.runtime.printable import quoted

_GAMMA, _FREQS = "blocks.0.gamma_1", "rope.freqs"
_FUSED, _APART = "blocks.0.attn.qkv.bias", "blocks.0.attn.q_proj.weight"
_Q_BIAS = "blocks.0.attn.q_bias"
# Arrays that timm's other classes do not have.
SIGNATURES = (_GAMMA, _FREQS, _APART, _Q_BIAS, "blocks.0.mlp.fc1_g.weight")
# Names of architectures of the class, as of timm 1.0.31.
_NAMES = re.compile(
  r"eva02_|eva_giant_|vit_pe_|vit_\w+_rope_|vit_\w+_(dinov3|lingbot|sapiens2)"
)
_PE = "vit_pe_"


@dataclasses.dataclass(frozen=True)
class Eva:
  """Some architectures of the class.

  Attributes:
    architecture: One of them.
    table: The names of their arrays.
    has: Arrays that they have.
    lacks: Arrays that they do not have.
    fields: Fields of the model that its arrays do not tell, or that tell these
      architectures from others when a model is written.
    biases: Values that `qkv_bias` may have.
    gated: Whether their MLPs are gated; None: either.
    named: Beginning of their names, if the arrays could be of others.
    pooling: timm's default, beside a class token that no norm follows.
  """

  architecture: str
  table: Table
  has: tuple[str, ...]
  lacks: tuple[str, ...]
  fields: Mapping[str, Any]
  biases: tuple[str, ...] = ("qv",)
  gated: bool | None = None
  named: str = ""
  pooling: str = "token"

  def fits(self, shapes: Shapes, gated: bool, name: str) -> bool:
    """Whether the arrays are of these architectures."""
    return (
      all(array in shapes for array in self.has)
      and not any(array in shapes for array in self.lacks)
      and self.gated in (None, gated)
      and name.startswith(self.named)
    )

  def differs(self, vit: Any) -> tuple[bool, int]:
    """Whether rotary positions, and how many fields, differ from a model's."""
    turned = self.fields["rope_theta"] is not None
    others = [getattr(vit, k) != value for k, value in self.fields.items()]
    others.append(vit.qkv_bias not in self.biases)
    others.append(self.gated not in (None, vit.gated_mlp))
    return turned != bool(vit.rope_theta), sum(others)


_EVA02 = dict(rope_theta=10_000.0, rope_side=16, class_token=True)
# timm's other classes, which `find` never returns.
VIT = Eva("", timm.VIT, (), (), dict(rope_theta=None), ("qkv", ""))
ROWS = (
  Eva(
    _PE,
    timm.ROPE,
    ("norm_pre.weight", _FUSED),
    (_FREQS,),
    dict(
      rope_theta=10_000.0,
      rope_x_first=True,
      norm_pre=True,
      layer_norm_epsilon=1e-5,
    ),
    ("qkv",),
    named=_PE,
    pooling="avg",
  ),
  Eva(
    "vit_small_patch16_rope_mixed_224",
    timm.ROPE,
    (_FREQS, _FUSED),
    (),
    dict(rope_kind="mixed", rope_theta=10.0),
    ("qkv",),
  ),
  Eva(
    "vit_small_patch16_rope_224",
    timm.ROPE,
    (_GAMMA, _FUSED),
    ("norm_pre.weight",),
    dict(rope_kind="counted", rope_theta=100.0, rope_x_first=True),
    ("qkv",),
  ),
  Eva(
    "vit_small_plus_patch16_dinov3",
    timm.EVA,
    (_GAMMA, "cls_token"),
    (_FUSED, _APART, "pos_embed"),
    dict(
      rope_theta=100.0,
      rope_side=None,
      rope_kind="axial",
      position="none",
      class_token=True,
      layer_norm_epsilon=1e-5,
    ),
    ("qv", ""),
    pooling="avg",
  ),
  Eva(
    "vit_betwixt_patch16_rope_reg4_gap_256",
    timm.EVA,
    (_GAMMA,),
    (_FUSED, _APART, "pos_embed", "cls_token"),
    dict(rope_theta=10_000.0, rope_side=16, position="none", class_token=False),
    ("qv", ""),
  ),
  Eva(
    "eva02_base_patch14_224",
    timm.EVA02,
    (_APART, "blocks.0.mlp.norm.weight"),
    (_GAMMA,),
    dict(_EVA02, norm_inner_mlp=True),
    ("qv", ""),
    gated=True,
  ),
  Eva(
    "eva02_tiny_patch14_224",
    timm.EVA02_TINY,
    (_Q_BIAS,),
    (_GAMMA,),
    dict(_EVA02, norm_inner_mlp=False),
    gated=True,
  ),
  Eva(
    "eva_giant_patch14_224",
    timm.EVA,
    (_Q_BIAS,),
    (_GAMMA,),
    dict(rope_theta=None, norm_inner_msa=False, layer_scale=None),
    gated=False,
  ),
)


def is_gated(shapes: Shapes) -> bool:
  """Whether gate and expansion are two layers, or one of twice the width."""
  if "blocks.0.mlp.fc1_g.weight" in shapes:
    return True
  expanded = need(shapes, "blocks.0.mlp.fc1.weight", 2)[0]
  return expanded == 2 * need(shapes, "blocks.0.mlp.fc2.weight", 2)[1]


def find(shapes: Shapes, config: Config) -> Eva | None:
  """The row of these arrays; None if they are not of the class.

  Raises ValueError if they are of the class but of no row, or if they do not
  tell which row it is and there is no name.
  """
  name = str(config.get("architecture") or "")
  if "sapiens2" in name:
    raise ValueError(
      f"its config.json says architecture={quoted(name)}: Sapiens2, whose "
      "heads share keys and values, is not supported."
    )
  eva = _NAMES.match(name) or any(array in shapes for array in SIGNATURES)
  if not eva:
    if _may_be_pe(shapes) and not name:
      raise ValueError(
        "it may be a Perception Encoder, and no config.json beside it names "
        "its architecture, which tells its rotary positions: add it."
      )
    return None
  _check_heads(shapes)
  gated = is_gated(shapes)
  rows = [row for row in ROWS if row.fits(shapes, gated, name)]
  if not rows:
    raise ValueError(
      "no supported EVA, DINOv3, RoPE-ViT or PE of timm's has all of its "
      "arrays."
    )
  if rows[0].architecture.startswith("eva_giant"):
    _check_place_of_norms(name)
  return rows[0]


def closest(vit: Any) -> Eva:
  """The row that differs least from a model; `VIT` for timm's other classes."""
  if vit.relative or vit.norm_patches:
    return VIT
  return min([VIT, *ROWS], key=lambda row: row.differs(vit))


def fields(
  row: Eva, shapes: Shapes, config: Config, arguments: Config
) -> dict[str, Any]:
  """The fields of the model, apart from those that all of timm's have."""
  told = ("position", "layer_norm_epsilon", "class_token")
  values = {k: v for k, v in row.fields.items() if k not in told}
  name = config.get("architecture")
  arguments = {
    **timm_arguments.own(
      name if timm_arguments.known(name) else row.architecture
    ),
    **arguments,
  }
  rotary = timm_arguments.rotary(arguments)
  if (rotary["rope_theta"] is None) != (row.fields["rope_theta"] is None):
    turned = rotary["rope_theta"] is not None
    raise timm_arguments.refusal(
      "use_rot_pos_emb", turned, "models with such arrays have another value"
    )
  values |= rotary
  follows = arguments.get("use_post_norm", False)
  values["norm_after"] = checked("use_post_norm", bool, follows)
  if "attn_pool.latent" in shapes:
    num_heads = arguments.get("attn_pool_num_heads")
    num_heads = checked("attn_pool_num_heads", int | None, num_heads, COUNT)
    size = architecture.length(shapes, "attn_pool.mlp.fc1.bias", None)
    values |= dict(pool_heads=num_heads, pool_mlp_size=size, pool_prefix=True)
  else:
    values["pool_prefix"] = False
  return values


def equivalent(vit: Any) -> Any:
  """The model to write in place of one, with the same answers."""
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
  """The name of a similar architecture, and what differs from it."""
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
    "swiglu_align_to": int(row.table is timm.EVA),
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
  """Whether CLIPs, whose names these are, do not have them together."""
  normed = {"norm.weight", "fc_norm.weight"} & shapes.keys()
  pooled = "attn_pool.latent" in shapes
  return "norm_pre.weight" in shapes and (pooled or not normed)


def _check_heads(shapes: Shapes) -> None:
  """Raises ValueError if heads share keys and values, in any layer."""
  for name, shape in shapes.items():
    queries = shapes.get(name.replace(".k_proj.", ".q_proj."), shape)
    if name.endswith(".attn.k_proj.weight") and shape != queries:
      raise ValueError(
        "its heads share keys and values (grouped-query attention, as "
        "Sapiens2's do): this is not supported."
      )


def _check_place_of_norms(name: str) -> None:
  if not name:
    raise ValueError(
      "its layer norms may precede the branches or follow them, and no "
      "config.json beside it names its architecture: add it."
    )
