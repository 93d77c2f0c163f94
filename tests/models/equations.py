"""Eq. 1-8 in NumPy and double precision, written from the paper.

The sizes are those of `tiny_vit`.
"""

import math

import jax
import numpy as np

from tests.models.tiny_vit import HEADS, LAYERS, D, P


def layer_norm(z, params, epsilon):
  mean, variance = z.mean(-1, keepdims=True), z.var(-1, keepdims=True)
  return (z - mean) / np.sqrt(variance + epsilon) * params["scale"] + params[
    "bias"
  ]


def dense(z, params):
  return z @ params["kernel"] + params["bias"]


def gelu(x, kind):
  if kind == "exact":
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
  inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
  return x * (1 + np.tanh(inner)) / 2


def softmax(logits):
  powers = np.exp(logits - logits.max(-1, keepdims=True))
  return powers / powers.sum(-1, keepdims=True)


def msa(z, params, queries=None):
  queries = z if queries is None else queries
  out = params["out"]["bias"]
  for head in range(HEADS):
    q, k, v = (
      y @ params[name]["kernel"][:, head] + params[name]["bias"][head]
      for name, y in (("query", queries), ("key", z), ("value", z))
    )
    logits = q @ k.T / math.sqrt(D / HEADS)
    A = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    out = out + A @ v @ params["out"]["kernel"][head]
  return out


def block(z, params, epsilon, kind):
  z = msa(layer_norm(z, params["norm_msa"], epsilon), params["msa"]) + z
  y = layer_norm(z, params["norm_mlp"], epsilon)
  hidden = gelu(dense(y, params["mlp"]["expand"]), kind)
  return dense(hidden, params["mlp"]["contract"]) + z


def vit(params, x, pooling, kind, epsilon, representation):
  """Logits of one image; `kind` is the GELU's."""
  params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
  H, W, _ = x.shape
  patches = [
    x[row : row + P, column : column + P].reshape(-1)
    for row in range(0, H, P)
    for column in range(0, W, P)
  ]
  z = dense(np.stack(patches).astype(np.float64), params["patches"]["E"])
  if pooling == "token":
    z = np.concatenate([params["x_class"][None], z])
  z = z + params["position"]["E_pos"]
  for layer in range(LAYERS):
    z = block(z, params[f"block_{layer}"], epsilon, kind)
  y = layer_norm(z, params["norm"], epsilon)
  if pooling == "map":
    head = params["map_head"]
    y = msa(y, head["msa"], head["probe"])
    normed = layer_norm(y, head["norm"], epsilon)
    hidden = gelu(dense(normed, head["mlp"]["expand"]), kind)
    y = (y + dense(hidden, head["mlp"]["contract"]))[0]
  else:
    y = y[0] if pooling == "token" else y.mean(0)
  if representation:
    y = np.tanh(dense(y, params["pre_logits"]))
  return dense(y, params["head"])
