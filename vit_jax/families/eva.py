"""EVA (arXiv:2211.07636)."""

from vit_jax.families.family import GAMMA, Q_BIAS, Eva, Timm

FIELDS = dict(
  gelu="exact",
  qkv_bias="qv",
  pooling="gap",
  norm_pooled=True,
)
TIMM = Timm(
  classes={r"eva_giant_": "e", r"eva_large_": "v"},
  evas=(
    Eva(
      architecture="eva_giant_patch14_224",
      table="timm_eva",
      has=(Q_BIAS,),
      lacks=(GAMMA,),
      fields=dict(rope_theta=None, norm_inner_msa=False, layer_scale=None),
      gated=False,
    ),
  ),
)
