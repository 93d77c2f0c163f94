"""Pre-trains a masked autoencoder, without labels (arXiv:2111.06377).

The encoder sees a quarter of the patches of each image, and a small decoder
predicts the pixels of the others. On a folder with images of your own, at any
depth:

vit_jax train my_photos --config mae --workdir runs/mae

Then fine-tune it on labelled images, by
--config finetune --config.pretrained=runs/mae. The model is as small as that of
configs/image_folder.py; with many images, take a larger one and a larger
image_size.

To go on with a published masked autoencoder on your images, with its decoder,
or with a run of --config mae:B/16:

vit_jax train my_photos --config mae:continue \
  --config.pretrained=hf://facebook/vit-mae-base --workdir runs/mae

The paper's run on ImageNet needs a model, B/16, L/16 or H/14:

vit_jax train --config mae:B/16 --workdir gs://my-bucket/mae_b16

and with ",finetune" appended, the paper's fine-tuning of such a run, or of its
published weights:

vit_jax train --config mae:B/16,finetune \
  --config.pretrained=gs://my-bucket/mae_b16 --workdir gs://my-bucket/tuned

Pre-training has the settings of the paper's Table 8, for 800 epochs; the paper
has its best results after 1,600 (--config.total_epochs=1600.0). Fine-tuning has
those of Table 9, with the rates for B/16 that the authors' repository gives.
The paper reports 83.6 % for B/16, 85.9 % for L/16 and 86.9 % for H/14. We have
run none of it.

Five details differ from the authors' code. Positions are big_vision's, whose
frequencies are a little lower. The class token does not decay. A batch is mixed
with one draw instead of one for each GPU. The fine-tuned head reads the class
token, and theirs reads the patches' average. Fine-tuning has no drop path, and
theirs has one of 0.1, 0.2 and 0.3 for the three models.

",linear" in place of ",finetune" trains the head alone. It starts from the
least squares probe of all training images, and goes on for an epoch with Adam;
the paper's is trained for 90 epochs with LARS, on features that a batch norm
has standardised. `vit_jax fewshot --probe=linear` measures that start alone.
"""

from vit_jax.config import base_config
from vit_jax.runtime.hints import near_names

# Model -> peak learning rate for a batch of 256, layer decay and epochs of
# fine-tuning.
MODELS = {
  "B/16": (5e-4, 0.65, 100.0),
  "L/16": (1e-3, 0.75, 50.0),
  "H/14": (1e-3, 0.75, 50.0),
}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def get_config(argument: str = ""):
  c = base_config()
  if argument in ("", "continue"):
    return _continue(_small(c)) if argument else _small(c)
  model, _, stage = argument.partition(",")
  if model not in MODELS or stage not in ("", "finetune", "linear"):
    meant = near_names(argument, ("continue",))
    raise ValueError(
      f"{argument!r}: give one of {', '.join(MODELS)}, with ,finetune behind "
      "it to fine-tune, or ,linear for a linear probe; or continue with "
      "--config.pretrained; without any of these, give a folder of your own."
      f"{' Did you mean continue?' if meant else ''}"
    )
  c.image_size = (224, 224)
  c.data.update(name="imagenet2012", eval_split="validation")
  c.normalization.update(mean=MEAN, std=STD)
  c.train_transform.resizer = "bicubic"
  c.eval_transform.update(
    crop="center", resize_ratio=256 / 224, interpolation="bicubic"
  )
  c.model.dtype = "bfloat16"
  c.optimizer.update(decay="cosine", weight_decay=0.05, clip_norm=0.0)
  if stage == "linear":
    return _linear(c)
  return _finetune(c, model) if stage else _pretrain(c, model)


def _pretrain(c, model: str):
  """The paper's pre-training, with the settings of Table 8."""
  c.autoencoder.rate = 0.75
  c.total_epochs = 800.0
  c.batch_size = 4096
  c.train_transform.min_area = 0.2
  c.model.update(variant=model, position="sincos2d", gelu="exact")
  c.optimizer.update(
    peak_lr=1.5e-4 * c.batch_size / 256, b2=0.95, warmup_epochs=40.0
  )
  c.eval_every_epochs = 20.0
  c.fewshot.neighbours = 20
  return c


def _finetune(c, model: str):
  """The paper's fine-tuning, with the settings of Table 9."""
  base_lr, layer_decay, epochs = MODELS[model]
  c.total_epochs = epochs
  c.batch_size = 1024
  c.train_transform.update(
    min_area=0.08,
    randaugment_layers=2,
    randaugment_magnitude=9,
    randaugment_timm=True,
    erase=0.25,
  )
  c.loss.update(label_smoothing=0.1, mixup_alpha=0.8, cutmix_alpha=1.0)
  c.optimizer.update(
    peak_lr=base_lr * c.batch_size / 256,
    layer_decay=layer_decay,
    warmup_epochs=5.0,
  )
  return c


def _linear(c):
  """A head from a linear probe, on the encoder as it is."""
  c.total_epochs = 1.0
  c.batch_size = 1024
  c.train_transform.min_area = 0.08
  c.transfer.probe_head = True
  c.optimizer.update(
    kind="adam", peak_lr=1e-5, weight_decay=0.0, freeze_layers=-1
  )
  return c


def _small(c):
  c.autoencoder.update(
    rate=0.75, decoder_size=64, decoder_layers=2, decoder_heads=2
  )
  c.data.labels = False
  c.total_epochs = 400.0
  c.batch_size = 64
  c.image_size = (64, 64)
  c.train_transform.min_area = 0.2
  c.model.update(
    variant="Ti/8",
    num_layers=4,
    hidden_size=64,
    mlp_size=128,
    num_heads=2,
    pooling="gap",
    position="sincos2d",
  )
  c.optimizer.update(
    peak_lr=1e-3, b2=0.95, warmup_epochs=20.0, weight_decay=0.05
  )
  c.log_every_epochs, c.log_every_steps = 10.0, 0
  c.eval_every_epochs = 20.0
  c.fewshot.neighbours = 20
  c.save_every_epochs = 20.0
  return c


def _continue(c):
  """The model, its decoder and the images' size are those of `pretrained`."""
  fields = ("variant", "num_layers", "hidden_size", "mlp_size", "num_heads")
  c.model.update(dict.fromkeys((*fields, "pooling", "position")))
  c.autoencoder.update(decoder_size=512, decoder_layers=8, decoder_heads=16)
  c.image_size = None
  c.transfer.keep_head = True
  c.optimizer.peak_lr = 1.5e-4
  return c
