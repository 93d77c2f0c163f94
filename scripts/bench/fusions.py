"""Lists what XLA made of a train step: its operations, their bytes and times.

python -m scripts.bench.fusions --variant S/16 --batch 8

Compiles our train step and that of a plain linen ViT for JAX's default device,
takes a few steps of both under JAX's profiler, and prints for each what it
runs in all, and the operations with most time and those with most operands. A
fusion of many large operands is likely to compute again what another one has
computed: it should have taken the result instead.
"""

import argparse
import collections
import dataclasses
import pathlib
import re
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import jax

from scripts.bench.models import Models, Trained
from vit_jax.estimate.hlo import num_bytes
from vit_jax.runtime.command import keep_freed_memory

LARGE = 2**20  # Bytes of an operand that counts as large.
# Names, values and the calls of other computations.
_FREE = {"bitcast", "constant", "get-tuple-element", "parameter", "tuple"}
_LINE = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\((.*)$")
KINDS = "| operations | number | MB | ms |\n| --- | ---: | ---: | ---: |"
WIDEST = (
  "| operation | large operands | MB | ms | source |\n"
  "| --- | ---: | ---: | ---: | --- |"
)
_SOURCE = re.compile(r'op_name="([^"]*)"')


@dataclasses.dataclass(frozen=True)
class Operation:
  """One operation of a compiled program, which is no part of a fusion.

  Attributes:
    name: Its name, such as "multiply_add_fusion.3".
    kind: Its opcode, such as "fusion" or "copy".
    source: The operation's name in the traced program.
    operands: Bytes of each of its operands.
    result: Bytes of its result.
  """

  name: str
  kind: str
  source: str
  operands: tuple[int, ...]
  result: int

  @property
  def num_bytes(self) -> int:
    return sum(self.operands) + self.result

  def large(self, least: int = LARGE) -> int:
    """How many of its operands have so many bytes."""
    return sum(size >= least for size in self.operands)


@dataclasses.dataclass(frozen=True)
class Profile:
  """A compiled step.

  Attributes:
    operations: What it runs.
    accessed: Bytes that it reads and writes, by XLA's count.
    seconds: The time of each operation in a step, by its name.
  """

  operations: list[Operation]
  accessed: float
  seconds: dict[str, float]


def operations(text: str) -> list[Operation]:
  """The operations of a program, by its text; those in a loop count once."""
  found = []
  for lines in _computations(text):
    sizes: dict[str, int] = {}
    for line in lines:
      match = _LINE.match(line)
      if match is None:
        continue
      name, shape, kind, rest = match.groups()
      sizes[name] = num_bytes(shape)
      if kind in _FREE:
        continue
      names = re.findall(r"%([\w.\-]+)", rest.split(")")[0])
      operands = tuple(sizes[one] for one in names if one in sizes)
      source = _SOURCE.search(line)
      found.append(
        Operation(
          name, kind, source[1] if source else "", operands, sizes[name]
        )
      )
  return found


def _computations(text: str) -> Iterator[list[str]]:
  """The lines of each computation that is not the inside of a fusion."""
  inside = set(re.findall(r" fusion\(.*?calls=%?([\w.\-]+)", text))
  inside |= set(re.findall(r"to_apply=%?([\w.\-]+)", text))
  for part in text.split("\n\n"):
    head, *lines = part.strip("\n").splitlines() or [""]
    name = re.match(r"(?:ENTRY )?%?([\w.\-]+) ", head)
    if name and head.endswith("{") and name[1] not in inside:
      yield lines


def seconds(run: Callable[[], Any], times: int) -> dict[str, float]:
  """Seconds that a run spends in each operation, by the profiler's trace."""
  run()
  with tempfile.TemporaryDirectory() as folder:
    with jax.profiler.trace(folder):
      for _ in range(times):
        run()
    (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
    planes = jax.profiler.ProfileData.from_file(str(path)).planes
    total: dict[str, float] = collections.defaultdict(float)
    for event in (e for p in planes for line in p.lines for e in line.events):
      stats = dict(event.stats)
      if "hlo_op" in stats:
        total[str(stats["hlo_op"])] += event.duration_ns / 1e9 / times
  return total


def kind_of(operation: Operation) -> str:
  """The name of an operation without its number."""
  return re.sub(r"(\.\d+)+(\.clone)*$", "", operation.name)


def profile(trained: Trained, batch: Any, steps: int) -> Profile:
  """Compiles a step, and runs it under the profiler."""
  step, state = trained
  batch = jax.device_put(batch)
  compiled = step.lower(state, batch).compile()
  held = [state]

  def once() -> None:
    held[0], result = compiled(held[0], batch)
    jax.block_until_ready(result)

  found = operations(compiled.as_text())
  accessed = compiled.cost_analysis()["bytes accessed"]
  return Profile(found, accessed, seconds(once, steps))


def kinds(profile: Profile, rows: int) -> list[str]:
  """Rows of a table: operations of the same name, most time first."""
  total: dict[str, list[float]] = {}
  for operation in profile.operations:
    row = total.setdefault(kind_of(operation), [0, 0, 0])
    row[0] += 1
    row[1] += operation.num_bytes
    row[2] += profile.seconds.get(operation.name, 0.0)
  most = sorted(total.items(), key=lambda item: -item[1][2])[:rows]
  return [
    f"| {name} | {count} | {size / 1e6:,.0f} | {1e3 * time:,.1f} |"
    for name, (count, size, time) in most
  ]


def widest(profile: Profile, rows: int) -> list[str]:
  """Rows of a table: the operations with the most large operands."""
  most = sorted(profile.operations, key=lambda o: (-o.large(), -o.num_bytes))
  return [
    f"| {o.name} | {o.large()} of {len(o.operands)} "
    f"| {o.num_bytes / 1e6:,.1f} | {1e3 * profile.seconds.get(o.name, 0):,.1f} "
    f"| {o.source.replace('|', '/')} |"
    for o in most[:rows]
  ]


def summary(name: str, profile: Profile) -> str:
  copies = sum(o.kind == "copy" for o in profile.operations)
  return (
    f"{name}: {len(profile.operations):,} operations, {copies} of them copies; "
    f"{profile.accessed / 1e9:.2f} GB accessed; at most "
    f"{max(o.large() for o in profile.operations)} large operands; "
    f"{sum(profile.seconds.values()):.2f} s of a step in the trace"
  )


def main() -> None:
  parser = argparse.ArgumentParser(description="List a step's operations.")
  parser.add_argument("--variant", default="S/16")
  parser.add_argument("--batch", type=int, default=8)
  parser.add_argument("--side", type=int, default=224)
  parser.add_argument("--dtype", default="float32")
  parser.add_argument("--steps", type=int, default=3, help="steps of a trace")
  parser.add_argument("--rows", type=int, default=12, help="rows of a table")
  options = parser.parse_args()
  models = Models(
    *(options.variant, options.batch, options.side, options.dtype, False)
  )
  keep_freed_memory()
  for name, make in (
    ("vit_jax", models.our_step),
    ("plain linen ViT", models.plain_step),
  ):
    found = profile(make(), models.batch, options.steps)
    print(f"\n{summary(name, found)}\n\n{KINDS}")
    print(*kinds(found, options.rows), sep="\n")
    print(f"\n{WIDEST}")
    print(*widest(found, options.rows), sep="\n")


if __name__ == "__main__":
  main()
