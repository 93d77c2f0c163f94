"""What `vit_jax similar` does: vectors, neighbours, groups, and two files."""

import codecs
import csv
import dataclasses
import itertools
import math
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from vit_jax.data.reading.folders import split_named
from vit_jax.data.reading.image_files import find_images, say_missing
from vit_jax.inference import nearest
from vit_jax.inference.kept_vectors import (
  KeptVectors,
  fingerprint_of,
  stamps_of,
)
from vit_jax.inference.nearest import Clusters, Neighbours
from vit_jax.inference.predictor import predict
from vit_jax.pretrained.load import open_checkpoint
from vit_jax.pretrained.loaded import Loaded
from vit_jax.pretrained.published import FEATURES
from vit_jax.runtime import extras
from vit_jax.runtime.display import Display
from vit_jax.runtime.files import replacing
from vit_jax.runtime.printable import printable, printable_path, say
from vit_jax.tasks.choose import answering

VECTORS, PAGE, TABLE = "vectors.npz", "index.html", "similar.csv"
_FOR_GROUPS = 10  # Neighbours of an image that may join its group.
_MOST_CLUSTERS = 20


@dataclasses.dataclass(frozen=True)
class Similar:
  """What was found among images.

  Attributes:
    files: Their paths.
    names: The same as the page and the table have them: below their folder.
    splits: The split that each image's folder is named after, or "".
    nearest: The nearest of each image, at least `_FOR_GROUPS` if there are.
    groups: Near-duplicates; those across splits come first.
    clusters: The clusters.
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

  @property
  def lone(self) -> Int[np.ndarray, " N"]:
    """All images, those whose nearest is the farthest first."""
    return np.argsort(self.nearest.cosine[:, 0], kind="stable")


@dataclasses.dataclass(frozen=True)
class Answers:
  """The nearest images of some queries.

  Attributes:
    queries: The paths of the queries.
    files, names: Those of the images.
    nearest: The nearest of each query.
  """

  queries: tuple[str, ...]
  files: tuple[str, ...]
  names: tuple[str, ...]
  nearest: Neighbours


def find_similar(
  checkpoint: str,
  folders: Sequence[str],
  *,
  out: str = "found",
  query: Sequence[str] = (),
  neighbours: int = 5,
  duplicates: float = 0.975,
  clusters: int | None = None,
  batch_size: int = 32,
  **overrides: Any,
) -> int:
  """Writes the page and the table; returns the exit code.

  The arguments are those of the command. Raises ValueError if there are not two
  images to compare, a query cannot be read, or the kept vectors are another
  model's.
  """
  page = extras.load("vit_jax.report.similar_page", "figures")
  display = Display()
  missing = say_missing(folders)
  files = [*dict.fromkeys(map(os.path.abspath, find_images(folders)))]
  folder = pathlib.Path(out).expanduser()
  if folder.exists() and not folder.is_dir():
    raise ValueError(f"--out={out!r} is a file: give a folder to write.")
  loaded = open_checkpoint(checkpoint, hold=Loaded.read_params, **overrides)
  for note in loaded.notes:
    say(note)
  files, vectors, skipped = _vectors_of(
    loaded, files, folder, batch_size, display
  )
  if len(files) < 2:
    raise ValueError(
      f"{len(files)} image{'s' * (len(files) != 1)} could be read, and images "
      "are compared with others: give a folder with two or more."
    )
  rows = nearest.unit(vectors)
  names = _names(files, folders)
  result: Any
  if query:
    result = _answered(loaded, query, files, names, rows, neighbours)
    table = _query_table(result)
  else:
    result = _compared(files, names, rows, neighbours, duplicates, clusters)
    table = _table(result, neighbours)
  with replacing(folder / TABLE) as file:
    csv.writer(codecs.getwriter("utf-8")(file)).writerows(table)
  about = _about(checkpoint, loaded)
  with replacing(folder / PAGE) as file:
    file.write(page.page(result, about, duplicates, loaded).encode())
  say(_summary(result), sys.stdout)
  written = " and ".join(
    printable_path(str(folder / name)) for name in (PAGE, TABLE)
  )
  say(f"Wrote {written}.", sys.stdout)
  return 1 if missing or skipped else 0


def _vectors_of(
  loaded: Loaded,
  files: list[str],
  folder: pathlib.Path,
  batch_size: int,
  display: Display,
) -> tuple[list[str], Float[np.ndarray, "N D"], int]:
  """The readable files, the vector of each, and how many are left out.

  Those that were computed before a stop or an error are kept all the same.
  """
  fingerprint = fingerprint_of(
    loaded.model, loaded.params, loaded.preprocessing
  )
  path = folder / VECTORS
  stored = KeptVectors.read(path, fingerprint)
  stamps = stamps_of(files)
  rows = stored.rows_of(files, stamps)
  new = np.flatnonzero(rows < 0)
  say(
    f"{len(files) - len(new):,} of {len(files):,} vectors are kept in "
    f"{printable_path(str(path))}; computing {len(new):,}.",
    sys.stdout,
  )
  computed: dict[int, np.ndarray] = {}
  errors = 0
  batches = _predictions(loaded, [files[int(k)] for k in new], batch_size)
  steps = -(-len(new) // batch_size)
  try:
    places = iter(new)
    for batch in display.track(batches, "computing vectors", steps):
      for one, place in zip(batch, places, strict=False):
        if one.features is None:
          say(f"{one.image}: left out: {one.error}")
          errors += 1
        else:
          computed[int(place)] = np.asarray(one.features, np.float32).ravel()
  finally:
    if computed:
      stored = _joined(stored, files, stamps, computed)
      stored.write(path, fingerprint)
  rows = stored.rows_of(files, stamps)
  readable = np.flatnonzero(rows >= 0)
  return (
    [files[int(k)] for k in readable],
    stored.vectors[rows[readable]],
    errors,
  )


def _joined(
  stored: KeptVectors,
  files: list[str],
  stamps: Int[np.ndarray, "N 2"],
  computed: dict[int, np.ndarray],
) -> KeptVectors:
  """The stored vectors and the computed ones, which replace older ones."""
  new = [*computed]
  names = [files[k] for k in new]
  replaced = {*names}
  stay = [k for k, name in enumerate(stored.files) if name not in replaced]
  vectors = np.stack([*computed.values()])
  if stay:
    vectors = np.concatenate([stored.vectors[stay], vectors])
  return KeptVectors(
    files=(*(stored.files[k] for k in stay), *names),
    stamps=np.concatenate([stored.stamps[stay], stamps[new]]),
    vectors=vectors,
  )


def _predictions(loaded: Loaded, files: Sequence[str], batch_size: int) -> Any:
  """The predictions of files, a batch at a time; none without files."""
  if not files:
    return iter(())
  return predict(
    loaded.model,
    loaded.params,
    files,
    preprocessing=loaded.preprocessing,
    task=answering("softmax"),
    top=1,
    batch_size=batch_size,
    features=True,
  )


def _names(files: Sequence[str], folders: Sequence[str]) -> list[str]:
  """The files' paths below the folder that was given, if it was one."""
  tops = [os.path.abspath(os.path.expanduser(name)) for name in folders]
  top = tops[0] if len(tops) == 1 and os.path.isdir(tops[0]) else None
  names = [os.path.relpath(name, top) if top else name for name in files]
  return [printable(name) for name in names]


def _compared(
  files: Sequence[str],
  names: Sequence[str],
  rows: Float[np.ndarray, "N D"],
  k: int,
  duplicates: float,
  count: int | None,
) -> Similar:
  """Compares all images with each other."""
  nearby = nearest.neighbours(rows, max(k, _FOR_GROUPS))
  count = count or min(_MOST_CLUSTERS, math.ceil(math.sqrt(len(rows) / 2)))
  splits = [split_named(os.fsencode(n.split(os.sep)[0])) or "" for n in names]
  result = Similar(
    tuple(files),
    tuple(names),
    tuple(splits),
    nearby,
    tuple(nearest.duplicate_groups(nearby, duplicates)),
    nearest.clusters(rows, min(count, len(rows))),
  )
  ordered = sorted(result.groups, key=lambda group: not result.across(group))
  return dataclasses.replace(result, groups=tuple(ordered))


def _answered(
  loaded: Loaded,
  query: Sequence[str],
  files: Sequence[str],
  names: Sequence[str],
  rows: Float[np.ndarray, "N D"],
  k: int,
) -> Answers:
  """The nearest of each query; raises ValueError if one cannot be read."""
  vectors = []
  batches = _predictions(loaded, query, min(32, len(query)))
  for one in itertools.chain.from_iterable(batches):
    if one.features is None:
      raise ValueError(f"--query={one.image}: {one.error}")
    vectors.append(np.asarray(one.features, np.float32).ravel())
  queries = nearest.unit(np.stack(vectors))
  nearby = nearest.neighbours(rows, k + 1, queries)
  paths = [os.path.abspath(os.path.expanduser(name)) for name in query]
  columns_of = []
  for name, places in zip(paths, nearby.place, strict=True):
    others = [c for c, row in enumerate(places) if files[row] != name]
    columns_of.append(others[:k])
  width = min(map(len, columns_of))
  columns = np.array([each[:width] for each in columns_of], int).reshape(
    -1, width
  )
  return Answers(
    tuple(query),
    tuple(files),
    tuple(names),
    Neighbours(
      np.take_along_axis(nearby.place, columns, axis=1),
      np.take_along_axis(nearby.cosine, columns, axis=1),
    ),
  )


def _table(result: Similar, k: int) -> list[list[str]]:
  """The rows of the CSV file: each image with its nearest."""
  k = min(k, result.nearest.place.shape[1])
  group_of = {
    int(row): str(number)
    for number, group in enumerate(result.groups, 1)
    for row in group
  }
  pairs = [[f"nearest_{n}", f"cosine_{n}"] for n in range(1, k + 1)]
  titles = ["file", "split", "cluster", "typical", "duplicates"]
  table = [[*titles, *itertools.chain.from_iterable(pairs)]]
  for row, name in enumerate(result.names):
    cells = [
      name,
      result.splits[row],
      str(result.clusters.label[row] + 1),
      f"{result.clusters.typical[row]:.6f}",
      group_of.get(row, ""),
    ]
    for place, cosine in zip(
      result.nearest.place[row, :k], result.nearest.cosine[row, :k], strict=True
    ):
      cells += [result.names[place], f"{cosine:.6f}"]
    table.append(cells)
  return table


def _query_table(result: Answers) -> list[list[str]]:
  """The rows of the CSV file: each query's nearest."""
  table = [["query", "rank", "file", "cosine"]]
  for number, name in enumerate(result.queries):
    pairs = zip(
      result.nearest.place[number], result.nearest.cosine[number], strict=True
    )
    for rank, (place, cosine) in enumerate(pairs, 1):
      cells = [printable(name), str(rank), result.names[place]]
      table.append([*cells, f"{cosine:.6f}"])
  return table


def _about(checkpoint: str, loaded: Loaded) -> str:
  """A sentence on the vectors: which, of what, how they are compared."""
  pooling = getattr(loaded.model, "pooling", "")
  kind = FEATURES.get(pooling, "the features before the head")
  size = "{} x {}".format(*loaded.preprocessing.image_size)
  return (
    f"Vectors: {kind} of {printable(checkpoint)}, on images of {size}, divided "
    "by their length and compared by cosine."
  )


def _summary(result: Similar | Answers) -> str:
  """One line on what was found."""
  if isinstance(result, Answers):
    count = len(result.queries)
    return (
      f"The nearest of {count:,} quer{'ies' if count > 1 else 'y'} among "
      f"{len(result.files):,} images; the first is "
      f"{result.names[result.nearest.place[0, 0]]} "
      f"({result.nearest.cosine[0, 0]:.3f})."
    )
  images = sum(map(len, result.groups))
  across = sum(map(result.across, result.groups))
  count = len(result.groups)
  line = (
    f"{len(result.files):,} images: {count:,} group{'s' * (count != 1)} of "
    f"near-duplicates ({images:,} images)"
  )
  if across:
    line += f", {across:,} of them across splits"
  clusters = int(result.clusters.label.max()) + 1
  return f"{line}; {clusters:,} cluster{'s' * (clusters != 1)}."
