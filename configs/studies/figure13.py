"""Compares axial with global attention, as Figure 13 does (App. D.6).

vit_jax study configs/studies/figure13.py \
  --workdir gs://my-bucket/figure13 \
  --set=data.name=imagenet21k --set=data.data_dir=gs://my-bucket/my_data \
  --set=fewshot.data.data_dir=gs://my-bucket/tensorflow_datasets

All rows average the patches, as an axial model has no class token. The paper's
data are JFT-300M, and its figure has no numbers in the text; AxialResNet is not
built. Our points are 5-shot accuracy on ImageNet. We have not run these rows.
"""

from vit_jax.config import load_config

ROWS = {
  f"{attention}_B{patch_size}": dict(attention=attention, patch_size=patch_size)
  for attention in ("global", "axial")
  for patch_size in (32, 16)
}
FIGURES = {
  "figure13": dict(x="patch_size", y="fewshot/top1", lines="attention")
}


def get_config(row: str):
  c = load_config("pretrain:B/16,jft300m")
  axial = "Axial-" if ROWS[row]["attention"] == "axial" else ""
  c.model.update(variant=f"{axial}B/{ROWS[row]['patch_size']}", pooling="gap")
  c.fewshot.shots = 5
  c.fewshot.data.update(name="imagenet2012", eval_split="validation")
  return c
