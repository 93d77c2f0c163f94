"""Finds the form of a pass without gradients that each TPU chip computes best.

python -m scripts.bench.forms
python -m scripts.bench.forms --chip v4 --model B/16
python -m scripts.bench.forms --render

The first call compiles every form of `vit_jax.models.tpu.Forward` for every
chip and model that docs/_static/forms.csv lacks, and adds a row as each is
done. A row is on the line through 2 and 4 layers, in the step of the
scoreboard: float32 attention, XLA's default options. --render prints the table
that belongs into vit_jax/models/tpu.py: the form with the least cycles for each
chip and each model's width.
"""

import argparse
import importlib.metadata
import itertools
import pathlib
from unittest import mock

from scripts import tables
from scripts.bench.depths import DEPTHS
from scripts.bench.scoreboard import CHIPS, HERE, SHAPES, compiled, extended
from vit_jax.estimate import set_environment

TABLE = HERE / "docs/_static/forms.csv"
FIELDS = ("apart", "narrow")
KEY = ("chip", "model", *FIELDS)
NAMES = (*KEY, "libtpu", "jax", "mcycles", "seconds")
Row = dict[str, str]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--chip", choices=CHIPS)
  parser.add_argument("--model", choices=SHAPES)
  parser.add_argument("--render", action="store_true", help="print the table")
  parser.add_argument("--table", type=pathlib.Path, default=TABLE)
  options = parser.parse_args()
  rows = tables.read(options.table)
  if options.render:
    for chip, forms in best(rows).items():
      print(f'  "{chip}": {{')
      for width, form in forms.items():
        named = zip(FIELDS, form, strict=True)
        given = ", ".join(f"{name}=True" for name, on in named if on)
        print(f"    {width}: Forward({given}),")
      print("  },")
    return
  set_environment()  # Before JAX is imported.
  known = {tuple(row[name] for name in KEY) for row in rows}
  chips = [options.chip] if options.chip else CHIPS
  models = [options.model] if options.model else SHAPES
  choices = itertools.product((False, True), repeat=len(FIELDS))
  for chip, model, choice in itertools.product(chips, models, choices):
    key = (chip, model, *map(str, choice))
    if key not in known:
      row = measured(chip, model, choice)
      named = dict(zip(KEY, key, strict=True))
      tables.add(options.table, NAMES, named | row)
      print(*key, f"{row['mcycles']} Mcycles", flush=True)


def measured(chip: str, model: str, choice: tuple[bool, ...]) -> Row:
  """What the forward pass costs in a form, on the line to all layers."""
  from vit_jax.models import tpu

  form = tpu.Forward(*choice)
  with mock.patch.dict(tpu.FORWARD, {chip: {SHAPES[model][0]: form}}):
    key = model, "forward", chip
    few, more = (compiled("ours", HERE, key, depth) for depth in DEPTHS)
  row = extended(few, more, SHAPES[model][-1])
  return {
    "libtpu": importlib.metadata.version("libtpu"),
    "jax": importlib.metadata.version("jax"),
    "mcycles": f"{row['mcycles']:.3f}",
    "seconds": f"{row['seconds']:.0f}",
  }


def best(rows: list[Row]) -> dict[str, dict[int, tuple[bool, ...]]]:
  """The values of `FIELDS` of the fastest form, by chip and width."""
  least: dict[tuple[str, int], float] = {}
  found: dict[str, dict[int, tuple[bool, ...]]] = {}
  for row in rows:
    width = SHAPES[row["model"]][0]
    key, cycles = (row["chip"], width), float(row["mcycles"])
    if cycles < least.get(key, float("inf")):
      least[key] = cycles
      form = tuple(row[name] == "True" for name in FIELDS)
      found.setdefault(row["chip"], {})[width] = form
  return found


if __name__ == "__main__":
  main()
