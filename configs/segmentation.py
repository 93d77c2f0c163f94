"""Trains a head that predicts the class of each pixel, on a frozen encoder.

vit_jax train --config segmentation --pretrained hf_s14_dinov2 \
  --config.data.root=my_scenes --workdir runs/my_scenes

The folder holds images and masks; docs/howto/segmentation.md tells how. The
argument "lora" trains LoRA's matrices in all layers together with the head, as
in --config segmentation:lora; "whole" trains the whole encoder and the head.
"""

from vit_jax.config import base_config

KINDS = ("head", "lora", "whole")


def get_config(argument: str = "head"):
  if argument not in KINDS:
    raise ValueError(f"{argument!r}: give one of {', '.join(KINDS)}.")
  c = base_config()
  c.data.task = "segmentation"
  c.image_size = None  # Takes the checkpoint's own.
  c.total_epochs = 20.0
  c.batch_size = 16
  c.optimizer.update(kind="adam", peak_lr=1e-2, warmup_epochs=1.0)
  c.optimizer.update(decay="cosine", weight_decay=0.0)
  if argument == "head":  # It learns more from whole scenes than from parts.
    c.train_transform.crop = "resize"
    c.optimizer.freeze_layers = -1
  else:
    c.train_transform.min_area = 0.3
    c.optimizer.update(peak_lr=1e-4)
  if argument == "lora":
    c.lora.rank = 16
  c.log_every_epochs, c.log_every_steps = 1.0, 0
  c.eval_every_epochs, c.eval_every_steps = 5.0, 0
  c.save_every_epochs, c.save_every_steps = 5.0, 0
  return c
