"""Estimates a deep model's step on TPUs from two models of few layers.

python scripts/bench/depths.py 2,4 --config=pretrain:H/14,imagenet2012 ...

Unrolled layers are compiled one by one, so a deep model takes the compiler
minutes. What equal layers cost is nearly a line in their number, though: this
compiles the step at the two depths given, and prints the values on their line
at the model's own depth. All other flags are those of
`vit_jax estimate`. docs/evidence/scoreboard.md says how far off this is.
"""

import argparse
import json
import pathlib
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

DEPTHS = (2, 4)  # Those that the tables of docs/ are made from.
# What grows by as much with each layer, among the values of a row.
LINEAR: tuple[str, ...] = (
  *("chips", "mesh", "images_per_chip", "hbm_gib", "model_tflop", "mcycles"),
  "collectives",
)


def main() -> None:
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument("depths", help="two numbers of layers, as in 2,4")
  parser.add_argument("--layers", type=int, required=True, help="of the model")
  options, flags = parser.parse_known_args()
  depths = depths_of(options.depths)
  command = [sys.executable, "-m", "vit_jax.estimate", "--json", *flags]
  rows = []
  for depth in depths:
    layers = f"--config.model.num_layers={depth}"
    done = subprocess.run([*command, layers], cwd=ROOT, stdout=subprocess.PIPE)
    if done.returncode:
      sys.exit(done.stdout.decode())
    rows.append(json.loads(done.stdout))
  print(json.dumps(extrapolated(rows, depths, options.layers)))


def depths_of(text: str) -> tuple[int, int]:
  """The two depths that a text such as "2,4" names."""
  try:
    few, more = map(int, text.split(","))
  except ValueError:
    few = more = 0
  if not 0 < few < more:
    raise ValueError(
      f"depths={text!r} must be two numbers of layers, the smaller first, as "
      "in 2,4."
    )
  return few, more


def extrapolated(
  rows: list[dict[str, Any]], depths: tuple[int, int], layers: int
) -> dict[str, Any]:
  """The row of a model with `layers` layers, from those at two depths.

  Args:
    rows: What `vit_jax.estimate.compiler.estimate` returns at each depth.
    depths: Their numbers of layers.
    layers: The number of layers of the model asked for.

  Returns:
    Its sizes, Mcycles, memory and collectives, each on the line through both;
    and `mfu` and `images_per_second`, which follow from its cycles (None where
    the chip's clock is not known).
  """
  few, more = ({key: row[key] for key in LINEAR} for row in rows)
  on_it = line(few, more, layers, depths)
  row = {"layers": layers, "depths": list(depths), **on_it}
  per_cycle, rate = rows[0]["mfu"], rows[0]["images_per_second"]
  if per_cycle is not None:
    slower = row["mcycles"] / few["mcycles"]
    per_cycle *= row["model_tflop"] / few["model_tflop"] / slower
    rate /= slower
  return {**row, "mfu": per_cycle, "images_per_second": rate}


def line(
  few: Any, more: Any, layers: int, depths: tuple[int, int] = DEPTHS
) -> Any:
  """What `layers` layers have, on the line through values at two depths.

  Values are numbers, or dicts of such values.
  """
  if isinstance(more, dict):
    zeros = {key: {} if isinstance(x, dict) else 0 for key, x in more.items()}
    known = {**zeros, **few}
    return {k: line(known[k], more[k], layers, depths) for k in more}
  factor = (layers - depths[0]) / (depths[1] - depths[0])
  return few + (more - few) * factor


if __name__ == "__main__":
  main()
