"""The names of timm's arrays: those of its ViTs, and those of its DINOv3."""

from vit_jax.pretrained.formats import table
from vit_jax.pretrained.formats.mapping import Rule
from vit_jax.pretrained.formats.table import Table, dense, layer_norm, rows

_PROBE = "map_head/msa"
_HEADS = rows(dense("head.", "head"), dense("head_dist.", "head_dist"))
_BASE = rows(
  table.patches("patch_embed.proj."),
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
  table.fused(
    "attn_pool.kv.weight", "attn_pool.kv.bias", _PROBE, ("key", "value")
  ),
  table.heads_out("attn_pool.proj.", f"{_PROBE}/out"),
  layer_norm("attn_pool.norm.", "map_head/norm"),
  *table.mlp("attn_pool.mlp.fc1.", "attn_pool.mlp.fc2.", ours="map_head/mlp"),
)
_MLP = table.mlp("mlp.fc1.", "mlp.fc2.")
_WEIGHT, _BIAS = table.fused("attn.qkv.weight", "attn.qkv.bias")
_LAYER = rows(
  layer_norm("norm1.", "norm_msa"),
  layer_norm("norm2.", "norm_mlp"),
  _WEIGHT,
  table.heads_out("attn.proj."),
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
  gated_mlp=rows(
    table.fused_gate("mlp.fc1."), dense("mlp.fc2.", "mlp/contract")
  ),
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
  gated_mlp=table.mlp("mlp.fc1_x.", "mlp.fc2.", gate="mlp.fc1_g."),
)
