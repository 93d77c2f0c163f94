"""Kills a run again and again, and compares its end with an undisturbed one's.

python scripts/kill.py --kills 50
python scripts/kill.py --kills 10 --processes 2 --then 4 --saving
python scripts/kill.py --kills 3 --steps 60 --of dense_regression

Starts a short run on the digits with augmentation, dropout, Mixup,
accumulation, averaging and worker processes, kills it by SIGKILL at a random
moment (while it starts, trains, evaluates, or saves in the background; with
`--saving`, always while it saves), and starts it again, as often as asked. Then
it lets the run finish. It also counts what is left behind: processes, and
anything in /dev/shm. `--of` takes another of the runs in `RUNS`, on images that
are drawn for it.

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

import numpy as np
import tifffile
from etils import epath
from PIL import Image

from vit_jax.workdir.checkpoint import open_run
from vit_jax.workdir.records import read_metrics

COMMAND = [
  *(sys.executable, "-m", "vit_jax.train"),
  *("--config.total_epochs=0", "--config.log_every_epochs=0"),
  *("--config.log_every_steps=1", "--config.ema_decay=0.9"),
  *("--config.eval_every_epochs=0", "--config.eval_every_steps=20"),
  *("--config.save_every_epochs=0", "--config.save_every_steps=10"),
  "--config.loader.num_workers=2",
]
SMALL = [
  *("--config.batch_size=8", "--config.optimizer.warmup_epochs=0"),
  *("--config.model.variant=Ti/4", "--config.model.num_layers=1"),
  *("--config.model.hidden_size=16", "--config.model.mlp_size=16"),
  "--config.model.num_heads=2",
]
# The flags of each run; "{data}" stands for the folder with its images.
RUNS = {
  "digits": [
    *("--config=configs/digits.py", "--config.data.data_dir={data}"),
    *("--config.accumulation_steps=2", "--config.model.dropout_rate=0.1"),
    *("--config.train_transform.flip=True", "--config.loss.mixup_alpha=0.2"),
    "--config.train_transform.randaugment_layers=1",
  ],
  "dense_regression": [
    *("--config=configs/dense_regression.py:whole", *SMALL),
    *("--config.data.root={data}/depths", "--config.image_size=12,20"),
    *("--config.accumulation_steps=2", "--config.model.dropout_rate=0.1"),
    *("--config.dense_regression.layers=1", "--config.data.target_scale=0.001"),
  ],
  "crop_sizes": [
    *("--config=configs/dino.py", *SMALL, "--config.image_size=12,12"),
    *("--config.data.root={data}/photos", "--config.fewshot.neighbours=0"),
    "--config.self_distillation.prototypes=12",
    "--config.self_distillation.head_size=16",
    "--config.self_distillation.bottleneck=8",
    "--config.self_distillation.small_crops=2",
    "--config.self_distillation.gram_weight=1.5",
    "--config.self_distillation.crop_sizes=((8,4,12,.5),(16,8,24,.5))",
  ],
  "channel_tokens": [
    *("--config=configs/channels.py", *SMALL, "--config.image_size=12,12"),
    "--config.data.root={data}/tiles",
    "--config.data.bands=red,green,blue,nir",
    *("--config.accumulation_steps=2", "--config.model.dropout_rate=0.1"),
    "--config.loss.mixup_alpha=0.2",
    "--config.normalization.mean=(.5,.5,.5,.5)",
    "--config.normalization.std=(.5,.5,.5,.5)",
  ],
  "any_size": [
    *("--config=configs/any_size.py", *SMALL, "--config.image_size=16,16"),
    *("--config.data.root={data}/classes", "--config.data.tokens=16"),
    *("--config.data.images_per_row=2", "--config.data.min_tokens=4"),
    "--config.train_transform.flip=True",
  ],
}
EVALUATED = "[02468]0"  # The last digits of the steps that are evaluated.
STARTING = 0.3  # Share of kills before the first step.
# Seconds until the first step, and seconds to let the run train.
STARTING_SECONDS, STEPPING_SECONDS = 6.0, 2.0
SHARED_MEMORY = pathlib.Path("/dev/shm")
SAVING_SECONDS = 0.2  # What a checkpoint of this run takes at least.
DEVICES = 4  # Of all processes together, if there are several.


def draw_images(folder: str) -> None:
  """Draws the images of all `RUNS` but the digits: noise of 20 x 12 pixels.

  Those in class folders are cut to several widths.
  """
  rng = np.random.default_rng(0)
  root = pathlib.Path(folder)
  for split, files in (("train", 24), ("val", 8)):
    for number in range(files):
      images = rng.integers(0, 256, (2, 12, 20, 3), np.uint8)
      depth = rng.integers(1, 9000, (12, 20)).astype(np.uint16)
      name = f"{number}.png"
      letter = "ab"[number % 2]
      cut = images[0, :, : 6 + number % 14]
      for pixels, path in (
        (cut, root / "classes" / split / letter / name),
        (images[0], root / "depths" / "images" / split / name),
        (depth, root / "depths" / "depth" / split / name),
        (images[1], root / "photos" / split / name),
      ):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
      tile = root / "tiles" / split / letter / f"{number}.tif"
      tile.parent.mkdir(parents=True, exist_ok=True)
      # Every third file has red, green and blue, and so lacks a band.
      kind, count = ("rgb", 3) if number % 3 == 0 else ("minisblack", 4)
      bands = rng.integers(0, 256, (12, 20, count), np.uint8)
      tifffile.imwrite(tile, bands, photometric=kind, planarconfig="contig")


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
  parser.add_argument("--of", choices=RUNS, default="digits", help="the run")
  arguments = parser.parse_args()
  numbers = (arguments.processes, arguments.then or arguments.processes)
  rng = random.Random(arguments.seed)
  before = set(SHARED_MEMORY.glob("*"))
  found: collections.Counter[str] = collections.Counter()
  with tempfile.TemporaryDirectory() as folder:
    data = f"{folder}/data"
    if arguments.of != "digits":
      draw_images(data)
    command = [
      *COMMAND,
      *(flag.format(data=data) for flag in RUNS[arguments.of]),
      f"--config.total_steps={arguments.steps}",
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
