"""Pre-trains ResNets with Adam and with SGD, as Table 7 of the paper does.

vit_jax study configs/studies/table7.py \
  --workdir gs://my-bucket/table7 \
  --set=data.name=imagenet21k --set=data.data_dir=gs://my-bucket/my_data

The paper pre-trains on JFT-300M, which was never published, and its points are
the mean accuracy after fine-tuning on five data sets; ours are the pre-training
accuracy itself. The paper gives no learning rate for SGD: 0.03 for each 256
images is that of BiT (arXiv:1912.11370). We have not run these rows.
"""

from vit_jax.config import load_config

ROWS = {
  f"{model}_{optimizer}": dict(model=model, optimizer=optimizer)
  for model in ("R50x1", "R152x2")
  for optimizer in ("adam", "sgd")
}
FIGURES = {"table7": dict(x="model", y="eval/top1", lines="optimizer")}
PAPER = {
  "adam": {"R50x1": 0.8933, "R152x2": 0.9401},
  "sgd": {"R50x1": 0.8879, "R152x2": 0.9372},
}


def get_config(row: str):
  c = load_config(f"pretrain:{ROWS[row]['model']},jft300m")
  if ROWS[row]["optimizer"] == "sgd":
    c.optimizer.update(kind="sgd", momentum=0.9)
    c.optimizer.peak_lr = 0.03 * c.batch_size / 256
    c.optimizer.weight_decay = 0.0
  return c
