"""Pre-trains by self-distillation, without labels (DINO, iBOT, DINOv2).

The teacher is a running average of the student. The student sees one crop of an
image and learns to give the answers that the teacher gives for another, large
crop of it. For patches that are masked in its own crop, it learns the teacher's
answers, too. On a folder with images of your own, at any depth:

vit_jax train my_photos --config dino --workdir runs/dino

The model is as small as that of configs/image_folder.py. A few thousand images
are too few to start from nothing: go on with a published encoder instead. With
fewer than 1,000 images, LoRA is trained in place of all layers:

vit_jax train my_photos --config dino:continue \
  --config.pretrained=hf_s14_dinov2 --workdir runs/dino

Its small crops have 98 pixels a side for patches of 14; for patches of 16, add
--config.self_distillation.small_size=96. Watch the rank and the deviation of
the features: if they fall, stop.

DINOv3's stage of high resolution, with Gram anchoring and crops of five sizes,
goes on with an encoder whose patches have 16 pixels:

vit_jax train my_photos --config dino:high_res \
  --config.pretrained=hf_s16_dinov3 --workdir runs/dino_high_res

With fewer than 1,000 images, this trains LoRA in place of all layers, too.

Numbers are those of dinov3_vit7b16_high_res_adapt.yaml in DINOv3's repository,
with two exceptions. All sizes are half of those published, where 168 pixels
count as 160, since patches of 16 read no more of them. The heads are new, with
the warm-ups of dino:continue. We have not measured what it does.

The recipe of DINOv2's repository for ImageNet needs a model, S/16, B/16 or
L/16:

vit_jax train --config dino:B/16 --workdir gs://my-bucket/dino_b16

It is that of ssl_default_config.yaml, made for L/16 on 16 GPUs with 64 images
each. Its authors report a k-NN accuracy of 81.6 %; we have not run it. Three
details differ from their code. Rates and temperatures begin to change with the
first step, and KoLeo compares all images of a batch instead of those of one
GPU. The small crops' positions are interpolated to their grid exactly.
"""

from vit_jax.config import base_config
from vit_jax.runtime.hints import near_names

MODELS = "S/16", "B/16", "L/16"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
EPOCHS, EPOCH = 100, 1250  # Epochs, and the steps of an epoch of DINOv2's code.
# Sides of large crops, of small ones, and of the large ones for the Gram
# teacher; and the share of the batches.
HIGH_RES = (
  (256, 64, 384, 0.3),
  (384, 64, 576, 0.3),
  (384, 80, 576, 0.3),
  (384, 112, 576, 0.05),
  (384, 160, 576, 0.05),
)
# Weight decay is for all but biases, norms and LayerScale.
DECAYS = (
  r"(kernel|E_pos|x_class|registers|mask_token|_head/(direction|length))$"
)


def get_config(argument: str = ""):
  c = base_config()
  c.data.labels = False
  c.model.block = "dinov2"
  c.self_distillation.prototypes = 65_536
  c.fewshot.neighbours = 20
  c.optimizer.update(
    decay="cosine",
    clip_norm=0.0,
    weight_decay=0.04,
    weight_decay_on=DECAYS,
  )
  c.eval_transform.update(
    crop="center", resize_ratio=256 / 224, interpolation="bicubic"
  )
  if not argument:
    return _small(c)
  if argument == "continue":
    return _continue(c)
  if argument == "high_res":
    return _high_res(_continue(c))
  if argument not in MODELS:
    meant = near_names(argument, ("continue", "high_res"))
    raise ValueError(
      f"{argument!r}: give one of {', '.join(MODELS)} for ImageNet, or "
      "continue or high_res with --config.pretrained; without any, give a "
      f"folder of your own.{f' Did you mean {meant[0]}?' if meant else ''}"
    )
  return _imagenet(c, argument)


def _imagenet(c, model: str):
  """dinov2/configs/ssl_default_config.yaml."""
  c.data.labels = True
  c.data.update(name="imagenet2012", eval_split="validation")
  c.total_epochs, c.total_steps = 0.0, EPOCHS * EPOCH
  c.batch_size = 1024
  c.image_size = (224, 224)
  c.normalization.update(mean=MEAN, std=STD)
  c.ema_decay = 0.992
  c.self_distillation.update(
    temperature_warmup_steps=30 * EPOCH, freeze_last_steps=EPOCH
  )
  c.model.update(variant=model, dtype="bfloat16", drop_path_rate=0.3)
  c.optimizer.update(
    peak_lr=4e-3 * (c.batch_size / 1024) ** 0.5,
    final_lr=1e-6,
    warmup_steps=10 * EPOCH,
    final_weight_decay=0.4,
    layer_decay=0.9,
    patches_lr=0.2,
  )
  c.eval_every_epochs, c.eval_every_steps = 0.0, 10 * EPOCH
  c.save_every_epochs, c.save_every_steps = 0.0, 3 * EPOCH
  return c


def _small(c):
  c.total_epochs = 200.0
  c.batch_size = 64
  c.image_size = (64, 64)
  c.ema_decay = 0.99
  c.self_distillation.update(
    prototypes=1024,
    head_size=256,
    bottleneck=64,
    small_crops=4,
    small_size=32,
    temperature_warmup_epochs=20.0,
    freeze_last_epochs=2.0,
  )
  c.model.update(
    variant="Ti/8", num_layers=4, hidden_size=64, mlp_size=256, num_heads=2
  )
  c.optimizer.update(peak_lr=1e-3, warmup_epochs=10.0, final_weight_decay=0.2)
  c.log_every_epochs, c.log_every_steps = 10.0, 0
  c.eval_every_epochs = 20.0
  c.save_every_epochs = 20.0
  return c


def _continue(c):
  c.model.block = None
  c.total_epochs = 20.0
  c.batch_size = 32
  c.image_size = (224, 224)
  c.normalization.update(mean=MEAN, std=STD)
  c.ema_decay = 0.996
  c.self_distillation.update(
    prototypes=4096,
    small_crops=4,
    small_size=98,
    centering="sinkhorn",
    temperature_warmup_epochs=2.0,
    freeze_last_epochs=1.0,
  )
  c.optimizer.update(peak_lr=2e-5, warmup_epochs=2.0, layer_decay=0.8)
  c.log_every_epochs, c.log_every_steps = 1.0, 0
  c.eval_every_epochs = 2.0
  c.save_every_epochs = 2.0
  return c


def _high_res(c):
  """dinov3/configs/train/dinov3_vit7b16_high_res_adapt.yaml, at half the size.

  Its learning rate rises along half a cosine instead of evenly, its momentum
  stays at 0.999, and its 7B model has stochastic depth of 0.4.
  """
  c.total_epochs = 30.0
  c.image_size = (384, 384)
  c.ema_decay = 0.999
  c.train_transform.flip = False
  c.self_distillation.update(
    separate_head=True,
    small_crops=8,
    small_size=96,  # The default, in place of which are the `crop_sizes`.
    crop_sizes=HIGH_RES,
    gram_weight=1.5,
    clip_norm=30.0,
  )
  c.optimizer.update(
    decay="constant",
    peak_lr=1.25e-5 * 4 * (c.batch_size / 1024) ** 0.5,
    warmup_epochs=10.0,
    b2=0.99,
    layer_decay=0.98,
    patches_lr=0.2,
  )
  return c
