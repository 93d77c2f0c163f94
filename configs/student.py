"""Trains a student of a frozen encoder, without labels.

A model of your own learns the outputs of a published encoder, or of a run: of
its class token and of its patches. On a folder with images, at any depth:

vit_jax train my_photos --config student:hf_s14_dinov2 --workdir runs/student

Behind the colon is what --config.distill.teacher takes. Then fine-tune the
student on labelled images, by
--config finetune --config.pretrained=runs/student. The model is as small as
that of configs/image_folder.py. For many images, a larger one follows the
teacher, which then sees images of 224 x 224:

vit_jax train my_photos --config student:hf_b14_dinov2,S/16 \
  --workdir runs/student

The loss is 0.9 of the cosine distance and 0.1 of smooth L1, as AM-RADIO
(arXiv:2312.06709) has it for patches; here, the class token has the same loss.
AM-RADIO's student learns from several teachers and is projected by MLPs; this
one learns from one teacher, and is projected by dense layers.
"""

from vit_jax.config import base_config


def get_config(argument: str = ""):
  c = base_config()
  teacher, _, variant = argument.partition(",")
  c.student.learns = "both"
  if teacher:
    c.distill.teacher = teacher
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
  )
  if variant:
    c.image_size = (224, 224)
    c.total_epochs = 100.0
    c.batch_size = 256
    c.model.update(variant=variant, num_layers=None, hidden_size=None)
    c.model.update(mlp_size=None, num_heads=None, dtype="bfloat16")
  c.optimizer.update(peak_lr=1e-3, warmup_epochs=20.0, weight_decay=0.05)
  c.log_every_epochs, c.log_every_steps = 10.0, 0
  c.eval_every_epochs = 20.0
  c.fewshot.neighbours = 20
  c.save_every_epochs = 20.0
  return c
