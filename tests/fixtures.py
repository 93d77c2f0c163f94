"""Tiny checkpoints made by the publishers' own code, with inputs and logits."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "shared" / "fixtures"

# Name, and what its format does not tell.
CHECKPOINTS = {
  "google_vit.npz": {},
  "google_vit_prelogits.npz": {},
  "google_vit_linen.npz": {},
  "google_hybrid.npz": {},
  "big_vision_tok.npz": {},
  "big_vision_gap.npz": {},
  "hf_vit": {},
  "timm_vit.safetensors": {"num_heads": 3},
  "torchvision_vit.safetensors": {"num_heads": 3},
}


def path(name: str) -> str:
  """Where a checkpoint is; skips the test where there is none."""
  if not (FOLDER / name).exists():
    pytest.skip(f"needs shared/fixtures/{name} beside the repository")
  return str(FOLDER / name)


def examples(name: str) -> tuple[np.ndarray, np.ndarray]:
  """Images as the model sees them, and the publisher's logits."""
  stem = name.split(".")[0]
  with np.load(path(f"{stem}_io.npz")) as io:
    return io["images"], io["logits"]


def assert_same_logits(model, params, images, expected):
  """To 1e-4 of the largest."""
  params, images = jax.tree.map(jnp.asarray, (params, images))
  logits = np.asarray(jax.jit(model.apply)({"params": params}, images))
  assert logits.shape == expected.shape
  difference = np.abs(logits - expected).max()
  assert difference <= 1e-4 * np.abs(expected).max()
