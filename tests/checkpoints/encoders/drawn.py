"""The values of parameters, and those of encoders too large to be stored.

The hybrids of timm have no ResNet that is narrower than a published one. For
them `drawn.json` has the shapes of all parameters, of which `parameters` draws
the values: each by its name, from a generator whose numbers never change. Their
patches are of 32 and 16 pixels, not of 8, and their images larger accordingly.
"""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

FILE = "drawn.json"
# Such an encoder -> how many times each pixel of its images is repeated.
TIMES = {"timm_hybrid_r26": 4, "timm_hybrid_r50": 2}


def value(name: str, noise: Any) -> Any:
  """The value of a parameter, given normal numbers of its shape."""
  patches = "patch_embed" in name or name.endswith("patch_projection.weight")
  if "lambda1" in name or "gamma" in name:
    return 0.5 + 0.2 * noise
  if name.endswith("norm3.weight"):  # Of a residual unit, where it is small.
    return 0.25 + 0.05 * noise
  if "norm" in name and name.endswith("weight"):
    return 1.0 + 0.2 * noise
  narrow = patches and "norm" not in name and name.endswith("weight")
  return (0.1 if narrow else 0.2) * noise


def parameters(shapes: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
  """All parameters of an encoder, by name."""
  return {name: value(name, _noise(name, s)) for name, s in shapes.items()}


def _noise(name: str, shape: Sequence[int]) -> np.ndarray:
  generator = np.random.RandomState(zlib.crc32(name.encode()))
  return generator.standard_normal(tuple(shape)).astype(np.float32)
