"""Pictures, and given numbers in the place of random ones, for both sides."""

import io
import statistics
from typing import Any

import numpy as np
from PIL import Image


def photograph(height: int, width: int, seed: int = 0) -> np.ndarray:
  """A smooth picture with noise, in whole numbers, uint8 (H, W, 3)."""
  rng = np.random.default_rng([11, seed, height, width])
  coarse = rng.integers(0, 256, (height // 16 + 2, width // 16 + 2, 3))
  y, x = np.arange(height), np.arange(width)
  (i, a), (j, b) = (y // 16, y % 16), (x // 16, x % 16)
  a, b = a[:, None, None], b[None, :, None]
  rows = (16 - b) * coarse[:, j] + b * coarse[:, j + 1]
  smooth = ((16 - a) * rows[i] + a * rows[i + 1]) // 256
  noise = rng.integers(-12, 13, smooth.shape)
  return np.clip(smooth + noise, 0, 255).astype(np.uint8)


def patchwork(height: int, width: int) -> np.ndarray:
  """Noise beside plain areas, where rounding shows, uint8 (H, W, 3)."""
  found = np.random.default_rng(5).integers(
    0, 256, (height, width, 3), np.uint8
  )
  found[: height // 4] = 100
  found[height // 4 : height // 2, : width // 2] = 255
  found[height // 4 : height // 2, width // 2 :] = 7, 200, 255
  found[-height // 3 :, : width // 4] &= 0xE0
  return found


def encoded(picture: np.ndarray, **options: Any) -> np.ndarray:
  """A JPEG file, uint8 (bytes,)."""
  file = io.BytesIO()
  Image.fromarray(picture).save(file, "JPEG", **options)
  return np.frombuffer(file.getvalue(), np.uint8)


class Script:
  """Stands for a NumPy generator whose numbers are given.

  `draws` has, for each of its methods, the numbers in [0, 1) that it turns into
  its answers, in their order; "order" is that of a permutation. Where none is
  left, as a faulty program may ask for more, it is 1/2.
  """

  def __init__(self, draws: dict[str, list[Any]]):
    self.left = {name: list(values) for name, values in draws.items()}

  def take(self, name: str) -> float:
    left = self.left.get(name)
    return left.pop(0) if left else 0.5

  def random(self) -> float:
    return self.take("random")

  def uniform(self, low: float, high: float) -> float:
    return low + (high - low) * self.take("uniform")

  def normal(self, mean: float, std: float) -> float:
    return statistics.NormalDist(mean, std).inv_cdf(self.take("normal"))

  def integers(
    self, low: int, size: Any = None, endpoint: bool = False, **_: Any
  ) -> Any:
    """Numbers from 0 up to `low`, as none of ours begins elsewhere."""
    if size is not None and not isinstance(size, int):
      return np.full(size, 7, np.uint8)  # Noise.
    one = lambda: int((low + endpoint) * self.take("integers"))  # noqa: E731
    return one() if size is None else [one() for _ in range(size)]

  def permutation(self, count: int) -> list[int]:
    del count
    return self.left["order"]
