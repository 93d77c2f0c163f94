"""How long a program waits for the network, at the published rate of its links.

Latency and the traffic of other programs are left out.
"""

import re
from collections.abc import Sequence

import numpy as np

from vit_jax.estimate.hlo import Op


def step_cycles(
  ops: Sequence[Op], coords: np.ndarray, rate: float, ring: int
) -> tuple[float, float]:
  """(low, high) cycles of a program, with those of its collectives.

  In the low figure, the links carry one transfer after another while the chip
  computes what is between their starts and ends. In the high one, nothing
  overlaps. `coords` are the coordinates of the chips of the mesh's devices, (N,
  axes), a link carries `rate` bytes a cycle each way, and a row of `ring` chips
  or a multiple is closed to a ring.
  """
  last = {op.channel: i for i, op in enumerate(ops)}
  clock = high = 0.0
  free = 0.0  # The time from which the links are free.
  ends: dict[str, float] = {}
  for i, op in enumerate(ops):
    cycles = (op.cycles or 0) * op.times
    if not op.channel:
      clock += cycles
    elif op.channel not in ends:
      cycles = link_bytes(op, coords, ring) / rate * op.times
      free = ends[op.channel] = max(free, clock) + cycles
    high += cycles
    if op.channel and last[op.channel] == i:
      clock = max(clock, ends[op.channel])
  return clock, high


def link_bytes(op: Op, coords: np.ndarray, ring: int) -> float:
  """Bytes that a collective sends over a link of its least connected chip."""
  joined = coords[members(op.groups, len(coords))]
  extents = np.ptp(joined, axis=0) + 1
  closed = (np.ptp(coords, axis=0) + 1 == extents) & (extents % ring == 0)
  links = ((1 + closed) * (extents > 1)).sum()
  if not links:
    return 0.0
  # An all-reduce scatters, and then gathers.
  passes = 2 if op.kind == "all-reduce" else 1
  received = op.num_bytes * (1 - 1 / len(joined)) * passes
  # Devices between those of the group use the same links: those of other
  # groups, and other cores.
  among = ((coords >= joined.min(0)) & (coords <= joined.max(0))).all(1).sum()
  return float(received / links * among / len(np.unique(joined, axis=0)))


def members(groups: str, devices: int) -> np.ndarray:
  """The devices of the first group in XLA's text; all if it has no group.

  XLA has three forms: a list, `{{0,2},{1,3}}`; numbers that are reshaped,
  transposed and reshaped again, `[2,2]<=[2,2]T(1,0)`, a group in each row; and
  the axes of a mesh along which a group lies, `mesh['a'=2,'b'=4] {'a'}`.
  """
  ids = np.arange(devices)
  if named := re.match(r"mesh\[(.*?)\][^{]*\{([^}]*)\}", groups):
    sizes = re.findall(r"'(\w+)'=(\d+)", named[1])
    whole = [slice(None) if f"'{axis}'" in named[2] else 0 for axis, _ in sizes]
    return ids.reshape([int(size) for _, size in sizes])[*whole].ravel()
  parts = re.split("<=|T", groups.partition("}")[0])
  shape, *dims = ([*map(int, re.findall(r"\d+", part))] for part in parts)
  if dims:
    order = dims[1] if len(dims) > 1 else range(len(dims[0]))
    return ids.reshape(dims[0]).transpose(order).reshape(shape)[0]
  return ids[shape or slice(None)]
