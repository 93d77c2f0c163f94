"""Trains the nineteen tasks of VTAB-1k, as Table 9 of the paper does.

vit_jax study configs/studies/table9.py \
  --workdir gs://my-bucket/table9 \
  --set=data.data_dir=gs://my-bucket/tensorflow_datasets

A row is a published ImageNet-21k model and a task. study.csv ends with the mean
of each group of tasks, natural, specialized and structured, and of all, for the
models whose tasks are all there. Resisc45 and Retinopathy have to be downloaded
by hand. We have not run these rows.
"""

from vit_jax.config import load_config
from vit_jax.run.experiments.study_file import paper_table

TASKS = {  # The paper's name -> that of TFDS.
  "Caltech101": "caltech101",
  "CIFAR-100": "cifar100",
  "DTD": "dtd",
  "Flowers102": "oxford_flowers102",
  "Pets": "oxford_iiit_pet",
  "Sun397": "sun397",
  "SVHN": "svhn_cropped",
  "Camelyon": "patch_camelyon",
  "EuroSAT": "eurosat/rgb",
  "Resisc45": "resisc45",
  "Retinopathy": "diabetic_retinopathy_detection/btgraham-300",
  "Clevr-Count": "clevr/count_all",
  "Clevr-Dist": "clevr/closest_object_distance",
  "DMLab": "dmlab",
  "dSpr-Loc": "dsprites/label_x_position",
  "dSpr-Ori": "dsprites/label_orientation",
  "KITTI-Dist": "kitti/closest_vehicle_distance",
  "sNORB-Azim": "smallnorb/label_azimuth",
  "sNORB-Elev": "smallnorb/label_elevation",
}
MODELS = {"ViT-L/16 I21k": "l16_i21k", "ViT-B/16 I21k": "b16_i21k"}
_PAPER = {row["task"]: row for row in paper_table(__file__, "table9")}
ROWS = {
  f"{checkpoint}_{task}": dict(
    task=task, group=_PAPER[task]["group"], model=model
  )
  for model, checkpoint in MODELS.items()
  for task in TASKS
}
FIGURES = {"table9": dict(x="task", y="eval/top1", lines="model")}
MEANS = dict(of="eval/top1", over="task", groups="group")
PAPER = {
  model: {task: float(row[model]) / 100 for task, row in _PAPER.items()}
  for model in ("ViT-H/14 JFT", "ViT-L/16 JFT", "ViT-L/16 I21k")
}


def get_config(row: str):
  model, task = MODELS[ROWS[row]["model"]], TASKS[ROWS[row]["task"]]
  return load_config(f"finetune:{model},{task},vtab")
