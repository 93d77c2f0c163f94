"""Short runs on the digits, with all sources of randomness switched on."""

import contextlib
import io
import json
import pathlib
import struct
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from tensorboardX.proto import event_pb2

from configs import digits
from vit_jax.run import loop
from vit_jax.run.settings import read


def config(data_dir, **changes):
  c = digits.get_config()
  c.update(
    total_epochs=0.0,
    total_steps=12,
    eval_every_epochs=0.0,
    eval_every_steps=6,
    save_every_epochs=0.0,
    save_every_steps=4,
    log_every_steps=3,
    keep_last=5,
    ema_decay=0.9,
    accumulation_steps=2,
    digest_every=2,
  )
  c.data.data_dir = str(data_dir)
  c.train_transform.update(flip=True, randaugment_layers=1)
  c.optimizer.update(warmup_epochs=0.0, warmup_steps=1)
  c.model.update(dropout_rate=0.1, num_layers=1)
  c.loss.mixup_alpha = 0.2
  c.update(changes)
  return c


class Whole(NamedTuple):
  """A run's folder, its last state and evaluation, and what it printed."""

  folder: pathlib.Path
  state: Any
  evaluated: dict[str, Any]
  out: str


def whole(data_dir, folder):
  settings = read(config(data_dir, eval_per_class=True))
  with contextlib.redirect_stdout(io.StringIO()) as out:
    state, evaluated = loop.train(settings, str(folder))
  return Whole(folder, jax.device_get(state), evaluated, out.getvalue())


class Killed(Exception):
  pass


def stop(config, workdir, step):
  """Ends a run by an exception once a step has been saved."""

  def die(number, *_):
    if number == step:
      raise Killed

  with pytest.raises(Killed):
    loop.train(read(config), str(workdir), on_step=[die])


def rows(workdir):
  lines = (workdir / "metrics.jsonl").read_text().splitlines()
  return [json.loads(line) for line in lines]


def losses(workdir):
  """The loss of each row of training."""
  return [row["train/loss"] for row in rows(workdir) if "train/loss" in row]


def events(workdir):
  """Lists (step, tag, value) for everything in a run's TensorBoard files."""
  for path in sorted((workdir / "tensorboard").iterdir()):
    data, start = path.read_bytes(), 0
    while start < len(data):
      (size,) = struct.unpack_from("<Q", data, start)
      start += 12
      event = event_pb2.Event.FromString(data[start : start + size])
      start += size + 4
      for value in event.summary.value:
        yield event.step, value.tag, value


def identical(one, other):
  same = jax.tree.map(lambda a, b: bool(np.array_equal(a, b)), one, other)
  return jax.tree.all(same)
