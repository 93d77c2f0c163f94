"""Prints the tables of docs/recipes.md: what published recipes cost on TPUs.

python -m scripts.bench.recipes
python -m scripts.bench.recipes big_vision_s16 --tpus v5e-8 v6e-8

The first command prints the tables from the rows of docs/_static/recipes.csv.
The second first compiles the steps named, for each of the TPUs for which the
file has no row. It needs the compiler for TPUs (`pip install "vit_jax[tpu]"`)
and takes minutes a row: the whole model lies on the line through two depths
(scripts/bench/depths.py). --scan compiles one layer for all instead, which is
quicker and gives a slower step.
"""

import argparse
import dataclasses
import importlib
import importlib.metadata
import pathlib
from typing import Any

from scripts import tables
from scripts.bench.depths import DEPTHS, extrapolated
from vit_jax.estimate import set_environment
from vit_jax.estimate.__main__ import DATA_SETS
from vit_jax.models.variants import VITS

TABLE = pathlib.Path(__file__).parents[2] / "docs/_static/recipes.csv"
TPUS = {
  "v4-8": "v4:2x2x1",
  "v5e-8": "v5e:2x4",
  "v5p-8": "v5p:2x2x1",
  "v6e-8": "v6e:2x4",
}
KEY = ("step", "tpu")
COLUMNS: tuple[str, ...] = (
  *(*KEY, "layers", "libtpu", "chips", "parts"),
  *("images_per_second", "mfu", "memory_gib"),
)
Row = dict[str, str]


@dataclasses.dataclass(frozen=True)
class Step:
  """A train step to compile.

  Attributes:
    config: The configuration file, and its argument.
    images: Most images of a device in a part of the batch.
    data: The data set, whose classes count.
  """

  config: str
  images: int = 64
  data: str = "imagenet2012"


STEPS = {
  "big_vision_s16": Step("big_vision_s16"),
  "deit3_b16": Step("deit3:B/16"),
  "b16_imagenet": Step("pretrain:B/16,imagenet2012"),
  "l16_imagenet21k": Step("pretrain:L/16,imagenet21k", 32, "imagenet21k"),
}


@dataclasses.dataclass(frozen=True)
class Recipe:
  """A row of the page.

  Attributes:
    name: What is trained.
    step: The step whose rate counts.
    images: How many images are trained on, copies included.
    result: Top-1 on ImageNet that was published, in %, and where.
    hours: Chip hours that were published.
  """

  name: str
  step: str
  images: float
  result: str
  hours: str = "-"


def _epochs(count: float, data: str = "imagenet2012") -> float:
  return count * DATA_SETS[data][1]


_BETTER = "[2205.01580](https://arxiv.org/abs/2205.01580)"
_REVENGE = "[2204.07118](https://arxiv.org/abs/2204.07118)"
_PAPER = "[2010.11929](https://arxiv.org/abs/2010.11929)"
_DEIT = "[2012.12877](https://arxiv.org/abs/2012.12877)"
_AUGREG = (
  "[vision_transformer](https://github.com/google-research/vision_transformer)"
)
_DEIT3_JAX = "by [deit3-jax](https://github.com/affjljoo3581/deit3-jax) on v4"
RECIPES = (
  Recipe(
    "S/16, 90 epochs",
    "big_vision_s16",
    _epochs(90 * 0.99),
    f"76.5, {_BETTER}",
    "24 to 28 on v3",
  ),
  Recipe(
    "S/16, 300 epochs",
    "big_vision_s16",
    _epochs(300 * 0.99),
    f"80.0, {_BETTER}",
  ),
  Recipe(
    "DeiT B/16, 300 epochs (a)",
    "b16_imagenet",
    _epochs(300),
    f"81.8, {_DEIT}",
    f"149 {_DEIT3_JAX}",
  ),
  Recipe(
    "DeiT III B/16 at 192, 400 epochs (b)",
    "deit3_b16",
    _epochs(400),
    f"83.5, {_REVENGE}",
    f"150 {_DEIT3_JAX}",
  ),
  Recipe(
    "DeiT III B/16 at 192, 800 epochs (b)",
    "deit3_b16",
    _epochs(800),
    f"83.8, {_REVENGE}",
    f"303 {_DEIT3_JAX}",
  ),
  Recipe(
    "Table 3, B/16, ImageNet, 300 epochs",
    "b16_imagenet",
    _epochs(300),
    f"77.91, {_PAPER}",
  ),
  Recipe(
    "Table 3, L/16, ImageNet-21k, 90 epochs",
    "l16_imagenet21k",
    _epochs(90, "imagenet21k"),
    f"85.15, {_PAPER}",
    "2,760 on v3",
  ),
  Recipe(
    "AugReg L/16, ImageNet-21k, 300 epochs (c)",
    "l16_imagenet21k",
    _epochs(300, "imagenet21k"),
    f"85.59, {_AUGREG}",
  ),
)
# ImageNet's training images are a file of so many bytes.
JPEG_BYTES = 147_897_477_120 / 1_281_167
DECODED = 2_202 / 2  # JPEG images a second and core, on the page of results.
HOST_CHIPS, HOST_VCPUS = 4, 112  # A virtual machine of v5e.
SLICES = (("v5e-8", 64), ("v5e-8", 256), ("v5p-8", 4_096))
"""The kinds and numbers of chips whose reading the second table has."""


def main() -> None:
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument("steps", nargs="*", help="steps to compile")
  parser.add_argument("--tpus", nargs="*", default=[*TPUS], choices=TPUS)
  parser.add_argument("--scan", action="store_true", help="one layer for all")
  options = parser.parse_args()
  rows = tables.read(TABLE)
  for tpu in options.tpus:
    for name in options.steps:
      if (name, tpu) not in map(key_of, rows):
        rows.append(estimated(name, tpu, options.scan))
        tables.write(TABLE, COLUMNS, rows)
  print(*costs(rows), "", *inputs(rows), sep="\n")


def key_of(row: Row) -> tuple[str, str]:
  return row["step"], row["tpu"]


def config_of(step: Step, devices: int) -> Any:
  """The recipe's configuration, with FSDP over all devices.

  The batch is computed in so many parts that each device has at most
  `step.images` of one.
  """
  file, _, argument = step.config.partition(":")
  module = importlib.import_module(f"configs.{file}")
  config = module.get_config(*([argument] if argument else []))
  config.mesh.fsdp = devices
  config.accumulation_steps = config.batch_size // (devices * step.images)
  return config


def estimated(name: str, tpu: str, scan: bool) -> Row:
  """Compiles a step for a TPU, at two depths or scanned."""
  set_environment()  # Before JAX is imported.
  from vit_jax.estimate import compiler
  from vit_jax.run.settings import read

  chip, devices = compiler.devices_of(TPUS[tpu])
  step = STEPS[name]
  config = config_of(step, len(devices))
  layers = VITS[config.model.variant.partition("/")[0]][0]
  if scan:
    config.model.update(scan=True, remat="dots")
  rows = []
  for config.model.num_layers in (layers,) if scan else DEPTHS:
    sizes = DATA_SETS[step.data]
    rows.append(compiler.estimate(read(config), chip, devices, *sizes)[0])
  row = rows[0] if scan else extrapolated(rows, DEPTHS, layers)
  return {
    **dict(zip(KEY, (name, tpu), strict=True)),
    "layers": "scanned" if scan else "unrolled",
    "libtpu": importlib.metadata.version("libtpu"),
    "chips": str(len(devices) // chip.devices),
    "parts": str(config.accumulation_steps),
    "images_per_second": f"{row['images_per_second']:.0f}",
    "mfu": f"{row['mfu']:.3f}",
    "memory_gib": f"{row['hbm_gib']['peak']:.1f}",
  }


def costs(rows: list[Row]) -> list[str]:
  """Chip hours of each recipe."""
  known = {key_of(row): row for row in rows}
  cells = []
  for recipe in RECIPES:
    hours = []
    for tpu in TPUS:
      row = known.get((recipe.step, tpu))
      hours.append("-" if row is None else _hours(recipe, row))
    cells.append((recipe.name, recipe.result, *hours, recipe.hours))
  return tables.markdown(("recipe", "top-1", *TPUS, "published"), cells)


def _hours(recipe: Recipe, row: Row) -> str:
  text = f"{recipe.images / float(row['images_per_second']) / 3600:,.0f}"
  return f"{text} (s)" if row["layers"] == "scanned" else text


def inputs(rows: list[Row]) -> list[str]:
  """What a host decodes, and what all hosts read, in JPEG files."""
  rates = {key_of(row): float(row["images_per_second"]) for row in rows}
  cells = []
  for name, step in STEPS.items():
    mine = HOST_CHIPS * rates[name, "v5e-8"]
    share = mine / (HOST_VCPUS * DECODED)
    read = [
      f"{chips * rates[name, tpu] * JPEG_BYTES * 8e-9:,.0f}"
      for tpu, chips in SLICES
    ]
    cells.append((f"`{step.config}`", f"{mine:,.0f}", f"{share:.0%}", *read))
  heads = [f"{n:,} {tpu.partition('-')[0]}, Gb/s" for tpu, n in SLICES]
  names = ("step", "images/s a host of v5e", "of its vCPUs", *heads)
  return tables.markdown(names, cells)


if __name__ == "__main__":
  main()
