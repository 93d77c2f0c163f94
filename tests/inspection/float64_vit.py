"""A tiny ViT, its images, and the same model in NumPy float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from tests.tiny import random_params
from vit_jax.models import Vit
from vit_jax.models.extended_vit import ExtendedVit

L, B, HEADS, D, P = 2, 2, 2, 8, 4
SIZE, GRID = (8, 12), (2, 3)


def tiny(**fields):
  defaults = dict(
    num_classes=3,
    patch_size=P,
    hidden_size=D,
    num_layers=L,
    mlp_size=12,
    num_heads=HEADS,
  )
  fields = defaults | fields
  if fields.get("pooling") == "query":  # AIMv2 has no class token.
    return ExtendedVit(**fields, class_token=False)
  return Vit(**fields)


@functools.cache
def drawn(**fields):
  """A model and random parameters, none of which is zero."""
  model = tiny(**fields)
  return model, random_params(model, SIZE, 1)


def some_images(size=SIZE):
  """Two images of normally distributed values."""
  rng = np.random.default_rng(0)
  return jnp.asarray(rng.normal(size=(B, *size, 3)), jnp.float32)


def forward(model, params, images, changes=None):
  """Logits and attention weights by layer; `changes` are added to the latter.

  This is written from the paper, for models with positions added once.
  """
  p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  x = np.asarray(images, np.float64)
  _, H, W, _ = x.shape
  z = np.stack(
    [
      x[:, i : i + P, j : j + P].reshape(B, -1) @ p["patches"]["E"]["kernel"]
      for i in range(0, H, P)
      for j in range(0, W, P)
    ],
    axis=1,
  )
  z = z + p["patches"]["E"]["bias"]
  if model.pooling == "token":
    z = np.concatenate([np.tile(p["x_class"], (B, 1, 1)), z], axis=1)
  z = z + p["position"]["E_pos"]
  seen = {}
  for i in range(model.num_layers):
    block = p[f"block_{i}"]
    y = _norm(block["norm_msa"], z)
    z = z + _msa(block["msa"], y, y, seen, i, changes)
    z = z + _mlp(block["mlp"], _norm(block["norm_mlp"], z))
  z = _norm(p["norm"], z)
  if model.pooling == "map":
    head = p["map_head"]
    probe = np.tile(head["probe"], (B, 1, 1))
    y = _msa(head["msa"], probe, z, seen, "pool", changes)
    y = (y + _mlp(head["mlp"], _norm(head["norm"], y)))[:, 0]
  elif model.pooling == "query":
    y = _pool_by_query(p["map_head"], z, seen, changes)
  else:
    y = z[:, 0] if model.pooling == "token" else z.mean(axis=1)
  return y @ p["head"]["kernel"] + p["head"]["bias"], seen


def _norm(p, z):
  z = z - z.mean(axis=-1, keepdims=True)
  z = z / np.sqrt((z**2).mean(axis=-1, keepdims=True) + 1e-6)
  return z * p["scale"] + p["bias"]


def _mlp(p, z):
  x = z @ p["expand"]["kernel"] + p["expand"]["bias"]
  x = x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2
  return x @ p["contract"]["kernel"] + p["contract"]["bias"]


def _pool_by_query(p, z, seen, changes):
  """AIMv2's pooling: one query for each head; keys and values have no bias."""
  k, v = (
    np.einsum("bsd,dke->bkse", z, p[name]["kernel"])
    for name in ("key", "value")
  )
  A = np.exp(np.einsum("ke,bkse->bks", p["query"], k) / np.sqrt(D // HEADS))
  A = A[:, :, None] / A.sum(axis=-1)[:, :, None, None]
  seen["pool"] = A
  if changes and "pool" in changes:
    A = A + changes["pool"]
  y = np.einsum("bkse,ked->bsd", A @ v, p["out"]["kernel"]) + p["out"]["bias"]
  return y[:, 0]


def _msa(p, z_q, z, seen, place, changes):
  q, k, v = (
    np.einsum("bsd,dke->bkse", x, p[n]["kernel"]) + p[n]["bias"][:, None]
    for n, x in (("query", z_q), ("key", z), ("value", z))
  )
  A = np.exp(q @ k.swapaxes(2, 3) / np.sqrt(D // HEADS))
  A = A / A.sum(axis=-1, keepdims=True)
  seen[place] = A
  if changes and place in changes:
    A = A + changes[place]
  return (
    np.einsum("bkse,ked->bsd", A @ v, p["out"]["kernel"]) + p["out"]["bias"]
  )
