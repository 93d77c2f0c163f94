"""The memory of a step against that which is free."""

import pathlib
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import pytest

from vit_jax.training import memory

MEMINFO = "MemTotal: 9000 kB\nMemAvailable: 4000 kB\nHugePages_Total: 0\n"
V1 = "4:cpu,cpuacct:/a/b\n7:memory:/a/b\n0::/\n"
V2 = "0::/a/b\n"
LIMITS = {
  "": ("memory.max", "memory.current", "inactive_file"),
  "memory": (
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file",
  ),
}


def system(root, cgroup, kind="", **limits):
  """Writes the files of a system, with (limit, usage, inactive) by folder."""
  files = {"proc/meminfo": MEMINFO, "proc/self/cgroup": cgroup}
  for folder, (most, used, inactive) in limits.items():
    place = pathlib.PurePath("sys/fs/cgroup", kind, *folder.split("_"))
    names = LIMITS[kind]
    files[place / names[0]] = most
    files[place / names[1]] = used
    files[place / "memory.stat"] = f"cache 3\n{names[2]} {inactive}\n"
  for name, text in files.items():
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)
  return memory.host_free(root)


def test_without_limits_it_is_what_the_system_has(tmp_path):
  assert system(tmp_path, "") == 4_096_000
  assert system(tmp_path, V2, a_b=("max", "900", "0")) == 4_096_000
  assert memory.host_free(tmp_path / "no_linux") is None


@pytest.mark.parametrize("cgroup, kind", [(V1, "memory"), (V2, "")])
def test_the_narrowest_cgroup_counts(tmp_path, cgroup, kind):
  """Files that the system takes back are not used up."""
  inner, outer = ("2000000", "900000", "100000"), ("1500000", "900000", "0")
  assert system(tmp_path, cgroup, kind, a_b=inner) == 1_200_000
  assert system(tmp_path, cgroup, kind, a=outer) == 600_000


@pytest.mark.parametrize("cgroup, kind", [(V1, "memory"), (V2, "")])
def test_in_a_container_the_limit_lies_at_the_top(tmp_path, cgroup, kind):
  """The path is then that on the container's host."""
  limits = ("800000", "300000", "50000")
  place = tmp_path / "sys/fs/cgroup" / kind
  free = system(tmp_path, cgroup, kind, x=limits)
  assert free == 4_096_000
  for name in (place / "x").iterdir():
    name.rename(place / name.name)
  assert memory.host_free(tmp_path) == 550_000


def compiled(*, donate=False):
  """A program on 1,000 floats, with temporaries of 100 times their size."""

  def run(x):
    table = jnp.cumsum(jnp.outer(x, jnp.arange(100.0)), axis=0)
    return x + jnp.sin(table) @ jnp.ones(100)

  jitted = jax.jit(run, donate_argnums=(0,) if donate else ())
  return jitted.lower(jax.ShapeDtypeStruct((1000,), jnp.float32)).compile()


def test_a_result_in_the_place_of_an_argument_needs_no_memory():
  needs = memory.Needs.of(compiled())
  assert (needs.arguments, needs.results) == (4_000, 4_000)
  assert needs.temporaries >= 400_000
  assert needs.total == 8_000 + needs.temporaries
  assert memory.Needs.of(compiled(donate=True)).results == 0


def failing():
  raise NotImplementedError


@pytest.mark.parametrize("analysis", [lambda: None, failing])
def test_a_compiler_that_tells_nothing_is_not_cited(analysis):
  program = types.SimpleNamespace(memory_analysis=analysis)
  assert memory.Needs.of(program) is None
  assert memory.find_shortage(program, jax.devices()) is None


def test_a_program_that_does_not_fit_is_found(monkeypatch):
  kept = []
  give_back = lambda: kept.append(False)  # noqa: E731
  monkeypatch.setattr(memory.command, "give_back_freed_memory", give_back)
  program, device = compiled(), jax.devices()[:1]
  more = memory.Needs.of(program).beyond_arguments
  for free, lacks in ((None, False), (more, False), (more - 1, True)):
    monkeypatch.setattr(memory, "host_free", lambda free=free: free)
    expected = (more, free) if lacks else None
    assert memory.find_shortage(program, device) == expected
  assert len(kept) == 2
  # A kept heap takes the memory of several steps, so it needs room for them.
  monkeypatch.setattr(memory, "host_free", lambda: 6 * more)
  assert memory.find_shortage(program, device) is None and len(kept) == 3
  monkeypatch.setattr(memory, "host_free", lambda: 8 * more)
  assert memory.find_shortage(program, device) is None and len(kept) == 3
  # The devices of processors share their memory.
  monkeypatch.setattr(memory, "host_free", lambda: 8 * more - 1)
  lacking = memory.find_shortage(program, jax.devices())
  assert lacking == (len(jax.devices()) * more, 8 * more - 1)


def test_accelerators_tell_what_is_free():
  def device(**stats):
    return types.SimpleNamespace(platform="gpu", memory_stats=lambda: stats)

  free = device(bytes_limit=10**6, bytes_in_use=10**5)
  full = device(bytes_limit=10**6, bytes_in_use=999_000)
  assert memory.free_on([free]) == 900_000
  assert memory.find_shortage(compiled(), [free]) is None
  lacking = memory.find_shortage(compiled(), [free, full])
  assert lacking is not None and lacking.free == 1_000
  assert memory.free_on([device()]) is None


@pytest.mark.parametrize(
  "needed, free, size, unit, recomputes, ways",
  [
    (11.4, 5, 29, 1, True, "batch_size=8, or model.remat=full, which computes"),
    (12, 5.5, 32, 6, False, "batch_size=12."),
    (8, 0.1, 32, 8, True, "model.remat=full, which"),
    (8, 0.1, 1, 1, False, "a smaller image_size."),
  ],
)
def test_the_line_says_what_fits(needed, free, size, unit, recomputes, ways):
  found = memory.Shortage(int(needed * 1e9), int(free * 1e9))
  line = memory.shortage_warning(found, size, unit, recomputes=recomputes)
  start = f"Memory: a step needs {needed:.1f} GB more, and only {free:.1f} GB"
  assert line.startswith(start) and f": set {ways}" in line


@pytest.mark.skipif(sys.platform != "linux", reason="it is glibc's")
def test_freed_memory_is_kept_or_given_back():
  program = """
import pathlib
from vit_jax.runtime import command

def resident():
  pages = pathlib.Path("/proc/self/statm").read_text().split()[1]
  return int(pages) * 4096

def after(size):
  before = resident()
  taken = b"x" * size
  del taken
  return resident() - before

command.keep_freed_memory()
assert after(2**27) > 2**26
command.give_back_freed_memory()
assert abs(after(2**28)) < 2**24
"""
  subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
