"""Compares the train step with other ViTs' and with bare matrix products.

python scripts/bench_step.py --variant S/16 --batch 16

Times whole steps (forward, backward, Adam) at 224 x 224 on random images, on
JAX's default device. All models take turns in one process, round after round.
The script prints the median images per second and the ratio to the plain ViT,
which is written as most are: with nn.MultiHeadDotProductAttention and one dense
layer after the other. If `torch` and `transformers` are installed, Hugging
Face's ViT takes part, with as many threads as there are cores; --compile_torch
adds torch.compile.

The last line sets the forward and backward pass against the machine: its rate
of floating-point operations, over that of bare matrix products of the dense
layers' sizes, which take their turns as well.
"""

import argparse
import functools
import importlib.util
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from vit_jax import make_vit
from vit_jax.models import flops
from vit_jax.models.variants import VITS
from vit_jax.training.optimizer import make_optimizer
from vit_jax.training.settings import OptimizerSettings
from vit_jax.training.state import make_init
from vit_jax.training.step import make_train_step

SIDE, CLASSES, RATE = 224, 1000, 1e-3
_BARE, _PASS = "matrix products", "forward and backward"
Step = Callable[[], Any]


class PlainBlock(nn.Module):
  """A Transformer layer made of stock parts."""

  num_heads: int
  mlp_size: int
  dtype: Any

  @nn.compact
  def __call__(self, x):
    y = nn.LayerNorm(dtype=self.dtype)(x)
    x = x + nn.MultiHeadDotProductAttention(
      self.num_heads, dtype=self.dtype, deterministic=True
    )(y, y)
    y = nn.LayerNorm(dtype=self.dtype)(x)
    y = nn.gelu(nn.Dense(self.mlp_size, dtype=self.dtype)(y))
    return x + nn.Dense(x.shape[-1], dtype=self.dtype)(y)


class PlainVit(nn.Module):
  """The paper's ViT, made of stock parts."""

  patch_size: int
  sizes: tuple[int, int, int, int]  # Layers, hidden, MLP, heads.
  dtype: Any

  @nn.compact
  def __call__(self, x):
    layers, hidden, mlp, heads = self.sizes
    patch = (self.patch_size, self.patch_size)
    x = nn.Conv(hidden, patch, patch, "VALID", dtype=self.dtype)(x)
    x = x.reshape(len(x), -1, hidden)
    token = self.param("cls", nn.initializers.zeros, (1, 1, hidden))
    x = jnp.concatenate([jnp.tile(token, (len(x), 1, 1)), x], axis=1)
    init = nn.initializers.normal(0.02)
    x = x + self.param("pos", init, (1, *x.shape[1:]))
    x = x.astype(self.dtype)
    for _ in range(layers):
      x = PlainBlock(heads, mlp, self.dtype)(x)
    x = nn.LayerNorm(dtype=self.dtype)(x)[:, 0]
    return nn.Dense(CLASSES)(x)


def ours(variant: str, batch: dict[str, np.ndarray], dtype: Any) -> Step:
  model = make_vit(variant, CLASSES, dtype=dtype)
  tx = make_optimizer(OptimizerSettings(clip_norm=0.0), lambda _: RATE)
  state = jax.jit(
    lambda key: nn.unbox(make_init(model, tx, (SIDE, SIDE, 3))(key))
  )(jax.random.key(0))
  step = jax.jit(make_train_step(model, tx, lambda _: RATE), donate_argnums=0)
  return _stepper(step, state, jax.device_put(batch))


def plain(variant: str, batch: dict[str, np.ndarray], dtype: Any) -> Step:
  name, _, patch = variant.partition("/")
  model = PlainVit(int(patch), VITS[name], dtype)
  tx = optax.adamw(RATE, weight_decay=0.0)

  @jax.jit
  def init(key):
    params = model.init(key, jnp.zeros((1, SIDE, SIDE, 3)))
    return params, tx.init(params)

  @functools.partial(jax.jit, donate_argnums=0)
  def step(state, batch):
    params, opt_state = state

    def loss_of(params):
      images = batch["image"].astype(jnp.float32) / 127.5 - 1
      logits: Any = model.apply(params, images)
      losses = optax.softmax_cross_entropy_with_integer_labels(
        logits, batch["label"]
      )
      return losses.mean()

    loss, grads = jax.value_and_grad(loss_of)(params)
    updates, opt_state = tx.update(grads, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), loss

  return _stepper(step, init(jax.random.key(0)), jax.device_put(batch))


def passes(
  variant: str, batch: dict[str, np.ndarray], dtype: Any
) -> tuple[Step, int]:
  """Our forward and backward pass alone, and the operations of its products."""
  model = make_vit(variant, CLASSES, dtype=dtype)
  image = jnp.asarray(batch["image"] / np.float32(127.5) - 1)
  label = jnp.asarray(batch["label"])

  @jax.jit
  def gradient(params, image):
    def loss_of(params):
      logits: Any = model.apply(params, image, train=True)
      return optax.softmax_cross_entropy_with_integer_labels(
        logits, label
      ).mean()

    return jax.grad(loss_of)(params)

  params = nn.unbox(jax.jit(model.init)(jax.random.key(0), image[:1]))

  def run() -> None:
    jax.block_until_ready(gradient(params, image))

  return run, flops.count(gradient, params, image)


def products(variant: str, batch_size: int, dtype: Any) -> tuple[Step, int]:
  """The dense layers' products, forward and backward, and their operations."""
  name, _, patch = variant.partition("/")
  layers, D, mlp, _ = VITS[name]
  rows = batch_size * ((SIDE // int(patch)) ** 2 + 1)
  sizes = [(rows, D, D)] * 4 + [(rows, D, mlp), (rows, mlp, D)]
  sizes = [s for m, k, n in sizes for s in ((m, k, n), (m, n, k), (k, m, n))]
  shapes = {shape for m, k, n in sizes for shape in ((m, k), (k, n), (m, n))}
  given = {s: jax.random.normal(jax.random.key(0), s, dtype) for s in shapes}
  outs: Any = {s: jnp.zeros(s, dtype) for s in shapes}

  # Writing to the last result's memory spares the mapping of new memory.
  @functools.partial(jax.jit, donate_argnums=2, keep_unused=True)
  def product(a, b, out):
    return a @ b

  def run() -> None:
    for m, k, n in sizes * layers:
      outs[m, n] = product(given[m, k], given[k, n], outs[m, n])
    jax.block_until_ready(outs)

  return run, sum(2 * m * k * n for m, k, n in sizes) * layers


def _stepper(step: Callable, state: Any, batch: Any) -> Step:
  held = [state]

  def run() -> None:
    held[0], metrics = step(held[0], batch)
    jax.block_until_ready(metrics)

  return run


def hugging_face(
  variant: str, batch: dict[str, np.ndarray], *, compiled: bool
) -> Step:
  import torch  # pyright: ignore[reportMissingImports]
  from transformers import (  # pyright: ignore[reportMissingImports]
    ViTConfig,
    ViTForImageClassification,
  )

  torch.set_num_threads(os.cpu_count() or 1)
  name, _, patch = variant.partition("/")
  layers, hidden, mlp, heads = VITS[name]
  config = ViTConfig(
    hidden_size=hidden,
    num_hidden_layers=layers,
    num_attention_heads=heads,
    intermediate_size=mlp,
    patch_size=int(patch),
    num_labels=CLASSES,
  )
  model = ViTForImageClassification(config)
  forward = torch.compile(model) if compiled else model
  optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
  images = torch.tensor(batch["image"]).permute(0, 3, 1, 2)
  labels = torch.tensor(batch["label"]).long()

  def run() -> None:
    logits = forward(images.float() / 127.5 - 1).logits
    loss = torch.nn.functional.cross_entropy(logits, labels)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()

  return run


def main() -> None:
  parser = argparse.ArgumentParser(description="Time a train step.")
  parser.add_argument("--variant", default="S/16")
  parser.add_argument("--batch", type=int, default=16)
  parser.add_argument("--dtype", default="float32")
  parser.add_argument("--rounds", type=int, default=7)
  parser.add_argument("--compile_torch", action="store_true")
  arguments = parser.parse_args()
  rng = np.random.default_rng(0)
  batch = {
    "image": rng.integers(0, 256, (arguments.batch, SIDE, SIDE, 3), np.uint8),
    "label": rng.integers(0, CLASSES, arguments.batch).astype(np.int32),
    "skipped": np.zeros(arguments.batch, bool),
  }
  dtype = jnp.dtype(arguments.dtype)
  steps = {
    "plain linen ViT": plain(arguments.variant, batch, dtype),
    "vit_jax": ours(arguments.variant, batch, dtype),
  }
  if all(map(importlib.util.find_spec, ("torch", "transformers"))):
    make = functools.partial(hugging_face, arguments.variant, batch)
    steps["Hugging Face, eager"] = make(compiled=False)
    if arguments.compile_torch:
      steps["Hugging Face, torch.compile"] = make(compiled=True)
  gradient, pass_flops = passes(arguments.variant, batch, dtype)
  bare, bare_flops = products(arguments.variant, arguments.batch, dtype)
  steps |= {_PASS: gradient, _BARE: bare}
  seconds: dict[str, list[float]] = {name: [] for name in steps}
  for step in steps.values():  # Compile.
    step()
  for _ in range(arguments.rounds):
    for name, step in steps.items():
      start = time.perf_counter()
      step()
      seconds[name].append(time.perf_counter() - start)
  base = seconds["plain linen ViT"]
  pass_seconds, bare_seconds = seconds.pop(_PASS), seconds.pop(_BARE)
  for name, found in seconds.items():
    ratio = statistics.median(b / s for b, s in zip(base, found, strict=True))
    rate = arguments.batch / statistics.median(found)
    print(f"{name:30}{rate:8.2f} images/s  {ratio:5.2f} x the plain ViT")
  shares = sorted(
    b / s * pass_flops / bare_flops
    for b, s in zip(bare_seconds, pass_seconds, strict=True)
  )
  rate = bare_flops / statistics.median(bare_seconds) / 1e9
  print(
    f"{_BARE} {rate:.0f} GFLOP/s; {_PASS} {statistics.median(shares):.2f} of "
    f"it ({shares[0]:.2f} to {shares[-1]:.2f})"
  )


if __name__ == "__main__":
  main()
