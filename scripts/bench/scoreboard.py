"""Compares libraries' Vision Transformers on TPUs, by the TPU compiler.

python -m scripts.bench.scoreboard --reference big_vision=FOLDER ...
python -m scripts.bench.scoreboard --reference ... --library jimm --chip v5e
python -m scripts.bench.scoreboard --render

A call compiles one row that the table lacks, the first of those that the flags
leave, and adds it to docs/_static/scoreboard.csv; with --render it compiles
nothing, and writes docs/evidence/scoreboard.md from that table. The folders are
clones of the libraries, which this program imports and never fetches; a row
records their commits. Each library runs its own model; the loss, Adam with
weight decay, the batch of a chip and the mesh are the same for all.

A whole model takes minutes to compile. By default a row therefore comes from
models of 2 and 4 layers, and a line in the number of layers; --whole compiles
the model itself, and the page compares both.
"""

import argparse
import importlib.metadata
import json
import pathlib
import subprocess
import textwrap
from collections.abc import Iterator
from typing import Any

from scripts import tables
from scripts.bench.depths import line
from scripts.bench.scoreboard_models import (
  LIBRARIES,
  OURS,
  ROUGH,
  SHAPES,
  gflops,
  lowered,
)
from vit_jax.estimate import set_environment

HERE = pathlib.Path(__file__).parents[2]
TABLE = HERE / "docs/_static/scoreboard.csv"
PAGE = HERE / "docs/evidence/scoreboard.md"
IMAGES = {"B/16": 64, "L/16": 32}  # On each chip.
CHIPS = {
  "v5e": "v5e:2x4",
  "v6e": "v6e:2x4",
  "v4": "v4:2x2x2",
  "v5p": "v5p:2x2x2",
  "tpu7x": "tpu7x:2x2x1",
}
STEPS = ("train", "forward")
TITLES = {"train": "train step", "forward": "forward pass"}
NAMES = (
  *("library", "commit", "model", "step", "chip", "layers", "libtpu", "jax"),
  *("mcycles", "mfu", "memory_gib", "sent_mib", "seconds", "operations"),
)
KEY = ("library", "model", "step", "chip", "layers")
SHOWN = (*KEY, "mcycles", "mfu", "memory_gib", "sent_mib", "libtpu", "commit")
Row = dict[str, Any]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument(
    "--reference", nargs="*", default=[], metavar="NAME=FOLDER"
  )
  parser.add_argument("--library", choices=LIBRARIES)
  parser.add_argument("--model", choices=SHAPES)
  parser.add_argument("--step", choices=STEPS)
  parser.add_argument("--chip", choices=CHIPS)
  parser.add_argument("--whole", action="store_true", help="compile all layers")
  parser.add_argument("--render", action="store_true", help="write the page")
  parser.add_argument("--table", type=pathlib.Path, default=TABLE)
  options = parser.parse_args()
  rows = tables.read(options.table)
  if options.render:
    PAGE.write_text(page(rows))
    return
  folders = dict(text.split("=", 1) for text in options.reference)
  folders |= dict.fromkeys(OURS, str(HERE))
  known = {tuple(row[name] for name in KEY) for row in rows}
  for key in wanted(options):
    if key not in known and key[0] in folders:
      row = measured(key, pathlib.Path(folders[key[0]]))
      tables.add(options.table, NAMES, row)
      print(*key, f"{row['mcycles']:.1f} Mcycles, {row['seconds']:.0f} s")
      return
  print("No row is missing, of those whose library has a --reference.")


def wanted(options: Any) -> Iterator[tuple[str, ...]]:
  """The keys of the rows that the flags leave, the most telling first."""

  def chosen(name: str, values: Any) -> Any:
    given = getattr(options, name)
    return (given,) if given else values

  for chip in chosen("chip", CHIPS):
    for model in chosen("model", SHAPES):
      for step in chosen("step", STEPS):
        for library in chosen("library", LIBRARIES):
          layers = str(SHAPES[model][-1]) if options.whole else "2, 4"
          yield library, model, step, chip, layers


def measured(key: tuple[str, ...], folder: pathlib.Path) -> Row:
  """Compiles the row of a key, in one program or in two smaller ones."""
  set_environment()  # Before JAX is imported.
  from vit_jax.estimate import compiler

  library, model, step, chip, layers = key
  depths = [int(n) for n in layers.split(",")]
  found = [compiled(library, folder, key[1:4], depth) for depth in depths]
  depth = SHAPES[model][-1]
  row = found[0] if len(found) == 1 else extended(found[0], found[1], depth)
  top = sorted(row["operations"].items(), key=lambda pair: -pair[1][1])[:10]
  kind = compiler.CHIPS[chip]
  work = gflops((*SHAPES[model][:3], depth), step) * IMAGES[model] * 1e9
  if kind.flop_per_cycle:
    row["mfu"] = f"{work / row['mcycles'] / 1e6 / kind.flop_per_cycle:.4f}"
  for name in ("mcycles", "memory_gib", "sent_mib", "seconds"):
    row[name] = round(row[name], 3)
  return row | {
    **dict(zip(KEY, key, strict=True)),
    "commit": commit(folder),
    "libtpu": importlib.metadata.version("libtpu"),
    "jax": importlib.metadata.version("jax"),
    "operations": json.dumps(
      [(*name, round(n), round(c, 3)) for name, (n, c) in top]
    ),
  }


def commit(folder: pathlib.Path) -> str:
  """The commit of a clone, with a plus if its files differ from it."""

  def git(*command: str) -> str:
    line = ("git", "-C", str(folder), *command)
    return subprocess.run(line, capture_output=True, text=True).stdout.strip()

  changed = git("status", "--porcelain", "--untracked-files=no", "*.py")
  return git("rev-parse", "--short=10", "HEAD") + "+" * bool(changed)


def compiled(
  library: str, folder: Any, key: tuple[str, ...], layers: int
) -> Row:
  """What one compiled program costs."""
  from vit_jax.estimate import compiler
  from vit_jax.training import sharding

  model, step, name = key
  shape = (*SHAPES[model][:3], layers)
  chip, devices = compiler.devices_of(CHIPS[name])
  mesh = sharding.make_mesh(devices=devices)
  images = IMAGES[model] // chip.devices
  program = lowered(
    library, folder, (*shape, images * len(devices)), step, mesh
  )
  work = gflops(shape, step)
  found, _ = compiler.cost(program, chip, mesh, images, work)
  operations = {(a, b): (n, c / 1e6) for a, b, n, c in found["by_op"]}
  return {
    "mcycles": found["mcycles"],
    "memory_gib": found["hbm_gib"]["peak"],
    "sent_mib": sum(one["mib"] for one in found["collectives"].values()),
    "seconds": found["compile_seconds"],
    "operations": operations,
  }


def extended(few: Row, more: Row, layers: int) -> Row:
  """The row of `layers` layers on the line through those of DEPTHS."""
  names = ("mcycles", "memory_gib", "sent_mib")
  row = {name: line(few[name], more[name], layers) for name in names}
  row["seconds"] = few["seconds"] + more["seconds"]
  row["operations"] = {}
  for name, pair in more["operations"].items():
    pairs = zip(few["operations"].get(name, (0, 0)), pair, strict=True)
    on_it = (line(a, b, layers) for a, b in pairs)
    row["operations"][name] = tuple(max(0, x) for x in on_it)
  return row


NOTES = {
  ("B/16", "train", "tpu7x"): """\
Our form copies queries and keys into another layout (1.35 Mcycles), which is
not needed with heads as an inner axis, and takes 2.64 for the exponentials of
float32 logits; big_vision takes 1.61 for those of bfloat16 ones. The plain
form, with heads as an inner axis and float32 logits, takes 34.0
([attempts](attempts.md#passes-without-gradients-and-v6e)), so we use
neither.""",
  ("L/16", "train", "v6e"): """\
Exponentials of float32 logits take 11.20 Mcycles, and big_vision's of bfloat16
logits 3.46. With bfloat16 logits our step takes 75.3, and is the fastest.""",
}

HEAD = """\
# Scoreboard

This page compares the Vision Transformers of six JAX libraries on TPUs. Every
number is an *estimate* by XLA's TPU compiler, and none was measured. The
compiler counts no cycles for collectives and asynchronous copies
([scaling](scaling.md)).

Each library runs its own module. All other code is ours and the same for all:
softmax cross-entropy over 1,000 classes, Adam with weight decay on all
parameters, images of 224 x 224 ({images} a chip), data-parallel over the eight
devices of {chips}, XLA's default options, and no activation that is computed
again. All have patches of 16 x 16, a class token, learned positions and no
dropout. Parameters are float32 for training, and bfloat16 for a forward pass.
All but vision_transformer compute in bfloat16: its encoder has no dtype to set,
so activations and all parameters are float32. Equimo and bonsai have no dtype
to set either, but the step can cast their parameters. Attention's logits and
exponentials are float32 in "ours" and bfloat16 in "ours, bfloat16 attention"
(`model.attention_dtype`), as in big_vision; vision_transformer's are float32
([what each type loses](scaling.md#steps-on-eight-chips)). Our best settings
(parts, FSDP, scoped memory) are [on another
page](scaling.md#steps-on-eight-chips), and not used here.

<!-- not run: needs clones of the libraries and the extra tpu; minutes a row -->
```sh
python -m scripts.bench.scoreboard --reference big_vision=FOLDER jimm=FOLDER
python -m scripts.bench.scoreboard --render
```

The first command makes one row that is missing, and the second this page.
"Sent" counts the bytes that a chip's collectives return. [The
file](../_static/scoreboard.csv) has each row's ten costliest operations as
well. A "+" means that files of the clone differed from the commit.

Our last layer computes
[the class token alone](scaling.md#steps-on-eight-chips), which is all that the
head reads. "MFU" counts the products of a whole model for all libraries, so for
ours it includes products that are left out.

Our rows were compiled later than those of the other libraries. The table has
the cycles of the fastest other library divided by ours: above 1, ours is
faster. "Float32 attention" compares ours in float32 with all others, whatever
the type of their attention is. "At equal precision" is the lower of two ratios:
the fastest with float32 attention over ours in float32, and the fastest with
bfloat16 attention ({rough}) over the faster of our two:
"""


ALL_ROWS = """
## All rows

Cycles are the compiler's *estimates*, in Mcycles (millions). A row of layers
"2, 4" is extrapolated, as said below; the ratios above use the row of the whole
model if both exist. The table is [this file](../_static/scoreboard.csv):

<!-- csv: ../_static/scoreboard.csv ({names}) -->
"""


def page(rows: list[Row]) -> str:
  known = {tuple(row[name] for name in KEY): row for row in rows}
  images = " or ".join(f"{n} ({model})" for model, n in IMAGES.items())
  topologies = ", ".join(f"`{name}`" for name in CHIPS.values())
  rough = " and ".join(ROUGH)
  head = HEAD.format(images=images, chips=topologies, rough=rough)
  parts = [head, _overview(known), *_missing(known)]
  parts.append("Where ours, with float32 attention, is not the fastest:\n")
  for model, shape in SHAPES.items():
    for step in STEPS:
      for chip in CHIPS:
        key = (model, step, chip)
        parts += _behind(_found(known, key, str(shape[-1])), key)
  parts.append(ALL_ROWS.format(names=", ".join(SHOWN)))
  parts += ["## The line in the number of layers\n", _errors(known)]
  return "\n".join(parts)


def _overview(known: dict) -> str:
  """The fastest other library's cycles over ours, of every step and chip."""
  ways = {"float32 attention": _lead, "at equal precision": _equal_lead}
  cells = []
  for model, shape in SHAPES.items():
    for step in STEPS:
      rows = {
        chip: _found(known, (model, step, chip), str(shape[-1]))
        for chip in CHIPS
      }
      for name, lead in ways.items():
        leads = [lead(found) for found in rows.values()]
        cells.append((f"{model}, {TITLES[step]}, {name}", *leads))
  return _markdown(("*estimate*", *CHIPS), cells)


def _lead(found: dict[str, Row]) -> str:
  if OURS[0] not in found:
    return "not compiled yet"
  best = _best(found)
  return f"{_cycles(found[best]) / _cycles(found[OURS[0]]):.2f} ({best})"


def _equal_lead(found: dict[str, Row]) -> str:
  """As `_lead`, among the libraries of each type of attention."""
  own = {name: _cycles(found[name]) for name in OURS if name in found}
  if OURS[0] not in own:
    return "not compiled yet"
  leads = {
    name: _cycles(row) / (min(own.values()) if name in ROUGH else own[OURS[0]])
    for name, row in found.items()
    if name not in OURS
  }
  least = min(leads, key=leads.__getitem__)
  return f"{leads[least]:.2f} ({least})"


def _found(known: dict, key: tuple[str, str, str], layers: str) -> dict:
  """The row of each library, of the whole model if it was compiled."""
  found = {}
  for library in LIBRARIES:
    few, whole = ((library, *key, how) for how in ("2, 4", layers))
    if row := known.get(whole) or known.get(few):
      found[library] = row
  return found


def _best(found: dict[str, Row]) -> str:
  """The fastest of the other libraries."""
  others = [name for name in found if name not in OURS]
  return min(others, key=lambda name: _cycles(found[name]), default="ours")


def _cycles(row: Row) -> float:
  return float(row["mcycles"])


def _missing(known: dict) -> list[str]:
  """Lines on the steps that were not compiled with a library."""
  lines = []
  for library in LIBRARIES:
    for model, shape in SHAPES.items():
      for step in STEPS:
        chips = [
          chip
          for chip in CHIPS
          if library not in _found(known, (model, step, chip), str(shape[-1]))
        ]
        if chips:
          lines.append(f"- {library}: {model}, {step}, {', '.join(chips)}")
  return ["These are not compiled yet:\n", *lines, ""] if lines else []


def _behind(found: dict[str, Row], key: tuple[str, str, str]) -> list[str]:
  """A line on the libraries that are ahead of ours in a step on a chip."""
  if "ours" not in found:
    return []
  own = _cycles(found["ours"])
  cycles = {k: _cycles(row) for k, row in found.items() if k not in OURS}
  ahead = {k: own / n - 1 for k, n in cycles.items() if n < own}
  if not ahead:
    return []
  names = ", ".join(f"{k} ({share:.1%})" for k, share in ahead.items())
  line = f"- **{key[0]}, {key[1]}, {key[2]}**: {names}. {NOTES.get(key, '')}"
  # A link must stay whole, and may hold hyphens.
  wrapped = textwrap.fill(
    line.strip(), 80, subsequent_indent="  ", break_on_hyphens=False
  )
  return [wrapped]


def _errors(known: dict) -> str:
  cells = []
  for (*key, how), row in known.items():
    few = known.get((*key, "2, 4"))
    if "," not in how and few:
      line, whole = float(few["mcycles"]), float(row["mcycles"])
      cells.append(
        (*key, f"{line:.1f}", f"{whole:.1f}", f"{line / whole - 1:+.1%}")
      )
  table = _markdown(
    (
      "library",
      "model",
      "step",
      "chip",
      "line",
      "whole",
      "*estimate* of the line",
    ),
    cells,
  )
  return f"""\
For a row of layers "2, 4", models of these depths are compiled, and the line
through both is extended to all layers: for cycles, memory, bytes and each
operation. If the whole model was compiled too, the table above has both rows,
and this table says how far off the line was, in Mcycles. No forward pass, no
L/16 and no other chip was checked like this:

{table}"""


def _markdown(names: tuple[str, ...], cells: list[tuple[str, ...]]) -> str:
  return "\n".join(tables.markdown(names, cells)) + "\n"


if __name__ == "__main__":
  main()
