"""Kills a run again and again, and compares its end with an undisturbed one's.

python scripts/kill.py --kills 50

Starts a short run on the digits with augmentation, dropout, Mixup,
accumulation, averaging and worker processes, kills it by SIGKILL at a random
moment (while it starts, trains, evaluates, or saves in the background), and
starts it again, as often as asked. Then it lets the run finish. It also counts
what is left behind: processes, and anything in /dev/shm.
"""

import argparse
import collections
import contextlib
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from vit_jax.workdir.checkpoint import open_run

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


def kill_once(command: Sequence[str], workdir: str, rng: random.Random) -> str:
  """Starts the command and kills it; returns what the run was doing."""
  start = time.time()
  with subprocess.Popen(
    command, stdout=subprocess.PIPE, text=True, start_new_session=True
  ) as process:
    assert process.stdout is not None
    if rng.random() < STARTING:
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
    process.send_signal(signal.SIGKILL)
    process.wait()
    # The last line that had not been read yet: a step is printed before the
    # evaluation that follows it.
    *_, last = ["", *process.stdout.read().splitlines()]
    if re.match(rf"step +\d*{EVALUATED}/", last):
      doing = "evaluating"
    check_alone(process.pid)
  partial = pathlib.Path(workdir).glob("checkpoints/*-tmp")
  if any(path.stat().st_mtime > start for path in partial):
    doing = "saving"
  return doing


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


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--kills", type=int, default=50)
  parser.add_argument("--steps", type=int, default=1000)
  parser.add_argument("--seed", type=int, default=0)
  arguments = parser.parse_args()
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
    subprocess.run(
      [*command, f"--workdir={whole}"], check=True, stdout=subprocess.DEVNULL
    )
    for number in range(arguments.kills):
      doing = kill_once([*command, f"--workdir={killed}"], killed, rng)
      found[doing] += 1
      print(f"kill {number + 1}: {doing}", flush=True)
    subprocess.run(
      [*command, f"--workdir={killed}"], check=True, stdout=subprocess.DEVNULL
    )
    same = last_state(whole) == last_state(killed)
  left = set(SHARED_MEMORY.glob("*")) - before
  print(", ".join(f"{count} {doing}" for doing, count in found.items()))
  print(f"left in {SHARED_MEMORY}: {sorted(map(str, left)) or 'nothing'}")
  print("the end is", "the same to the last bit" if same else "ANOTHER")
  raise SystemExit(bool(left) or not same)


if __name__ == "__main__":
  main()
