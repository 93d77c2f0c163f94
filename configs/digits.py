"""Trains a small ViT on scikit-learn's handwritten digits, without a download.

vit_jax train --config configs/digits.py --workdir runs/digits

There are 1,797 images of 8 x 8. Patches of 4 x 4 leave four tokens, which are
enough for such coarse strokes; with patches of 2 x 2 the model learns more
slowly from so few images.
"""

from vit_jax.config import base_config


def get_config():
  c = base_config()
  c.total_epochs = 100.0
  c.batch_size = 64
  c.image_size = (8, 8)
  c.data.name = "digits"
  c.train_transform.update(crop="pad", pad=1, flip=False)
  c.model.update(
    variant="Ti/4",
    num_layers=4,
    hidden_size=64,
    mlp_size=128,
    num_heads=4,
    pooling="gap",
    position="sincos2d",
  )
  c.loss.label_smoothing = 0.1
  c.optimizer.update(peak_lr=3e-3, warmup_epochs=10.0, weight_decay=0.05)
  c.log_every_steps = 100
  c.eval_every_epochs = 10.0
  c.save_every_epochs = 10.0
  return c
