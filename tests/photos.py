"""Photos of noise, a tiny ViT that takes them, and its logits by hand."""

import jax
import numpy as np
from PIL import Image

from tests import tiny
from tests.tiny import MEAN, STD, random_params
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.models import Origin

ORIGIN = Origin("test", "google", (16, 16), MEAN, STD)
VIT = tiny.vit(ORIGIN)
PARAMS = random_params(VIT, (16, 16), 0)
PREPROCESSING = Preprocessing((16, 16), mean=MEAN, std=STD)


def write_photos(folder):
  """Writes eleven photos of noise; returns their paths, sorted by name."""
  rng = np.random.default_rng(1)
  paths = []
  for k in range(11):
    pixels = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
    paths.append(str(folder / f"photo {k:02} [x].png"))
    Image.fromarray(pixels).save(paths[-1])
  return paths


def pixels_of(path):
  return np.array(Image.open(path))


def normalized(pixels):
  return ((np.stack(pixels) / 255 - MEAN) / STD).astype(np.float32)


def logits_of(model, params, images):
  return np.asarray(jax.jit(model.apply)({"params": params}, images))


def softmax(logits):
  e = np.exp(np.float64(logits) - logits.max(axis=1, keepdims=True))
  return e / e.sum(axis=1, keepdims=True)
