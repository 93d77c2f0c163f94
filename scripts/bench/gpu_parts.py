"""The parts of scripts/gpu_report.sh: what each measures, and by which command.

A part is a function that runs commands by a `Turn` and returns a table.
"""

import contextlib
import dataclasses
import functools
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from etils import epath

from scripts.tables import markdown
from vit_jax.workdir.records import read_metrics

GRACE = 60  # Seconds for a training run to save after it was told to stop.
LIMIT = 8 * 60 - GRACE  # Seconds until a part is told to stop.
MEMORY = 50e9  # Of a card of 80 GB, JAX takes three quarters.
# Task, model, images per step on such a card, and their side.
SIZES = (
  ("Training", "B/16", 128, 224),
  ("Training", "S/16", 256, 224),
  ("Training", "L/16", 64, 224),
  ("Training", "B/16", 32, 384),
  ("Prediction", "B/16", 128, 224),
  ("Prediction", "S/16", 256, 224),
  ("Prediction", "L/16", 64, 224),
)
TINY_SIZES = (("Training", "Ti/16", 2, 32),)
AGAINST = {
  "JAX": ("plain", "flash"),
  "PyTorch": ("hf", "timm", "--compile_torch"),
}
DETERMINISTIC = {"XLA_FLAGS": "--xla_gpu_deterministic_ops=true"}
# Tests of what a GPU computes.
TESTS = {
  "tests of models": (
    *("models/test_vit.py", "models/test_attention.py"),
    "models/test_position.py",
  ),
  "tests of the step": (
    *("training/test_step.py", "training/test_losses.py"),
    "training/test_optimizer.py",
  ),
  "tests of published weights": ("pretrained/test_load.py",),
}
TINY_TESTS = {"tests of models": ("models/test_model_normalize.py",)}
# A Python that has Linux send it SIGTERM when the process above it ends, and
# that then becomes the command.
_END_WITH_PARENT = """
import ctypes, os, signal, sys
if sys.platform == "linux":
  ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


class Failed(Exception):
  """Raised by a part that has no result; says why."""


class Unfinished(Failed):
  """Raised by a part that needs another turn; says how far it got."""


class Turn:
  """Runs the commands of a part until its time is up, and logs their output."""

  def __init__(self, log: pathlib.Path, limit: float):
    self.log, self._end = log, time.monotonic() + limit
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")

  def __call__(
    self,
    *arguments: str,
    codes: tuple[int, ...] = (0,),
    env: dict[str, str] | None = None,
  ) -> str:
    """Runs `python ARGUMENTS`, stops it in time, and returns what it printed.

    Args:
      codes: Exit codes of a command that did its work.
      env: Variables to set for it.

    Raises:
      Unfinished: if it was stopped.
      Failed: if its exit code is none of `codes`.
    """
    with self.log.open("r+") as log:
      begin = log.seek(0, os.SEEK_END)
      process = subprocess.Popen(
        [sys.executable, "-c", _END_WITH_PARENT, *arguments],
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**os.environ, **(env or {})},
      )
      code = self._wait(process)
      log.seek(begin)
      printed = log.read()
    last = [line for line in printed.splitlines() if line.strip()][-1:]
    said = last[0].strip()[:200].replace("|", "/") if last else "no output"
    if code is None:
      raise Unfinished(said)
    if code not in codes:
      raise Failed(f"exit code {code}: {said}")
    return printed

  def _wait(self, process: subprocess.Popen) -> int | None:
    """The exit code; None if the time was up and the process was stopped."""
    try:
      return process.wait(max(self._end - time.monotonic(), 1))
    except subprocess.TimeoutExpired:
      process.terminate()
      with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)
      return None
    finally:
      process.kill()
      process.wait()


def table(header: str, *rows: tuple[str, ...]) -> list[str]:
  return markdown(header.split(" | "), rows)


def bench(flags: list[str], turn: Turn) -> list[str]:
  printed = turn("scripts/bench/step.py", *flags)
  lines = [line for line in printed.splitlines() if line.startswith("| ")]
  if ours := [x for x in lines if ", vit_jax | " in x and "not measured" in x]:
    raise Failed(ours[0].replace("|", "/"))
  return lines


def tests(paths: tuple[str, ...], turn: Turn) -> list[str]:
  """Tests on the card, with products in float32 as the tests expect them."""
  printed = turn(
    *("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-rfE"),
    *("-k", "not eight_devices"),
    *(f"tests/{path}" for path in paths),
    codes=(0, 1),
    env={"JAX_DEFAULT_MATMUL_PRECISION": "highest"},
  )
  failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", printed, re.M)
  return table(
    "tests | result | failed",
    (
      ", ".join(paths),
      printed.strip().splitlines()[-1].strip("= "),
      ", ".join(failed) or "none",
    ),
  )


def resume(tiny: bool, turn: Turn) -> list[str]:
  """Kills a run, and compares its end with that of an undisturbed one."""
  rows = []
  sizes = ("--kills=1", "--steps=40") if tiny else ("--kills=2",)
  for name, flags in (("default", {}), ("deterministic", DETERMINISTIC)):
    printed = turn("scripts/kill.py", *sizes, codes=(0, 1), env=flags)
    found = re.findall(r"^the end is (.*)\n(.*)$", printed, re.M)
    if not found:
      raise Failed(printed.splitlines()[-1])
    rows.append((name, str(flags.get("XLA_FLAGS", "none")), *found[0]))
    if tiny:
      break
  return table("operations | XLA_FLAGS | the end is | losses", *rows)


def metrics(workdir: pathlib.Path | str, name: str) -> list[float]:
  """The values of a metric that a run wrote, in order."""
  rows = read_metrics(epath.Path(workdir)).rows
  return [row[name] for row in rows if name in row]


def fsdp(tiny: bool, turn: Turn) -> list[str]:
  """Trains B/16 on digits with and without FSDP, and compares the losses."""
  config = "digits.py" if tiny else "pretrain.py:B/16,imagenet2012"
  command = [
    *("-m", "vit_jax.train", f"--config=configs/{config}"),
    "--config.data.name=digits",
    *("--config.data.eval_split=test", "--config.model.dtype=bfloat16"),
    *("--config.total_epochs=0", "--config.total_steps=40"),
    *("--config.batch_size=64", "--config.log_every_steps=10"),
    *("--config.eval_every_epochs=0", "--config.save_every_epochs=0"),
    *("--config.save_every_steps=0", "--config.optimizer.warmup_steps=10"),
  ]
  rows = []
  with tempfile.TemporaryDirectory() as folder:
    for mesh, flags in (("data", ()), ("fsdp", ("data=1", "fsdp=-1"))):
      workdir = f"{folder}/{mesh}"
      meshes = [f"--config.mesh.{flag}" for flag in flags]
      turn(*command, *meshes, f"--workdir={workdir}", env=DETERMINISTIC)
      rate = metrics(workdir, "train/images_per_second")[-1]
      losses = metrics(workdir, "train/loss")
      rows.append((mesh, f"{rate:,.0f}", losses))
  same = "yes" if rows[0][-1] == rows[1][-1] else "no"
  return table(
    "mesh axis | images/s | the same losses to the last bit",
    *((mesh, rate, same) for mesh, rate, _ in rows),
  )


def cifar10(workdir: pathlib.Path, flags: list[str], turn: Turn) -> list[str]:
  printed = turn(
    *("-m", "vit_jax.train", "--config=configs/cifar10_gpu.py"),
    *(f"--workdir={workdir}", *flags),
  )
  top1 = metrics(workdir, "eval/top1")[-1]
  times = re.findall("^Of (.*)$", printed, re.M)
  return table("top-1 | time", (f"{top1:.2%}", *times[-1:]))


@dataclasses.dataclass(frozen=True)
class Part:
  """A part of the report.

  Attributes:
    section: Title of the page's section that has its table.
    measure: Returns the lines of the table.
    resumes: Whether another turn goes on where a stopped one was.
  """

  section: str
  measure: Callable[[Turn], list[str]]
  resumes: bool = False


def parts(
  memory: float, workdir: pathlib.Path, flags: list[str], *, tiny: bool
) -> dict[str, Part]:
  """The parts by their names.

  Args:
    memory: Bytes that JAX takes on the card; 0 if it does not say.
    workdir: Folder of the CIFAR-10 run.
    flags: Flags of the CIFAR-10 run.
    tiny: Whether to take sizes for a rehearsal on a CPU.
  """
  halvings = min(0, math.floor(math.log2((memory or MEMORY) / MEMORY)))
  found = {}
  for task, variant, batch, side in TINY_SIZES if tiny else SIZES:
    for library, others in AGAINST.items():
      command = [
        *(f"--variant={variant}", f"--side={side}", "--dtype=bfloat16"),
        f"--batch={max(1, int(batch * 2.0**halvings))}",
        *(["--rounds=1"] if tiny else ["--steps=10"]),
        *(["--forward"] if task == "Prediction" else []),
        *("--against", *others),
      ]
      name = f"{task.lower()} of {variant} at {side}, {library}"
      found[name] = Part(task, functools.partial(bench, command))
  for name, paths in (TINY_TESTS if tiny else TESTS).items():
    found[name] = Part("Tests on the GPU", functools.partial(tests, paths))
  found["resume"] = Part("Exact resume", functools.partial(resume, tiny))
  found["fsdp"] = Part("FSDP", functools.partial(fsdp, tiny))
  found["cifar10"] = Part(
    "CIFAR-10 from scratch",
    functools.partial(cifar10, workdir, flags),
    resumes=True,
  )
  return found
