"""Compares our answers with those of every encoder of timm and transformers.

python scripts/parity/coverage.py [NAME ...] [--csv FILE] [--json FILE]

It needs torch, timm, transformers and safetensors beside what this package
needs, and downloads nothing. Each of the plain Vision Transformers of timm, and
each Vision Transformer class of transformers, is made at its real width with
two layers, a new head and random values for every parameter, saved as its
library does it, opened here, and asked about one image. Each of them is

- the same: our answer differs by at most --tolerance of its largest value;
- refused: the message says why;
- other: we answer otherwise, or fail in another way;
- read, with --open, which computes nothing.

NAMEs are patterns as of files' names; without one, all are compared.
"""

import argparse
import collections
import contextlib
import dataclasses
import fnmatch
import gc
import io
import json
import logging
import os
import pathlib
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax  # noqa: E402
import numpy as np  # noqa: E402

from scripts import tables  # noqa: E402
from vit_jax.pretrained.load import open_checkpoint  # noqa: E402
from vit_jax.pretrained.save import check_expressible, save_as  # noqa: E402

LIBRARIES = ("timm", "transformers")
# What `answer` of a row may be.
SAME, REFUSED, OTHER, READ = ANSWERS = ("same", "refused", "other", "read")
_FORMATS = {"timm": "timm", "transformers": "hf"}


@dataclasses.dataclass
class Row:
  """What came of one encoder.

  Attributes:
    library: "timm" or "transformers".
    family: The library's module that has it.
    name: Its name there.
    answer: One of `ANSWERS`.
    error: Largest difference of our answer over its largest value.
    reason: The message of a refusal, or what is wrong.
    pooling: `Vit.pooling` of the model that is opened; "" if none is.
    written: The error of what the library computes with the file that we write
      of it, or why we do not; "" if that was not tried.
    seconds: How long it took.
  """

  library: str
  family: str
  name: str
  answer: str
  error: float | None = None
  reason: str = ""
  pooling: str = ""
  written: str = ""
  seconds: float = 0.0


def main() -> None:
  a = arguments(sys.argv[1:])
  from scripts.parity.reference import encoders

  encoders.torch.set_num_threads(a.threads)
  warnings.simplefilter("ignore")
  logging.disable(logging.WARNING)
  rows = []
  for encoder in encoders.encoders(*a.library):
    if chosen(encoder.name, a.names) and chosen(encoder.family, a.family):
      rows.append(compare(encoder, a))
      print(line(rows[-1]), flush=True)
      write(rows, a.csv, a.json)
  print(*summary(rows), sep="\n")
  if a.strict and any(row.answer == OTHER for row in rows):
    sys.exit(1)


def arguments(given: list[str]) -> argparse.Namespace:
  """The command's arguments."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0],
  )
  parser.add_argument("names", nargs="*", help="patterns, such as '*_rope_*'")
  parser.add_argument("--family", nargs="*", default=[], help="modules' names")
  parser.add_argument(
    "--library", nargs="*", default=LIBRARIES, choices=LIBRARIES
  )
  parser.add_argument("--depth", type=int, default=2, help="number of layers")
  parser.add_argument("--tolerance", type=float, default=1e-5)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--threads", type=int, default=1, help="those of PyTorch")
  parser.add_argument(
    "--open", action="store_true", help="only open each: the refusals"
  )
  parser.add_argument(
    "--write", action="store_true", help="also write each that is read"
  )
  parser.add_argument(
    "--strict", action="store_true", help="exit status 1 if any answers other"
  )
  parser.add_argument("--csv", type=pathlib.Path, help="table to write")
  parser.add_argument("--json", type=pathlib.Path, help="the same as JSON")
  return parser.parse_args(given)


def chosen(name: str, patterns: list[str]) -> bool:
  """Whether a name fits one of the patterns; all do if there is none."""
  fits = (fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
  return not patterns or any(fits)


def compare(encoder: Any, a: argparse.Namespace) -> Row:
  """Makes one encoder and opens it here."""
  started = time.perf_counter()
  row = Row(encoder.library, encoder.family, encoder.name, OTHER)
  with tempfile.TemporaryDirectory() as place:
    folder = pathlib.Path(place)
    try:
      _compare(encoder, row, folder, a)
    except Exception as error:  # Whatever it is, the others are compared.
      row.answer = OTHER
      row.reason = f"{type(error).__name__}: {error}"
  row.reason = " ".join(row.reason.replace(place, "FOLDER").split())
  row.written = " ".join(row.written.replace(place, "FOLDER").split())
  row.seconds = round(time.perf_counter() - started, 1)
  gc.collect()
  return row


def _compare(
  encoder: Any, row: Row, folder: pathlib.Path, a: argparse.Namespace
) -> None:
  """Fills in a row."""
  from scripts.parity.reference import encoders

  model = encoder.make(a.depth)
  encoders.randomise(model, a.seed)
  encoders.save(model, encoder, folder)
  try:
    with contextlib.redirect_stderr(io.StringIO()):  # What was guessed.
      loaded = open_checkpoint(str(folder))
  except ValueError as error:
    assert "\n" not in str(error), f"several lines: {error}"
    row.answer, row.reason = REFUSED, str(error)
    return
  row.pooling = loaded.model.pooling
  if a.open:
    row.answer = READ
    return
  size = encoders.image_size(model, encoder)
  images = np.random.default_rng(a.seed).uniform(-1, 1, (1, *size, 3))
  images = images.astype(np.float32)
  expected = encoders.answer(model, images)
  del model
  height, width = loaded.preprocessing.image_size
  found = _ours(loaded, images[:, :height, :width])
  row.error = difference(found, expected)
  row.answer = SAME if row.error <= a.tolerance else OTHER
  if not a.write or row.answer == OTHER:
    return
  if reason := _write(loaded, encoder.library, folder / "again"):
    row.written = reason
    return
  again = encoders.opened(encoder, folder / "again")
  row.written = f"{difference(encoders.answer(again, images), expected):.1e}"


def difference(found: np.ndarray, expected: np.ndarray) -> float:
  """The largest difference, as a share of the largest expected value."""
  if found.shape != expected.shape:
    raise ValueError(f"its shape is {found.shape}, not {expected.shape}")
  return float(np.abs(found - expected).max() / np.abs(expected).max())


def _ours(loaded: Any, images: np.ndarray) -> np.ndarray:
  """Our answer to images."""
  model, params = loaded
  run = jax.jit(lambda params, images: model.apply({"params": params}, images))
  found = np.asarray(run(params, images))
  jax.clear_caches()
  return found


def _write(loaded: Any, library: str, folder: pathlib.Path) -> str:
  """Writes a model again for its library; returns why not, or ""."""
  to = _FORMATS[library]
  try:
    check_expressible(loaded, to)
  except ValueError as error:
    return str(error)
  save_as(loaded, to, folder)
  return ""


def line(row: Row) -> str:
  """What is printed for a row."""
  error = "" if row.error is None else f" {row.error:.1e}"
  more = "; ".join(filter(None, [row.reason, row.written]))
  return f"{row.answer:8}{error} {row.name} ({row.seconds} s) {more[:300]}"


def summary(rows: Iterable[Row]) -> Iterator[str]:
  """Markdown: how many of each family are the same, refused or other."""
  counts: dict[tuple[str, str], Any] = {}
  for row in rows:
    key = row.library, row.family
    counts.setdefault(key, collections.Counter())[row.answer] += 1
  yield f"| library | module | encoders | {' | '.join(ANSWERS)} |"
  yield f"|{' --- |' * (3 + len(ANSWERS))}"
  total: Any = collections.Counter()
  for (library, family), count in counts.items():
    cells = [library, family, count.total(), *(count[x] for x in ANSWERS)]
    yield f"| {' | '.join(map(str, cells))} |"
    total += count
  cells = ["all", "", total.total(), *(total[x] for x in ANSWERS)]
  yield f"| {' | '.join(map(str, cells))} |"


def write(
  rows: list[Row], table: pathlib.Path | None, records: pathlib.Path | None
) -> None:
  """Writes the table so far."""
  found = [dataclasses.asdict(row) for row in rows]
  if table:
    tables.write(table, [x.name for x in dataclasses.fields(Row)], found)
  if records:
    records.write_text(json.dumps(found, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
  main()
