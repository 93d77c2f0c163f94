"""Writes docs/evidence/parity.md from what is measured here and now.

python scripts/parity/page.py [ROW ...] [--render]

It compares each row as the tests do, with and without its faults, which takes
some seconds each, keeps the numbers in tests/parity/measured.json and
augmentations.json and writes the page and its tables. --render writes them from
the numbers that are kept.
"""

import argparse
import csv
import io
import json
import pathlib
import sys
from collections.abc import Iterable
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from scripts.parity import measure, page_images, recording  # noqa: E402
from scripts.parity.recording import Tolerances  # noqa: E402
from scripts.parity.row import STEPS  # noqa: E402
from scripts.parity.rows import ROWS  # noqa: E402

PAGE = ROOT / "docs" / "evidence" / "parity.md"
MEASURED = recording.FOLDER / "measured.json"
TOLERANCES = Tolerances()

_HEAD = """# Training compared with the references

Does training here do what the papers' code does? Each recipe below was run twice
for {steps} steps on a tiny model: by the reference's own code, and by the step
that a run of this package builds from the settings, with those of `configs/` where
the recipe has a file there. Both sides began with the same weights and got the same
batches and draws (dropout, drop path, masks, Mixup, CutMix), so they may differ by
rounding alone: the loss of every step by {loss:.0e} of itself, every array by
{arrays:.0e} of its norm, the logits of 16 further images by {logits:.0e} of the
largest logit, learning rate and weight decay by {rate:.0e} of their largest values in
the run, unless a row says otherwise. Whole arrays are compared after step {steps}; after
steps 1, 2, 10, 30 and 60, we compare 32 random projections of each array, which tell the
norm of a difference to a tenth. Nobody has repeated the papers' results with these recipes
here; [Results](results.md) says what was trained.

The biases of the keys are not compared: a softmax does not change if all keys change
alike, so the gradient of these biases is rounding. For Mixup and CutMix, lambda is at
least 1/2 and the sides of boxes are even, so that a draw means the same on both sides.
Moments are float32. Epochs have 4 steps and warm-ups 12, and learning rates suit the
tiny model, unless a row says otherwise.

A comparison that cannot fail proves nothing. So [faults](parity_faults.csv) were put
into our side one at a time, such as a decay of the biases or a warm-up that is off by
one; the column "faults" counts those that exceeded a tolerance. `make test` compares
all images with the recorded numbers of `tests/parity/`, and `make test-slow` compares
recipes and draws and puts in the faults. In a clone, this page and its tables are
written by `python scripts/parity/page.py`.

## Recipes
"""  # noqa: E501

_RECIPES = """\
**Of {rows} recipes, those in float32 agree to {loss:.0e} in the loss and {arrays:.0e} in
the arrays, in the units above.** The table is [this file](parity_recipes.csv):

<!-- csv: parity_recipes.csv -->
"""  # noqa: E501

_COLUMNS = (
  *("recipe", "reference, commit", "compared", "loss", "arrays", "logits"),
  *("rate", "decay", "faults"),
)

_COMMANDS = """
## Faults

For each fault of a recipe, the table has the quantity that shows the fault best, and its
difference divided by the tolerance. For images, it has the largest difference or the
share of numbers that differ; for draws, the difference divided by the allowed one. The
table is [this file](parity_faults.csv):

<!-- csv: parity_faults.csv -->

## Recording again

These commands are for a clone. FOLDER is a checkout of the reference's repository, which
the script does not fetch; a reference that is a library (timm, peft, torch, transformers)
needs no FOLDER. PYTHON is an interpreter that has the reference's libraries and runs it.
The second command is for images and draws:

<!-- not run: the reference has to be fetched -->
```sh
python scripts/parity/record.py ROW --reference FOLDER --python PYTHON
python scripts/parity/record_pixels.py ROW --reference FOLDER --python PYTHON
```

The recordings of big_vision and vision_transformer were made with Python 3.11,
tensorflow-cpu 2.15.1, tensorflow-addons 0.23.0 and ml_collections, those of DeiT and timm
with torch 2.13, torchvision and timm 1.0.31. Libraries that the reference imports and its
step does not use are replaced by empty stand-ins: for vision_transformer and big_vision
TensorFlow, clu and the libraries of their data, for BeiT the optimizers that timm no
longer has, and for DINOv2 fvcore and omegaconf; our own code joins and splits xFormers'
rows. For DeiT, torch.cuda's `synchronize` is replaced by a function that does nothing,
and DeiT's augment.py gets one name that timm no longer has.
"""  # noqa: E501


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  images = [name for rows in page_images.KINDS.values() for name in rows]
  parser.add_argument("rows", nargs="*", choices=[[], *ROWS, *images])
  parser.add_argument("--render", action="store_true")
  arguments = parser.parse_args()
  if not arguments.render:
    for name in arguments.rows or (*ROWS, *images):
      if name in images:
        found = rounded(page_images.measured(name))
        page_images.keep(name, found)
        continue
      found = rounded(measured(name))
      print(name, found["differences"], flush=True)
      kept = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
      kept[name] = found
      in_order = {k: kept[k] for k in ROWS if k in kept}
      MEASURED.write_text(json.dumps(in_order, indent=1) + "\n")
  PAGE.write_text(rendered())
  for name, text in tables().items():
    (PAGE.parent / name).write_text(text)


def measured(name: str) -> dict[str, Any]:
  """The numbers of a row."""
  faults = {fault: measure.shown_by(name, fault) for fault in ROWS[name].faults}
  return {"differences": measure.differences(name), "faults": faults}


def rounded(value: Any) -> Any:
  """The same with two digits of each number, which is all that is shown."""
  if isinstance(value, dict):
    return {k: rounded(v) for k, v in value.items()}
  return float(f"{value:.1e}") if isinstance(value, float) else value


def rendered() -> str:
  """The page."""
  kept = json.loads(MEASURED.read_text())
  names = [name for name in ROWS if name in kept]
  allowed = {
    k: getattr(TOLERANCES, k) for k in ("loss", "arrays", "logits", "rate")
  }
  exact = [name for name in names if ROWS[name].tolerances == TOLERANCES]
  parts = [
    _HEAD.format(steps=STEPS, **allowed),
    _RECIPES.format(
      rows=len(names),
      loss=max(kept[name]["differences"]["loss"] for name in exact),
      arrays=max(kept[name]["differences"]["arrays"] for name in exact),
    ),
  ]
  parts += ["## What is different", ""]
  for name in names:
    parts += [f"- **{name}**: {line}" for line in remarks(name)]
  parts += page_images.sections()
  parts.append(_COMMANDS)
  return "\n".join(parts)


def tables() -> dict[str, str]:
  """The page's tables that are files of CSV, by name."""
  kept = json.loads(MEASURED.read_text())
  names = [name for name in ROWS if name in kept]
  faults = [
    [name, fault, f"{found['by']}, {shown(found['times'])} times"]
    for name in names
    for fault, found in kept[name]["faults"].items()
  ]
  faults += page_images.fault_rows()
  recipes = [cells(name, kept[name]) for name in names]
  return {
    "parity_recipes.csv": _csv(_COLUMNS, recipes),
    "parity_images.csv": _csv(page_images.COLUMNS, page_images.rows()),
    "parity_faults.csv": _csv(("comparison", "fault", "shown by"), faults),
  }


def _csv(columns: Iterable[str], rows: Iterable[list[str]]) -> str:
  text = io.StringIO()
  csv.writer(text, lineterminator="\n").writerows([columns, *rows])
  return text.getvalue()


def cells(name: str, found: dict[str, Any]) -> list[str]:
  row, meta = ROWS[name], recording.read(name).meta
  versions = [f"{k} {v}" for k, v in meta["facts"].items()]
  commit = f"`{meta['commit'][:10]}`" if meta["commit"] else ", ".join(versions)
  gaps = found["differences"]
  compared = f"{len(meta['arrays'])} arrays"
  compared += ", and their average" * ("averaged" in gaps)
  arrays = max(gaps["arrays"], gaps.get("averaged", 0.0))
  faults = found["faults"].values()
  return [
    f"{row.title} (`{name}`)",
    f"{row.reference}, {commit}",
    compared,
    *(f"{x:.0e}" for x in (gaps["loss"], arrays, gaps["logits"])),
    *(f"{gaps[k]:.0e}" for k in ("rate", "decay")),
    f"{sum(f['found'] for f in faults)} of {len(faults)}",
  ]


def remarks(name: str) -> list[str]:
  """What is different on purpose in a row, and the size of it."""
  row, lines = ROWS[name], [*ROWS[name].different]
  if row.tolerances != TOLERANCES:
    own = ", ".join(f"{k} {v:.0e}" for k, v in vars(row.tolerances).items())
    lines.append(f"Its tolerances are {own}.")
  if row.scale != 1:
    lines.append(
      f"Our loss is {row.scale:g} times the reference's, as ours is a sum over "
      "the classes and theirs a mean."
    )
  for what, gap in recording.read(name).meta.get("effects", {}).items():
    sizes = ", ".join(f"{k} {v:.0e}" for k, v in gap.items() if v)
    lines.append(
      f"This comparison is without {what}. With it, the reference's own run "
      f"changes by: {sizes}."
    )
  return lines


def shown(times: float) -> str:
  return f"{times:,.1f}" if times < 100 else f"{times:,.0f}"


if __name__ == "__main__":
  main()
