"""Measures how long a device waits for its host in a real run.

python scripts/bench/host.py --root FOLDER_OF_CLASS_FOLDERS

Trains S/16 on a folder of images with everything that a run does: decoding,
logging every 10 steps, evaluation and asynchronous checkpoints every 100. Only
the device is simulated. It uses no core and is as asynchronous as an
accelerator: a train step takes --step_ms from the call, or from the end of the
step before it, and an evaluation step takes a third of that. Whenever the
device has nothing to do, it waits for the host. The script prints how long it
waited, as a share of the time that it worked, by what the host was doing.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import numpy as np
from absl import logging

from configs import image_folder
from vit_jax.config import base_config
from vit_jax.run.loop import train
from vit_jax.run.settings import read
from vit_jax.run.train_loop import due
from vit_jax.tasks import classification
from vit_jax.tasks.eval_step import Totals
from vit_jax.training import sharding

LOG_EVERY, SAVE_EVERY = 10, 100
FIRST = 5  # Steps to leave out, in which the workers start.


class Result:
  """Stands in for an array in `jax.block_until_ready` and `jax.device_get`."""

  def __init__(self, ready: float):
    self._ready = ready

  def block_until_ready(self) -> "Result":
    time.sleep(max(0.0, self._ready - time.perf_counter()))
    return self

  def __array__(self, *_) -> np.ndarray:
    self.block_until_ready()
    return np.zeros((), np.float32)

  def __int__(self) -> int:
    return int(self.__array__())


class Device:
  """Executes steps in order, and adds up how long it had nothing to do."""

  def __init__(self, step_seconds: float):
    self.seconds = {"train": step_seconds, "eval": step_seconds / 3}
    self.worked = 0.0
    self.waited: dict[str, float] = {}
    self._free, self._steps, self._last = 0.0, 0, ""

  def run(self, name: str) -> Result:
    now, kind = time.perf_counter(), self._kind(name)
    start = max(now, self._free)
    if self._steps > FIRST:
      idle = self.waited.get(kind, 0.0) + start - self._free
      self.waited[kind] = idle
      self.worked += self.seconds[name]
    self._free, self._last = start + self.seconds[name], name
    self._steps += name == "train"
    return Result(self._free)

  def _kind(self, name: str) -> str:
    """Names the host's work since the last call."""
    if name == "eval":
      return "evaluation" if self._last == "eval" else "to evaluation"
    if self._last == "eval":
      return "to training, and checkpoint"
    return "log" if due(self._steps, LOG_EVERY, 0) else "step"

  def jit_train_step(self, *_, **__) -> Callable:
    names = ("loss", "gradient_norm", "learning_rate")
    counts = ("skipped_images", "skipped_steps")

    def train_step(state, batch):
      jax.block_until_ready(batch)  # The step cannot start without it.
      return state, dict.fromkeys(names + counts, self.run("train"))

    return train_step

  def total_over(
    self, step, params, batches, totals: Totals, observe=None
  ) -> Totals:
    del step, params, observe
    totals, results = jax.tree.map(np.array, totals), []
    for batch in batches:
      totals["count"][0] += np.asarray(batch["mask"]).sum()
      results.append(self.run("eval"))
    results[-1].block_until_ready()
    return totals


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--root", required=True, help="folder of class folders")
  parser.add_argument("--step_ms", type=float, default=100.0)
  parser.add_argument("--batch_size", type=int, default=64)
  parser.add_argument("--steps", type=int, default=400)
  args = parser.parse_args()
  logging.set_verbosity(logging.ERROR)
  config: Any = image_folder.get_config()
  config.data.root = os.path.abspath(args.root)
  config.data.eval_fraction = 0.5
  config.image_size = (224, 224)
  model: Any = base_config().model
  model.variant = "S/16"
  config.model = model
  config.total_steps, config.total_epochs = args.steps, 0.0
  config.batch_size = args.batch_size
  every = {"log": LOG_EVERY, "save": SAVE_EVERY, "eval": SAVE_EVERY}
  for name, steps in every.items():
    config[f"{name}_every_epochs"] = 0.0
    config[f"{name}_every_steps"] = steps
  device = Device(args.step_ms / 1e3)
  with (
    tempfile.TemporaryDirectory() as workdir,
    mock.patch.object(sharding, "jit_train_step", device.jit_train_step),
    mock.patch.object(classification, "total_over", device.total_over),
  ):
    train(read(config), workdir)
  print(f"the device worked for {device.worked:.2f} s; of that it waited:")
  waited = {**device.waited, "in all": sum(device.waited.values())}
  for kind, seconds in waited.items():
    print(f"{kind:>28} {seconds / device.worked:7.2%}")


if __name__ == "__main__":
  main()
