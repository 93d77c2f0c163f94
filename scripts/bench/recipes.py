"""Writes docs/recipes.md: what the published recipes would cost on TPUs.

python scripts/bench/recipes.py [STEP ...]
python scripts/bench/recipes.py --whole [--scan] [STEP ...]
python scripts/bench/recipes.py --render

The compiler for TPUs (`pip install "vit_jax[tpu]"`) compiles the train step of
each recipe for eight chips of v5e and v6e and for four of v4 and v5p, which
Google calls v4-8 and v5p-8. Its cycles, and the number of images that a recipe
trains on, give chip hours. Layers are unrolled, and only a few are compiled:
the whole model lies on the line through two depths (scripts/bench/depths.py).
--whole compiles all layers, and --scan one for all of them. Rows that
docs/_static/recipes.csv has are not made again, so a stopped run goes on where
it was. --render compiles nothing.
"""

import argparse
import csv
import dataclasses
import importlib
import importlib.metadata
import pathlib
import sys
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from scripts.bench.depths import depths_of, extrapolated  # noqa: E402
from vit_jax.estimate import set_environment  # noqa: E402
from vit_jax.estimate.__main__ import DATA_SETS  # noqa: E402
from vit_jax.models.variants import VITS  # noqa: E402

TABLE, PAGE = ROOT / "docs/_static/recipes.csv", ROOT / "docs/recipes.md"
TPUS = {
  "v4-8": "v4:2x2x1",
  "v5e-8": "v5e:2x4",
  "v5p-8": "v5p:2x2x1",
  "v6e-8": "v6e:2x4",
}
COLUMNS: tuple[str, ...] = (
  *("step", "tpu", "layers", "compiled", "libtpu", "chips", "parts"),
  *("images_per_second", "mfu", "memory_gib", "note"),
)
KEY = COLUMNS[:4]
SCANNED = dict(scan=True, remat="dots")


@dataclasses.dataclass(frozen=True)
class Step:
  """A train step to compile.

  Attributes:
    config: The configuration file, and its argument.
    images: Most images of a device in a part of the batch.
    model: Fields of the model that differ.
    data: The data set, whose classes count.
  """

  config: str
  images: int = 64
  model: dict[str, Any] = dataclasses.field(default_factory=dict)
  data: str = "imagenet2012"


def _table_3(model: str, data: str) -> Step:
  images = 32 if model[0] in "LH" else 64
  return Step(f"pretrain:{model},{data}", images, data=data)


def _table_4(model: str) -> Step:
  name = model.lower().replace("/", "") + "_i21k"
  fields = {"variant": model, "dtype": "bfloat16"}
  return Step(f"finetune:{name},imagenet2012", 16, fields)


STEPS = {
  "big_vision_s16": Step("big_vision_s16"),
  "deit3_b16": Step("deit3:B/16", 64),
  "deit3_l16": Step("deit3:L/16", 32),
  "b16_imagenet": _table_3("B/16", "imagenet2012"),
  "b16_384": _table_4("B/16"),
  "l16_384": _table_4("L/16"),
  "l16_imagenet21k": _table_3("L/16", "imagenet21k"),
  "b16_imagenet21k": _table_3("B/16", "imagenet21k"),
  "h14_jft300m": _table_3("H/14", "jft300m"),
  "l16_jft300m": _table_3("L/16", "jft300m"),
  "l16_imagenet": _table_3("L/16", "imagenet2012"),
  "s16_imagenet21k": Step(
    "pretrain:B/16,imagenet21k",
    model=dict(variant="S/16", representation_size=384),
    data="imagenet21k",
  ),
  "h14_378": _table_4("H/14"),
  "b16_jft300m": _table_3("B/16", "jft300m"),
}


@dataclasses.dataclass(frozen=True)
class Recipe:
  """A row of the page.

  Attributes:
    name: What is trained.
    step: The step whose rate counts.
    images: How many images are trained on, copies included.
    result: Top-1 on ImageNet that was published, in %.
    source: Where.
    parity: The row of docs/parity.md; empty if there is none.
    hours: What was published about the time.
  """

  name: str
  step: str
  images: float
  result: str
  source: str
  parity: str = ""
  hours: str = ""


def _epochs(count: float, data: str = "imagenet2012") -> float:
  return count * DATA_SETS[data][1]


_BETTER = "[2205.01580](https://arxiv.org/abs/2205.01580)"
_REVENGE = "[2204.07118](https://arxiv.org/abs/2204.07118)"
_PAPER = "[2010.11929](https://arxiv.org/abs/2010.11929)"
_DEIT = "[2012.12877](https://arxiv.org/abs/2012.12877)"
_GOOGLE = (
  "[google-research/vision_transformer]"
  "(https://github.com/google-research/vision_transformer)"
)
_REIMPLEMENTED = (
  "on v4-64, by [deit3-jax](https://github.com/affjljoo3581/deit3-jax)"
)
_TABLE_5, _TABLE_6 = f"{_PAPER}, Table 5", f"{_PAPER}, Table 6"
_TUNED = "I21k, fine-tuned"

RECIPES = (
  Recipe(
    *("S/16, 90 epochs", "big_vision_s16", _epochs(90 * 0.99)),
    *("76.5", _BETTER, "big_vision_s16"),
    "6 to 7 h on v3-8, so 24 to 28",
  ),
  Recipe(
    *("S/16, 300 epochs", "big_vision_s16", _epochs(300 * 0.99)),
    *("80.0", _BETTER, "big_vision_s16"),
  ),
  Recipe(
    *("DeiT B/16, 300 epochs (a)", "b16_imagenet", _epochs(300)),
    *("81.8", _DEIT, "deit_b"),
    f"4:40 h {_REIMPLEMENTED}, so 149",
  ),
  Recipe(
    *("DeiT III B/16 at 192, 400 epochs (b)", "deit3_b16", _epochs(400)),
    *("83.5", _REVENGE, "deit3"),
    f"4:42 h {_REIMPLEMENTED}, so 150",
  ),
  Recipe(
    *("DeiT III B/16 at 192, 800 epochs (b)", "deit3_b16", _epochs(800)),
    *("83.8", _REVENGE, "deit3"),
    f"9:28 h {_REIMPLEMENTED}, so 303",
  ),
  Recipe(
    *("DeiT III L/16 at 192, 400 epochs (b)", "deit3_l16", _epochs(400)),
    *("84.5", _REVENGE, "deit3"),
    f"14:10 h {_REIMPLEMENTED}, so 453",
  ),
  Recipe(
    *("DeiT III L/16 at 192, 800 epochs (b)", "deit3_l16", _epochs(800)),
    *("84.9", _REVENGE, "deit3"),
  ),
  Recipe(
    *("Table 3, B/16, ImageNet, 300 epochs", "b16_imagenet", _epochs(300)),
    *("77.91", _TABLE_5, "table3_imagenet"),
  ),
  Recipe(
    *("Table 3, L/16, ImageNet, 300 epochs", "l16_imagenet", _epochs(300)),
    *("76.53", _TABLE_5, "table3_imagenet"),
  ),
  Recipe(
    "Table 3, B/16, ImageNet-21k, 90 epochs",
    *("b16_imagenet21k", _epochs(90, "imagenet21k")),
    *("83.97", _TABLE_5, "table3_imagenet21k"),
  ),
  Recipe(
    "Table 3, L/16, ImageNet-21k, 90 epochs",
    *("l16_imagenet21k", _epochs(90, "imagenet21k")),
    *("85.15", _TABLE_5, "table3_imagenet21k"),
    "230 core-days of v3 (Table 2), so 2,760",
  ),
  Recipe(
    "Table 3, B/16, JFT-300M, 7 epochs",
    *("b16_jft300m", _epochs(7, "jft300m")),
    *("84.15", _TABLE_6),
  ),
  Recipe(
    "Table 3, L/16, JFT-300M, 14 epochs",
    *("l16_jft300m", _epochs(14, "jft300m")),
    *("87.12", _TABLE_6, "", "680 core-days of v3 (Table 2), so 8,160"),
  ),
  Recipe(
    "Table 3, H/14, JFT-300M, 14 epochs",
    *("h14_jft300m", _epochs(14, "jft300m")),
    *("88.08", _TABLE_6, "", "2,500 core-days of v3 (Table 2), so 30,000"),
  ),
  Recipe(
    "Table 4, B/16 at 384, ImageNet, 20,000 steps",
    *("b16_384", 20_000 * 512, f"83.97, {_TUNED}", _TABLE_5, "table4"),
    f"6.5 h on A100, 84.53 % ({_GOOGLE})",
  ),
  Recipe(
    "Table 4, L/16 at 384, ImageNet, 20,000 steps",
    *("l16_384", 20_000 * 512, f"85.15, {_TUNED}", _TABLE_5, "table4"),
    f"16.8 h on A100, 84.47 % ({_GOOGLE})",
  ),
  Recipe(
    "Table 4, H/14 at 378, ImageNet, 20,000 steps",
    *("h14_378", 20_000 * 512, f"85.13, {_TUNED}", _TABLE_5, "table4"),
  ),
  Recipe(
    "AugReg S/16, ImageNet-21k, 300 epochs (c)",
    *("s16_imagenet21k", _epochs(300, "imagenet21k"), "83.73", _GOOGLE),
  ),
  Recipe(
    "AugReg B/16, ImageNet-21k, 300 epochs (c)",
    *("b16_imagenet21k", _epochs(300, "imagenet21k"), "85.49", _GOOGLE),
  ),
  Recipe(
    "AugReg L/16, ImageNet-21k, 300 epochs (c)",
    *("l16_imagenet21k", _epochs(300, "imagenet21k"), "85.59", _GOOGLE),
  ),
)


def main() -> None:
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument("steps", nargs="*", help="steps to compile; all if none")
  parser.add_argument("--tpus", nargs="*", default=[*TPUS], choices=TPUS)
  parser.add_argument("--depths", default="2,4", help="layers to compile")
  parser.add_argument("--whole", action="store_true", help="compile all layers")
  parser.add_argument("--scan", action="store_true", help="one layer for all")
  parser.add_argument("--render", action="store_true", help="compile nothing")
  options = parser.parse_args()
  depths = None if options.whole else depths_of(options.depths)
  form = "scanned" if options.scan else "unrolled"
  compiled = "all" if depths is None else options.depths
  rows = read_rows()
  for tpu in [] if options.render else options.tpus:
    for name in options.steps or STEPS:
      key = dict(zip(KEY, (name, tpu, form, compiled), strict=True))
      if not any(key.items() <= row.items() for row in rows):
        rows.append({**key, **estimated(name, tpu, options.scan, depths)})
        print(*rows[-1].values(), flush=True)
        write_rows(rows)
    PAGE.write_text(page(rows))
  PAGE.write_text(page(rows))


def read_rows() -> list[dict[str, str]]:
  """The estimates that are kept."""
  if not TABLE.exists():
    return []
  with TABLE.open(newline="") as file:
    return [*csv.DictReader(file)]


def write_rows(rows: list[dict[str, str]]) -> None:
  with TABLE.open("w", newline="") as file:
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def config_of(step: Step, devices: int) -> Any:
  """The recipe's configuration with the settings of docs/scaling.md.

  FSDP is over all devices, and the batch is computed in so many parts that each
  device has at most `step.images` of one.
  """
  file, _, argument = step.config.partition(":")
  module = importlib.import_module(f"configs.{file}")
  config = module.get_config(*([argument] if argument else []))
  config.pretrained = None  # Weights change no cost.
  config.model.update(step.model)
  config.mesh.fsdp = devices
  config.accumulation_steps = config.batch_size // (devices * step.images)
  return config


def estimated(
  name: str, tpu: str, scan: bool, depths: tuple[int, int] | None
) -> dict[str, str]:
  """Compiles a step for a TPU, whole or at two depths; the other columns."""
  set_environment()  # Before JAX is imported.
  from vit_jax.estimate import compiler
  from vit_jax.run.settings import read

  chip, devices = compiler.devices_of(TPUS[tpu])
  step = STEPS[name]
  config = config_of(step, len(devices))
  config.model.update(SCANNED if scan else {})
  known = {
    "libtpu": importlib.metadata.version("libtpu"),
    "chips": str(len(devices) // chip.devices),
    "parts": str(config.accumulation_steps),
  }
  layers = VITS[config.model.variant.partition("/")[0]][0]
  rows = []
  for config.model.num_layers in depths or (layers,):
    try:
      rows.append(
        compiler.estimate(read(config), chip, devices, *DATA_SETS[step.data])[0]
      )
    except (ValueError, RuntimeError) as error:
      return {**known, "note": str(error).partition("\n")[0][:200]}
  row = extrapolated(rows, depths, layers) if depths else rows[0]
  used = row["hbm_gib"]
  return {
    **known,
    "images_per_second": f"{row['images_per_second']:.0f}",
    "mfu": f"{row['mfu']:.3f}",
    "memory_gib": f"{used['peak']:.1f}",
    "note": "does not fit" if used["peak"] > used["of"] else "",
  }


def chip_hours(recipe: Recipe, row: dict[str, str]) -> float:
  """Hours of one chip that never waits."""
  return recipe.images / float(row["images_per_second"]) / 3600


def page(rows: list[dict[str, str]]) -> str:
  """The page, with the recipes whose step was compiled for a TPU."""
  best = {(r["step"], r["tpu"]): r for r in sorted(rows, key=_trust)}
  lines = []
  for recipe in RECIPES:
    found = [best.get((recipe.step, tpu)) for tpu in TPUS]
    if any(found):
      hours = [_hours(recipe, row) for row in found]
      parity = f"[{recipe.parity}](parity.md#recipes)" if recipe.parity else "-"
      cells = (recipe.name, recipe.result, recipe.source, parity)
      cells += (*hours, recipe.hours or "-")
      lines.append(f"| {' | '.join(cells)} |")
  order = [(step, tpu) for step in STEPS for tpu in TPUS]
  steps = [
    _step_line(row)
    for row in sorted(rows, key=lambda r: order.index((r["step"], r["tpu"])))
  ]
  versions = " and ".join(sorted({row["libtpu"] for row in rows}))
  return _PAGE.format(
    recipes="\n".join(lines),
    steps="\n".join(steps),
    libtpu=versions,
    accuracy=accuracy(rows),
  )


def accuracy(rows: list[dict[str, str]]) -> str:
  """A sentence on how far rows from two depths are from whole ones."""
  kept = {tuple(row[key] for key in KEY): row for row in rows if row["mfu"]}
  errors = []
  for (*key, compiled), row in kept.items():
    whole = kept.get((*key, "all"))
    if whole and compiled != "all":
      few, all_ = (float(r["images_per_second"]) for r in (row, whole))
      errors.append(abs(few / all_ - 1))
  if not errors:
    return "No step was compiled both ways yet, so its error is not known."
  return (
    f"Where a step was compiled both ways ({len(errors)} so far), images a "
    f"second differ by at most {max(errors):.1%}."
  )


def _trust(row: dict[str, str]) -> tuple[bool, bool, bool]:
  """The row of a step that counts has the most of these."""
  whole = row["compiled"] == "all"
  return bool(row["mfu"]), row["layers"] == "unrolled", whole


def _hours(recipe: Recipe, row: dict[str, str] | None) -> str:
  if not row or not row["mfu"]:
    return "-"
  text = f"{chip_hours(recipe, row):,.0f}"
  return f"{text} (s)" if row["layers"] == "scanned" else text


def _step_line(row: dict[str, str]) -> str:
  name = f"`{STEPS[row['step']].config}`"
  if row["step"] == "s16_imagenet21k":
    name += ", with S/16's sizes"
  compiled = row["compiled"].replace(",", " and ")
  cells = (name, row["tpu"], row["layers"], compiled, row["parts"])
  cells += (row["images_per_second"], row["mfu"], row["memory_gib"])
  return f"| {' | '.join(cell or '-' for cell in (*cells, row['note']))} |"


_PAGE = """# What a recipe costs

Before one rents TPUs: about how many chip hours each published recipe takes, by
the estimate of the TPU compiler (libtpu {libtpu}). **Nobody has run these
recipes with this package**, neither for their accuracy nor for their time. The
accuracies are those of the publications named beside them. What we have
compared is each step of the training with the references' own code, on tiny
models: the column "parity" has [the row](parity.md). The page is written by
`python scripts/bench/recipes.py`.

A chip hour is an hour of one chip, so 8 chips take an eighth of the time. v4-8
and v5p-8 are four chips, v5e-8 and v6e-8 eight. The estimates are for a chip
that never waits, neither for the network nor for its memory nor for images, and
leave out evaluations, checkpoints and compilation. So **they are bounds for
this form of the step**, not predictions. Real steps reach the estimate only if
the host can decode as many images a second as all its chips take: [reading
images](results.md#images-in) has our rates.

Top-1 is on ImageNet, in %. The models of Table 3 were fine-tuned for it, at 384
x 384. Published times are in chip hours too, where their number of chips is
known: a v3-8 has 4 chips, and a v4-64 has 32.

| recipe | top-1 | reported in | parity | v4-8 | v5e-8 | v5p-8 | v6e-8 | published time |
| --- | --- | --- | --- | ---: | ---: | ---: | ---: | --- |
{recipes}

- (s) Of a scanned step, since the unrolled one was not compiled. Unrolled, B/16,
  L/16 and H/14 took a fifth to a third fewer cycles [on the page about
  scaling](scaling.md#what-to-set-for-each-size).
- (a) There is no file of this recipe in `configs/`. Its cost is that of the
  step of B/16 of Table 3, which has the same sizes.
- (b) Without the fine-tuning at 224 for 20 epochs, which the accuracies
  include, and perhaps the published times.
- (c) The accuracy is of the checkpoint that Google recommends, after
  fine-tuning. There is no file for this pre-training in `configs/`: the step is
  that of Table 3 on ImageNet-21k for 300 epochs. RandAugment and Mixup are the
  host's work, or cheap.

The ResNets and hybrids of Table 3 and 4 were not compiled. Rows of Table 4 on
CIFAR take half of the steps, and those on Pets and Flowers a fortieth. Steps
without labels are [on the page about scaling](scaling.md#masked-autoencoders).

## The steps

Every step is in bfloat16 with float32 parameters, as the recipe's file has it;
for Table 4, whose file has float32, this is changed. FSDP is over all chips,
and the batch is computed in parts of at most 64 images for each device (32 for
L and H, 16 for Table 4), as [the page about
scaling](scaling.md#what-to-set-for-each-size) advises. Images a second are those
of one chip.

"All" layers were compiled, or as many as the column says: then the row lies on
the line through both depths, and so does its memory. {accuracy}
Scanned rows have `remat=dots`. Steps that are missing here have not been
compiled yet.

| step | TPU | form | layers compiled | parts | images/s | MFU | memory, GiB | note |
| --- | --- | --- | --- | ---: | ---: | ---: | ---: | --- |
{steps}

[The rows](_static/recipes.csv) come from these commands, in a clone:

<!-- not run: needs the extra tpu, and takes hours of a core -->
```sh
python scripts/bench/recipes.py
python scripts/bench/recipes.py --whole --scan b16_imagenet --tpus v5e-8
vit_jax estimate --config big_vision_s16 --topology v5e:2x4 \\
  --config.mesh.fsdp=8 --config.accumulation_steps=2
```

The second compiles one layer for all, and the third is one step by itself. For
any other model, `python scripts/bench/depths.py 2,4 --layers=24` followed by the flags
of `estimate` gives the line of one with 24 layers.
"""  # noqa: E501


if __name__ == "__main__":
  main()
