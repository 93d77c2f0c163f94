"""Pre-trains a model as in a row of Table 3 of the paper (arXiv:2010.11929).

vit_jax train --config configs/pretrain.py:B/16,imagenet2012 \
  --config.data.data_dir=gs://my-bucket/tensorflow_datasets \
  --workdir gs://my-bucket/b16

The argument is a model and a data set (jft300m, imagenet21k or imagenet2012).
For rows with two lengths, the number of epochs may follow, as in
L/16,jft300m,7; the longer one is the default.

The data is a folder of class folders, given with --config.data.root, or a TFDS
data set of this name that was prepared beforehand. TFDS includes imagenet2012.
You must prepare ImageNet-21k yourself, and JFT-300M was never published, so its
rows need another data set in --config.data.root or --config.data.name.

The paper's B/16 trained on ImageNet alone reaches 77.9 % top-1 after
fine-tuning at resolution 384 (Table 5). We have not run any of these rows.
"""

from vit_jax.config import base_config
from vit_jax.models.variants import VITS

# Data set -> model -> (epochs, peak learning rate).
TABLE_3 = {
  "jft300m": {
    "B/16": ((7,), 8e-4),
    "B/32": ((7,), 8e-4),
    "L/32": ((7,), 6e-4),
    "L/16": ((7, 14), 4e-4),
    "H/14": ((14,), 3e-4),
    "R50x1": ((7,), 1e-3),
    "R50x2": ((7,), 1e-3),
    "R101x1": ((7,), 8e-4),
    "R152x1": ((7,), 6e-4),
    "R152x2": ((7,), 6e-4),
    "R50+B/16": ((7,), 8e-4),
    "R50+B/32": ((7,), 8e-4),
    "R50+L/32": ((7,), 2e-4),
    "R50+L/16": ((7, 14), 4e-4),
  },
  "imagenet21k": {
    "B/16": ((90,), 1e-3),
    "B/32": ((90,), 1e-3),
    "L/16": ((30, 90), 1e-3),
    "L/32": ((30, 90), 1e-3),
  },
  "imagenet2012": {
    "B/16": ((300,), 3e-3),
    "B/32": ((300,), 3e-3),
    "L/16": ((300,), 3e-3),
    "L/32": ((300,), 3e-3),
    "H/14": ((300,), 3e-3),
  },
}


def get_config(argument: str = "B/16,imagenet2012"):
  model, dataset, epochs, peak_lr = _row(argument)
  c = base_config()
  c.total_epochs = float(epochs)
  c.batch_size = 4096
  c.data.name = dataset
  c.train_transform.as_published = True
  c.eval_transform.crop = "center"
  c.model.variant = model
  c.model.dtype = "bfloat16"
  c.optimizer.update(peak_lr=peak_lr, warmup_steps=10_000, clip_norm=0.0)
  if "/" in model:  # Only Transformers have the head of Section 3.1.
    size = model.split("+")[-1].split("/")[0]
    c.model.representation_size = VITS[size][1]
  if dataset == "imagenet2012":
    c.data.eval_split = "validation"
    c.model.dropout_rate = 0.1
    c.optimizer.update(decay="cosine", weight_decay=0.3, clip_norm=1.0)
    return c
  # There is no test split, so some training images are kept back.
  c.data.update(train_split="train[51200:]", eval_split="train[:51200]")
  c.optimizer.update(decay="linear", weight_decay=0.1)
  if dataset == "jft300m":  # An epoch is 73,000 steps.
    c.update(eval_every_epochs=0.0, eval_every_steps=10_000)
    c.update(save_every_epochs=0.0, save_every_steps=2_000)
  if dataset == "imagenet21k":
    c.model.update(dropout_rate=0.1, head_bias=-10.0)
    c.loss.kind = "sigmoid"
    c.optimizer.update(weight_decay=0.03, final_lr=1e-5)
  return c


def _row(argument: str) -> tuple[str, str, int, float]:
  """Parses the argument as (model, data set, epochs, peak learning rate)."""
  model, _, rest = argument.partition(",")
  dataset, _, epochs = rest.partition(",")
  if dataset not in TABLE_3:
    raise ValueError(
      f"{argument!r} names no row of Table 3: give a model, a comma and one of "
      f"{', '.join(TABLE_3)}."
    )
  if model not in TABLE_3[dataset]:
    raise ValueError(
      f"Table 3 has no {model} on {dataset}; it has "
      f"{', '.join(TABLE_3[dataset])}."
    )
  lengths, peak_lr = TABLE_3[dataset][model]
  chosen = epochs or str(lengths[-1])
  if chosen not in map(str, lengths):
    raise ValueError(
      f"Table 3 trains {model} on {dataset} for "
      f"{' or '.join(map(str, lengths))} epochs, not {chosen}."
    )
  return model, dataset, int(chosen), peak_lr
