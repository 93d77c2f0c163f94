"""The names of timm's arrays: those of its ViTs, and those of its DINOv3."""

from vit_jax.pretrained.formats.mapping import Rule
from vit_jax.pretrained.formats.table import (
  Table,
  dense,
  fused,
  fused_gate,
  heads_out,
  layer_norm,
  patches,
  rows,
)

_PROBE = "map_head/msa"
_HEADS = rows(dense("head.", "head"), dense("head_dist.", "head_dist"))
_BASE = rows(
  patches("patch_embed.proj."),
  Rule("cls_token", ("x_class",), "1 1 D -> D"),
  Rule("dist_token", ("x_dist",), "1 1 D -> D"),
  Rule("reg_token", ("registers",), "1 R D -> R D"),
  Rule("pos_embed", ("position/E_pos",), "1 S D -> S D"),
  layer_norm("norm_pre.", "norm_pre"),
  layer_norm("norm.", "norm"),
  dense("pre_logits.fc.", "pre_logits"),
  Rule("attn_pool.latent", ("map_head/probe",), "1 T D -> T D"),
  Rule("attn_pool.q.weight", (f"{_PROBE}/query/kernel",), "(k d) D -> D k d"),
  Rule("attn_pool.q.bias", (f"{_PROBE}/query/bias",), "(k d) -> k d"),
  Rule(
    "attn_pool.kv.weight",
    (f"{_PROBE}/key/kernel", f"{_PROBE}/value/kernel"),
    "(m k d) D -> m D k d",
  ),
  Rule(
    "attn_pool.kv.bias",
    (f"{_PROBE}/key/bias", f"{_PROBE}/value/bias"),
    "(m k d) -> m k d",
  ),
  heads_out("attn_pool.proj.", f"{_PROBE}/out"),
  layer_norm("attn_pool.norm.", "map_head/norm"),
  dense("attn_pool.mlp.fc1.", "map_head/mlp/expand"),
  dense("attn_pool.mlp.fc2.", "map_head/mlp/contract"),
)
_MLP = rows(dense("mlp.fc1.", "mlp/expand"), dense("mlp.fc2.", "mlp/contract"))
_WEIGHT, _BIAS = fused("attn.qkv.weight", "attn.qkv.bias")
_LAYER = rows(
  layer_norm("norm1.", "norm_msa"),
  layer_norm("norm2.", "norm_mlp"),
  _WEIGHT,
  heads_out("attn.proj."),
)
VIT = Table(
  root=_HEADS,
  base=_BASE,
  layers="blocks.{}.",
  layer=rows(
    *_LAYER,
    _BIAS,
    layer_norm("attn.q_norm.", "msa/norm_query"),
    layer_norm("attn.k_norm.", "msa/norm_key"),
    Rule("ls1.gamma", ("scale_msa",)),
    Rule("ls2.gamma", ("scale_mlp",)),
  ),
  mlp=_MLP,
  gated_mlp=rows(fused_gate("mlp.fc1."), dense("mlp.fc2.", "mlp/contract")),
)
DINOV3 = Table(
  root=_HEADS,
  base=_BASE,
  layers="blocks.{}.",
  layer=rows(
    *_LAYER,
    Rule("attn.q_bias", ("msa/query/bias",), "(k d) -> k d"),
    Rule("attn.v_bias", ("msa/value/bias",), "(k d) -> k d"),
    Rule("gamma_1", ("scale_msa",)),
    Rule("gamma_2", ("scale_mlp",)),
  ),
  mlp=_MLP,
  gated_mlp=rows(
    dense("mlp.fc1_g.", "mlp/gate"),
    dense("mlp.fc1_x.", "mlp/expand"),
    dense("mlp.fc2.", "mlp/contract"),
  ),
)
