"""Padding and speed of images that keep their proportions, packed or not.

python -m scripts.bench.packing pizza_steak_sushi/train imagenet_samples

Of each folder up to 256 images are taken, whatever its folders are called, and
a small model takes training steps on batches of 32 of them: resized to one
size, each with a row of its own, packed four to a row, and packed with the most
patches of each drawn between a quarter and all. All have as many patches at
most. A row says the share of the patches that is padding, the images a second
of a step, the best of all rounds, in which the ways take turns, and those that
one thread prepares. MFLOP are those of a step's matrix products.
"""

import argparse
import pathlib
import tempfile
import time
from typing import Any

import jax
import numpy as np

from configs import any_size
from vit_jax.data.decoding.decode import image_size
from vit_jax.data.example import UnreadableImageError
from vit_jax.data.transforming.patches import some_shapes
from vit_jax.data.transforming.sizes import AnySize
from vit_jax.estimate.padding import tightest_packing
from vit_jax.run.plan import Plan, make_plan
from vit_jax.run.settings import read
from vit_jax.run.start import fresh_state

HEADER = (
  "| images | rows | padding | MFLOP an image | images/s, step | images/s, one "
  "thread |\n| --- | --- | ---: | ---: | ---: | ---: |"
)
MODEL: dict[str, Any] = dict(
  variant="Ti/16", hidden_size=96, num_layers=4, mlp_size=384, num_heads=3
)
BATCH, IN_ROW, PATCH, MOST = 32, 4, 16, 256
ENDINGS = {".jpg", ".jpeg", ".png"}


def linked(folder: pathlib.Path, place: pathlib.Path) -> str:
  """A folder of two classes with links to images below another one."""
  files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in ENDINGS)
  step = max(1, len(files) // MOST)
  for k, file in enumerate(files[::step][:MOST]):
    try:
      image_size(file.read_bytes())
    except UnreadableImageError:
      continue
    link = place / "ab"[k % 2] / f"{k}{file.suffix}"
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(file.resolve())
  return str(place)


def make(root: str, patches: int, **data: Any) -> Plan:
  """The plan of a run whose images have at most so many patches."""
  c = any_size.get_config()
  side = round(patches**0.5) * PATCH
  c.update(image_size=(side, side), batch_size=BATCH, total_steps=100)
  c.total_epochs, c.eval_every_epochs, c.save_every_epochs = 0.0, 0.0, 0.0
  c.optimizer.update(warmup_epochs=0.0)
  c.data.update({"root": root, "tokens": patches, **data})
  c.loader.num_workers = 0
  c.model.update(MODEL)
  return make_plan(read(c))


def ways(root: str, tokens: int) -> dict[str, Plan]:
  """A plan for each way to fill the rows, by its name."""
  whole = make(root, tokens)
  shapes, size = some_shapes(whole.source), AnySize(tokens, PATCH)
  plans = {"of one size": make(root, tokens, tokens=None), "of one": whole}
  for least in (None, tokens // 4):
    packing = tightest_packing(size, shapes, BATCH // IN_ROW, 0, least)
    rows = {"images_per_row": IN_ROW, "row_tokens": packing.tokens}
    name = f"of {packing.tokens}, {IN_ROW} images each"
    if least is not None:
      name += f", {least} to {tokens} patches an image"
    plans[name] = make(root, tokens, **rows, min_tokens=least)
  return plans


def filled(plan: Plan, count: int) -> tuple[float, float, Any]:
  """The share of padding, images a second of one thread, and a batch."""
  opened: Any = plan.open_batches(0)
  with opened:
    next(opened)
    start = time.perf_counter()
    batches = [dict(next(opened)) for _ in range(count)]
    seconds = time.perf_counter() - start
  padding, one = 0.0, batches[0]
  if "size" in one:
    slots = count * np.prod(one["image"].shape[:2])
    padding = 1 - sum(b["size"].prod(-1).sum() for b in batches) / slots
  return float(padding), count * BATCH / seconds, jax.device_put(one)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("folders", nargs="+", type=pathlib.Path)
  parser.add_argument("--tokens", type=int, default=64)
  parser.add_argument("--rounds", type=int, default=20)
  options = parser.parse_args()
  print(HEADER)
  for folder in options.folders:
    with tempfile.TemporaryDirectory() as place:
      root = linked(folder, pathlib.Path(place))
      plans = ways(root, options.tokens)
      found = {name: filled(plan, 8) for name, plan in plans.items()}
      states = {name: fresh_state(plan) for name, plan in plans.items()}
      best = dict.fromkeys(plans, float("inf"))
      for _ in range(options.rounds):
        for name, plan in plans.items():
          start = time.perf_counter()
          states[name], metrics = plan.jitted_step(states[name], found[name][2])
          jax.block_until_ready(metrics)
          best[name] = min(best[name], time.perf_counter() - start)
    for name, (padding, loaded, _) in found.items():
      speed, work = BATCH / best[name], plans[name].operations.step * 1e3
      cells = f"{padding:.1%} | {work:,.0f} | {speed:,.0f} | {loaded:,.0f}"
      print(f"| {folder} | {name} | {cells} |", flush=True)


if __name__ == "__main__":
  main()
