"""Images with a tint, and few-shot evaluations of a tiny model on them."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from tests.tiny import SIZES
from vit_jax import data, make_vit
from vit_jax.data.batching.loader import Loader
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.models.model import represent
from vit_jax.tasks.probes.few_shot import FewShot
from vit_jax.training import sharding

CLASSES = ("blue", "green", "red")
MEAN, STD = (0.4, 0.5, 0.6), (0.3, 0.2, 0.25)
PREPROCESSING = Preprocessing((8, 8), mean=MEAN, std=STD)


def write_images(folder):
  """Writes 12, 10 and 8 images to draw shots from, and 11 to test on."""
  rng = np.random.default_rng(0)
  for split, counts in (("train", (12, 10, 8)), ("test", (4, 4, 3))):
    for label, (name, count) in enumerate(zip(CLASSES, counts, strict=True)):
      (folder / split / name).mkdir(parents=True)
      for i in range(count):
        image = rng.normal(128, 60, (8, 8, 3))
        image[..., 2 - label] += 25
        pixels = np.clip(image, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / split / name / f"{i:02}.png")


def model_and_params():
  """A ViT with a tanh layer before its head, and its first parameters."""
  model = make_vit("Ti/4", num_classes=5, representation_size=8, **SIZES)
  init = jax.jit(lambda key: model.init(key, jnp.zeros((1, 8, 8, 3))))
  return model, nn.unbox(init(jax.random.key(0))["params"])


def sources(root):
  """The training split and the test split."""
  return [
    data.open_source(split, data.DataSettings(root=root))
    for split in ("train", "eval")
  ]


def few_shot_on(
  model, train, test, mesh=None, batch_size=128, loader=None, **options
):
  """`FewShot` on two given sources."""
  return FewShot(
    model,
    mesh or sharding.make_mesh(),
    train,
    test,
    PREPROCESSING,
    loader=loader or Loader(),
    batch_size=batch_size,
    **options,
  )


def few_shot(root, model, mesh=None, shots=3, seeds=2, **options):
  """`FewShot` on the splits under `root`."""
  return few_shot_on(
    model, *sources(root), mesh, shots=shots, seeds=seeds, **options
  )


def features_by_hand(model, params, source, pre_logits=True):
  """Features and labels of a whole split, in one batch with no padding."""
  images = np.stack([data.decode_rgb(e["image"]) for e in source])
  x = (np.float32(images) / 255 - np.float32(MEAN)) / np.float32(STD)
  y = jax.jit(
    lambda: represent(model, params, jnp.asarray(x), pre_logits=pre_logits)
  )()
  return np.asarray(y), np.array([e["label"] for e in source])
