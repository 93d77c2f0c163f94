"""Fine-tunes a checkpoint on images that keep their proportions.

vit_jax train my_photos --config any_size --pretrained hf_s14_dinov2 \
  --workdir runs/any_size

Each image is resized so that at most `data.tokens` patches cover it, as in
SigLIP 2's NaFlex (arXiv:2502.14786), and random crops keep its proportions.
An image of 224 x 224 has 256 patches of 14 x 14 pixels; more patches show finer
detail and take longer. See docs/howto/any_size.md.
"""

from vit_jax.config import base_config


def get_config():
  c = base_config()
  c.image_size = None  # Takes the checkpoint's, for which positions were made.
  c.data.tokens = 256
  c.total_epochs = 40.0
  c.batch_size = 32
  c.train_transform.update(
    min_area=0.3, randaugment_layers=2, randaugment_magnitude=5
  )
  c.loss.label_smoothing = 0.1
  c.optimizer.update(kind="sgd", momentum=0.9, decay="cosine", clip_norm=1.0)
  c.optimizer.update(peak_lr=0.01, warmup_epochs=2.0)
  c.log_every_epochs, c.log_every_steps = 2.0, 0
  c.eval_every_epochs = 10.0
  c.save_every_epochs = 10.0
  return c
