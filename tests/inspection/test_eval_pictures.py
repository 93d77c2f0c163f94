"""What TensorBoard and Weights & Biases get beside the file of metrics."""

import json
import struct
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import runs
from tests.commands import run
from tests.tiny import random_params
from vit_jax import data
from vit_jax.evaluation.confusion import Tally
from vit_jax.inspection import attention_maps, charts, figures
from vit_jax.run.loop import train
from vit_jax.run.plan import make_plan
from vit_jax.run.settings import read


def logged(path):
  """Rows of a .wandb file: records in blocks, as LevelDB writes its log."""
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
    if kind in (1, 4):  # Whole, or its last part.
      record = Record.FromString(b"".join(parts))
      parts = []
      items = record.history.item
      if items:
        yield {
          i.key or "/".join(i.nested_key): json.loads(i.value_json)
          for i in items
        }


@pytest.fixture(scope="module")
def plan(data_dir):
  """Of the digits, parameters split over eight devices."""
  config = runs.config(data_dir, eval_pictures=3, accumulation_steps=1)
  config.mesh.update(data=2, fsdp=4)
  return make_plan(read(config))


def test_pictures_are_of_the_model_and_the_whole_split(plan, monkeypatch):
  size = plan.preprocessing.image_size
  params = random_params(plan.model, size, 0)
  shapes = jax.tree.map(lambda s: s.sharding, plan.shapes.params)
  split = jax.device_put(params, shapes)
  kernel = split["block_0"]["mlp"]["expand"]["kernel"]
  assert not kernel.is_fully_replicated
  tally = Tally()
  plan.evaluator(split, (), tally.add)
  assert plan.pictures is not None
  sheets, sheet_figure = [], figures.sheet_figure

  def spy(*arguments, **options):
    sheets.append((*arguments, options))
    return sheet_figure(*arguments, **options)

  monkeypatch.setattr(figures, "sheet_figure", spy)
  seen = plan.pictures(split, tally)

  source = data.open_source("eval", plan.settings.data)
  names = source.class_names
  chosen = [0, 179, 358]  # Of 359, from the first to the last.
  assert sorted(seen) == [
    "eval/confusion",
    *(f"eval/example_{n}" for n in (1, 2, 3)),
  ]
  for number, index in enumerate(chosen, 1):
    image = _image(plan, source, index)
    x = jnp.asarray(image[None] / 127.5 - 1, jnp.float32)
    logits = np.asarray(jax.jit(plan.model.apply)({"params": params}, x))[0]
    p = np.exp(logits - logits.max())
    order = np.argsort(-logits)[:5]
    A = attention_maps.attention_weights(plan.model, params, x)
    photo, labels, probabilities, rollout, options = sheets[number - 1]
    np.testing.assert_array_equal(photo, image)
    assert labels == [names[k] for k in order]
    np.testing.assert_allclose(probabilities, (p / p.sum())[order], rtol=1e-4)
    expected = attention_maps.rollout(A)[0]
    np.testing.assert_allclose(rollout, expected, rtol=1e-4)
    assert options == {"title": f"Class {names[source[index]['label']]}"}
    drawn = figures.pixels(sheet_figure(*sheets[number - 1][:4], **options))
    np.testing.assert_array_equal(seen[f"eval/example_{number}"], drawn)
  every = [source[i]["label"] for i in range(len(source))]
  confusion = tally.confusion(range(10))
  np.testing.assert_array_equal(confusion.sum(axis=1), np.bincount(every))
  expected = figures.pixels(charts.confusion_figure(confusion, names))
  np.testing.assert_array_equal(seen["eval/confusion"], expected)


def _image(plan, source, index):
  size = plan.preprocessing.image_size
  transform = data.make_eval_transform(size, plan.settings.eval_transform)
  return transform(source[index]["image"])


@pytest.mark.slow
def test_every_evaluation_shows_them(tmp_path, data_dir):
  workdir = tmp_path / "run"
  train(
    read(runs.config(data_dir, eval_pictures=2, total_steps=6)), str(workdir)
  )
  pictures = [
    (s, tag) for s, tag, v in runs.events(workdir) if v.HasField("image")
  ]
  names = ["eval/example_1", "eval/example_2", "eval/confusion"]
  assert pictures == [(6, name) for name in names]
  scalars = {
    (s, tag): v.simple_value
    for s, tag, v in runs.events(workdir)
    if not v.HasField("image")
  }
  for row in runs.rows(workdir):
    step = row.pop("step")
    for key, value in row.items():
      assert scalars[step, key] == pytest.approx(value)


def test_pictures_without_matplotlib_are_refused_first(data_dir, monkeypatch):
  monkeypatch.setitem(sys.modules, "matplotlib", None)
  with pytest.raises(
    ValueError, match=r"eval_pictures needs matplotlib.*\[fig"
  ):
    make_plan(read(runs.config(data_dir, eval_pictures=1)))


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

  for steps in (10, 20):  # The second goes on.
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
    same = [r for r in found if r["_step"] == step and row.items() <= r.items()]
    assert len(same) == 1
  pictures = [row["_step"] for row in found if "eval/confusion/path" in row]
  images = [row["_step"] for row in found if "eval/example_1/path" in row]
  assert pictures == images == [10, 20]
