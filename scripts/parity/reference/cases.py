"""What the programs that make a reference's pixels and draws share.

Each is started by `record_pixels.py` as `python PROGRAM INPUTS OUTPUTS`, with
the reference's folder on its path. It imports nothing of this package.
"""

import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

Found = Any


def answer(kinds: dict[str, Callable[..., Any]], facts: dict[str, str]) -> None:
  """Calls the function of each case's kind, and writes what it returns.

  A case is a dictionary; "image" is added to it, an array (H, W, 3) or the
  bytes of a file.
  """
  with np.load(sys.argv[1]) as file:
    given = {name: file[name] for name in file.files}
  found = {}
  for i, case in enumerate(json.loads(str(given["cases"]))):
    image = given.get(f"image_{case['source']}") if "source" in case else None
    if image is not None and image.ndim == 1:
      image = image.tobytes()
    found[f"{i}"] = np.asarray(kinds[case["kind"]](**case, image=image))
  np.savez(sys.argv[2], **found, facts=np.array(json.dumps(facts)))


class Script:
  """Stands for `random`, `numpy.random` and torch's functions: given numbers.

  `draws` has the numbers in [0, 1) that each of its methods turns into its
  answers, in their order.
  """

  def __init__(self, draws: dict[str, list[float]]):
    self.left = {name: list(values) for name, values in draws.items()}

  def take(self, name: str) -> float:
    return self.left[name].pop(0)

  def random(self) -> float:
    return self.take("random")

  def uniform(self, low: float, high: float) -> float:
    return low + (high - low) * self.take("uniform")

  def randint(self, low: int, high: int) -> int:
    return low + int((high - low + 1) * self.take("integers"))

  def choice(self, values: Any) -> Any:
    return values[int(len(values) * self.take("integers"))]

  def gauss(self, mean: float, std: float) -> float:
    return statistics.NormalDist(mean, std).inv_cdf(self.take("normal"))
