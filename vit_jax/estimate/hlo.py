"""Reads the cost of a compiled XLA program from its text.

XLA for TPU writes its own estimate, in cycles, beside each operation that it
compiles to a kernel. It has no estimate for collectives, asynchronous copies
and Pallas calls. The text has a loop's body once; here, its operations count
as often as the loop runs.
"""

import collections
import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

COLLECTIVES = (
  "all-gather",
  "all-reduce",
  "reduce-scatter",
  "all-to-all",
  "collective-permute",
)
# Operations that only name values and cost nothing.
_FREE = {"bitcast", "constant", "get-tuple-element", "parameter"}
_FREE |= {"partition-id", "replica-id", "tuple", "while"}
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_ARRAY = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\]")


@dataclasses.dataclass(frozen=True)
class Op:
  """One operation of a program.

  Attributes:
    kind: The opcode, such as "fusion" or "all-gather".
    shape: The type of the result, as XLA writes it, without layouts.
    source: The operation's name in the traced program.
    cycles: XLA's estimate for running it once, or None without an estimate.
    times: How often it runs.
    channel: A collective's channel. Operations of the same channel are parts of
      one transfer, from its start to its end, and overlap with those between.
    groups: The devices that a collective joins, as XLA writes them.
  """

  kind: str
  shape: str
  source: str
  cycles: int | None
  times: int
  channel: str = ""
  groups: str = ""

  @property
  def num_bytes(self) -> int:
    """Bytes of the result on one device, or of a reduce-scatter's operand."""
    return num_bytes(self.shape)


class _Instruction(NamedTuple):
  """An instruction of a computation: its opcode, result type and whole line."""

  opcode: str
  shape: str
  line: str


@dataclasses.dataclass
class _Computation:
  """A named computation of a program, with the constants in it."""

  instructions: list[_Instruction]
  constants: list[int]


class SourceRow(NamedTuple):
  """All operations of one source and type.

  Attributes:
    source: Their name in the traced program, without numbers of blocks.
    shape: The type of their results.
    times: How often they run.
    cycles: XLA's estimate for all of them.
  """

  source: str
  shape: str
  times: int
  cycles: int


def read(text: str) -> list[Op]:
  """The operations that a program runs, with how often each of them runs."""
  computations, entry = _computations(text)
  return list(_walk(computations, entry, 1))


def total_cycles(ops: Iterable[Op]) -> int:
  """Sum of all estimates, each multiplied by how often its operation runs.

  Raises:
    ValueError: if no operation has an estimate, as in a program of another
      compiler.
  """
  cycles = [op.cycles * op.times for op in ops if op.cycles is not None]
  if not cycles:
    raise ValueError(
      "the compiled program has no estimated cycles in a form that is known: "
      "install a libtpu that constraints.txt names."
    )
  return sum(cycles)


def count_without_estimate(ops: Sequence[Op]) -> dict[str, int]:
  """How often operations without an estimate run, by kind.

  All collectives count among them, once for each of their transfers.
  """
  counts = collections.Counter()
  for op in ops:
    if op.cycles is None and not op.channel:
      counts[op.kind] += op.times
  for kind, (count, _) in collective_bytes(ops).items():
    counts[kind] += count
  return dict(counts.most_common())


def collective_bytes(ops: Iterable[Op]) -> dict[str, tuple[int, int]]:
  """Number of transfers and bytes on one device, by kind of collective.

  The bytes are those of the results, or of a reduce-scatter's operand.
  """
  transfers = {op.channel: op for op in ops if op.channel}
  sums: dict[str, tuple[int, int]] = {}
  for op in transfers.values():
    count, total = sums.get(op.kind, (0, 0))
    sums[op.kind] = (count + op.times, total + op.num_bytes * op.times)
  return sums


def rows_by_source(ops: Iterable[Op]) -> list[SourceRow]:
  """The operations by source and type, the most expensive first.

  Operations that differ only in the number of their block share a row. Those
  without an estimate are left out.
  """
  cycles = collections.Counter()
  times = collections.Counter()
  for op in ops:
    if op.cycles:
      key = (re.sub(r"block_\d+", "block", op.source), op.shape)
      cycles[key] += op.cycles * op.times
      times[key] += op.times
  rows = []
  for (source, shape), total in cycles.most_common():
    rows.append(SourceRow(source, shape, times[source, shape], total))
  return rows


def num_bytes(shape: str) -> int:
  """Size in bytes of all arrays of a type, as XLA writes it."""
  return sum(
    _item_bytes(kind) * math.prod(map(int, sizes.split(",") if sizes else ()))
    for kind, sizes in _ARRAY.findall(shape)
  )


def _item_bytes(kind: str) -> int:
  """Bytes of an element of a type such as "bf16"; 0 for what holds no data."""
  bits = re.search(r"\d+", kind)
  return max(1, int(bits[0]) // 8) if bits else int(kind == "pred")


def _computations(text: str) -> tuple[dict[str, _Computation], str]:
  """All computations by name, and the name of the entry computation."""
  computations: dict[str, _Computation] = {}
  entry, current = "", None
  for line in text.splitlines():
    instruction = _INSTRUCTION.match(line)
    if instruction and current is not None:
      shape, opcode = _type_and_opcode(instruction[3])
      current.instructions.append(_Instruction(opcode, shape, line))
      if constant := re.search(r" constant\((\d+)\)", line):
        current.constants.append(int(constant[1]))
    elif header := _HEADER.match(line):
      current = computations.setdefault(header[2], _Computation([], []))
      entry = header[2] if header[1] else entry
  return computations, entry


def _type_and_opcode(definition: str) -> tuple[str, str]:
  """A definition's result type, without layouts, and its opcode."""
  depth = end = 0
  for end, letter in enumerate(definition):  # noqa: B007
    depth += (letter in "([{") - (letter in ")]}")
    if letter == " " and depth == 0:
      break
  shape = re.sub(r"\{[^{}]*\}", "", definition[:end])
  return shape, definition[end + 1 :].partition("(")[0]


def _walk(
  computations: dict[str, _Computation], name: str, times: int
) -> Iterator[Op]:
  """Yields the operations that a computation runs, in their order.

  `times` is how often it runs. The end of a transfer repeats its `Op`.
  """
  started: dict[str, list[Op]] = {}  # Transfers, by the name of their start.
  for opcode, shape, line in computations[name].instructions:
    ops: list[Op] = []
    if opcode == "while":
      rounds = times * _trip_count(computations, line)
      ops += _walk(computations, _called_name(line, "body"), rounds)
    # The SparseCores run what `call-start` calls, beside other operations.
    elif opcode in ("call", "call-start"):
      ops += _walk(computations, _called_name(line, "to_apply"), times)
    elif opcode.removesuffix("-start") in COLLECTIVES:
      ops.append(_collective(computations[name], opcode, shape, line, times))
    elif opcode.endswith(("-update", "-done")):
      ops += started.get(_operand(opcode, line), [])
    elif opcode not in _FREE:
      kernel = 'custom_call_target="tpu_custom_call"' in line
      kind = "Pallas kernel" if kernel else opcode
      source, cycles = _source_and_cycles(line)
      ops.append(Op(kind, shape, source, cycles, times))
      if opcode in ("fusion", "async-start") and "calls=" in line:
        fused = computations[_called_name(line, "calls")]
        ops += _collectives_in_fusion(fused, times)
    if opcode.endswith(("-start", "-update")):
      result = line.partition(" = ")[0].strip(" %")
      started[result] = [op for op in ops if op.channel]
    # If a start has no operands, the update that has them begins the transfer.
    has_operands = "-start()" not in line
    yield from (op for op in ops if has_operands or not op.channel)


def _operand(opcode: str, line: str) -> str:
  """The name of an instruction's first operand."""
  match = re.match(r"\(%?([\w.\-]+)", line.partition(f" {opcode}")[2])
  return match[1] if match else ""


def _called_name(line: str, role: str) -> str:
  """The name of the computation that an instruction calls as `role`."""
  match = re.search(rf"{role}=%?([\w.\-]+)", line)
  assert match, line
  return match[1]


def _collectives_in_fusion(
  computation: _Computation, times: int
) -> Iterator[Op]:
  """The collectives inside a fusion."""
  # An all-reduce of which a device keeps only a slice is a reduce-scatter.
  opcodes = {instruction.opcode for instruction in computation.instructions}
  is_sliced = "dynamic-slice" in opcodes
  for opcode, shape, line in computation.instructions:
    if opcode in COLLECTIVES:
      op = _collective(computation, opcode, shape, line, times)
      if opcode == "all-reduce" and is_sliced:
        op = dataclasses.replace(op, kind="reduce-scatter")
      yield op


def _collective(
  computation: _Computation, opcode: str, shape: str, line: str, times: int
) -> Op:
  """The `Op` of one transfer, with the shape of its larger side."""
  kind = opcode.removesuffix("-start")
  if opcode != kind and shape.startswith("("):  # (operand, result, ...)
    shape = [*_ARRAY.finditer(shape)][1][0]
  if kind == "reduce-scatter":
    operand = _operand(opcode, line)
    for _, other, text in computation.instructions:
      if operand and text.lstrip().startswith(f"%{operand} ="):
        shape = other
  channel = re.search(r"channel_id=(\d+)", line)
  groups = re.search(r"replica_groups=(.*?), \w+=", line)
  source, cycles = _source_and_cycles(line)
  return Op(
    kind=kind,
    shape=shape,
    source=source,
    cycles=cycles,
    times=times,
    channel=channel[1] if channel else line,
    groups=groups[1] if groups else "",
  )


def _trip_count(computations: dict[str, _Computation], line: str) -> int:
  """A loop's trip count: XLA's own, or the largest number in its condition."""
  if count := re.search(r'"known_trip_count":\{"n":"(\d+)"', line):
    return int(count[1])
  return max(computations[_called_name(line, "condition")].constants, default=1)


def _source_and_cycles(line: str) -> tuple[str, int | None]:
  """(source, cycles) of an instruction; 2^63 - 1 cycles are no estimate."""
  source = re.search(r'op_name="([^"]*)"', line)
  cycles = re.search(r'"estimated_cycles":"(\d{1,18})"', line)
  return source[1] if source else "", int(cycles[1]) if cycles else None
