"""Compares model sizes by the number of images, as Figures 3 and 4 do.

vit_jax study configs/studies/data_size.py --workdir runs/data_size \
  --set=data.data_dir=PATH_OF_PREPARED_TFDS_DATA

Each model trains for the same number of steps on the first 1,000 to 50,000
images of CIFAR-10. Figure 3 here is top-1 on the test split, Figure 4 is 5-shot
accuracy on handwritten digits, which none of the models has seen. The paper has
three models, 9M to 300M images of JFT, and 5-shot accuracy on ImageNet. It does
not state the numbers of its Figure 4; studies/table5.py has those of Figure 3.
"""

from vit_jax.config import load_config

WIDTHS = {"small": 32, "medium": 64, "large": 128}
ROWS = {
  f"{model}_{images}": dict(model=model, images=images)
  for images in (1_000, 5_000, 20_000, 50_000)
  for model in WIDTHS
}
FIGURES = {
  "figure_3": dict(x="images", y="eval/top1", lines="model", log=True),
  "figure_4": dict(x="images", y="fewshot/top1", lines="model", log=True),
}
STEPS = 400


def get_config(row: str):
  c = load_config("cifar10:adam")
  c.data.train_split = f"train[:{ROWS[row]['images']}]"
  c.update(total_epochs=0.0, total_steps=STEPS)
  c.update(eval_every_epochs=0.0, eval_every_steps=STEPS)
  c.update(save_every_epochs=0.0, save_every_steps=STEPS // 2)
  c.fewshot.shots = 5
  c.fewshot.data.name = "digits"
  width = WIDTHS[str(ROWS[row]["model"])]
  c.model.update(variant="Ti/8", num_layers=4, num_heads=4)
  c.model.update(hidden_size=width, mlp_size=2 * width)
  c.optimizer.update(warmup_epochs=0.0, warmup_steps=100, peak_lr=2e-3)
  return c
