"""How well images and texts find each other: ranks and recall, in NumPy."""

import dataclasses
import functools
from typing import Any

import numpy as np
from jaxtyping import Float, Int

WAYS = ("text", "image")
"""What is found: a text by an image, and an image by a text."""
RECALLS = (1, 5, 10)
ROWS = 512  # Images, or texts, whose cosines are in memory at a time.


@dataclasses.dataclass(frozen=True)
class Ranks:
  """The rank of the best right answer to each query, counted from 1.

  Attributes:
    texts: Ranks of an image's texts among all texts, for each image.
    images: Ranks of a text's images among all images, for each text.
  """

  texts: Int[np.ndarray, " N"]
  images: Int[np.ndarray, " K"]

  @functools.cached_property
  def scores(self) -> dict[str, float]:
    """Recall at 1, 5 and 10 and the median rank, both ways.

    `text_recall5` is the share of the images that have one of their texts among
    the first 5, and `recall1` is the mean of both ways.
    """
    scores: dict[str, float] = {}
    for name, ranks in zip(WAYS, (self.texts, self.images), strict=True):
      for k in RECALLS:
        scores[f"{name}_recall{k}"] = float((ranks <= k).mean())
      scores[f"{name}_rank"] = float(np.median(ranks))
    both = scores["text_recall1"] + scores["image_recall1"]
    return {"recall1": both / 2, **scores}


def ranks(
  u: Float[np.ndarray, "N R"],
  v: Float[np.ndarray, "K R"],
  owner: Int[np.ndarray, " K"],
  groups: Any = None,
) -> Ranks:
  """The ranks of the right answers to images u and texts v, unit vectors.

  A wrong answer whose cosine is as high as that of the best right one comes
  before it, so a model that gives all the same vector finds nothing. A cosine
  that is not finite comes after all others.

  >>> import numpy as np
  >>> from vit_jax.tasks.pairs.retrieval import ranks
  >>> u = np.eye(2, dtype=np.float32)
  >>> v = u[[1, 1, 0]]
  >>> ranks(u, v, np.array([0, 1, 1])).texts.tolist()
  [3, 2]

  Args:
    owner: The image of each text.
    groups: The number of each text's group; equal texts, for example, are one
      group. All texts in the groups of an image's own texts are right for it.
      By default, each text is a group of its own.
  """
  numbers = np.arange(len(v)) if groups is None else np.asarray(groups)
  _, group = np.unique(numbers, return_inverse=True)
  texts = np.zeros(len(u), int)
  for rows in _blocks(len(u)):
    is_own = owner[None] == np.arange(len(u))[rows, None]  # (b, K)
    has_group = np.zeros((len(is_own), group.max() + 1), bool)
    places, columns = np.nonzero(is_own)
    has_group[places, group[columns]] = True
    texts[rows] = _ranks(u[rows] @ v.T, has_group[:, group])
  images = np.zeros(len(v), int)
  for rows in _blocks(len(v)):
    is_right = np.zeros((len(group[rows]), len(u)), bool)
    places, columns = np.nonzero(group[rows, None] == group[None])
    is_right[places, owner[columns]] = True
    images[rows] = _ranks(v[rows] @ u.T, is_right)
  return Ranks(texts, images)


def _blocks(count: int) -> list[slice]:
  """Slices that part `count` rows into blocks of `ROWS`."""
  return [slice(k, k + ROWS) for k in range(0, count, ROWS)]


def _ranks(cosines: np.ndarray, is_right: np.ndarray) -> np.ndarray:
  """The rank of the best right answer in each row, counted from 1."""
  cosines = np.where(np.isfinite(cosines), cosines, -np.inf)
  best = np.where(is_right, cosines, -np.inf).max(axis=1)
  return 1 + (~is_right & (cosines >= best[:, None])).sum(axis=1)
