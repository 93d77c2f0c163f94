"""Compares position embeddings, as Table 8 of the paper does, on CIFAR-10.

vit_jax study configs/studies/positions.py --workdir runs/positions \
  --set=data.data_dir=PATH_OF_PREPARED_TFDS_DATA

The model is far smaller than the paper's B/16 on JFT-300M, whose 5-shot
accuracy on ImageNet `PAPER` has. Positions at the input have three seeds, the
others one.
"""

from vit_jax.config import load_config

PLACES = {  # Positions -> where they are used.
  "none": ("input",),
  "learned": ("input", "every_layer", "shared"),
  "learned2d": ("input", "every_layer", "shared"),
  "relative": ("input",),
}
ROWS = {
  f"{position}_{place}_{seed}": dict(position=position, place=place, seed=seed)
  for seed in range(3)
  for position, places in PLACES.items()
  for place in places
  if place == "input" or seed == 0
}
NAMES = {
  "learned": "learned, 1-D",
  "learned2d": "learned, 2-D",
  "input": "at the input",
  "every_layer": "at every layer",
  "shared": "the same at every layer",
}
FIGURES = {
  "positions": dict(
    x="position",
    y="eval/top1",
    lines="place",
    names=NAMES,
    title="Position embeddings, on CIFAR-10",
  )
}
PAPER = {
  "input": {
    "none": 0.61382,
    "learned": 0.64206,
    "learned2d": 0.64001,
    "relative": 0.64032,
  },
  "every_layer": {"learned": 0.63964, "learned2d": 0.64046},
  "shared": {"learned": 0.64292, "learned2d": 0.64022},
}
STEPS = 600


def get_config(row: str):
  c = load_config("cifar10:adam")
  c.seed = ROWS[row]["seed"]
  c.update(total_epochs=0.0, total_steps=STEPS)
  c.update(eval_every_epochs=0.0, eval_every_steps=STEPS)
  c.update(save_every_epochs=0.0, save_every_steps=STEPS // 2)
  c.model.update(num_layers=3, hidden_size=48, mlp_size=96, num_heads=3)
  c.model.pooling = "token"
  c.model.update(position=ROWS[row]["position"], position_at=ROWS[row]["place"])
  c.optimizer.update(warmup_epochs=0.0, warmup_steps=100, peak_lr=2e-3)
  return c
