"""Weights & Biases gets the rows and pictures that the workdir gets."""

import json
import struct
import sys

import pytest

from tests import runs
from tests.commands import run
from vit_jax.run.plan import make_plan
from vit_jax.run.settings import read


def logged(path):
  """Rows of a .wandb file, whose records are in blocks like LevelDB's log."""
  from wandb.proto.wandb_internal_pb2 import Record

  block, header = 32768, struct.Struct("<IHB")
  data, start, parts = path.read_bytes(), 7, []
  while start < len(data):
    left = block - start % block
    if left < header.size:
      start += left
      continue
    _, size, kind = header.unpack_from(data, start)
    start += header.size
    parts.append(data[start : start + size])
    start += size
    if kind in (1, 4):  # A whole record, or its last part.
      record = Record.FromString(b"".join(parts))
      parts = []
      items = record.history.item
      if items:
        yield {
          i.key or "/".join(i.nested_key): json.loads(i.value_json)
          for i in items
        }


def test_wandb_that_is_missing_is_refused_first(data_dir, monkeypatch):
  monkeypatch.setitem(sys.modules, "wandb", None)
  with pytest.raises(ValueError, match=r"wandb_project needs wandb.*\[wandb\]"):
    make_plan(read(runs.config(data_dir, wandb_project="p")))


@pytest.mark.slow
def test_wandb_offline_has_the_same_rows(tmp_path, data_dir):
  pytest.importorskip("wandb")
  workdir = tmp_path / "run"

  def start(steps, **environment):
    return run(
      "vit_jax.train",
      "--config=configs/digits.py",
      f"--workdir={workdir}",
      f"--config.data.data_dir={data_dir}",
      "--config.total_epochs=0",
      f"--config.total_steps={steps}",
      "--config.optimizer.warmup_epochs=0",
      "--config.log_every_steps=5",
      "--config.eval_every_epochs=0",
      "--config.eval_every_steps=10",
      "--config.eval_pictures=1",
      "--config.wandb_project=tests",
      "--allow_changes",
      **environment,
    )

  refused = start(10, WANDB_API_KEY="", HOME=str(tmp_path))
  assert refused.returncode == 2, refused.stderr
  assert refused.stderr.startswith("error: wandb_project='tests': ")
  assert "WANDB_MODE=offline" in refused.stderr
  assert refused.stderr.count("\n") == 1

  for steps in (10, 20):  # The second start resumes the run.
    done = start(steps, WANDB_MODE="offline")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert "wandb    offline, in " in done.stdout
  names = sorted(workdir.glob("wandb/offline-run-*/*.wandb"))
  assert len(names) == 2
  run_id = (workdir / "wandb_id").read_text()
  assert {path.name for path in names} == {f"run-{run_id}.wandb"}
  found = [row for path in names for row in logged(path)]
  for row in runs.rows(workdir):
    step = row.pop("step")
    row.pop("time")
    same = [r for r in found if r["_step"] == step and row.items() <= r.items()]
    assert len(same) == 1
  pictures = [row["_step"] for row in found if "eval/confusion/path" in row]
  images = [row["_step"] for row in found if "eval/example_1/path" in row]
  assert pictures == images == [10, 20]
