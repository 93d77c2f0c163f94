"""Tabulates the forward pass on TPUs by their compiler, as Figure 12 does.

python scripts/forward_pass.py docs/_static/forward_pass.csv
python scripts/forward_pass.py docs/_static/forward_pass.csv \
  --draw docs/_static/forward_pass.svg

For each model, resolution and kind of TPU it compiles the prediction of a batch
(bfloat16, 1000 classes, scanned layers) for one core, at two batch sizes. The
faster one gives the images a second; a line through the memory of both gives
the largest batch. Time in which a core waits for its memory is not in the
compiler's cycles, so the real rate is lower. Rows that the file already has are
kept, so a stopped run goes on where it was. A resolution that a patch size does
not divide becomes the next lower one that it does.
"""

import argparse
import csv
import pathlib

from vit_jax.estimate import set_environment
from vit_jax.inspection.canvas import figure_of

MODELS = ("B/32", "B/16", "L/32", "L/16", "H/14", "R50x1", "R152x2")
SIDES = (64, 128, 224, 384, 512)
TOPOLOGIES = ("v3:2x2", "v5e:1x1")
BATCHES = (16, 64)  # Images per core.
NAMES: tuple[str, ...] = (
  "tpu",
  "model",
  "side",
  "images_per_second",
  "largest_batch",
  "mfu",
)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("table", type=pathlib.Path, help="CSV file to go on with")
  parser.add_argument("--models", nargs="*", default=MODELS)
  parser.add_argument("--sides", nargs="*", type=int, default=SIDES)
  parser.add_argument("--draw", help="file for the chart; compiles nothing")
  options = parser.parse_args()
  rows = []
  if options.table.exists():
    with options.table.open(newline="") as file:
      rows = list(csv.DictReader(file))
  if options.draw:
    draw(rows, options.draw)
    return
  done = {(row["tpu"], row["model"], int(row["side"])) for row in rows}
  for topology in TOPOLOGIES:
    for model in options.models:
      for side in options.sides:
        patch = int(model.split("/")[1]) if "/" in model else 1
        key = (topology.split(":")[0], model, side // patch * patch)
        if key in done:
          continue
        found = measured(topology, model, key[2])
        rows.append(dict(zip(NAMES, (*key, *found), strict=True)))
        print(*rows[-1].values(), flush=True)
        with options.table.open("w", newline="") as file:
          writer = csv.DictWriter(file, NAMES, lineterminator="\n")
          writer.writeheader()
          writer.writerows(rows)


def measured(topology: str, model: str, side: int) -> tuple[str, int, str]:
  """Images a second, the largest batch, and MFU, of one core."""
  set_environment()  # Before JAX is imported.
  from vit_jax.config import base_config
  from vit_jax.estimate import compiler
  from vit_jax.run.settings import read

  chip, devices = compiler.devices_of(topology)
  found = []
  for batch in BATCHES:
    config = base_config()
    config.model.update(variant=model, dtype="bfloat16")
    config.batch_size = batch * len(devices)
    config.image_size = (side, side)
    if "/" in model:
      config.model.scan = True
    row, _ = compiler.estimate(
      read(config), chip, devices, 1000, 1, forward=True
    )
    found.append(row)
  small, large = (row["hbm_gib"] for row in found)
  per_image = (large["peak"] - small["peak"]) / (BATCHES[1] - BATCHES[0])
  room = small["of"] - small["peak"]
  largest = BATCHES[0] + int(room / per_image)
  best = max(found, key=lambda row: row["images_per_second"])
  rate = best["images_per_second"] / chip.devices
  return f"{rate:.0f}", largest, f"{best['mfu']:.3f}"


def draw(rows: list[dict[str, str]], path: str) -> None:
  """Draws images a second and the largest batch by the side of an image."""
  figure = figure_of(8.4, 5.6)
  kinds = [*dict.fromkeys(row["tpu"] for row in rows)]
  panels = figure.subplots(2, len(kinds), sharex=True, squeeze=False)
  for column, kind in zip(panels.T, kinds, strict=True):
    for axes, name in zip(column, NAMES[3:5], strict=True):
      for model in dict.fromkeys(row["model"] for row in rows):
        own = [
          row for row in rows if (row["tpu"], row["model"]) == (kind, model)
        ]
        sides = [int(row["side"]) for row in own]
        values = [float(row[name]) for row in own]
        style = "o-" if "/" in model else "s:"
        axes.plot(sides, values, style, label=model, markersize=3, linewidth=1)
      axes.set_yscale("log")
      axes.set_title(f"{name.replace('_', ' ')}, a core of {kind}", fontsize=9)
      axes.grid(color="0.9", linewidth=0.6)
    column[-1].set_xlabel("side of an image (pixels)", fontsize=9)
  panels[0, 0].legend(fontsize=7, frameon=False)
  figure.savefig(path)


if __name__ == "__main__":
  main()
