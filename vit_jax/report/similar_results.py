"""The results of `vit_jax similar`: neighbours, groups and clusters as rows."""

import dataclasses
import itertools
import math
import os
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from vit_jax.data.example import ImageSpec
from vit_jax.inference.copies import Copies
from vit_jax.runtime.printable import counted, printable
from vit_jax.tasks.probes import nearest
from vit_jax.tasks.probes.nearest import Clusters, Neighbours

TABLE = "similar.csv"
"""The file of the rows."""
_FOR_GROUPS = 10  # Neighbours of an image that may join its group.
_MOST_CLUSTERS = 20


@dataclasses.dataclass(frozen=True)
class Similar:
  """Images that look alike, as results.

  Attributes:
    files: The paths of the images.
    names: The paths below their folder, as the page and the table show them.
    splits: The split that each image's folder is named after, or "".
    nearest: The nearest images of each image, `_FOR_GROUPS` of them or more
      unless there are fewer images.
    groups: Near-duplicates; those across splits come first.
    clusters: The cluster of each image, and how typical of it the image is.
  """

  files: tuple[str, ...]
  names: tuple[str, ...]
  splits: tuple[str, ...]
  nearest: Neighbours
  groups: tuple[Int[np.ndarray, " n"], ...]
  clusters: Clusters

  def across(self, group: Int[np.ndarray, " n"]) -> bool:
    """Whether a group has images of several splits."""
    return len({self.splits[row] for row in group}) > 1

  @classmethod
  def of(
    cls,
    files: Sequence[str],
    names: Sequence[str],
    rows: Float[np.ndarray, "N D"],
    k: int,
    duplicates: float,
    count: int | None,
    splits: Sequence[str],
    spec: ImageSpec,
  ) -> "Similar":
    """Compares all images with each other.

    Args:
      files, names: As the attributes.
      rows: The images' unit vectors.
      k: Neighbours that the table has.
      duplicates: The least cosine of images that are compared by pixels.
      count: The number of clusters; None derives it from the number of images.
      splits: As the attribute.
      spec: The channels and the type of the images, to read them.
    """
    nearby = nearest.neighbours(rows, max(k, _FOR_GROUPS))
    count = count or min(_MOST_CLUSTERS, math.ceil(math.sqrt(len(rows) / 2)))
    copies = Copies(files, spec)
    groups = nearest.duplicate_groups(nearby, duplicates, copies)
    groups.sort(key=lambda group: len({splits[row] for row in group}) == 1)
    return cls(
      files=tuple(files),
      names=tuple(names),
      splits=tuple(splits),
      nearest=nearby,
      groups=tuple(groups),
      clusters=nearest.clusters(rows, min(count, len(rows))),
    )

  @property
  def loneliest_first(self) -> Int[np.ndarray, " N"]:
    """The places of all images in `files`, the loneliest image first.

    It is the image whose nearest image is the farthest.
    """
    return np.argsort(self.nearest.cosine[:, 0], kind="stable")

  def table(self, k: int) -> list[list[str]]:
    """The rows of the CSV file: each image with its nearest."""
    k = min(k, self.nearest.place.shape[1])
    group_of = {
      int(row): str(number)
      for number, group in enumerate(self.groups, 1)
      for row in group
    }
    pairs = [[f"nearest_{n}", f"cosine_{n}"] for n in range(1, k + 1)]
    titles = ["file", "split", "cluster", "typical", "duplicates"]
    table = [[*titles, *itertools.chain.from_iterable(pairs)]]
    for row, name in enumerate(self.names):
      cells = [
        name,
        self.splits[row],
        str(self.clusters.label[row] + 1),
        f"{self.clusters.typical[row]:.6f}",
        group_of.get(row, ""),
      ]
      for place, cosine in zip(
        self.nearest.place[row, :k], self.nearest.cosine[row, :k], strict=True
      ):
        cells += [self.names[place], f"{cosine:.6f}"]
      table.append(cells)
    return table

  @property
  def summary(self) -> str:
    """One line with the numbers of images, near-duplicates and clusters."""
    images = sum(map(len, self.groups))
    across = sum(map(self.across, self.groups))
    count = len(self.groups)
    line = (
      f"{len(self.files):,} images: {counted(count, 'group')} of "
      f"near-duplicates ({images:,} images)"
    )
    if across:
      line += f", {across:,} of them across splits"
    clusters = int(self.clusters.label.max()) + 1
    return f"{line}; {counted(clusters, 'cluster')}."


@dataclasses.dataclass(frozen=True)
class Answers:
  """The nearest images of some queries.

  Attributes:
    queries: The path or the text of each query.
    files, names: The paths of the images, as in `Similar`.
    nearest: The nearest images of each query, by their places in `files`.
  """

  queries: tuple[str, ...]
  files: tuple[str, ...]
  names: tuple[str, ...]
  nearest: Neighbours

  @classmethod
  def of(
    cls,
    queries: Sequence[str],
    vectors: Float[np.ndarray, "Q D"],
    files: Sequence[str],
    names: Sequence[str],
    rows: Float[np.ndarray, "N D"],
    k: int,
  ) -> "Answers":
    """The `k` nearest images of each query, without the query itself.

    `vectors` has the unit vectors of the queries, and `rows` those of the
    images.
    """
    nearby = nearest.neighbours(rows, k + 1, vectors)
    paths = [os.path.abspath(os.path.expanduser(name)) for name in queries]
    columns_of = []
    for name, places in zip(paths, nearby.place, strict=True):
      others = [c for c, row in enumerate(places) if files[row] != name]
      columns_of.append(others[:k])
    width = min(map(len, columns_of))
    columns = np.array([each[:width] for each in columns_of], int)
    columns = columns.reshape(-1, width)
    return cls(
      queries=tuple(queries),
      files=tuple(files),
      names=tuple(names),
      nearest=Neighbours(
        np.take_along_axis(nearby.place, columns, axis=1),
        np.take_along_axis(nearby.cosine, columns, axis=1),
      ),
    )

  def table(self, k: int) -> list[list[str]]:
    """The rows of the CSV file: all nearest images of each query.

    `k` has no effect, since `of` has already chosen the nearest.
    """
    del k
    table = [["query", "rank", "file", "cosine"]]
    for number, name in enumerate(self.queries):
      pairs = zip(
        self.nearest.place[number], self.nearest.cosine[number], strict=True
      )
      for rank, (place, cosine) in enumerate(pairs, 1):
        cells = [printable(name), str(rank), self.names[place]]
        table.append([*cells, f"{cosine:.6f}"])
    return table

  @property
  def summary(self) -> str:
    """One line with the numbers of queries and images, and the first answer."""
    queries = counted(len(self.queries), "query", "queries")
    return (
      f"The nearest of {queries} among {len(self.files):,} images; the first "
      f"is {self.names[self.nearest.place[0, 0]]} "
      f"({self.nearest.cosine[0, 0]:.3f})."
    )
