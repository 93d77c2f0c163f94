"""Tabulates the forward pass on TPUs by their compiler, as Figure 12 does.

python scripts/bench/forward_pass.py docs/_static/forward_pass.csv
python scripts/bench/forward_pass.py docs/_static/forward_pass.csv \
  --draw forward_pass.svg

For each model, resolution and kind of TPU it compiles the prediction of a batch
(bfloat16, 1000 classes, scanned layers) for one core, at two batch sizes, and
keeps the better images a second. With --largest it also searches the largest
power of two of images that fits. Time in which a core waits for its memory is
not in the compiler's cycles, so the real rate is lower. Rows that the file
already has are kept, so a stopped run goes on where it was. A resolution that a
patch size does not divide becomes the next lower one that it does.
"""

import argparse
import csv
import pathlib
from typing import Any

from vit_jax.estimate import set_environment
from vit_jax.inspection.canvas import add_legend, figure_of

MODELS = ("B/32", "B/16", "L/32", "L/16", "H/14", "R50x1", "R152x2")
SIDES = (64, 128, 224, 384, 512)
TOPOLOGIES = ("v5e:1x1", "v3:2x2")
BATCHES = (16, 64)  # Images per core.
FIRST_TRIED = 2**20  # What is far too large is refused within a second on v5e.
NAMES: tuple[str, ...] = (
  *("tpu", "model", "side"),
  *("images_per_second", "mfu", "largest_batch"),
)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("table", type=pathlib.Path, help="CSV file to go on with")
  parser.add_argument("--models", nargs="*", default=MODELS)
  parser.add_argument("--sides", nargs="*", type=int, default=SIDES)
  parser.add_argument(
    "--largest", action="store_true", help="search the largest batch as well"
  )
  parser.add_argument("--draw", help="file for the chart; compiles nothing")
  options = parser.parse_args()
  rows = []
  if options.table.exists():
    with options.table.open(newline="") as file:
      rows = list(csv.DictReader(file))
  if options.draw:
    draw(rows, options.draw)
    return
  known = {(row["tpu"], row["model"], int(row["side"])): row for row in rows}
  for topology in TOPOLOGIES:
    for model in options.models:
      for side in options.sides:
        patch = int(model.split("/")[1]) if "/" in model else 1
        tpu, side = topology.split(":")[0], side // patch * patch
        row = known.get((tpu, model, side))
        if row is None:
          found = (tpu, model, side, *rate(topology, model, side), "")
          row = dict(zip(NAMES, found, strict=True))
          rows.append(row)
        if options.largest and not row["largest_batch"]:
          first = _found_elsewhere(rows, model, side) or FIRST_TRIED
          row["largest_batch"] = largest(topology, model, side, first)
        print(*row.values(), flush=True)
        with options.table.open("w", newline="") as file:
          writer = csv.DictWriter(file, NAMES, lineterminator="\n")
          writer.writeheader()
          writer.writerows(rows)


def _estimated(topology: str, model: str, side: int, batch: int) -> Any:
  """The estimate for a batch of so many images on each core."""
  set_environment()  # Before JAX is imported.
  from vit_jax.config import base_config
  from vit_jax.estimate import compiler
  from vit_jax.run.settings import read

  chip, devices = compiler.devices_of(topology)
  config = base_config()
  config.model.update(variant=model, dtype="bfloat16")
  config.batch_size = batch * len(devices)
  config.image_size = (side, side)
  if "/" in model:
    config.model.scan = True
  row, _ = compiler.estimate(read(config), chip, devices, 1000, 1, forward=True)
  return {**row, "images_per_second": row["images_per_second"] / chip.devices}


def rate(topology: str, model: str, side: int) -> tuple[str, str]:
  """Images a second of one core, and its MFU, at the better batch size."""
  found = [_estimated(topology, model, side, batch) for batch in BATCHES]
  best = max(found, key=lambda row: row["images_per_second"])
  return f"{best['images_per_second']:.0f}", f"{best['mfu']:.3f}"


def largest(topology: str, model: str, side: int, first: int) -> int:
  """The largest power of two of images that fits; `first` is tried first."""

  def fits(batch: int) -> bool:
    try:
      _estimated(topology, model, side, batch)
    except ValueError:
      return False
    return True

  batch = first
  if fits(batch):
    while fits(2 * batch):
      batch *= 2
    return batch
  while not fits(batch):
    batch //= 2
  return batch


def _found_elsewhere(
  rows: list[dict[str, Any]], model: str, side: int
) -> int | None:
  """The largest batch on another kind of TPU, if it is known."""
  same = (r for r in rows if (r["model"], int(r["side"])) == (model, side))
  return next(
    (int(r["largest_batch"]) for r in same if r["largest_batch"]), None
  )


def draw(rows: list[dict[str, str]], path: str) -> None:
  """Draws images a second and the largest batch by the side of an image."""
  figure = figure_of(8.4, 5.6)
  kinds = [*dict.fromkeys(row["tpu"] for row in rows)]
  panels = figure.subplots(2, len(kinds), sharex=True, squeeze=False)
  for column, kind in zip(panels.T, kinds, strict=True):
    for axes, name in zip(column, (NAMES[3], NAMES[5]), strict=True):
      for model in dict.fromkeys(row["model"] for row in rows):
        own = [
          row
          for row in rows
          if (row["tpu"], row["model"]) == (kind, model) and row[name]
        ]
        sides = [int(row["side"]) for row in own]
        values = [float(row[name]) for row in own]
        style = "o-" if "/" in model else "s:"
        axes.plot(sides, values, style, label=model, markersize=3, linewidth=1)
      axes.set_yscale("log")
      axes.set_title(f"{name.replace('_', ' ')}, a core of {kind}", fontsize=9)
      axes.grid(color="0.9", linewidth=0.6)
    column[-1].set_xlabel("side of an image (pixels)", fontsize=9)
  add_legend(figure, *panels[0, 0].get_legend_handles_labels())
  figure.savefig(path)


if __name__ == "__main__":
  main()
