"""The memory that a compiled step needs, and what the devices have.

XLA's own count for a program; the operating system's, or the device's, for the
rest. What is not known is not said.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax

from vit_jax.runtime import command

_GB = 1e9
# Files of a memory cgroup: its limit, its use, and the part of the use that
# the system takes back, in `memory.stat`. Version 2 first, then version 1.
_CGROUPS = {
  "": ("", "memory.max", "memory.current", "inactive_file"),
  "memory": (
    "memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file",
  ),
}


@dataclasses.dataclass(frozen=True)
class Needs:
  """Bytes that a program needs on a device.

  Attributes:
    arguments: Its arguments, which are there before it runs.
    temporaries: Its intermediate values, while it runs.
    results: Its results that do not replace an argument.
  """

  arguments: int
  temporaries: int
  results: int

  @property
  def more(self) -> int:
    """Bytes beside those of its arguments."""
    return self.temporaries + self.results

  @property
  def total(self) -> int:
    return self.arguments + self.more

  @classmethod
  def of(cls, compiled: Any) -> "Needs | None":
    """The needs of a compiled program; None where the compiler tells none."""
    with contextlib.suppress(NotImplementedError, jax.errors.JaxRuntimeError):
      memory = compiled.memory_analysis()
      if memory is not None:
        return cls(
          memory.argument_size_in_bytes,
          memory.temp_size_in_bytes,
          memory.output_size_in_bytes - memory.alias_size_in_bytes,
        )
    return None


class Lacking(NamedTuple):
  """The memory of a program that does not fit.

  Attributes:
    needed: Bytes that it needs besides its arguments.
    free: Bytes that are free, fewer than these: of the host if the devices are
      processors, else of a device.
  """

  needed: int
  free: int


def lacking(compiled: Any, devices: Sequence[Any]) -> Lacking | None:
  """The memory that a program lacks once its arguments are in place.

  None if the program fits, or if it is not known whether it does.

  On processors, freed memory is no longer kept if it might be needed: a step
  cannot always use that of the step before, and then takes it a second time.
  """
  needs = Needs.of(compiled)
  free = free_on(devices)
  if needs is None or free is None:
    return None
  more = needs.more
  if devices[0].platform == "cpu":
    more *= len(devices)
    if 2 * more > free:
      command.give_back_freed_memory()
      free = free_on(devices) or free
  return Lacking(more, free) if more > free else None


def warning(
  found: Lacking, batch_size: int, unit: int, *, recomputes: bool
) -> str:
  """A line on a step that does not fit, with what to do.

  Args:
    found: The bytes needed and free, from `lacking`.
    batch_size: The step's batch size.
    unit: A batch size has to be a multiple of this.
    recomputes: Whether `model.remat` is there to be set.
  """
  needed, free = found
  ways = []
  share = int(batch_size * free / needed) // unit
  if share:
    fits = unit << (share.bit_length() - 1)
    ways.append(f"batch_size={fits}")
  if recomputes:
    ways.append("model.remat=full, which computes activations a second time")
  return (
    f"Memory: a step needs {needed / _GB:.1f} GB more, and only "
    f"{free / _GB:.1f} GB are free, so the run will likely run out of it: set "
    f"{', or '.join(ways or ['a smaller image_size'])}."
  )


def free_on(devices: Sequence[Any]) -> int | None:
  """Bytes that are free on each of the devices, or on their host.

  None where neither tells.
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
  """Bytes that this process can still take, by Linux and its cgroups.

  None on other systems.
  """
  free = []
  with contextlib.suppress(OSError, ValueError, KeyError):
    free.append(1024 * _numbers(root / "proc/meminfo")["MemAvailable:"])
  for folder, limit, usage, inactive in _cgroups(root):
    with contextlib.suppress(OSError, ValueError):  # Without a limit, "max".
      most = int((folder / limit).read_text())
      used = int((folder / usage).read_text())
      taken_back = _numbers(folder / "memory.stat").get(inactive, 0)
      free.append(most - used + taken_back)
  return min(free, default=None)


def _numbers(path: pathlib.Path) -> dict[str, int]:
  """The first two words of each line of a file."""
  lines = (line.split() for line in path.read_text().splitlines())
  return {words[0]: int(words[1]) for words in lines if len(words) > 1}


def _cgroups(
  root: pathlib.Path,
) -> Iterator[tuple[pathlib.Path, str, str, str]]:
  """The folders of this process's memory cgroups and of those above them.

  In a container, the path of the cgroup may be that on its host, and its files
  lie at the top.
  """
  lines = []
  with contextlib.suppress(OSError):
    lines = (root / "proc/self/cgroup").read_text().splitlines()
  for line in lines:
    _, kinds, path = line.split(":", 2)
    for kind, (place, *files) in _CGROUPS.items():
      if kind in kinds.split(","):
        limit, usage, inactive = files
        top = root / "sys/fs/cgroup" / place
        own = pathlib.PurePosixPath(path.lstrip("/"))
        for folder in (own, *own.parents):
          yield top / folder, limit, usage, inactive
