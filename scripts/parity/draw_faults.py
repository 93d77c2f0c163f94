"""Faults that are put into our draws one at a time: each must be found.

Each is a change by 2 %, or by as little as can be.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from scripts.parity.pixels.faults import patched
from vit_jax.data.transforming import augment, randaugment
from vit_jax.training import losses


def _box(change: Callable[..., Any]) -> Any:
  return patched(
    augment,
    "published_box",
    lambda draw: lambda H, W, area, rng: change(draw, H, W, area, rng),
  )


def _higher(draw: Any, H: int, W: int, area: float, rng: Any) -> Any:
  top, left, h, w = draw(H, W, area, rng)
  return top, left, min(round(1.02 * h), H), w


def _further(draw: Any, H: int, W: int, area: float, rng: Any) -> Any:
  top, left, h, w = draw(H, W, area, rng)
  return round(0.98 * top), left, h, w


@contextlib.contextmanager
def _rng(name: str, change: Callable[[Any], Any]) -> Iterator[None]:
  """Another method of NumPy's generators."""
  made = np.random.default_rng

  class Changed:
    def __init__(self, seed: int):
      self.rng = made(seed)

    def __getattr__(self, other: str) -> Any:
      method = getattr(self.rng, other)
      return change(method) if other == name else method

  with mock.patch.object(np.random, "default_rng", Changed):
    yield


def _integers(change: Callable[[Any, int], Any]) -> Any:
  return lambda: _rng("integers", lambda draw: lambda n: change(draw, n))


BOXES = {
  "boxes 2 % higher": _box(_higher),
  "boxes 2 % further up": _box(_further),
  "2 % more of the least area": _box(
    lambda draw, H, W, area, rng: draw(H, W, 1.02 * area, rng)
  ),
  "ratios 2 % wider": patched(
    augment, "_PUBLISHED_RATIOS", lambda _: (0.735, 1.3566)
  ),
  "2 % of boxes are the whole image": _box(
    lambda draw, H, W, area, rng: (
      (0, 0, H, W) if rng.random() < 0.02 else draw(H, W, area, rng)
    )
  ),
  "areas that are uniform": patched(
    augment, "published_box", lambda _: augment.inception_box
  ),
}
LAYERS = {
  "2 % of layers are the first operation": lambda: mock.patch.object(
    randaugment,
    "rand_augment",
    _often(randaugment.rand_augment),
  ),
  "one sign 2 % oftener": patched(
    randaugment, "_sign", lambda _: lambda rng: 1 if rng.random() < 0.51 else -1
  ),
  "movements 2 % larger": patched(
    randaugment, "_sign", lambda sign: lambda rng: 1.02 * sign(rng)
  ),
  "one sign alone": patched(randaugment, "_sign", lambda _: lambda rng: 1),
  "translations of 102 pixels": patched(
    randaugment, "_TRANSLATE", lambda x: 1.02 * x
  ),
}


def _often(augmented: Callable[..., Any]) -> Callable[..., Any]:
  def own(image: Any, rng: Any, *args: Any, **options: Any) -> Any:
    if rng.random() < 0.02:
      return randaugment.PUBLISHED["autocontrast"](image, 1.0, rng)
    return augmented(image, rng, *args, **options)

  return own


POLICY = {
  "operations 2 % oftener": patched(randaugment, "_CHANCE", lambda x: 1.02 * x),
  "a spread of 0.51": patched(randaugment, "_SPREAD", lambda x: 1.02 * x),
  "magnitudes 2 % larger": patched(
    randaugment,
    "rand_augment",
    lambda own: lambda x, rng, n, m, **how: own(x, rng, n, 1.02 * m, **how),
  ),
  "2 % of operations are the first": lambda: _rng(
    "integers", lambda draw: lambda n, size: draw(n, size=size) * (draw(50) > 0)
  ),
  "one sign 2 % oftener": LAYERS["one sign 2 % oftener"],
}
CENTRES = {
  "no centre in the last 2 %": _integers(lambda draw, n: int(0.98 * draw(n))),
  "the first place 2 % oftener": _integers(
    lambda draw, n: draw(n) * (draw(50) > 0)
  ),
  "centres off the edge": _integers(lambda draw, n: 1 + draw(n - 2)),
  "places that are even": _integers(lambda draw, n: 2 * draw(n // 2)),
  "a place further": _integers(lambda draw, n: min(draw(n) + 1, n - 1)),
}


def _mix(change: Callable[[Any], Any], name: str = "mixup") -> Any:
  """Another share of Mixup or CutMix."""

  def make(mix: Any) -> Any:
    def own(key: Any, images: Any, targets: Any, alpha: float) -> Any:
      images, targets = mix(key, images, targets, alpha)
      return images, change(targets)

    return own

  return patched(losses, name, make)


SHARES = {
  "Mixup's alpha of 0.816": patched(
    losses, "mixup", lambda mix: lambda *a: mix(*a[:3], 1.02 * a[3])
  ),
  "2 % less of what CutMix leaves": _mix(lambda x: 0.98 * x, "cutmix"),
  "CutMix 2 % oftener": patched(
    jax.random, "bernoulli", lambda draw: lambda key: draw(key, 0.49)
  ),
  "2 % less of an example": _mix(lambda targets: 0.98 * targets),
  "CutMix's boxes 2 % longer": patched(
    jnp, "sqrt", lambda root: lambda x: 1.02 * root(x)
  ),
}
