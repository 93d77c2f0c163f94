"""Trains a small ViT on CIFAR-10, in half an hour on two cores with AVX-512.

vit_jax train --config configs/cifar10.py --workdir runs/cifar10 \
  --config.data.data_dir=PATH_OF_PREPARED_TFDS_DATA

The images are 32 x 32 and the patches 4 x 4. With little data and without
pre-training, fixed sine-cosine positions and average pooling learn faster than
learned positions and a class token. Muon reaches the same loss in fewer steps
than Adam, and a step on 26 of the 64 patches takes half as long as on all.

`configs/cifar10.py:hybrid` takes 4 x 4 patches from the feature map of a ResNet
of three units, 8 x 8 (Section 3.1, "Hybrid Architecture"). Its Transformer has
two layers and sees all patches. A step takes 1.2 times as long for each image
as that of the plain ViT, and less than half as many epochs are needed for the
same accuracy. Muon trains the convolutions of the units, too.

`configs/cifar10.py:adam` is the earlier recipe, with the optimizer of the paper
and all patches, on which the studies in configs/studies are built.
"""

from vit_jax.config import base_config


def get_config(recipe: str = "muon"):
  if recipe not in ("muon", "hybrid", "adam"):
    raise ValueError(f"{recipe!r}: give one of muon, hybrid, adam.")
  c = base_config()
  c.batch_size = 64
  c.image_size = (32, 32)
  c.data.name = "cifar10"
  c.model.update(
    variant="Ti/4",
    num_layers=6,
    hidden_size=128,
    mlp_size=256,
    num_heads=4,
    pooling="gap",
    position="sincos2d",
  )
  c.optimizer.weight_decay = 0.1
  c.log_every_steps = 100
  c.save_every_epochs = 1.0
  if recipe == "adam":
    c.update(total_epochs=14.0, eval_every_epochs=2.0)
    c.train_transform.update(crop="pad", pad=4)
    c.optimizer.update(peak_lr=1e-3, warmup_epochs=1.0)
    return c
  c.update(total_epochs=19.0, eval_every_epochs=5.0)
  c.train_transform.update(crop="pad", pad=2)
  c.model.patch_dropout_rate = 0.6
  c.optimizer.update(
    kind="muon",
    momentum=0.95,
    peak_lr=3e-3,
    decay="linear",
    warmup_epochs=0.5,
  )
  if recipe == "hybrid":
    c.update(batch_size=128, total_epochs=15.0)
    c.model.update(
      resnet_layers=(3,), num_layers=2, patch_size=2, patch_dropout_rate=0.0
    )
  return c
