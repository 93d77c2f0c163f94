"""Images of their own proportions, padded into one batch, in one's own file.

An image is shrunk until it fits the size and keeps its proportions. The rest of
the array is padding: no token attends to it, no mean counts it, and the second
part of the loss, which asks each patch alone for the class of the image, is
taken over the patches that show something.
"""

import dataclasses

import cv2
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.data.batch import ArraySpec
from vit_jax.data.decoding.decode import decode_rgb
from vit_jax.models.composed import Composed
from vit_jax.models.model import classifier
from vit_jax.models.parts import HEAD, Part
from vit_jax.tasks.classification.task import ClassificationTask
from vit_jax.training.losses import Classification, cross_entropy


@dataclasses.dataclass(frozen=True)
class Padded:
  """Pixels in the upper left of an array, and which of its patches have any."""

  size: tuple
  patch: int

  @property
  def spec(self):
    H, W = self.size
    N = (H // self.patch) * (W // self.patch)
    return {"image": ArraySpec((H, W, 3)), "real": ArraySpec((N,), bool)}

  def row(self, example, *rng):
    pixels, (H, W), P = decode_rgb(example["image"]), self.size, self.patch
    h, w, _ = pixels.shape
    scale = min(H / h, W / w)
    # Whole patches, so that none is half padding.
    h, w = (
      min(max(round(side * scale / P), 1) * P, most)
      for side, most in ((h, H), (w, W))
    )
    image = np.zeros((H, W, 3), np.uint8)
    image[:h, :w] = cv2.resize(pixels, (w, h), interpolation=cv2.INTER_AREA)
    if rng and rng[0].random() < 0.5:
      image[:h, :w] = image[:h, :w][:, ::-1]
    real = np.zeros((H // P, W // P), bool)
    real[: h // P, : w // P] = True
    return {"image": image, "real": real.ravel()}


class PaddedVit(Composed):
  """Images, and which patches are real -> logits of images and of patches."""

  def parts(self):
    return (*super().parts(), Part("patch_head", HEAD, own_task=True))

  def inputs(self, image_shape):
    H, W, _ = image_shape
    N = (H // self.patch_size) * (W // self.patch_size)
    real = jax.ShapeDtypeStruct((1, N), jnp.bool_)
    return super().inputs(image_shape), real

  def __call__(self, inputs, *, train=False):
    (images, real), vit = inputs, self.encoder
    tokens = vit.run(vit.embed(images, mask=real, train=train), train=train)
    return vit.head(vit.pool(tokens)), self.by_patch(tokens), real

  @nn.compact
  def by_patch(self, tokens):
    head = classifier(self.num_classes, 0.0, self.param_dtype, "patch_head")
    return head(tokens.patches)


class Objective(Classification):
  """The loss of the image, and the mean of those of its real patches."""

  def inputs(self, batch):
    return super().inputs(batch), batch["real"]

  def loss_and_score(self, outputs, targets):
    logits, by_patch, real = outputs
    loss, correct = super().loss_and_score(logits, targets)
    B, N, K = by_patch.shape
    each = jnp.broadcast_to(targets[:, None], by_patch.shape)
    flat = by_patch.reshape(-1, K), each.reshape(-1, K)
    losses = cross_entropy(self.settings.kind, *flat).reshape(B, N)
    return loss + (losses * real).sum(1) / real.sum(1), correct


class PaddedTask(ClassificationTask):
  """Naming the class of an image of any proportions."""

  name, objective_class = "padded", Objective
  refuses = ("loss.mixup_alpha", "loss.cutmix_alpha", "fewshot.shots")
  patch = 8

  def train_transform(self, preprocessing, settings):
    return Padded(preprocessing.image_size, self.patch)

  def eval_transform(self, preprocessing):
    return Padded(preprocessing.image_size, self.patch)

  def adapted(self, model):
    return PaddedVit(model.num_classes, model)

  def class_logits(self, outputs):
    return outputs[0] if isinstance(outputs, tuple) else outputs
