"""Compares class token and mean pooling by learning rate, as Figure 9 does.

vit_jax study configs/studies/pooling.py --workdir runs/pooling \
  --set=data.data_dir=PATH_OF_PREPARED_TFDS_DATA

The models are small and train on CIFAR-10, with three seeds each. Figure 9 has
no numbers in the paper's text.
"""

from vit_jax.config import load_config

ROWS = {
  f"{pooling}_{rate:g}_{seed}": dict(
    pooling=pooling, learning_rate=rate, seed=seed
  )
  for seed in range(3)
  for rate in (3e-4, 1e-3, 3e-3, 1e-2)
  for pooling in ("token", "gap")
}
NAMES = {"token": "class token", "gap": "mean pooling"}
FIGURES = {
  "pooling": dict(
    x="learning_rate",
    y="eval/top1",
    lines="pooling",
    log=True,
    names=NAMES,
    title="Class token and mean pooling, on CIFAR-10",
  )
}
STEPS = 400


def get_config(row: str):
  c = load_config("cifar10:adam")
  c.seed = ROWS[row]["seed"]
  c.update(total_epochs=0.0, total_steps=STEPS)
  c.update(eval_every_epochs=0.0, eval_every_steps=STEPS)
  c.update(save_every_epochs=0.0, save_every_steps=STEPS // 2)
  c.model.update(variant="Ti/8", num_layers=3, hidden_size=48, mlp_size=96)
  c.model.update(num_heads=3, position="learned", pooling=ROWS[row]["pooling"])
  c.optimizer.update(warmup_epochs=0.0, warmup_steps=100)
  c.optimizer.peak_lr = ROWS[row]["learning_rate"]
  return c
