"""Scales a model's depth, width, MLP and patches, as Figure 8 does (App. D.2).

vit_jax study configs/studies/figure8.py \
  --workdir gs://my-bucket/figure8 \
  --set=data.name=imagenet21k --set=data.data_dir=gs://my-bucket/my_data \
  --set=fewshot.data.data_dir=gs://my-bucket/tensorflow_datasets

Each row changes one dimension, or all, of a model with 8 layers, D = 1024, an
MLP of 2048 and patches of 32; `gflop` is the cost of the changed model's
forward pass at 224 x 224. The paper's data are JFT-300M, and its figure has no
numbers in the text. Our points are 5-shot accuracy on ImageNet. We have not run
these rows.
"""

from vit_jax.config import load_config

BASE = dict(num_layers=8, hidden_size=1024, mlp_size=2048, patch_size=32)
SCALED = {
  "depth": [dict(num_layers=n) for n in (2, 4, 8, 16, 32, 64)],
  "width": [dict(hidden_size=n) for n in (256, 512, 2048)],
  "MLP": [dict(mlp_size=n) for n in (512, 1024, 4096, 8192)],
  "patch": [dict(patch_size=n) for n in (56, 28, 16, 14, 8)],
  "all": [
    dict(num_layers=4, hidden_size=512, mlp_size=1024, patch_size=56),
    dict(num_layers=16, hidden_size=2048, mlp_size=4096, patch_size=16),
  ],
}


def _gflop(
  num_layers: int, hidden_size: int, mlp_size: int, patch_size: int
) -> float:
  """Billions of multiplications and additions to classify an image.

  They are those of the layers and of the patch embedding.
  """
  S, D = (224 // patch_size) ** 2 + 1, hidden_size
  layer = S * (4 * D * D + 2 * D * mlp_size) + 2 * S * S * D
  return round(2e-9 * (num_layers * layer + 224 * 224 * 3 * D), 2)


ROWS = {
  "_".join([name, *map(str, change.values())]): dict(
    scaled=name, gflop=_gflop(**{**BASE, **change}), **{**BASE, **change}
  )
  for name, changes in SCALED.items()
  for change in changes
}
FIGURES = {
  "figure8": dict(x="gflop", y="fewshot/top1", lines="scaled", log=True)
}


def get_config(row: str):
  c = load_config("pretrain:B/32,jft300m")
  values = {key: int(ROWS[row][key]) for key in BASE}
  c.model.update(variant=f"B/{values['patch_size']}", **values)
  # The heads keep their size of 64.
  c.model.num_heads = values["hidden_size"] // 64
  c.model.representation_size = values["hidden_size"]
  c.fewshot.shots = 5
  c.fewshot.data.update(name="imagenet2012", eval_split="validation")
  return c
