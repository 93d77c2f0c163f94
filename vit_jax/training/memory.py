"""The memory that a compiled step needs, and what the devices have.

XLA counts what a program needs; the operating system or the device tells what
is free. An unknown figure is None.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax

from vit_jax.runtime import command

_GB = 1e9
# The allocator keeps freed memory only if this many steps would fit: with kept
# memory, a step of 3.3 GB was seen to take as much as five steps.
_STEPS_KEPT = 8


class _Cgroup(NamedTuple):
  """A memory cgroup: its folder, and the names of its figures.

  Attributes:
    folder: The path of the folder, below `sys/fs/cgroup` or whole.
    limit: The file with the limit.
    usage: The file with the use.
    inactive: The key in `memory.stat` of the use that the system can reclaim.
  """

  folder: pathlib.Path
  limit: str
  usage: str
  inactive: str


# The names by the kind of a line of `/proc/self/cgroup`: those of version 2 of
# cgroups, then those of version 1.
_CGROUPS = {
  "": _Cgroup(
    pathlib.Path(),
    limit="memory.max",
    usage="memory.current",
    inactive="inactive_file",
  ),
  "memory": _Cgroup(
    pathlib.Path("memory"),
    limit="memory.limit_in_bytes",
    usage="memory.usage_in_bytes",
    inactive="total_inactive_file",
  ),
}


@dataclasses.dataclass(frozen=True)
class Needs:
  """Bytes that a program needs on a device.

  Attributes:
    arguments: Its arguments, which are in memory before it runs.
    temporaries: Its intermediate values while it runs.
    results: Its results, without those that replace an argument.
  """

  arguments: int
  temporaries: int
  results: int

  @property
  def beyond_arguments(self) -> int:
    """Bytes that it needs besides those of its arguments."""
    return self.temporaries + self.results

  @property
  def total(self) -> int:
    """Bytes that it needs in all."""
    return self.arguments + self.beyond_arguments

  @classmethod
  def of(cls, compiled: Any) -> "Needs | None":
    """The needs of a compiled program; None if the compiler does not tell."""
    with contextlib.suppress(NotImplementedError, jax.errors.JaxRuntimeError):
      memory = compiled.memory_analysis()
      if memory is not None:
        return cls(
          memory.argument_size_in_bytes,
          memory.temp_size_in_bytes,
          memory.output_size_in_bytes - memory.alias_size_in_bytes,
        )
    return None


class Shortage(NamedTuple):
  """The memory of a program that does not fit.

  Attributes:
    needed: Bytes that it needs besides its arguments.
    free: Bytes that are free, fewer than needed: of the host if the devices are
      CPUs, else of a device.
  """

  needed: int
  free: int


def find_shortage(compiled: Any, devices: Sequence[Any]) -> Shortage | None:
  """The memory that a program lacks once its arguments are in place.

  None if the program fits, or if it is not known whether it does.

  On CPUs it also makes the allocator give freed memory back if `_STEPS_KEPT`
  times what a step takes are not free. A step cannot always reuse the memory
  that earlier steps freed, as small arrays lie in it, and then takes as much
  again.
  """
  needs = Needs.of(compiled)
  free = free_on(devices)
  if needs is None or free is None:
    return None
  more = needs.beyond_arguments
  if devices[0].platform == "cpu":
    more *= len(devices)
    if _STEPS_KEPT * more > free:
      command.give_back_freed_memory()
      free = free_on(devices) or free
  return Shortage(more, free) if more > free else None


def shortage_warning(
  shortage: Shortage, batch_size: int, unit: int, *, recomputes: bool
) -> str:
  """A line on a step that does not fit, with what to do.

  Args:
    shortage: The bytes needed and free, from `find_shortage`.
    batch_size: The step's batch size.
    unit: A batch size has to be a multiple of this.
    recomputes: Whether `model.remat` can be set, so that less is kept.
  """
  needed, free = shortage
  ways = []
  units = int(batch_size * free / needed) // unit
  if units:
    fits = unit << (units.bit_length() - 1)  # A power of two of units.
    ways.append(f"batch_size={fits}")
  if recomputes:
    ways.append("model.remat=full, which computes activations a second time")
  return (
    f"Memory: a step needs {needed / _GB:.1f} GB more, and only "
    f"{free / _GB:.1f} GB are free, so the run will likely run out of it: set "
    f"{', or '.join(ways or ['a smaller image_size'])}."
  )


def free_on(devices: Sequence[Any]) -> int | None:
  """Bytes that are free on the fullest of the devices, or on the CPUs' host.

  None if that is unknown.
  """
  if devices[0].platform == "cpu":
    return host_free()
  free = []
  for device in devices:
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats and "bytes_in_use" in stats:
      free.append(stats["bytes_limit"] - stats["bytes_in_use"])
  return min(free, default=None)


def host_free(root: pathlib.Path = pathlib.Path("/")) -> int | None:
  """Bytes of memory that this process can still take, by Linux and its cgroups.

  None on other systems.
  """
  free = []
  with contextlib.suppress(OSError, ValueError, KeyError):
    free.append(1024 * _read_numbers(root / "proc/meminfo")["MemAvailable:"])
  for cgroup in _cgroups(root):
    folder = cgroup.folder
    with contextlib.suppress(OSError, ValueError):  # Without a limit, "max".
      limit = int((folder / cgroup.limit).read_text())
      used = int((folder / cgroup.usage).read_text())
      numbers = _read_numbers(folder / "memory.stat")
      free.append(limit - used + numbers.get(cgroup.inactive, 0))
  return min(free, default=None)


def _read_numbers(path: pathlib.Path) -> dict[str, int]:
  """The number in each line of a file, by the name that begins the line."""
  lines = (line.split() for line in path.read_text().splitlines())
  return {words[0]: int(words[1]) for words in lines if len(words) > 1}


def _cgroups(root: pathlib.Path) -> Iterator[_Cgroup]:
  """This process's memory cgroups and those above them.

  In a container, the path of the cgroup may be that on its host, and its files
  lie at the top.
  """
  lines = []
  with contextlib.suppress(OSError):
    lines = (root / "proc/self/cgroup").read_text().splitlines()
  for line in lines:
    _, kinds, path = line.split(":", 2)
    for kind, names in _CGROUPS.items():
      if kind in kinds.split(","):
        top = root / "sys/fs/cgroup" / names.folder
        own = pathlib.PurePosixPath(path.lstrip("/"))
        for folder in (own, *own.parents):
          yield names._replace(folder=top / folder)
