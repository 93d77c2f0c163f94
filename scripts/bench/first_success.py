"""How long a new user waits for the first success, from nothing installed.

python -m scripts.bench.first_success --root pizza_steak_sushi \
  --model build/real_weights/dinov2

Builds a wheel of the last commit, and makes an environment with it for each
job, by the commands of the pages; that time is told apart, as the network
decides it. The job's commands then run in an empty folder, with no compiled
program kept from before. ONNX goes on with the run on the digits, and predict
with that on the photographs. A row has the wall time of the commands and the
processor time of all their processes, beside the time that we aim at on an idle
machine of two cores. Nothing else should run meanwhile. A command that fails
ends its job, and its row says so.
"""

import argparse
import contextlib
import os
import pathlib
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

HEADER = (
  "| job | install | commands | processor | aim |\n"
  "| --- | ---: | ---: | ---: | ---: |"
)
PER_CLASS = 20  # Photographs of each class.
SCENES, WIDTH, HEIGHT = 30, 256, 192  # Pictures with masks, and their sides.
ASK = """\
import numpy, onnxruntime
session = onnxruntime.InferenceSession("model.onnx")
shape = [1, *session.get_inputs()[0].shape[1:]]
images = numpy.zeros(shape, numpy.uint8)
print(session.run(["logits"], {"images": images})[0])
"""


class Given(NamedTuple):
  """What the jobs are given: class folders of photographs, and weights."""

  root: pathlib.Path
  model: pathlib.Path


class Job(NamedTuple):
  """One first success.

  Attributes:
    aim: Seconds that its commands may take.
    installs: Arguments of each `pip install`; WHEEL stands for the wheel.
    commands: What the pages tell a user to type; WEIGHTS stands for the
      folder of weights.
    prepare: Puts the user's data into the empty folder.
    after: The job in whose environment and folder it goes on, if not in new
      ones.
  """

  aim: int
  installs: Sequence[str]
  commands: Sequence[str]
  prepare: Callable[[Given], None] = lambda _: None
  after: str = ""


class Spent(NamedTuple):
  """Seconds by the clock, and of processors; `failed` is a command."""

  wall: float = 0.0
  processor: float = 0.0
  failed: str = ""


def chosen(root: pathlib.Path) -> dict[str, list[pathlib.Path]]:
  """The first photographs of each class, below `root/train` or `root`."""
  below = root / "train" if (root / "train").is_dir() else root
  folders = sorted(path for path in below.iterdir() if path.is_dir())
  return {each.name: sorted(each.iterdir())[:PER_CLASS] for each in folders}


def photographs(given: Given) -> None:
  for name, files in chosen(given.root).items():
    folder = pathlib.Path("my_photos", name)
    folder.mkdir(parents=True)
    for file in files:
      shutil.copy(file, folder)


def pairs(given: Given) -> None:
  """Captions as in docs/howto/image_and_text.md."""
  photographs(given)
  lines = ["file,caption"]
  for path in sorted(pathlib.Path("my_photos").glob("*/*")):
    lines.append(f"{path},a photo of {path.parent.name}")
  pathlib.Path("pairs.csv").write_text("\n".join(lines) + "\n")
  names = "\n".join(p.name for p in pathlib.Path("my_photos").iterdir())
  pathlib.Path("classes.txt").write_text(names + "\n")


def scenes(_: Given) -> None:
  """A disc and a square on noise, and masks with their classes, 1 and 2."""
  rng = np.random.default_rng(0)
  for number in range(SCENES):
    noise = rng.integers(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
    image, mask = Image.fromarray(noise), Image.new("L", (WIDTH, HEIGHT))
    for label in (1, 2):
      x, y = map(int, rng.integers(0, (WIDTH - 60, HEIGHT - 60)))
      colour = tuple(map(int, rng.integers(0, 255, 3)))
      for picture, fill in ((image, colour), (mask, label)):
        draw = ImageDraw.Draw(picture)
        shape = draw.ellipse if label == 1 else draw.rectangle
        shape((x, y, x + 60, y + 60), fill=fill)
    for kind, picture in (("images", image), ("masks", mask)):
      path = pathlib.Path("my_scenes", kind, f"{number}.png")
      path.parent.mkdir(parents=True, exist_ok=True)
      picture.save(path)


SEGMENT = (
  "vit_jax train --config segmentation --pretrained WEIGHTS "
  "--config.data.root=my_scenes --workdir runs/my_scenes"
)
PHOTO = "$(ls my_photos/*/*.jpg | head -n 1)"
JOBS = {
  "digits": Job(60, ["WHEEL[figures]"], ["vit_jax train digits"]),
  "ONNX": Job(
    60,
    ["onnx onnxruntime"],
    [
      "vit_jax export runs/digits model.onnx",
      f"python -c {shlex.quote(ASK)}",
    ],
    after="digits",
  ),
  "photographs": Job(
    120,
    ["WHEEL[hf]"],
    ["vit_jax train my_photos --pretrained WEIGHTS --workdir runs/mine"],
    photographs,
  ),
  "predict": Job(
    5,
    [],
    [f"vit_jax predict runs/mine {PHOTO} --top 3"],
    after="photographs",
  ),
  "segmentation": Job(
    60,
    ["WHEEL[hf]"],
    [
      SEGMENT,
      "vit_jax predict runs/my_scenes my_scenes/images/0.png --masks marked",
    ],
    scenes,
  ),
  "pairs": Job(
    120,
    ["WHEEL[text]"],
    [
      "vit_jax train pairs.csv --config pairs --workdir runs/pairs",
      f"vit_jax predict runs/pairs {PHOTO} --texts classes.txt",
    ],
    pairs,
  ),
}


def run(
  command: str, folder: pathlib.Path, environment: dict[str, str]
) -> Spent:
  """Runs a command of a shell, whose output goes to `folder/log.txt`."""
  before = resource.getrusage(resource.RUSAGE_CHILDREN)
  start = time.perf_counter()
  with (folder / "log.txt").open("a") as log:
    log.write(f"$ {command}\n")
    log.flush()
    code = subprocess.call(
      command,
      shell=True,
      cwd=folder,
      env=environment,
      stdout=log,
      stderr=subprocess.STDOUT,
    )
  wall = time.perf_counter() - start
  after = resource.getrusage(resource.RUSAGE_CHILDREN)
  processor = sum(
    getattr(after, kind) - getattr(before, kind)
    for kind in ("ru_utime", "ru_stime")
  )
  return Spent(wall, processor, command if code else "")


def run_all(
  commands: Sequence[str], folder: pathlib.Path, environment: dict[str, str]
) -> Spent:
  """The sum of commands, up to the first that fails."""
  total = Spent()
  for command in commands:
    one = run(command, folder, environment)
    total = Spent(
      total.wall + one.wall, total.processor + one.processor, one.failed
    )
    if one.failed:
      break
  return total


def environment_of(folder: pathlib.Path) -> dict[str, str]:
  """The shell's variables, with an environment and a cache of its own."""
  kept = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("JAX_", "VIT_JAX_", "XLA_", "PYTHON"))
  }
  path = f"{folder / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
  return kept | {"PATH": path, "VIT_JAX_CACHE": str(folder / "cache")}


def do(
  job: Job, folder: pathlib.Path, wheel: pathlib.Path, given: Given
) -> tuple[Spent, Spent]:
  """What a job took to install, and its commands."""
  work, environment = folder / "work", environment_of(folder)
  names = {"WHEEL": str(wheel), "WEIGHTS": str(given.model)}

  def filled(command: str) -> str:
    for name, value in names.items():
      command = command.replace(name, value)
    return command

  pip = "python -m pip install -q --disable-pip-version-check"
  installs = [f"{pip} {filled(each)}" for each in job.installs]
  if not job.after:
    work.mkdir(parents=True)
    made = f"{shlex.quote(sys.executable)} -m venv {folder / 'venv'}"
    installs.insert(0, made)
  install = run_all(installs, work, environment)
  if install.failed:
    return install, install
  with contextlib.chdir(work):
    job.prepare(given)
  shutil.rmtree(folder / "cache", ignore_errors=True)
  return install, run_all([*map(filled, job.commands)], work, environment)


def build(out: pathlib.Path) -> pathlib.Path:
  """A wheel of the last commit."""
  clone = pathlib.Path(__file__).parents[2]
  source = out / "source"
  source.mkdir(parents=True)
  archive = subprocess.check_output(["git", "archive", "HEAD"], cwd=clone)
  subprocess.run(["tar", "x", "-C", source], input=archive, check=True)
  pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps"]
  subprocess.run([*pip, "-w", out, source], check=True)
  return next(out.glob("*.whl"))


def row(name: str, job: Job, install: Spent, spent: Spent) -> str:
  if spent.failed:
    return f"| {name} | failed: {spent.failed} |"
  times = (install.wall, spent.wall, spent.processor)
  cells = [f"{seconds:.1f} s" for seconds in times]
  return f"| {name} | {' | '.join(cells)} | {job.aim} s |"


def jobs_named(names: str) -> dict[str, Job]:
  """The jobs of names with commas between, in their order.

  A job that goes on from another brings that along, and capitals make no
  difference. Raises argparse.ArgumentTypeError for a name that is none.
  """
  by_plain = {name.lower(): name for name in JOBS}
  chosen: dict[str, Job] = {}
  for given in filter(None, (part.strip() for part in names.split(","))):
    if given.lower() not in by_plain:
      raise argparse.ArgumentTypeError(
        f"there is no job {given!r}: the jobs are {', '.join(JOBS)}."
      )
    name = by_plain[given.lower()]
    needed = filter(None, (JOBS[name].after, name))
    chosen |= {each: JOBS[each] for each in needed}
  return chosen


def main() -> None:
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument("--root", required=True, help="photographs by class")
  parser.add_argument("--model", required=True, help="a folder of weights")
  parser.add_argument(
    "--jobs",
    type=jobs_named,
    default=",".join(JOBS),
    help=f"some of {', '.join(JOBS)}, with commas between",
  )
  parser.add_argument("--out", help="new folder for what they write")
  options = parser.parse_args()
  paths = (options.root, options.model)
  given = Given(*(pathlib.Path(path).resolve() for path in paths))
  out = pathlib.Path(options.out or tempfile.mkdtemp()).resolve()
  wheel = build(out / "wheel")
  print(HEADER, flush=True)
  for name, job in options.jobs.items():
    install, spent = do(job, out / (job.after or name), wheel, given)
    print(row(name, job, install, spent), flush=True)
  for folder in out.glob("*/venv"):
    shutil.rmtree(folder)
  print(f"What the commands printed is in {out}/*/work/log.txt")


if __name__ == "__main__":
  main()
