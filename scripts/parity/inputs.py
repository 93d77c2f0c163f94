"""What both sides of a comparison are given: weights, batches and draws.

All of it is made again from a seed by NumPy, so that no recording holds it.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import zlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

Arrays = dict[str, np.ndarray]

SIDE, CHANNELS = 16, 3


@dataclasses.dataclass(frozen=True)
class Inputs:
  """The inputs of a trajectory; each array of T steps has them first.

  Attributes:
    params: Our first parameters, by path.
    images, labels: The batches, uint8 (T, B, H, W, C) and integer (T, B).
    uniforms: Numbers in [0, 1) of each call of `bernoulli`, in its order; a
      draw is true where they are below its p.
    chances: The p of each of these calls, for the reference.
    mixing: Mixup's lambda, CutMix's lambda and its box's centre, (T, 4).
    probe: Images whose logits are compared, (E, H, W, C).
  """

  params: Arrays
  images: np.ndarray
  labels: np.ndarray
  uniforms: list[np.ndarray]
  chances: list[float]
  mixing: np.ndarray
  probe: np.ndarray

  def digest(self) -> str:
    """Tells whether NumPy still makes what the recording was made with."""
    found = hashlib.sha256()
    for path in sorted(self.params):
      found.update(self.params[path].tobytes())
    rest = (self.images, self.labels, *self.uniforms, self.mixing, self.probe)
    for array in rest:
      found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:16]


def make_params(shapes: dict[str, tuple[int, ...]], seed: int) -> Arrays:
  """Parameters none of which is zero, so that each has a relative norm."""
  found = {}
  for path, shape in shapes.items():
    rng = np.random.default_rng([seed, zlib.crc32(path.encode())])
    values = rng.standard_normal(shape)
    if path.endswith("/scale"):
      values = 1 + 0.1 * values
    elif path.split("/")[-1].startswith("scale_"):  # LayerScale.
      values = 0.5 + 0.1 * values
    else:
      values = 0.15 * values
    found[path] = values.astype(np.float32)
  return found


def make_batches(
  steps: int, batch: int, classes: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
  """Noise over a pattern of each class, which can be learned."""
  rng = np.random.default_rng([seed, 1])
  patterns = rng.integers(0, 128, (classes, SIDE, SIDE, CHANNELS))
  labels = rng.integers(0, classes, (steps, batch))
  noise = rng.integers(0, 128, (steps, batch, SIDE, SIDE, CHANNELS))
  return (patterns[labels] + noise).astype(np.uint8), labels.astype(np.int32)


def make_mixing(steps: int, seed: int) -> np.ndarray:
  """Draws of Mixup and CutMix that have one meaning in both libraries.

  Which of two mixed images comes first is no difference, so Mixup's lambda is
  at least 1/2. CutMix's boxes have an even side about a whole pixel, which
  timm's rounding and ours leave as it is.
  """
  rng = np.random.default_rng([seed, 2])
  share = rng.beta(0.8, 0.8, steps)
  half = rng.integers(1, SIDE // 2, steps)
  boxes = 1 - ((2 * half + 0.5) / SIDE) ** 2
  centres = rng.integers(0, SIDE, (2, steps))
  columns = np.maximum(share, 1 - share), boxes, *centres
  return np.stack(columns, axis=1).astype(np.float32)


def make_uniforms(
  calls: list[tuple[float, tuple[int, ...]]], steps: int, seed: int
) -> list[np.ndarray]:
  """The numbers of all steps for each call of `bernoulli`."""
  return [
    np.random.default_rng([seed, 3, i]).random((steps, *shape), np.float32)
    for i, (_, shape) in enumerate(calls)
  ]


@contextlib.contextmanager
def given(uniforms: list[Any], mixing: Any = None) -> Iterator[list]:
  """Replaces what JAX draws, while a function is traced, by these numbers.

  Yields the calls of `bernoulli`, each (p, shape). Calls beyond those for
  which there are numbers get 1/2, and calls of another shape the first of the
  numbers: a faulty program may make such calls.
  """
  calls: list[tuple[Any, tuple[int, ...]]] = []
  counts = {"beta": itertools.count(), "uniform": itertools.count()}

  def bernoulli(key: Any, p: Any = 0.5, shape: Any = None, **_: Any) -> Any:
    del key
    shape, i = tuple(shape or ()), len(calls)
    calls.append((p, shape))
    u = uniforms[i] if i < len(uniforms) else np.full(shape, 0.5, np.float32)
    return jax.numpy.resize(u, shape) < p

  def beta(*_: Any, **__: Any) -> Any:
    return mixing[next(counts["beta"]) % 2]

  def uniform(*_: Any, **__: Any) -> Any:
    return mixing[2 + next(counts["uniform"]) % 2]

  own = {"bernoulli": bernoulli, "beta": beta, "uniform": uniform}
  kept = {name: getattr(jax.random, name) for name in own}
  for name, function in own.items():
    setattr(jax.random, name, function)
  try:
    yield calls
  finally:
    for name, function in kept.items():
      setattr(jax.random, name, function)
