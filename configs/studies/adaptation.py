"""Compares LoRA with full fine-tuning, and learning with and without a teacher.

vit_jax study configs/studies/adaptation.py \
  --workdir runs/adaptation --set=data.root=PATH_OF_A_FOLDER_OF_IMAGES

"full" and "lora" start from a run of `configs/cifar10.py:adam` in `runs/c10`.
"alone" and "taught" train the same model from scratch; the teacher of "taught"
is the row "full" of the same seed, in `runs/adaptation`. The learning rate of
LoRA is four times that of the others, and no rate was tuned.
"""

from vit_jax.config import load_config

# In this order, as the run "full" teaches the run "taught".
METHODS = ("full", "lora", "alone", "taught")
ROWS = {
  f"{method}_{seed}": dict(method=method, seed=seed)
  for seed in range(3)
  for method in METHODS
}
FIGURES = {"adaptation": dict(x="method", y="eval/top1", lines="method")}
EPOCHS = 20.0


def get_config(row: str):
  method, seed = ROWS[row]["method"], ROWS[row]["seed"]
  c = load_config("finetune")
  c.update(seed=seed, image_size=(32, 32), total_epochs=EPOCHS)
  c.data.root = "pizza_steak_sushi"
  c.update(eval_every_epochs=EPOCHS, save_every_epochs=EPOCHS)
  c.optimizer.update(kind="adam", peak_lr=5e-4, weight_decay=0.05)
  if method in ("full", "lora"):
    c.pretrained = "runs/c10"
  else:
    c.model.update(variant="Ti/4", num_layers=6, hidden_size=128, mlp_size=256)
    c.model.update(num_heads=4, pooling="gap", position="sincos2d")
  if method == "lora":
    c.lora.update(rank=8, alpha=16.0)
    c.optimizer.peak_lr = 2e-3
  if method == "taught":
    c.distill.update(teacher=f"runs/adaptation/full_{seed}", temperature=2.0)
  return c
