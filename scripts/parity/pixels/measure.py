"""Records the pixels of a reference, and measures how ours differ."""

import functools
import hashlib
import json
import math
import pathlib
from typing import Any

import numpy as np

from scripts.parity.pixels import boxes, operations, recipes
from scripts.parity.pixels.faults import FAULTS
from scripts.parity.pixels.row import Case, PixelRow

FOLDER = pathlib.Path(__file__).parents[3] / "tests" / "parity" / "pixels"
ROWS: dict[str, PixelRow] = operations.ROWS | recipes.ROWS | boxes.ROWS


def digest(row: PixelRow) -> str:
  """Tells whether NumPy still makes what the recording was made with."""
  found = hashlib.sha256(json.dumps(row.cases()).encode())
  for image in row.sources().values():
    if image.ndim == 3:  # A file's bytes are those of one version of libjpeg.
      found.update(image.tobytes())
  return found.hexdigest()[:16]


def write(name: str, meta: dict[str, Any], found: dict[str, Any]) -> None:
  """Writes what the reference made of each case, and the files it was given."""
  row = ROWS[name]
  arrays = {f"{i}": row.kept(found[f"{i}"]) for i in range(len(row.cases()))}
  sources = {k: x for k, x in row.sources().items() if x.ndim == 1}
  arrays |= {f"file_{k}": x for k, x in sources.items()}
  arrays["meta"] = np.array(json.dumps(meta))
  FOLDER.mkdir(exist_ok=True)
  np.savez_compressed(FOLDER / f"{name}.npz", **arrays)  # pyright: ignore[reportArgumentType]


@functools.cache
def recorded(name: str) -> tuple[dict[str, Any], dict[str, Any], list[Any]]:
  """What is known of a recording, its sources, and what it has of each case."""
  row = ROWS[name]
  with np.load(FOLDER / f"{name}.npz") as file:
    arrays = {k: file[k] for k in file.files}
  sources: dict[str, Any] = {
    k: arrays[f"file_{k}"].tobytes() if x.ndim == 1 else x
    for k, x in row.sources().items()
  }
  theirs = [arrays[f"{i}"] for i in range(len(row.cases()))]
  return json.loads(str(arrays["meta"])), sources, theirs


def gap(row: PixelRow, case: Case, image: Any, theirs: Any) -> dict[str, float]:
  """How far ours of a case is from the reference's."""
  ours = row.kept(row.ours(case, image))
  if ours.shape != theirs.shape:
    return {"most": float("inf"), "share": 1.0}
  difference = np.abs(ours.astype(np.float64) - theirs.astype(np.float64))
  return {
    "most": float(difference.max()),
    "share": float((difference > 0).mean()),
  }


def differences(name: str, cases: slice = slice(None)) -> dict[str, float]:
  """The largest difference of a row's cases, and the largest share."""
  row, (_, sources, theirs) = ROWS[name], recorded(name)
  gaps = [
    gap(row, case, sources.get(case.get("source", "")), expected)
    for case, expected in list(zip(row.cases(), theirs, strict=True))[cases]
  ]
  return {k: max(gap[k] for gap in gaps) for k in ("most", "share")}


def shown_by(name: str, fault: str) -> dict[str, Any]:
  """How much larger than it may be the difference is, with a fault in ours.

  `times` is how many times as many numbers as may differ do, or how many times
  as large as it may be the largest difference is.
  """
  row = ROWS[name]
  with FAULTS[name][fault]():
    found = differences(name)
  times = {
    k: found[k] / allowed if (allowed := getattr(row, k)) else math.inf
    for k in ("most", "share")
    if found[k] > 0
  }
  best = max(times, key=lambda k: times[k], default="most")
  by, size = (
    ("levels", found["most"]) if best == "most" else ("share", found["share"])
  )
  return {"by": by, "size": size, "found": times.get(best, 0.0) > 1}
