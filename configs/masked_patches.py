"""Pre-trains a model by masked patches, without labels (arXiv:2010.11929).

Half of the patch embeddings of each image are corrupted, and the model predicts
the mean colours of these patches (Section 4.6, App. B.1.2). On a folder with
images of your own, at any depth:

vit_jax train --config configs/masked_patches.py \
  --config.data.root=my_photos --workdir runs/masked

Then fine-tune it on labelled images, by
--config configs/finetune.py --config.pretrained=runs/masked. The model is as
small as that of configs/image_folder.py; with many images, take a larger one
and a larger image_size.

The paper's run needs MODEL,DATA SET, and a data set that TFDS has prepared:

vit_jax train --config configs/masked_patches.py:B/16,imagenet2012 \
  --workdir gs://my-bucket/masked_b16

The paper trained B/16 for 1,000,000 steps on JFT-300M, saw little gain after
100,000, and similar results on ImageNet alone. After fine-tuning on ImageNet it
reached 79.9 %. The paper does not state its augmentation and weight decay;
those here are our choice. We have not run it.
"""

from vit_jax.config import base_config
from vit_jax.models.variants import VITS


def get_config(argument: str = ""):
  c = base_config()
  c.masked.rate = 0.5  # The paper had slightly worse results with BERT's 0.15.
  c.optimizer.update(peak_lr=2e-4, decay="cosine")
  if argument:
    return _paper(c, argument)
  c.data.labels = False
  c.total_epochs = 400.0
  c.batch_size = 64
  c.image_size = (64, 64)
  c.train_transform.min_area = 0.3
  c.model.update(
    variant="Ti/8",
    num_layers=4,
    hidden_size=64,
    mlp_size=128,
    num_heads=2,
    pooling="gap",
    position="sincos2d",
  )
  c.optimizer.update(peak_lr=1e-3, warmup_epochs=20.0, weight_decay=0.05)
  c.log_every_epochs, c.log_every_steps = 10.0, 0
  c.eval_every_epochs = 20.0
  c.save_every_epochs = 20.0
  return c


def _paper(c, argument: str):
  """The paper's run on a data set, for MODEL,DATA SET."""
  model, _, dataset = argument.partition(",")
  if model.split("/")[0] not in VITS or not dataset:
    raise ValueError(
      f"{argument!r} must be a model and a data set, as in B/16,imagenet2012; "
      "without either, give --config.data.root."
    )
  c.total_steps = 1_000_000 if dataset == "jft300m" else 100_000
  c.batch_size = 4096
  c.data.name = dataset
  c.train_transform.as_published = True
  c.eval_transform.crop = "center"
  c.model.update(variant=model, dtype="bfloat16")
  c.optimizer.update(warmup_steps=10_000)
  c.update(eval_every_epochs=0.0, eval_every_steps=10_000)
  c.update(save_every_epochs=0.0, save_every_steps=2_000)
  c.fewshot.shots = 5
  if dataset == "imagenet2012":
    c.data.eval_split = "validation"
  if dataset == "jft300m":
    c.data.update(train_split="train[51200:]", eval_split="train[:51200]")
  return c
