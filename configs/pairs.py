"""Trains an image tower and a text tower on pairs of images and captions.

vit_jax train pairs.csv --config pairs

The file has the columns file and caption, and a column split if it lists the
images of all splits. An image may have several captions, each in a row of its
own. A folder that vit_jax pack made of such a file, or of WebDataset's, may
stand in its place. By default both towers are new and small, for two cores and
a few hundred pairs, and the tokenizer is trained on the captions. To go on from
published towers, with their own tokenizer and image size:

vit_jax train pairs.csv --config pairs \
  --config.pretrained=hf_b16_siglip2_256

A new text tower learns beside a frozen image tower (LiT, arXiv:2111.07991):

vit_jax train pairs.csv --config pairs \
  --config.pretrained=hf_s14_dinov2 --config.pairs.image=frozen

The loss is SigLIP's (arXiv:2303.15343); --config.pairs.loss=softmax is CLIP's
(arXiv:2103.00020).
"""

from vit_jax.config import base_config


def get_config():
  c = base_config()
  c.data.task = "pairs"
  c.total_epochs = 100.0
  c.batch_size = 64
  c.image_size = None  # The checkpoint's own, or 64 x 64.
  c.train_transform.update(min_area=0.5, flip=False)
  c.optimizer.update(
    peak_lr=1e-3, b2=0.95, warmup_epochs=10.0, weight_decay=1e-4
  )
  c.log_every_epochs, c.log_every_steps = 5.0, 0
  c.eval_every_epochs = 10.0
  c.save_every_epochs = 10.0
  return c
