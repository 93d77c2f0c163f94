"""Plans runs on 8 to 4,096 TPU chips: what bounds a step at each size.

python -m scripts.bench.plan --all
python -m scripts.bench.plan --model L/16 --image_size 448 --chips 4096
python -m scripts.bench.plan --render

A call compiles one row that the table lacks, the first of those that the flags
leave (with --all every one of them, the quickest to tell something first), and
adds it to docs/_static/plan.csv; with --render it compiles nothing, and writes
docs/plan.md from that table. A row has the compiler's estimate of a step, with
the network, and the bytes of a checkpoint, from the shapes and shardings of the
run's state. The page holds these against the rates of HOSTS, FORMS and STORE:
how fast hosts decode images, and how fast a store is read and written.
"""

import argparse
import csv
import importlib.metadata
import math
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from scripts.bench.plan_page import page
from scripts.bench.plan_rates import (
  CHIPS,
  FIXED,
  FSDP,
  IMAGES,
  KEY,
  SIDES,
  Row,
  at_once,
  key_of,
)
from vit_jax.estimate import set_environment

HERE = pathlib.Path(__file__).parents[2]
TABLE = HERE / "docs/_static/plan.csv"
PAGE = HERE / "docs/plan.md"
NAMES = (
  *("model", "image_size", "topology", "chips", "images", "parts", "fsdp"),
  *("remat", "libtpu", "jax", "mcycles", "mfu", "memory_gib", "chip_ms"),
  *("low_ms", "high_ms", "sent_mib", "save_steps", "state_gb", "written_gb"),
  "seconds",
)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--model", choices=IMAGES)
  parser.add_argument("--image_size", type=int, choices=SIDES)
  parser.add_argument("--chips", type=int, choices=CHIPS)
  parser.add_argument("--all", action="store_true", help="compile every row")
  parser.add_argument("--render", action="store_true", help="write the page")
  parser.add_argument("--table", type=pathlib.Path, default=TABLE)
  options = parser.parse_args()
  if options.render:
    PAGE.write_text(page(read(options.table)))
    return
  compiled_any = False
  for key in wanted(options):
    # Another call may have added rows meanwhile.
    if key in map(key_of, read(options.table)):
      continue
    row = measured(*key)
    add(options.table, row)
    print(*key, f"{row['mcycles']} Mcycles, {row['seconds']} s", flush=True)
    compiled_any = True
    if not options.all:
      break
  if not compiled_any:
    print("No row is missing, of those that the flags leave.")


def wanted(options: Any) -> Iterator[tuple[str, int, int, int]]:
  """The keys of the rows that the flags leave, the most telling first."""
  model, batch = FIXED
  fixed = [(model, SIDES[0], chips, batch // chips) for chips in CHIPS]

  def weak(side: int, *sizes: int) -> list[tuple[str, int, int, int]]:
    return [
      (model, side, chips, at_once(model, side))
      for chips in sizes
      for model in IMAGES
    ]

  few, many = (256, 4096), (8, 64, 512)
  keys = weak(224, *few) + weak(448, *few) + fixed
  keys += weak(224, *many) + weak(448, *many)
  for key in dict.fromkeys(keys):
    given = (options.model, options.image_size, options.chips)
    if all(a in (None, b) for a, b in zip(given, key, strict=False)):
      yield key


def read(table: pathlib.Path) -> list[Row]:
  if not table.exists():
    return []
  with table.open(newline="") as file:
    return list(csv.DictReader(file))


def add(table: pathlib.Path, row: Row) -> None:
  new = not table.exists()
  with table.open("a", newline="") as file:
    writer = csv.DictWriter(file, NAMES, lineterminator="\n")
    if new:
      writer.writeheader()
    writer.writerow(row)


def measured(model: str, side: int, chips: int, images: int) -> Row:
  """Compiles a row, with the first `model.remat` of which a step fits."""
  set_environment()  # Before JAX is imported.
  from vit_jax.estimate import compiler

  start = time.perf_counter()
  for remat in ("dots", "full"):
    try:
      row = compiled(model, side, chips, images, remat)
    except compiler.DoesNotFit as error:
      print(f"{model} at {side} on {chips} chips, {remat}: {error}", flush=True)
      continue
    break
  else:
    raise ValueError(f"{model} at {side}: {images} images a chip do not fit.")
  rounded = {
    k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()
  }
  return {
    **rounded,
    "libtpu": importlib.metadata.version("libtpu"),
    "jax": importlib.metadata.version("jax"),
    "seconds": round(time.perf_counter() - start),
  }


def compiled(model: str, side: int, chips: int, images: int, remat: str) -> Row:
  """What a step and a checkpoint cost. Raises compiler.DoesNotFit."""
  from vit_jax.estimate import compiler
  from vit_jax.estimate.__main__ import DATA_SETS
  from vit_jax.training import sharding

  sizes = DATA_SETS["imagenet2012"]
  settings = settings_of(model, side, chips, images, remat)
  chip, devices = compiler.devices_of(CHIPS[chips])
  mesh = sharding.make_mesh(fsdp=settings.mesh.fsdp, devices=devices)
  found, _ = compiler.estimate(settings, chip, devices, *sizes)
  state, busiest = written(compiler.state_shapes(settings, mesh, *sizes), mesh)
  low, high = found["step_ms"]
  return {
    **dict(zip(KEY, (model, side, chips, images), strict=True)),
    "topology": CHIPS[chips],
    "parts": settings.accumulation_steps,
    "fsdp": settings.mesh.fsdp,
    "remat": remat,
    "mcycles": found["mcycles"],
    "mfu": found["mfu"],
    "memory_gib": found["hbm_gib"]["peak"],
    "chip_ms": found["mcycles"] / chip.mhz * 1e3,
    "low_ms": low,
    "high_ms": high,
    "sent_mib": sum(one["mib"] for one in found["collectives"].values()),
    "save_steps": settings.save_every.in_steps(settings.batch_size, sizes[1]),
    "state_gb": state / 1e9,
    "written_gb": busiest / 1e9,
  }


def settings_of(
  model: str, side: int, chips: int, images: int, remat: str
) -> Any:
  """The paper's run on ImageNet of a model, cut up for so many chips."""
  from vit_jax.models.variants import VITS
  from vit_jax.run.config_file import load_config
  from vit_jax.run.settings import read as read_settings
  from vit_jax.runtime.settings import replaced

  settings = read_settings(load_config("pretrain:H/14,imagenet2012"))
  changes = {
    "image_size": (side, side),
    "batch_size": chips * images,
    "accumulation_steps": max(1, images // at_once(model, side)),
    "mesh.fsdp": min(FSDP.get(model, 8), chips),
    "model.variant": model,
    "model.representation_size": VITS[model.split("/")[0]][1],
    "model.dropout_rate": 0.0,
    "model.scan": True,
    "model.remat": remat,
  }
  return replaced(settings, changes)


def written(shapes: Any, mesh: Any) -> tuple[float, float]:
  """Bytes of a checkpoint, and of the host that writes the most of it.

  As Orbax shares it out: the devices that hold the same part of an array each
  write an equal piece, if one of its axes divides by their number; otherwise
  the first of them writes it all.
  """
  import jax

  sizes = np.zeros(mesh.devices.shape)
  for array in jax.tree.leaves(shapes):
    local = array.sharding.shard_shape(array.shape)
    size = math.prod(local) * array.dtype.itemsize
    split = {
      a for axes in array.sharding.spec for a in np.atleast_1d(axes or [])
    }
    copies = mesh.size // math.prod(mesh.shape[axis] for axis in split)
    if any(length % copies == 0 for length in local):
      sizes += size / copies
    else:
      axes = mesh.axis_names
      sizes[tuple(slice(None) if axis in split else 0 for axis in axes)] += size
  hosts = [device.process_index for device in mesh.devices.flat]
  return sizes.sum(), np.bincount(hosts, sizes.ravel()).max()


if __name__ == "__main__":
  main()
