"""Searches for similar images: keeps vectors, writes the page and the CSV."""

import codecs
import csv
import itertools
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from vit_jax.data.reading.named_images import find_images, say_missing
from vit_jax.inference.kept_vectors import (
  KeptVectors,
  fingerprint_of,
  stamps_of,
)
from vit_jax.inference.predictor import Prediction, predict
from vit_jax.inference.reading import is_text
from vit_jax.pretrained.load import open_checkpoint
from vit_jax.pretrained.loaded import Loaded
from vit_jax.pretrained.published import FEATURES
from vit_jax.report.similar_results import TABLE, Answers, Similar
from vit_jax.report.similar_splits import splits_of
from vit_jax.runtime import extras, hints
from vit_jax.runtime.display import Display
from vit_jax.runtime.files import output_folder, replacing
from vit_jax.runtime.printable import counted, printable, printable_path, say
from vit_jax.tasks.choose import answering
from vit_jax.tasks.probes import nearest

VECTORS, PAGE = "vectors.npz", "index.html"


def find_similar(
  checkpoint: str,
  folders: Sequence[str],
  *,
  out: str = "found",
  query: Sequence[str] = (),
  neighbours: int = 5,
  duplicates: float = 0.93,
  clusters: int | None = None,
  batch_size: int = 32,
  **overrides: Any,
) -> int:
  """Writes the page and the table; returns the exit code.

  The code is 1 if an image is missing or cannot be read. The arguments are
  those of the command. Raises ValueError if there are not two images to
  compare, a query cannot be read, or the kept vectors are another model's.
  """
  page = extras.load("vit_jax.report.similar_page", "figures")
  display = Display()
  missing = say_missing(folders)
  files = [*dict.fromkeys(map(os.path.abspath, find_images(folders)))]
  folder = output_folder(out)
  query = _each_query(query, folders)
  loaded = open_checkpoint(checkpoint, hold=Loaded.read_params, **overrides)
  for note in loaded.notes:
    say(note)
  query_vectors = _query_vectors(loaded, query) if query else None
  computed = _vectors_of(loaded, files, folder, batch_size, display)
  files = computed.files
  if len(files) < 2:
    raise ValueError(
      f"{counted(len(files), 'image')} could be read, and images "
      "are compared with others: give a folder with two or more."
    )
  rows = nearest.unit(computed.vectors)
  names = _names(files, folders)
  if query_vectors is not None:
    _check_same_length(checkpoint, rows, query_vectors)
    result = Answers.of(
      query, query_vectors, files=files, names=names, rows=rows, k=neighbours
    )
  else:
    result = Similar.of(
      files,
      names,
      rows,
      k=neighbours,
      duplicates=duplicates,
      count=clusters,
      splits=splits_of(files, folders),
      spec=loaded.preprocessing.spec,
    )
  with replacing(folder / TABLE) as file:
    writer = csv.writer(codecs.getwriter("utf-8")(file))
    writer.writerows(result.table(neighbours))
  about = _about(checkpoint, loaded)
  with replacing(folder / PAGE) as file:
    file.write(page.page(result, about, duplicates, loaded).encode())
  say(result.summary, sys.stdout)
  written = " and ".join(
    printable_path(str(folder / name)) for name in (PAGE, TABLE)
  )
  say(f"Wrote {written}.", sys.stdout)
  return 1 if missing or computed.skipped else 0


class _Vectors(NamedTuple):
  """The readable files, the vector of each, and how many are left out."""

  files: list[str]
  vectors: Float[np.ndarray, "N D"]
  skipped: int


def _vectors_of(
  loaded: Loaded,
  files: list[str],
  folder: pathlib.Path,
  batch_size: int,
  display: Display,
) -> _Vectors:
  """Reads the kept vectors of files in `folder`, and computes the others.

  Vectors that were computed before a stop or an error are kept all the same.
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
    remaining = iter(new)
    for batch in display.track(batches, "computing vectors", steps):
      for one, place in zip(batch, remaining, strict=False):
        if one.features is None:
          say(f"{one.image}: left out: {one.error}")
          errors += 1
        else:
          computed[int(place)] = np.asarray(one.features, np.float32).ravel()
  finally:
    if computed:
      places = [*computed]
      stored = stored.with_rows(
        [files[place] for place in places],
        stamps[places],
        np.stack([*computed.values()]),
      )
      stored.write(path, fingerprint)
  rows = stored.rows_of(files, stamps)
  readable = np.flatnonzero(rows >= 0)
  return _Vectors(
    files=[files[int(k)] for k in readable],
    vectors=stored.vectors[rows[readable]],
    skipped=errors,
  )


def _predictions(
  loaded: Loaded, files: Sequence[str], batch_size: int
) -> Iterator[list[Prediction]]:
  """An iterator over batches of predictions; it is empty without files."""
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


def _each_query(query: Sequence[str], folders: Sequence[str]) -> list[str]:
  """The files and texts that queries stand for; a folder is all its images.

  Raises ValueError for a folder without images, and for a file that is not
  there. The message then asks whether a file inside `folders` is meant, as the
  page and the table show names without the folder.
  """
  each: list[str] = []
  for name in query:
    files = [] if is_text(name) else [*find_images(name)]
    if not files and os.path.isdir(os.path.expanduser(name)):
      raise ValueError(f"--query={name}: the folder holds no images.")
    if not files and not is_text(name):
      inside = [os.path.join(folder, name) for folder in folders]
      there = next(filter(os.path.isfile, map(os.path.expanduser, inside)), "")
      hint = f"did you mean {there}?" if there else hints.hint_for_path(name)
      raise ValueError(
        f"--query={name}: there is no such file{f'; {hint}' if hint else '.'}"
      )
    each += files or [name]
  return each


def _query_vectors(
  loaded: Loaded, query: Sequence[str]
) -> Float[np.ndarray, "Q D"]:
  """The vector of each query, an image or a text.

  Raises ValueError if an image cannot be read, there is a text and no text
  tower, or the vectors of images and texts differ in length.
  """
  by_query: dict[str, np.ndarray] = {}
  files = [name for name in query if not is_text(name)]
  batches = _predictions(loaded, files, min(32, len(query)))
  for name, one in zip(
    files, itertools.chain.from_iterable(batches), strict=True
  ):
    if one.features is None:
      raise ValueError(f"--query={one.image}: {one.error}")
    by_query[name] = np.asarray(one.features, np.float32).ravel()
  for name in query:
    if name not in by_query:
      by_query[name] = loaded.embed_query(name)[0]
  vectors = [by_query[name] for name in query]
  if len({*map(len, vectors)}) > 1:
    raise ValueError(
      "--query: the vectors of images and of texts differ in length: give "
      "images alone, or texts alone."
    )
  return nearest.unit(np.stack(vectors))


def _check_same_length(
  checkpoint: str,
  rows: Float[np.ndarray, "N D"],
  query_vectors: Float[np.ndarray, "Q D_text"],
) -> None:
  """Raises ValueError if images and queries have vectors of other lengths."""
  if query_vectors.shape[1] != rows.shape[1]:
    raise ValueError(
      f"{checkpoint} gives {rows.shape[1]} numbers for an image and "
      f"{query_vectors.shape[1]} for a text, which cannot be compared: "
      "search by images, or take another model of images and text."
    )


def _names(files: Sequence[str], folders: Sequence[str]) -> list[str]:
  """The files' paths; if one folder alone was given, the paths inside it."""
  tops = [os.path.abspath(os.path.expanduser(name)) for name in folders]
  top = tops[0] if len(tops) == 1 and os.path.isdir(tops[0]) else None
  names = [os.path.relpath(name, top) if top else name for name in files]
  return [printable(name) for name in names]


def _about(checkpoint: str, loaded: Loaded) -> str:
  """A sentence on which vectors are compared, and how."""
  pooling = getattr(loaded.model, "pooling", "")
  kind = FEATURES.get(pooling, "the features before the head")
  size = "{} x {}".format(*loaded.preprocessing.image_size)
  return (
    f"Vectors: {kind} of {printable(checkpoint)}, on images of {size}, divided "
    "by their length and compared by cosine."
  )
