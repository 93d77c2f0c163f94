"""Kills a run again and again, and compares its end with an undisturbed one's.

python scripts/kill.py --kills 50
python scripts/kill.py --kills 10 --processes 2 --then 4 --saving

Starts a short run on the digits with augmentation, dropout, Mixup,
accumulation, averaging and worker processes, kills it by SIGKILL at a random
moment (while it starts, trains, evaluates, or saves in the background; with
`--saving`, always while it saves), and starts it again, as often as asked. Then
it lets the run finish. It also counts what is left behind: processes, and
anything in /dev/shm.

A run may have several processes, on four devices in all. Then one of them is
killed, and the others a second later, as schedulers do. With `--then`, each
second start has another number of them; sums are then taken in another order,
and the losses are compared instead of the bits.
"""

import argparse
import collections
import contextlib
import os
import pathlib
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import IO

from etils import epath

from vit_jax.workdir.checkpoint import open_run
from vit_jax.workdir.records import read_metrics

COMMAND = [
  *(sys.executable, "-m", "vit_jax.train", "--config=configs/digits.py"),
  *("--config.total_epochs=0", "--config.log_every_steps=1"),
  *("--config.eval_every_epochs=0", "--config.eval_every_steps=20"),
  *("--config.save_every_epochs=0", "--config.save_every_steps=10"),
  *("--config.accumulation_steps=2", "--config.ema_decay=0.9"),
  *("--config.model.dropout_rate=0.1", "--config.loader.num_workers=2"),
  *("--config.train_transform.flip=True", "--config.loss.mixup_alpha=0.2"),
  "--config.train_transform.randaugment_layers=1",
]
EVALUATED = "[02468]0"  # The last digits of the steps that are evaluated.
STARTING = 0.3  # Share of kills before the first step.
# Seconds until the first step, and seconds to let the run train.
STARTING_SECONDS, STEPPING_SECONDS = 6.0, 2.0
SHARED_MEMORY = pathlib.Path("/dev/shm")
SAVING_SECONDS = 0.2  # What a checkpoint of this run takes at least.
DEVICES = 4  # Of all processes together, if there are several.


@contextlib.contextmanager
def started(
  command: Sequence[str], processes: int
) -> Iterator[tuple[list[subprocess.Popen], IO[str]]]:
  """Starts the command in several processes; the first's output is piped.

  What is still running in the end is killed.
  """
  env = dict(os.environ)
  if processes > 1:
    env["JAX_NUM_CPU_DEVICES"] = str(DEVICES // processes)
  with socket.socket() as taken:
    taken.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{taken.getsockname()[1]}"

  def place(i: int) -> list[str]:
    if processes == 1:
      return []
    count = f"--num_processes={processes}"
    return [count, f"--process_id={i}", f"--coordinator={address}"]

  with contextlib.ExitStack() as stack:
    errors = stack.enter_context(tempfile.TemporaryFile("w+"))
    running = []
    for i in range(processes):
      process = subprocess.Popen(
        [*command, *place(i)],
        stdout=subprocess.DEVNULL if i else subprocess.PIPE,
        stderr=errors,
        text=True,
        start_new_session=True,
        env=env,
      )
      stack.enter_context(process)
      stack.callback(process.kill)
      running.append(process)
    yield running, errors


def finish(command: Sequence[str], processes: int) -> None:
  """Lets the run end; raises RuntimeError if it ends badly."""
  with started(command, processes) as (running, errors):
    running[0].communicate()
    codes = [process.wait() for process in running]
    if any(codes):
      errors.seek(0)
      raise RuntimeError(
        f"the run ended with exit codes {codes}.\n{errors.read()}"
      )


def kill_once(
  command: Sequence[str],
  workdir: str,
  rng: random.Random,
  processes: int,
  saving: bool,
) -> str:
  """Starts the command and kills it; returns what the run was doing."""
  start = time.time()
  with started(command, processes) as (running, _):
    process = running[0]
    assert process.stdout is not None
    if saving:
      doing = "after saving"
      wait_for_save(workdir, process, start)
      time.sleep(rng.uniform(0, SAVING_SECONDS))
    elif rng.random() < STARTING:
      doing = "starting"
      time.sleep(rng.uniform(0, STARTING_SECONDS))
    else:
      doing = "at work"
      for line in process.stdout:
        if line.startswith("step"):
          break
      time.sleep(rng.uniform(0, STEPPING_SECONDS))
    if process.poll() is not None:
      return "at its end"
    rng.choice(running).kill()
    if processes > 1:
      time.sleep(1)
    for one in running:
      one.kill()
      one.wait()
    # The last line that had not been read yet: a step is printed before the
    # evaluation that follows it.
    *_, last = ["", *process.stdout.read().splitlines()]
    if re.match(rf"step +\d*{EVALUATED}/", last):
      doing = "evaluating"
    for one in running:
      check_alone(one.pid)
  return "saving" if is_saving(workdir, start) else doing


def is_saving(workdir: str, start: float) -> bool:
  """Whether there is a partial checkpoint that is younger than a start."""
  for path in pathlib.Path(workdir).glob("checkpoints/*-tmp"):
    with contextlib.suppress(FileNotFoundError):  # It has just got its name.
      if path.stat().st_mtime > start:
        return True
  return False


def wait_for_save(
  workdir: str, process: subprocess.Popen, start: float
) -> None:
  """Waits until a run that was started at this time saves, or has ended."""
  while process.poll() is None and not is_saving(workdir, start):
    time.sleep(0.005)


def check_alone(group: int, seconds: float = 10.0) -> None:
  """Raises RuntimeError if processes of a group outlive the killed one."""
  end = time.monotonic() + seconds
  while time.monotonic() < end:
    try:
      os.killpg(group, 0)
    except ProcessLookupError:
      return
    time.sleep(0.05)
  raise RuntimeError(f"processes of group {group} are still there.")


def last_state(workdir: str) -> tuple[int, dict[str, int]]:
  """The newest checkpoint's step and checksums."""
  with contextlib.closing(open_run(workdir)) as checkpoints:
    step = checkpoints.all_steps[-1]
    return step, checkpoints.describe(step)["checksums"]


def losses(workdir: str) -> dict[int, float]:
  """The training loss of every step that was written."""
  rows = read_metrics(epath.Path(workdir)).rows
  return {r["step"]: r["train/loss"] for r in rows if "train/loss" in r}


def difference(whole: str, killed: str) -> str:
  """How far the losses of two runs are apart, where they are furthest."""
  one, other = losses(whole), losses(killed)
  if one.keys() != other.keys():
    return "other steps"
  apart = {step: abs(other[step] / loss - 1) for step, loss in one.items()}
  step = max(apart, key=lambda s: apart[s])
  return f"losses apart by up to {apart[step]:.1e}, at step {step}"


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--kills", type=int, default=50)
  parser.add_argument("--steps", type=int, default=1000)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--processes", type=int, default=1)
  parser.add_argument("--then", type=int, help="processes of each second start")
  parser.add_argument("--saving", action="store_true", help="kill in a save")
  arguments = parser.parse_args()
  numbers = (arguments.processes, arguments.then or arguments.processes)
  rng = random.Random(arguments.seed)
  before = set(SHARED_MEMORY.glob("*"))
  found: collections.Counter[str] = collections.Counter()
  with tempfile.TemporaryDirectory() as folder:
    command = [
      *COMMAND,
      f"--config.total_steps={arguments.steps}",
      f"--config.data.data_dir={folder}/data",
    ]
    whole, killed = f"{folder}/whole", f"{folder}/killed"
    finish([*command, f"--workdir={whole}"], numbers[0])
    command.append(f"--workdir={killed}")
    for number in range(arguments.kills):
      doing = kill_once(
        command, killed, rng, numbers[number % 2], arguments.saving
      )
      found[doing] += 1
      print(f"kill {number + 1}: {doing}", flush=True)
    finish(command, numbers[arguments.kills % 2])
    same = last_state(whole) == last_state(killed)
    apart = difference(whole, killed)
  left = set(SHARED_MEMORY.glob("*")) - before
  print(", ".join(f"{count} {doing}" for doing, count in found.items()))
  print(f"left in {SHARED_MEMORY}: {sorted(map(str, left)) or 'nothing'}")
  print("the end is", "the same to the last bit" if same else "ANOTHER")
  print(apart)
  raise SystemExit(bool(left) or not (same or arguments.then))


if __name__ == "__main__":
  main()
