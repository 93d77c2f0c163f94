"""Trains ChannelViT-S/8 from scratch, on a folder of images of many bands.

vit_jax train --config channels --config.data.root=my_tiles \
  --config.data.bands=blue,green,red,nir \
  --config.normalization.mean="(0.29,0.38,0.52,0.47)" \
  --config.normalization.std="(0.24,0.25,0.27,0.27)" --workdir runs/my_tiles

Each channel of a patch is a token, and training leaves out channels at random,
so that files may have different bands (arXiv:2309.16108; see
docs/howto/scientific_images.md). Rates, decay and length are those that the
authors publish (insitro/ChannelViT at 1077a103); their drop path of 0.1 and
their augmentations are left out. With C channels, a step costs as much as that
of a ViT with C times as many tokens.
"""

from vit_jax.config import base_config


def get_config():
  c = base_config()
  c.total_epochs = 100.0
  c.batch_size = 256
  c.image_size = (64, 64)
  c.train_transform.min_area = 0.3
  c.model.update(
    variant="S/8", gelu="exact", channel_tokens=True, channel_sampling=True
  )
  c.optimizer.update(
    kind="adam",
    peak_lr=5e-4,
    final_lr=1e-6,
    warmup_epochs=10.0,
    decay="cosine",
    weight_decay=0.04,
    final_weight_decay=0.4,
  )
  c.log_every_epochs, c.log_every_steps = 1.0, 0
  c.eval_every_epochs = 5.0
  c.save_every_epochs = 5.0
  return c
