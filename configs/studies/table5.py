"""Fine-tunes the published ImageNet-21k models, as Table 5 of the paper does.

vit_jax study configs/studies/table5.py \
  --workdir gs://my-bucket/table5 \
  --set=data.data_dir=gs://my-bucket/tensorflow_datasets --select

A row is a model and a task, at resolution 384. The weights are downloaded;
ImageNet has to be prepared by hand, and the paper's models from JFT-300M and
from ImageNet alone were not published. We have not run these rows.
"""

from vit_jax.config import load_config
from vit_jax.run.config_file import load_file
from vit_jax.run.experiments.study_file import paper_table

MODELS = ("B/16", "B/32", "L/16", "L/32", "H/14")
TASKS = (
  "cifar10",
  "cifar100",
  "imagenet2012",
  "oxford_flowers102",
  "oxford_iiit_pet",
)
ROWS = {
  f"{model.replace('/', '')}_{task}": dict(model=model, task=task)
  for task in TASKS
  for model in MODELS
}
FIGURES = {"table5": dict(x="task", y="eval/top1", lines="model")}

PAPER = {
  model: {
    row["task"]: float(row[model]) / 100
    for row in paper_table(__file__, "table5")
    if row["task"] in TASKS and row["pretraining"] == "imagenet21k"
  }
  for model in MODELS
}


def _argument(row: str) -> str:
  model, task = ROWS[row]["model"], ROWS[row]["task"]
  return f"{model.lower().replace('/', '')}_i21k,{task}"


def get_choices(row: str):
  return load_file("finetune")[1].get_choices(_argument(row))


def get_config(row: str):
  return load_config(f"finetune:{_argument(row)}")
