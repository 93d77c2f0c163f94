"""Compares models by the cost of their pre-training, as Figure 5 does.

vit_jax study configs/studies/figure5.py \
  --workdir gs://my-bucket/figure5 \
  --set=data.name=imagenet21k --set=data.data_dir=gs://my-bucket/my_data \
  --set=fewshot.data.data_dir=gs://my-bucket/tensorflow_datasets

The rows are those of Table 3 for JFT-300M, which was never published: give
another data set. Our points are 5-shot accuracy on ImageNet; the paper's are
top-1 on ImageNet after fine-tuning, from Table 6, by exaFLOPs on JFT-300M. We
have not run these rows.
"""

from vit_jax.config import load_config
from vit_jax.run.experiments.study_file import paper_table


def _family(model: str) -> str:
  """The kind of a model, by its name: Transformer, ResNet or hybrid."""
  if not model.startswith("R"):
    return "Transformer"
  return "hybrid" if "+" in model else "ResNet"


_POINTS = paper_table(__file__, "table6")
# R200x3, and R152x2 for 14 epochs, are in Table 6 alone.
TABLE_6 = [
  row
  for row in _POINTS
  if (row["model"], row["epochs"]) not in (("R200x3", "14"), ("R152x2", "14"))
]
ROWS = {
  f"{row['model'].replace('/', '')}_{row['epochs']}": dict(
    model=row["model"].replace("R50x1+", "R50+"),
    epochs=int(row["epochs"]),
    family=_family(row["model"]),
    exaflops=float(row["exaflops"]),
  )
  for row in TABLE_6
}
FIGURES = {
  "figure5": dict(x="exaflops", y="fewshot/top1", lines="family", log=True)
}
PAPER = {
  family: {
    float(row["exaflops"]): float(row["imagenet2012"]) / 100
    for row in sorted(_POINTS, key=lambda row: float(row["exaflops"]))
    if _family(row["model"]) == family
  }
  for family in ("Transformer", "ResNet", "hybrid")
}


def get_config(row: str):
  c = load_config(
    f"pretrain:{ROWS[row]['model']},jft300m,{ROWS[row]['epochs']}"
  )
  c.fewshot.shots = 5
  c.fewshot.data.update(name="imagenet2012", eval_split="validation")
  return c
