"""Fine-tunes S/16 by whole commands of three libraries, in turns.

python -m scripts.bench.finetune --root pizza_steak_sushi \
  --timm pytorch-image-models/train.py --python torch_env/bin/python

The commands are `vit_jax train`, timm's `train.py` (`--timm`, of a clone) and
transformers' Trainer (finetune_trainer.py beside this file). `--python` is a
Python that has torchvision, timm, transformers and accelerate. All three begin
with the same random weights and take equal steps of AdamW at 224 x 224 in
float32, with random crops and mirroring, and evaluate and save at the end. A
row has the images a second over the steps after the first, and the seconds
from the start of the command to its first step, to its end, and of processor
time. The last table has the medians of all turns, and each turn's rate over
that of vit_jax.
"""

import argparse
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

CLASSES, SIDE, RATE = 1000, 224, 1e-4
TRAINER = pathlib.Path(__file__).with_name("finetune_trainer.py")
HEADER = (
  "| command | images/s | x vit_jax | first step, s | whole, s | processor, s |"
  "\n| --- | ---: | ---: | ---: | ---: | ---: |"
)


class Command(NamedTuple):
  """A command, and what the line begins with that it prints after a step."""

  arguments: list[str]
  step: str


class Taken(NamedTuple):
  """What a command took; times are in seconds."""

  images_per_second: float
  first_step: float
  whole: float
  processor: float


def write_weights(folder: pathlib.Path) -> None:
  """Writes a model with random weights for timm and for transformers."""
  import jax

  import vit_jax

  model = vit_jax.make_vit("S/16", CLASSES)
  params = vit_jax.init_params(model, jax.random.key(0), SIDE)
  for to in ("timm", "hf"):
    vit_jax.save(model, params, folder / to, to, image_size=SIDE)


def commands(
  options: argparse.Namespace, folder: pathlib.Path
) -> dict[str, Command]:
  """The three commands, which write into new folders in `folder`."""
  timm = str(folder / "timm")
  out = tempfile.mkdtemp(dir=folder)
  epochs, batch_size = str(options.epochs), str(options.batch_size)
  workers = str(options.workers)
  end = f"{options.epochs}.0"
  ours = {
    "total_epochs": end,
    "eval_every_epochs": end,
    "save_every_epochs": end,
    "log_every_epochs": 0.0,
    "log_every_steps": 1,
    "batch_size": batch_size,
    "model.dtype": "float32",
    "optimizer.kind": "adam",
    "optimizer.peak_lr": RATE,
    "optimizer.warmup_epochs": 0.0,
    "loss.label_smoothing": 0.0,
    "train_transform.min_area": 0.08,
    "train_transform.randaugment_layers": 0,
    "loader.num_workers": workers,
  }
  vit_jax = [sys.executable, "-m", "vit_jax", "train", options.root]
  vit_jax += ["--config", "finetune", "--pretrained", timm]
  vit_jax += ["--workdir", f"{out}/vit_jax"]
  vit_jax += [f"--config.{key}={value}" for key, value in ours.items()]
  by_timm = [options.python, options.timm, options.root, "--device", "cpu"]
  by_timm += ["--model", f"local-dir:{timm}", "--pretrained"]
  by_timm += ["--num-classes", str(options.classes), "--val-split", "test"]
  by_timm += ["--epochs", epochs, "--val-interval", epochs]
  by_timm += ["-b", batch_size, "-j", workers, "--output", out]
  by_timm += ["--opt", "adamw", "--lr", str(RATE), "--clip-grad", "1"]
  by_timm += ["--warmup-epochs", "0", "--smoothing", "0", "--color-jitter", "0"]
  by_timm += ["--train-interpolation", "bicubic", "--log-interval", "1"]
  trainer = [options.python, str(TRAINER), options.root, str(folder / "hf")]
  trainer += [f"{out}/trainer", epochs, batch_size, workers, str(RATE)]
  return {
    "vit_jax train": Command(vit_jax, r"step +[\d,]+/"),
    "timm train.py": Command(by_timm, r"Train: \d+ \["),
    "transformers Trainer": Command(trainer, r"\{'loss'"),
  }


def run(command: Command, batch_size: int) -> Taken:
  """Runs a command; raises RuntimeError, with its output, if it fails."""
  start = time.perf_counter()
  process = subprocess.Popen(
    command.arguments,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    env=os.environ | {"PYTHONUNBUFFERED": "1"},
  )
  assert process.stdout is not None
  steps, lines = [], []
  for line in process.stdout:
    lines.append(line)
    if re.match(command.step, line):
      steps.append(time.perf_counter() - start)
  _, status, usage = os.wait4(process.pid, 0)
  whole = time.perf_counter() - start
  if status or len(steps) < 2:
    said = "".join(lines[-30:])
    raise RuntimeError(f"{command.arguments}: {len(steps)} steps.\n{said}")
  rate = (len(steps) - 1) * batch_size / (steps[-1] - steps[0])
  return Taken(rate, steps[0], whole, usage.ru_utime + usage.ru_stime)


def row(name: str, taken: Taken, ratio: str) -> str:
  rate, *seconds = taken
  times = [f"{value:.0f}" for value in seconds]
  return f"| {' | '.join([name, f'{rate:.1f}', ratio, *times])} |"


def main() -> None:
  parser = argparse.ArgumentParser(description="Time fine-tuning.")
  parser.add_argument("--root", required=True, help="has train/ and test/")
  parser.add_argument("--timm", required=True, help="timm's train.py")
  parser.add_argument("--python", required=True, help="one that has PyTorch")
  parser.add_argument("--epochs", type=int, default=3)
  parser.add_argument("--batch_size", type=int, default=32)
  parser.add_argument("--workers", type=int, default=2)
  parser.add_argument("--turns", type=int, default=3)
  options = parser.parse_args()
  train = pathlib.Path(options.root, "train")
  options.classes = sum(path.is_dir() for path in train.iterdir())
  turns: list[dict[str, Taken]] = []
  print(HEADER)
  with tempfile.TemporaryDirectory() as folder:
    write_weights(pathlib.Path(folder))
    for _ in range(options.turns):
      turns.append({})
      for name, command in commands(options, pathlib.Path(folder)).items():
        taken = turns[-1][name] = run(command, options.batch_size)
        ours = turns[-1]["vit_jax train"].images_per_second
        ratio = f"{taken.images_per_second / ours:.2f}"
        print(row(name, taken, ratio), flush=True)
  print(f"\nmedians of {options.turns} turns:\n\n{HEADER}")
  for name in turns[0]:
    middle = Taken(
      *map(statistics.median, zip(*(turn[name] for turn in turns), strict=True))
    )
    ratios = [
      turn[name].images_per_second / turn["vit_jax train"].images_per_second
      for turn in turns
    ]
    ratio = f"{statistics.median(ratios):.2f}"
    spread = f"({min(ratios):.2f} to {max(ratios):.2f})"
    print(row(name, middle, f"{ratio} {spread}"))


if __name__ == "__main__":
  main()
