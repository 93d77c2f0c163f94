"""`vit_jax.train` in Python on data of every task."""

import math
import types

import jax
import numpy as np
import pytest

import vit_jax
from tests.inspection.test_data_sheet_tasks import KINDS
from vit_jax.run import in_python
from vit_jax.tasks import choose
from vit_jax.tasks.table import ALL_TASKS, SECTIONS

SIZES = {"num_layers": 1, "hidden_size": 32, "mlp_size": 32, "num_heads": 2}
TINY = {
  "image_size": 16,
  "model": {**SIZES, "patch_size": 4},
  "batch_size": 2,
  "total_steps": 2,
  "eval_every_steps": 2,
  "loader": {"num_workers": 0},
}
HEADS = {"head_size": 16, "bottleneck": 8, "prototypes": 16}
# What is given beside the data, where these do not say the task.
KEYWORDS = {
  "masked": {"config": "masked_patches"},
  "autoencoder": {
    "config": "mae",
    "autoencoder": {
      "decoder_size": 16,
      "decoder_layers": 1,
      "decoder_heads": 2,
    },
  },
  "student": {"config": "student"},
  "self_distillation": {
    "config": "dino",
    "self_distillation": {**HEADS, "small_size": 8, "small_crops": 2},
  },
  "lejepa": {
    "config": "lejepa",
    "lejepa": {"small_size": 8, "small_crops": 2, "projector_size": 8},
  },
  "pairs": {"pairs": {"text_layers": 1, "text_size": 16, "text_heads": 2}},
  "segmentation": {"config": "segmentation"},
  "dense_regression": {"config": "dense_regression"},
}


def arguments(tmp_path, name, weights=None):
  """The data of a task, and what is given beside them."""
  kind = choose.task_class(name)().labels
  root = tmp_path / name
  root.mkdir()
  place = KINDS[type(kind)][0](root)
  if name == "regression":
    text = place.read_text()
    place.write_text(text.replace("7,9", "7,8"))  # R2 needs some variance.
  keywords = {**TINY, **KEYWORDS.get(name, {})}
  if name == "student":
    keywords["distill"] = {"teacher": weights}
  if name in ("segmentation", "dense_regression"):
    keywords["pretrained"] = weights
  return place, {"workdir": str(tmp_path / f"run_{name}"), **keywords}


@pytest.mark.parametrize("name", ALL_TASKS)
def test_the_data_and_the_keywords_choose_the_task(tmp_path, monkeypatch, name):
  calls = []

  def train(settings, workdir, **_):
    calls.append(settings)
    return types.SimpleNamespace(step=0), {}

  monkeypatch.setattr(in_python, "train", train)
  place, keywords = arguments(tmp_path, name, weights="runs/teacher")
  vit_jax.train(place, **keywords)
  ((settings),) = calls
  sections = {key: getattr(settings, key) for key in SECTIONS}
  sections |= {"loss": settings.loss}
  assert choose.configured(settings.data.task, sections).name == name


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL_TASKS)
def test_a_run_of_every_task(tmp_path, monkeypatch, name):
  """It measures the score of its task, and loads as a model of its task."""
  monkeypatch.chdir(tmp_path)
  one = jax.devices()[:1]  # For batches as small as the data.
  monkeypatch.setattr(jax, "devices", lambda *_: one)
  weights = None
  if name in ("student", "segmentation", "dense_regression"):
    place, keywords = arguments(tmp_path, "classification")
    weights = vit_jax.train(place, **keywords).workdir
  place, keywords = arguments(tmp_path, name, weights)
  run = vit_jax.train(place, **keywords)
  task = choose.task_class(name)()
  assert run.step == 2
  assert math.isfinite(run.metrics[task.scores.key])
  assert f"{task.scores.key}=" in repr(run)
  loaded = run.load()
  assert loaded.task.name == name
  image = np.zeros((20, 20, 3), np.uint8)
  assert np.isfinite(loaded.features(image)).all()
  if loaded.model.num_classes:
    assert len(loaded.predict(image)) == 1
  again = vit_jax.evaluate(run)[task.scores.key]
  assert again == pytest.approx(run.metrics[task.scores.key], abs=1e-6)
