"""Pictures drawn at evaluations, and written for TensorBoard."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import runs
from tests.tiny import random_params
from vit_jax import data
from vit_jax.inspection import attention_maps, canvas, charts, figures
from vit_jax.run.loop import train
from vit_jax.run.plan import make_plan
from vit_jax.run.settings import read
from vit_jax.runtime.display import untracked


@pytest.fixture(scope="module")
def plan(data_dir):
  """A plan for the digits, with parameters split over eight devices."""
  config = runs.config(data_dir, eval_pictures=3, accumulation_steps=1)
  config.mesh.update(data=2, fsdp=4)
  return make_plan(read(config))


@pytest.mark.slow
def test_pictures_are_of_the_model_and_the_whole_split(plan):
  size = plan.preprocessing.image_size
  params = random_params(plan.model, size, 0)
  shapes = jax.tree.map(lambda s: s.sharding, plan.shapes.params)
  split = jax.device_put(params, shapes)
  kernel = split["block_0"]["mlp"]["expand"]["kernel"]
  assert not kernel.is_fully_replicated
  _, seen = plan.evaluation(split, untracked)

  source = data.open_source("eval", plan.settings.data)
  names = source.class_names
  chosen = [0, 179, 358]  # The first, the middle and the last of 359.
  assert sorted(seen) == [
    "eval/confusion",
    *(f"eval/example_{n}" for n in (1, 2, 3)),
  ]
  images = np.stack([_image(plan, source, i) for i in range(len(source))])
  x = jnp.asarray(images / 127.5 - 1, jnp.float32)
  logits = np.asarray(jax.jit(plan.model.apply)({"params": params}, x))
  labels = [example["label"] for example in source]
  for number, index in enumerate(chosen, 1):
    p = np.exp(logits[index] - logits[index].max())
    order = np.argsort(-p)[:5]
    one = x[index : index + 1]
    A = attention_maps.attention_weights(plan.model, params, one)
    name = names[labels[index]]
    sheet = figures.sheet_figure(
      images[index],
      [names[k] for k in order],
      (p / p.sum())[order],
      attention_maps.rollout(A)[0],
      f"Class {name}",
      {name},
    )
    found = seen[f"eval/example_{number}"].astype(int)
    # Colours of the rollout may be rounded otherwise.
    assert np.abs(found - np.asarray(sheet.image)).max() <= 3
  confusion = np.zeros((10, 10), int)
  np.add.at(confusion, (labels, logits.argmax(axis=1)), 1)
  expected = canvas.pixels(charts.confusion_figure(confusion, names))
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
    row.pop("time")
    for key, value in row.items():
      assert scalars[step, key] == pytest.approx(value)


def test_pictures_without_matplotlib_are_refused_first(data_dir, monkeypatch):
  monkeypatch.setitem(sys.modules, "matplotlib", None)
  with pytest.raises(ValueError, match="eval_pictures needs matplotlib"):
    make_plan(read(runs.config(data_dir, eval_pictures=1)))
