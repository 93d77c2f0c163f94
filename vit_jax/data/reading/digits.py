"""Handwritten digits that come with the package.

1,797 images of 8 x 8 pixels in 10 classes, the same as scikit-learn's
`load_digits`; `digits.md` beside this file names their source.
"""

import pathlib
import re
from collections.abc import Sequence

import cv2
import numpy as np

from vit_jax.data.example import Example, Source

_SIZES = {"train": 1438, "test": 359}
_PART = re.compile(r"(\w+)(?:\[(?:(-?\d+)(%?))?:(?:(-?\d+)(%?))?\])?")


class Digits(Source):
  """The splits "train" (1,438 examples) and "test" (359), each class 4 : 1."""

  name = "digits/1.0.0"
  class_names = tuple("0123456789")

  def __init__(self, split: str):
    """Opens a split, a part such as "train[:90%]", or a sum of parts by "+".

    Raises:
      ValueError: there is no such split, or it is empty.
    """
    with np.load(pathlib.Path(__file__).with_name("digits.npz")) as table:
      images, labels, order = (table[k] for k in ("images", "labels", "order"))
    order = dict(zip(_SIZES, np.split(order, [_SIZES["train"]]), strict=True))
    parts = [_part(p, order) for p in re.split(r"\s*\+\s*", split)]
    if not all(map(len, parts)):
      raise ValueError(
        f"{self.name} has no split {split!r}, or it is empty; it has "
        f'{", ".join(_SIZES)}, and parts of them such as "train[:90%]".'
      )
    indices = np.concatenate(parts)
    self._split = split
    self._labels = labels[indices].astype(np.int32)
    grey = np.round(images[indices] * (255 / 16)).astype(np.uint8)
    self._files = [cv2.imencode(".png", image)[1].tobytes() for image in grey]

  def __len__(self) -> int:
    return len(self._files)

  def __getitem__(self, index: int) -> Example:
    return {
      "image": self._files[index],
      "label": int(self._labels[index]),
      "id": f"{self.name}/{self._split}#{index}",
    }

  def labels(self, indices: Sequence[int]) -> np.ndarray:
    """Returns int32 labels."""
    return self._labels[np.asarray(indices, np.int64)]


def _part(text: str, order: dict[str, np.ndarray]) -> np.ndarray:
  """The indices of "train", "train[:90%]" or "train[100:]"; none if invalid."""
  match = _PART.fullmatch(text)
  if match is None or match[1] not in order:
    return np.empty(0, np.uint16)
  whole = order[match[1]]
  start = _bound(match[2], match[3], len(whole))
  stop = _bound(match[4], match[5], len(whole))
  if max(abs(start or 0), abs(stop or 0)) > len(whole):
    return whole[:0]
  return whole[start:stop]


def _bound(number: str | None, percent: str | None, size: int) -> int | None:
  if number is None:
    return None
  return round(int(number) * size / 100) if percent else int(number)
