"""Tiny checkpoints made by the publishers' own code, with inputs and logits.

tests/checkpoints/README.md says how each was made.
"""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.pretrained.convert import convert

FOLDER = pathlib.Path(__file__).parent / "checkpoints"

# Name -> options for `load_pretrained` that the format does not record.
CHECKPOINTS = {
  "google_vit.npz": {},
  "google_vit_prelogits.npz": {},
  "google_vit_linen.npz": {},
  "google_hybrid.npz": {},
  "big_vision_tok.npz": {},
  "big_vision_gap.npz": {},
  "tips_vit.npz": {},
  "hf_vit": {},
  "timm_vit.safetensors": {"num_heads": 3},
  "torchvision_vit.safetensors": {"num_heads": 3},
}


def path(name: str) -> str:
  """The path of a checkpoint, or of the images and logits beside it."""
  return str(FOLDER / name)


def examples(name: str) -> tuple[np.ndarray, np.ndarray]:
  """Normalised images, and the logits that the publisher's code gives."""
  stem = name.split(".")[0]
  with np.load(path(f"{stem}_io.npz")) as io:
    return io["images"], io["logits"]


def arrays(name: str) -> dict[str, np.ndarray]:
  """The arrays of a checkpoint that is an .npz file."""
  with np.load(path(name)) as stored:
    return dict(stored)


def converted(name: str, to: str, folder, **overrides):
  """Converts a checkpoint to another format; returns the new folder."""
  options = CHECKPOINTS[name] | overrides
  convert(path(name), str(folder), to, **options)
  return folder


def assert_same_logits(model, params, images, expected):
  """Checks that `model` gives `expected` to 1e-4 of the largest logit."""
  params, images = jax.tree.map(jnp.asarray, (params, images))
  logits = np.asarray(jax.jit(model.apply)({"params": params}, images))
  assert logits.shape == expected.shape
  difference = np.abs(logits - expected).max()
  assert difference <= 1e-4 * np.abs(expected).max()
