"""Times train steps on a CPU, in turns, and keeps a row of each.

taskset -c 1 python -m scripts.bench.cpu_steps --before ../earlier

Adds the rows that docs/_static/cpu_steps.csv lacks: S/16 and B/16 at 224, in
batches of 8 and 16, in float32 and bfloat16. A row has the medians of the
processor seconds of whole steps, taken in turns in one process: ours, those of
an earlier clone of the library (--before), of a plain linen ViT, and of
transformers' ViT in PyTorch, eager. `x_` is the median of the quotients of each
round, theirs over ours: above 1, ours takes less. `of_products` is the rate of
ours over that of bare products of the dense layers' sizes, and `spread` the
largest over the least seconds of ours. What could not be measured is empty.
"""

import argparse
import contextlib
import functools
import importlib
import importlib.metadata
import itertools
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from scripts import tables
from scripts.bench import step
from scripts.bench.models import Models, Step
from vit_jax.runtime.command import keep_freed_memory

TABLE = pathlib.Path(__file__).parents[2] / "docs/_static/cpu_steps.csv"
KEY = ("model", "batch", "dtype")
LIBRARIES = ("jax", "flax", "torch", "transformers")
NAMES = (
  *KEY,
  *("ours_s", "x_before", "x_plain", "x_hf", "of_products", "spread"),
  *("rounds", "machine", *LIBRARIES),
)
# Modules that are imported anew from an earlier clone.
_OURS = ("vit_jax", "scripts")


@contextlib.contextmanager
def imported_from(folder: pathlib.Path) -> Iterator[None]:
  """Inside, `import vit_jax` imports the package of another clone."""

  def ours() -> dict[str, Any]:
    return {
      name: module
      for name, module in sys.modules.items()
      if any(name == one or name.startswith(f"{one}.") for one in _OURS)
    }

  kept = ours()
  for name in kept:
    del sys.modules[name]
  sys.path.insert(0, str(folder.resolve()))
  try:
    yield
  finally:
    sys.path.remove(str(folder.resolve()))
    for name in ours():
      del sys.modules[name]
    sys.modules.update(kept)


def before(folder: pathlib.Path, *about: Any) -> Step:
  """The train step of the library in another clone."""
  with imported_from(folder):
    models = importlib.import_module("scripts.bench.models")
    return models.Models(*about, forward=False).ours()


def processor() -> str:
  """The name of this machine's processor."""
  with contextlib.suppress(OSError):
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
      if line.startswith("model name"):
        return line.partition(":")[2].strip()
  return ""


def version(library: str) -> str:
  with contextlib.suppress(importlib.metadata.PackageNotFoundError):
    return importlib.metadata.version(library)
  return ""


def measured(
  variant: str,
  batch: int,
  dtype: str,
  rounds: int,
  earlier: pathlib.Path | None,
) -> dict[str, str]:
  """The cells of a row that are measured."""
  about = (variant, batch, 224, dtype)
  models = Models(*about, forward=False)
  makers: dict[str, Callable[[], Step]] = {"ours": models.ours}
  if earlier:
    makers["before"] = functools.partial(before, earlier, *about)
  makers["plain"] = models.plain
  makers["hf"] = functools.partial(models.hugging_face, compiled=False)
  steps, failures = step.compiled(iter(makers.items()))
  for name, said in failures.items():
    print(f"{name} is not measured: {said}", flush=True)
  bare, multiplied = step.products(models)
  bare(1)  # Compiles.
  turns = {**steps, "products": bare}
  seconds = step.timed(turns, rounds, 1, time.process_time)
  ours = seconds["ours"]

  def of(name: str) -> float:
    return step.middle_and_range(seconds[name], ours)[0]

  share = of("products") * step.operations(models) / multiplied
  row = {
    "ours_s": f"{statistics.median(ours):.2f}",
    "of_products": f"{share:.2f}",
    "spread": f"{max(ours) / min(ours):.2f}",
  }
  others = [name for name in steps if name != "ours"]
  return row | {f"x_{name}": f"{of(name):.2f}" for name in others}


def main() -> None:
  parser = argparse.ArgumentParser(description="Time steps on a CPU.")
  parser.add_argument("--before", type=pathlib.Path, help="an earlier clone")
  parser.add_argument("--variants", nargs="*", default=("S/16", "B/16"))
  parser.add_argument("--batches", nargs="*", type=int, default=(8, 16))
  parser.add_argument("--dtypes", nargs="*", default=("float32", "bfloat16"))
  parser.add_argument("--rounds", type=int, default=5)
  parser.add_argument("--table", type=pathlib.Path, default=TABLE)
  options = parser.parse_args()
  keep_freed_memory()  # As the commands do; the other models gain from it too.
  known = {
    tuple(row[name] for name in KEY) for row in tables.read(options.table)
  }
  about = {"rounds": str(options.rounds), "machine": processor()}
  about |= {name: version(name) for name in LIBRARIES}
  for key in itertools.product(
    options.variants, options.batches, options.dtypes
  ):
    named = dict(zip(KEY, map(str, key), strict=True))
    if (*named.values(),) not in known:
      row = measured(*key, options.rounds, options.before)
      tables.add(options.table, NAMES, named | row | about)
      print(named | row, flush=True)


if __name__ == "__main__":
  main()
