"""Trains a small ViT from scratch on your own folder of images.

vit_jax train --config configs/image_folder.py \
  --config.data.root=my_photos --workdir runs/my_photos

The folder holds train/<class>/* and val/<class>/* (or test, or both), or only
<class>/*, of which about data.eval_fraction is then kept for evaluation.

This configuration is made for a few hundred photographs: it has a small model,
a low resolution, many epochs, and RandAugment against overfitting. With
thousands of images, try image_size=(128,128) and a larger model.
"""

from vit_jax.config import base_config


def get_config():
  c = base_config()
  c.total_epochs = 200.0
  c.batch_size = 32
  c.image_size = (64, 64)
  c.train_transform.update(
    min_area=0.3, randaugment_layers=2, randaugment_magnitude=5
  )
  c.model.update(
    variant="Ti/8",
    num_layers=4,
    hidden_size=64,
    mlp_size=128,
    num_heads=2,
    pooling="gap",
    position="sincos2d",
  )
  c.loss.label_smoothing = 0.1
  c.optimizer.update(peak_lr=1e-3, warmup_epochs=20.0, weight_decay=0.1)
  c.log_every_epochs, c.log_every_steps = 10.0, 0
  c.eval_every_epochs = 20.0
  c.save_every_epochs = 20.0
  return c
