"""Pre-trains by LeJEPA, without labels and without a teacher.

The model learns to predict, from every crop of an image, the mean of the
features of its large crops. A second loss keeps the features of all crops of a
batch close to a standard normal distribution (arXiv:2511.08544). On a folder
with images of your own, at any depth:

vit_jax train my_photos --config lejepa --workdir runs/lejepa

The model is as small as that of configs/image_folder.py. A few thousand images
are too few to start from nothing: go on with a published encoder instead, whole
or, for a few hundred images, with LoRA (--config.lora.rank=8):

vit_jax train my_photos --config lejepa:continue \
  --config.pretrained=hf_s14_dinov2 --workdir runs/lejepa

Its small crops have 98 pixels a side for patches of 14; for patches of 16, add
--config.lejepa.small_size=96. The one number to try is lejepa.weight.

Crops, colours, rate and decay are those that the authors recommend. Two details
differ from theirs: the projector has layer norms in place of batch norms, and
lejepa:continue takes a tenth of the rate. We have run none of it on ImageNet.
"""

from vit_jax.config import base_config

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def get_config(argument: str = ""):
  if argument not in ("", "continue"):
    raise ValueError(
      f"{argument!r}: give continue with --config.pretrained, or nothing to "
      "start with a small model."
    )
  c = base_config()
  c.data.labels = False
  c.lejepa.weight = 0.05
  c.fewshot.neighbours = 20
  c.normalization.update(mean=MEAN, std=STD)
  c.optimizer.update(
    decay="cosine", clip_norm=0.0, weight_decay=0.05, warmup_epochs=1.0
  )
  c.eval_transform.update(
    crop="center", resize_ratio=256 / 224, interpolation="bicubic"
  )
  return _continue(c) if argument else _small(c)


def _small(c):
  c.total_epochs = 200.0
  c.batch_size = 64
  c.image_size = (64, 64)
  c.lejepa.update(projector_size=256, projections=64, small_size=32)
  c.model.update(
    variant="Ti/8", num_layers=4, hidden_size=64, mlp_size=256, num_heads=2
  )
  c.optimizer.update(peak_lr=5e-4, final_lr=5e-7, warmup_epochs=10.0)
  c.log_every_epochs, c.log_every_steps = 10.0, 0
  c.eval_every_epochs = 20.0
  c.save_every_epochs = 20.0
  return c


def _continue(c):
  c.total_epochs = 20.0
  c.batch_size = 32
  c.image_size = (224, 224)
  c.lejepa.small_size = 98
  c.optimizer.update(peak_lr=5e-5, final_lr=5e-8, layer_decay=0.8)
  c.log_every_epochs, c.log_every_steps = 1.0, 0
  c.eval_every_epochs = 2.0
  c.save_every_epochs = 2.0
  return c
