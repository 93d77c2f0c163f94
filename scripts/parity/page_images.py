"""The part of docs/evidence/parity.md on images, and its measurements."""

import json
from typing import Any

from scripts.parity import draws, recording
from scripts.parity.pixels import measure
from scripts.parity.pixels.faults import FAULTS
from scripts.tables import markdown

MEASURED = recording.FOLDER / "augmentations.json"
KINDS = {"pixels": measure.ROWS, "draws": draws.ROWS}

COLUMNS = (
  *("compared", "reference, commit", "images"),
  *("largest", "share", "faults"),
)

_PIXELS = """
## Images

What a model sees also depends on the decoder, the crop, the filter and each
change of colour. Here both sides got equal pictures and equal random numbers,
and their outputs are compared number by number. The table has the largest
difference, in levels of 0 to 255 (for Mixup and CutMix, in units of images from
0 to 1; for labels, in places of their order), and the share of numbers that
differ at all. Rows of a recipe use its configuration file, from a JPEG file
that is not square to the images that the model gets. In the reference
everything but the random numbers is its own code: TensorFlow's and timm's
functions that draw random numbers return those of the comparison. The table is
[this file](parity_images.csv):

<!-- csv: parity_images.csv -->
"""

_DRAWS = """
## Draws

The random numbers themselves are compared as distributions, by {count:,} draws
of each side: of boxes, of the signs of RandAugment's layers, of Mixup and of
CutMix. The largest difference of the counts in {bins} bins and of two moments
may be {allowed:g} of its own standard deviations. Faults of 2 % have larger
differences; the last column has the smallest of these, divided by the allowed
one. Only one fault of this size is not shown: a CutMix alpha of 1.02 instead of
1.
"""


def measured(name: str) -> dict[str, Any]:
  """The numbers of a row."""
  if name in draws.ROWS:
    faults = {k: draws.shown_by(name, k) for k in draws.ROWS[name].faults}
    return {"differences": draws.differences(name), "faults": faults}
  faults = {k: measure.shown_by(name, k) for k in FAULTS[name]}
  return {"differences": measure.differences(name), "faults": faults}


def keep(name: str, found: dict[str, Any]) -> None:
  """Adds the numbers of a row to those that are kept."""
  kept = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
  for kind, rows in KINDS.items():
    known = kept.get(kind, {}) | ({name: found} if name in rows else {})
    kept[kind] = {k: known[k] for k in rows if k in known}
  MEASURED.write_text(json.dumps(kept, indent=1) + "\n")


def sections() -> list[str]:
  """The lines of the page."""
  kept = json.loads(MEASURED.read_text())
  lines = [_PIXELS, "What is different:", ""]
  lines += [
    f"- **{name}**: {text}"
    for name in kept["pixels"]
    for text in measure.ROWS[name].different
  ]
  head = dict(count=draws.COUNT, bins=draws.BINS, allowed=draws.ALLOWED)
  lines.append(_DRAWS.format(**head))
  columns = ("drawn", "reference, commit", "quantities", "largest")
  drawn = []
  for name, found in kept["draws"].items():
    row, meta = draws.ROWS[name], json.loads(draws.path_of(name).read_text())
    gaps, faults = found["differences"], found["faults"].values()
    drawn.append(
      [
        f"{row.title} (`{name}`)",
        _reference(meta["meta"]),
        ", ".join(gaps),
        f"{max(gaps.values()):.1f}",
        f"{sum(f['found'] for f in faults)} of {len(faults)}",
        f"{min(f['times'] for f in faults):.1f}",
      ]
    )
  return [*lines, *markdown((*columns, "faults", "times"), drawn)]


def rows() -> list[list[str]]:
  """The rows of the table of images, whose columns are COLUMNS."""
  kept = json.loads(MEASURED.read_text())
  return [_cells(name, found) for name, found in kept["pixels"].items()]


def _cells(name: str, found: dict[str, Any]) -> list[str]:
  row, (meta, _, theirs) = measure.ROWS[name], measure.recorded(name)
  gaps, faults = found["differences"], found["faults"].values()
  return [
    f"{row.title} (`{name}`)",
    _reference(meta),
    f"{len(theirs)}",
    f"{gaps['most']:.0e}" if 0 < gaps["most"] < 0.1 else f"{gaps['most']:g}",
    f"{100 * gaps['share']:.2g} %",
    f"{sum(f['found'] for f in faults)} of {len(faults)}",
  ]


def _reference(meta: dict[str, Any]) -> str:
  versions = ", ".join(f"{k} {v}" for k, v in meta["facts"].items())
  commit = f"`{meta['commit'][:10]}`, " * bool(meta["commit"])
  return f"{meta['reference']}, {commit}{versions}"


def fault_rows() -> list[list[str]]:
  """The rows of the page's table of faults, which are images' and draws'."""
  rows = []
  for kind, kept in json.loads(MEASURED.read_text()).items():
    for name, row in kept.items():
      for fault, found in row["faults"].items():
        size = found["times"] if kind == "draws" else found["size"]
        unit = {"levels": " levels", "share": " of numbers"}
        by = unit.get(found["by"], f" times, {found['by']}")
        rows.append([name, fault, f"{size:.3g}{by}"])
  return rows
