"""How well images and texts find each other: ranks and recall, in NumPy."""

import dataclasses
import functools
from collections.abc import Sequence

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
    texts: For each image, the best rank of its texts among all texts.
    images: For each of the G groups of texts, the best rank of its images among
      all images.
  """

  texts: Int[np.ndarray, " N"]
  images: Int[np.ndarray, " G"]

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
  groups: Sequence[int] | np.ndarray | None = None,
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
      group. A group counts as one text, with the vector of its first one, and
      is right for all images that own a text of it. By default, each text is a
      group of its own.
  """
  numbers = np.arange(len(v)) if groups is None else np.asarray(groups)
  _, first, group = np.unique(numbers, return_index=True, return_inverse=True)
  v = v[first]  # (G, R)
  texts = np.zeros(len(u), int)
  for rows in _blocks(len(u)):
    texts[rows] = _ranks(u[rows] @ v.T, _are_pairs(rows, len(v), owner, group))
  images = np.zeros(len(v), int)
  for rows in _blocks(len(v)):
    images[rows] = _ranks(v[rows] @ u.T, _are_pairs(rows, len(u), group, owner))
  return Ranks(texts, images)


def _are_pairs(
  rows: slice, count: int, row_of: np.ndarray, column_of: np.ndarray
) -> np.ndarray:
  """Which of `count` columns are right for each row of a block, (b, count).

  For each text k, the column column_of[k] is right for the row row_of[k].
  """
  found = np.zeros((rows.stop - rows.start, count), bool)
  here = (rows.start <= row_of) & (row_of < rows.stop)
  found[row_of[here] - rows.start, column_of[here]] = True
  return found


def _blocks(count: int) -> list[slice]:
  """Slices that cut `count` rows into blocks of at most `ROWS`."""
  return [slice(k, min(k + ROWS, count)) for k in range(0, count, ROWS)]


def _ranks(cosines: np.ndarray, is_right: np.ndarray) -> np.ndarray:
  """The rank of the best right answer in each row, counted from 1."""
  cosines = np.where(np.isfinite(cosines), cosines, -np.inf)
  best = np.where(is_right, cosines, -np.inf).max(axis=1)
  return 1 + (~is_right & (cosines >= best[:, None])).sum(axis=1)
