"""Trains S/16 on ImageNet as big_vision's simple baseline does.

vit_jax train --config configs/big_vision_s16.py \
  --config.data.data_dir=gs://my-bucket/tensorflow_datasets \
  --workdir gs://my-bucket/s16

Its authors publish a top-1 of 76.5 % after 90 epochs (arXiv:2205.01580); we
have not run it. Images have the pixels of their code
(docs/evidence/parity.md). Their weight decay of 1e-4 at a rate of 1e-3 is 0.1
here, where the rate multiplies it.
"""

from vit_jax.config import base_config


def get_config():
  c = base_config()
  c.total_epochs = 90.0
  c.batch_size = 1024
  c.data.update(
    name="imagenet2012", train_split="train[:99%]", eval_split="validation"
  )
  c.train_transform.update(
    as_published=True,
    resizer="big_vision",
    randaugment_layers=2,
    randaugment_magnitude=10.0,
  )
  c.eval_transform.update(
    crop="center", interpolation="area", resizer="big_vision"
  )
  c.model.update(
    variant="S/16",
    pooling="gap",
    position="sincos2d",
    representation_size=384,
    dtype="bfloat16",
  )
  c.loss.mixup_alpha = 0.2
  c.optimizer.update(peak_lr=1e-3, warmup_steps=10_000, weight_decay=0.1)
  c.eval_every_epochs = 10.0
  c.save_every_epochs = 1.0
  return c
