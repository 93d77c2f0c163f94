"""Fine-tunes a checkpoint (arXiv:2010.11929, Section 3.2 and Table 4).

To fine-tune on your own folder of images, name any checkpoint that
`load_pretrained` reads: a workdir, a file, or a name that
`vit_jax convert --list` shows:

vit_jax train my_photos --config finetune --pretrained b16_augreg

For a few hundred images, `finetune:small` takes minutes instead: the head is a
linear probe of the checkpoint's features, whose L2 penalty is chosen by
five-fold cross-validation, and only the head is trained, for one epoch at a low
rate. On 225 photographs nothing that we tried was reliably better
(docs/evidence/results.md):

vit_jax train my_photos --config finetune:small \
  --config.pretrained=hf_s14_dinov2 --config.model.pooling=token_gap

`vit_jax train my_photos --pretrained hf_s14_dinov2` is short for that if there
are fewer than 1,000 training images, and for the first form if there are more.

A small model that you trained yourself learns faster with Adam:
--config.optimizer.kind=adam --config.optimizer.peak_lr=5e-4. Images are resized
to the checkpoint's own size; a larger --config.image_size costs more and is
usually more accurate.

To run a row of the paper's Table 4, give MODEL,DATA SET:

vit_jax train --config configs/finetune.py:b16_i21k,cifar10 \
  --workdir runs/cifar10

The data sets are imagenet2012, cifar10, cifar100, oxford_iiit_pet,
oxford_flowers102. With ",vtab" appended, DATA SET is a TFDS data set of one of
VTAB's tasks, of which 800 + 200 training images are taken. Tasks whose labels
VTAB computes are called clevr/count_all, clevr/closest_object_distance,
dsprites/label_orientation, dsprites/label_x_position,
kitti/closest_vehicle_distance, smallnorb/label_azimuth and
smallnorb/label_elevation. These seven, SVHN and DMLab are neither cropped nor
mirrored, as that may change their labels. With ",table2" appended, a run on
imagenet2012 has the higher resolution and the Polyak averaging of the paper's
Table 2. For H/14, whose patches do not divide 384, the upper left 378 x 378 is
kept. Dropout and sizes follow from the architecture that a short name or its
address stands for; any other checkpoint is trained as B/16 is, unless you give
--config.model.dropout_rate and the like. Weights of other libraries (hf_...,
torchvision_...) interpolate positions as their library does; the paper's way is
--config.transfer.interpolation=linear.

The paper chose each row's learning rate among those of the table, on a part of
the training images. `train` takes the third of these rates; the choice among
them is made by

vit_jax study configs/finetune.py:b16_i21k,cifar10 --select \
  --workdir runs/cifar10

The paper's B/16 from ImageNet-21k reaches 98.95 % on CIFAR-10 (Table 5). We
have not run any of these rows.
"""

from vit_jax.config import base_config
from vit_jax.pretrained import known

# Data set -> training steps, and the learning rates to choose from.
TABLE_4 = {
  "imagenet2012": (20_000, (0.003, 0.01, 0.03, 0.06)),
  "cifar100": (10_000, (0.001, 0.003, 0.01, 0.03)),
  "cifar10": (10_000, (0.001, 0.003, 0.01, 0.03)),
  "oxford_iiit_pet": (500, (0.001, 0.003, 0.01, 0.03)),
  "oxford_flowers102": (500, (0.001, 0.003, 0.01, 0.03)),
}
VTAB = (2_500, (0.01,))
# Data set of VTAB-1k -> its 200 validation images and its test images, beside
# 800 of "train". The splits are those of the benchmark's code.
VTAB_SPLITS = {
  "caltech101": ("train[2753:2953]", "test"),
  "cifar100": ("train[45000:45200]", "test"),
  "dtd": ("validation[:200]", "test"),
  "oxford_flowers102": ("validation[:200]", "test"),
  "oxford_iiit_pet": ("train[2944:3144]", "test"),
  "sun397": ("validation[:200]", "test"),
  "svhn_cropped": ("train[65931:66131]", "test"),
  "patch_camelyon": ("validation[:200]", "test"),
  "eurosat/rgb": ("train[16200:16400]", "train[21600:]"),
  "resisc45": ("train[18900:19100]", "train[25200:]"),
  "diabetic_retinopathy_detection/btgraham-300": ("validation[:200]", "test"),
  "dmlab": ("validation[:200]", "test"),
  "clevr/count_all": ("train[63000:63200]", "validation"),
  "clevr/closest_object_distance": ("train[63000:63200]", "validation"),
  "dsprites/label_orientation": ("train[589824:590024]", "train[663552:]"),
  "dsprites/label_x_position": ("train[589824:590024]", "train[663552:]"),
  "kitti/closest_vehicle_distance": ("validation[:200]", "test"),
  "smallnorb/label_azimuth": ("test[:200]", "test[50%:]"),
  "smallnorb/label_elevation": ("test[:200]", "test[50%:]"),
}
# The originals fine-tune these architectures with dropout.
DROPOUT = ("L/16", "H/14", "R50+B/16", "R50+L/32")
# Data sets with labels of their own in VTAB; dSprites' are in 16 groups.
VTAB_LABELS = {"clevr": "", "dsprites": "/16", "kitti": "", "smallnorb": ""}
# Tasks whose labels a mirrored image or a part of it may not have.
WHOLE_IMAGES = ("svhn_cropped", "dmlab", *VTAB_LABELS)


# Share of the training images on which `study --select` compares the rates.
HELD_OUT = {
  "imagenet2012": 0.01,
  "cifar100": 0.02,
  "cifar10": 0.02,
  "oxford_iiit_pet": 0.1,
  "oxford_flowers102": 0.1,
}


def get_choices(argument: str) -> tuple[tuple[float, ...], float]:
  """The learning rates to compare for a row, and the share to hold out."""
  model, dataset, variant = _row(argument)
  if variant == "vtab":
    raise ValueError(
      "the paper trains all of VTAB's tasks at 0.01: leave out --select."
    )
  rates = TABLE_4[dataset][1]
  # 0.06 is for ResNets and hybrids (App. B.1.1).
  if not _architecture(model).startswith("R"):
    rates = tuple(rate for rate in rates if rate != 0.06)
  return rates, HELD_OUT[dataset]


def get_config(argument: str = ""):
  c = base_config()
  c.optimizer.update(kind="sgd", momentum=0.9, decay="cosine", clip_norm=1.0)
  if argument not in ("", "small"):
    return _table_4(c, *_row(argument))
  c.image_size = None  # Takes the checkpoint's own.
  if argument:
    return _small(c)
  c.total_epochs = 40.0
  c.batch_size = 32
  c.train_transform.update(
    min_area=0.3, randaugment_layers=2, randaugment_magnitude=5
  )
  c.loss.label_smoothing = 0.1
  c.optimizer.update(peak_lr=0.01, warmup_epochs=2.0)
  c.log_every_epochs, c.log_every_steps = 2.0, 0
  c.eval_every_epochs = 10.0
  c.save_every_epochs = 10.0
  return c


def _small(c):
  """A head from a linear probe, for a few hundred images."""
  c.total_epochs = 1.0
  c.batch_size = 32
  c.transfer.probe_head = True
  c.optimizer.update(kind="adam", peak_lr=1e-5, freeze_layers=-1)
  c.log_every_epochs, c.log_every_steps = 1.0, 0
  return c


def _table_4(c, model: str, dataset: str, variant: str):
  """A row of Table 4, or with a variant one of VTAB or Table 2."""
  steps, rates = VTAB if variant == "vtab" else TABLE_4[dataset]
  c.pretrained = model
  c.total_steps = steps
  c.batch_size = 512
  c.image_size = (384, 384)
  architecture = _architecture(model)
  if architecture.endswith("/14"):
    # 384 is no multiple of 14: as in the originals, the last 6 pixels go.
    c.update(image_size=(378, 378), cut_from=(384, 384))
  if architecture in DROPOUT:
    c.model.dropout_rate = 0.1
  c.optimizer.peak_lr = rates[min(2, len(rates) - 1)]
  c.optimizer.warmup_steps = min(500, steps // 10)
  c.data.name = dataset
  c.train_transform.update(as_published=True, resizer="vision_transformer")
  c.eval_transform.update(antialias=False, resizer="vision_transformer")
  c.eval_every_epochs, c.eval_every_steps = 0.0, max(100, steps // 20)
  c.save_every_epochs, c.save_every_steps = 0.0, max(100, steps // 20)
  if dataset == "imagenet2012":
    c.data.eval_split = "validation"
  # The paper trains on the validation half as well.
  if dataset == "oxford_flowers102":
    c.data.train_split = "train+validation"
  if variant == "vtab":
    validation, test = VTAB_SPLITS.get(dataset, ("train[800:1000]", "test"))
    c.data.update(train_split=f"train[:800]+{validation}", eval_split=test)
    name, _, label = dataset.partition("/")
    if name in VTAB_LABELS and label:
      c.data.update(name=name, tfds_label=label + VTAB_LABELS[name])
    if name in WHOLE_IMAGES:
      c.train_transform.update(crop="resize", flip=False, as_published=False)
  if variant == "table2":
    side = 518 if architecture.endswith("/14") else 512
    c.update(image_size=(side, side), cut_from=None)
    c.ema_decay = 0.9999
  return c


def _architecture(checkpoint: str) -> str:
  """What a published checkpoint is, such as H/14; "" if it is not known."""
  published = known.find(checkpoint)
  return published.model if published else ""


def _row(argument: str) -> tuple[str, str, str]:
  """Parses the argument as (checkpoint, data set, variant).

  The variant is "", "table2" or "vtab".
  """
  model, _, rest = argument.partition(",")
  dataset, _, variant = rest.partition(",")
  if variant not in ("", "table2", "vtab"):
    raise ValueError(
      f"{argument!r}: only table2 or vtab may follow the data set."
    )
  if not model or not dataset:
    raise ValueError(
      f"{argument!r} must be a checkpoint and a data set, as in "
      "b16_i21k,cifar10; without either, give --config.pretrained and "
      "--config.data.root."
    )
  if variant == "table2" and dataset != "imagenet2012":
    raise ValueError(
      f"{argument!r}: the paper's Table 2 is of imagenet2012; leave table2 out "
      f"for {dataset}."
    )
  if variant != "vtab" and dataset not in TABLE_4:
    raise ValueError(
      f"Table 4 has no {dataset}; it has {', '.join(TABLE_4)}. For any other "
      f"data set, {model},{dataset},vtab trains it as one of VTAB's tasks."
    )
  return model, dataset, variant
