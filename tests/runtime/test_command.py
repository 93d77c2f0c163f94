"""The state in which a command starts."""

import pathlib
import platform

import pytest

from tests import commands
from vit_jax.runtime import usage
from vit_jax.runtime.command import cache_folder

CODE = """
import resource
from concurrent.futures import ThreadPoolExecutor
from vit_jax.runtime import command

def faults():
  start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
  b"x" * 2**26  # Written to, and freed at once.
  return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - start

def main(arguments):
  with ThreadPoolExecutor(1) as thread:  # As XLA computes in one.
    thread.submit(faults).result()
    print(thread.submit(faults).result())

command.run(main)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="is for glibc")
def test_freed_memory_is_used_again():
  done = commands.python("-c", CODE)
  # 64 MB that are mapped in anew fault 16,384 times, at pages of 4 KB.
  assert int(done.stdout) < 100


def test_a_thread_that_hangs_keeps_no_failed_command_from_ending():
  code = (
    "import threading, time\n"
    "from vit_jax.runtime import command, hosts\n"
    "hosts.LEAVE_SECONDS = 0.1\n"
    "def main(_):\n"
    "  threading.Thread(target=time.sleep, args=(1000,)).start()\n"
    "  raise OSError('the disk is gone')\n"
    "command.run(main)"
  )
  done = commands.python("-c", code)
  assert (done.returncode, done.stderr) == (2, "error: the disk is gone\n")


@pytest.mark.parametrize(
  "arguments, level", [((), "-2"), (("--verbosity=1",), "1")]
)
def test_verbosity_is_obeyed(arguments, level):
  """Without it, only errors of libraries are shown: absl's level -2."""
  code = (
    "from absl import logging\n"
    "from vit_jax.runtime import command\n"
    "command.run(lambda _: print(logging.get_verbosity()))"
  )
  done = commands.python("-c", code, *arguments)
  assert done.stdout.strip() == level


def test_the_environment_says_where_the_cache_is(monkeypatch):
  monkeypatch.setenv("HOME", "/home/ann")
  monkeypatch.setenv("VIT_JAX_CACHE", "~/kept")
  assert cache_folder() == pathlib.Path("/home/ann/kept")
  monkeypatch.delenv("VIT_JAX_CACHE")
  monkeypatch.setenv("XDG_CACHE_HOME", "/scratch")
  assert cache_folder() == pathlib.Path("/scratch/vit_jax")
  monkeypatch.setenv("XDG_CACHE_HOME", "relative")
  assert cache_folder() == pathlib.Path("/home/ann/.cache/vit_jax")


def test_a_message_carries_no_escape_sequences():
  code = (
    "from vit_jax.runtime import command\n"
    "def main(arguments):\n"
    "  raise ValueError('the class \\x1b[2J\\x07\\x9b31m is unknown')\n"
    "command.run(main)\n"
  )
  done = commands.python("-c", code)
  expected = r"error: the class \x1b[2J\x07\x9b31m is unknown"
  assert (done.returncode, done.stderr) == (2, f"{expected}\n")


@pytest.mark.parametrize(
  "flags, line, told",
  [
    (["root"], "set --config.data.root=a/b.", "set --root=a/b."),
    (["data_dir"], "set --config.data.root=a.", "set --config.data.root=a."),
    (
      ["root"],
      "as in vit_jax train --config.data.root=a.",
      "as in vit_jax train --config.data.root=a.",
    ),
  ],
)
def test_a_place_is_told_as_the_flag_of_the_command(
  monkeypatch, flags, line, told
):
  monkeypatch.setattr(usage.flags, "FLAGS", flags)
  assert usage.rewrite_in_flags(line) == told


@pytest.mark.parametrize(
  "words, told",
  [
    (("--out", "--size", "3"), "error: --out needs a value."),
    (("-out", "--deep"), "error: --out needs a value."),
    (("--size", "3", "--out", "--nonesuch"), "error: --out needs a value."),
    (("--deep", "--out", "a"), "a []"),
    (("--out=--size",), "--size []"),
    (("--out", "a", "--", "--out", "--size"), "a ['--out', '--size']"),
  ],
)
def test_a_flag_is_no_value_of_the_one_before_it(words, told):
  code = (
    "from absl import flags\n"
    "from vit_jax.runtime import command\n"
    "def define():\n"
    "  flags.DEFINE_string('out', None, 'File to write.')\n"
    "  flags.DEFINE_integer('size', 1, 'Size.')\n"
    "  flags.DEFINE_bool('deep', False, 'Whether to look deep.')\n"
    "def main(arguments):\n"
    "  print(flags.FLAGS.out, arguments)\n"
    "command.run(main, takes='[X...]', define=define)"
  )
  done = commands.python("-c", code, *words)
  assert (done.stderr or done.stdout).strip() == told
