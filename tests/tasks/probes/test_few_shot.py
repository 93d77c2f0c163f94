"""Few-shot evaluation on small images, against features taken by hand."""

import json
import pathlib

import jax
import numpy as np
import pytest

from tests import tinted
from vit_jax import data
from vit_jax.data.batching.loader import Loader
from vit_jax.data.reading.sources import Splits
from vit_jax.run import evaluation
from vit_jax.run.build import task_of
from vit_jax.run.settings import Settings
from vit_jax.runtime.display import untracked
from vit_jax.runtime.settings import replaced
from vit_jax.tasks.metrics import Measure, Metric
from vit_jax.tasks.probes.few_shot import count_right
from vit_jax.tasks.probes.linear_probe import fit_shots
from vit_jax.tasks.probes.shots import draw_shots
from vit_jax.training import sharding


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [8, 128])
def test_every_test_image_counts_once(tinted_root, tinted_model, batch_size):
  """The 11 images are padded to two batches of 8, or to one batch of 24."""
  model, params = tinted_model
  few_shot = tinted.few_shot(tinted_root, model, batch_size=batch_size)
  probes = [fit_shots(y) for y in few_shot.read_shots(params)]
  outcome = few_shot.measure(params)
  _, test = tinted.sources(tinted_root)
  y, labels = tinted.features_by_hand(model, params, test)
  assert outcome.examples == 11 and outcome.skipped_images == 0
  for draw, probe in zip(outcome.draws, probes, strict=True):
    assert draw.top1 == pytest.approx((probe.predict(y) == labels).mean())
    assert draw.l2 == probe.l2
  top1 = [draw.top1 for draw in outcome.draws]
  assert outcome.top1 == pytest.approx(np.mean(top1))
  assert outcome.top1_std == pytest.approx(np.std(top1, ddof=1))
  metrics = few_shot(params)
  assert metrics["fewshot/top1"] == outcome.top1
  assert metrics["fewshot/top1_std"] == outcome.top1_std
  assert list(metrics["fewshot/l2_by_seed"]) == ["0", "1"]
  json.dumps(metrics)


def test_probes_are_fitted_to_the_shots_alone(tinted_root, tinted_model):
  model, params = tinted_model
  train, test = tinted.sources(tinted_root)
  few_shot = tinted.few_shot_on(model, train, test, shots=3, seeds=2)
  test.read = lambda indices: pytest.fail("a test image was read")
  probes = [fit_shots(y) for y in few_shot.read_shots(params)]
  y, _ = tinted.features_by_hand(model, params, train)
  for seed, probe in enumerate(probes):
    shots = y[draw_shots(train, 3, seed)].reshape(-1, y.shape[1])
    np.testing.assert_allclose(probe.mean, shots.mean(0), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_several_devices_do_as_one(tinted_root, tinted_model):
  model, params = tinted_model
  alone = np.array(jax.devices()[:1]).reshape(1, 1, 1)
  meshes = jax.sharding.Mesh(alone, sharding.AXES), sharding.make_mesh(2, 4)
  found = [
    tinted.few_shot(tinted_root, model, mesh).measure(params) for mesh in meshes
  ]
  assert found[0] == found[1]


@pytest.mark.slow
def test_several_numbers_of_shots_are_as_many_evaluations(
  tinted_root, tinted_model
):
  model, params = tinted_model
  found = tinted.few_shot(tinted_root, model).measure_each(params, (1, 3))
  for shots, outcome in zip((1, 3), found, strict=True):
    alone = tinted.few_shot(tinted_root, model, shots=shots).measure(params)
    for own, other in zip(outcome.draws, alone.draws, strict=True):
      assert (own.seed, own.top1) == (other.seed, other.top1)
      assert own.l2 == pytest.approx(other.l2)
    assert outcome.examples == alone.examples == 11


@pytest.mark.slow
def test_worker_processes_change_nothing(tinted_root, tinted_model):
  model, params = tinted_model
  found = [
    tinted.few_shot(
      tinted_root, model, batch_size=8, loader=Loader(num_workers=workers)
    ).measure(params)
    for workers in (0, 2)
  ]
  assert found[0] == found[1]


def test_unreadable_images_stop_it_or_are_replaced(
  tinted_root, tinted_model, tmp_path
):
  model, params = tinted_model
  for file in pathlib.Path(tinted_root).rglob("*.png"):
    copy = tmp_path / file.relative_to(tinted_root)
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(file.read_bytes())
  train, _ = tinted.sources(str(tmp_path))
  drawn = draw_shots(train, 3, seed=0)
  broken = int(drawn[1, 0])
  pathlib.Path(train[broken]["id"]).write_bytes(b"\x89PNG")
  (tmp_path / "test" / "red" / "00.png").write_bytes(b"")
  few_shot = tinted.few_shot(str(tmp_path), model)
  with pytest.raises(data.UnreadableImageError, match="green/.*not an image"):
    few_shot.measure(params)
  skip = Loader(on_unreadable="skip")
  few_shot = tinted.few_shot(str(tmp_path), model, loader=skip)
  outcome = few_shot.measure(params)
  assert (outcome.examples, outcome.skipped_images) == (10, 1)
  replaced = few_shot.drawn[0]
  assert broken not in replaced and replaced.shape == (3, 3)
  np.testing.assert_array_equal(replaced[0], drawn[0])
  assert (train.labels(replaced[1]) == 1).all()


def test_arguments_that_do_not_fit_are_refused_at_once(
  tinted_root, tinted_model, tmp_path
):
  model, _ = tinted_model
  for changes, message in [
    (dict(shots=0), "shots=0 must be 1 or more"),
    (dict(seeds=0), "seeds=0 must be 1 or more"),
    (dict(shots=9), "'red' has only 8: choose fewer shots"),
  ]:
    with pytest.raises(ValueError, match=message):
      tinted.few_shot(tinted_root, model, **changes)
  train, test = tinted.sources(tinted_root)
  test.class_names = ("blue", "red")
  with pytest.raises(
    ValueError, match="has 3 classes .* 2,.*alone has .*green"
  ):
    tinted.few_shot_on(model, train, test, shots=1, seeds=1)


@pytest.mark.slow
def test_a_run_measures_on_its_own_data_or_on_others(
  tinted_root, tinted_model, tmp_path, monkeypatch
):
  model, params = tinted_model
  mesh, sources = sharding.make_mesh(), tinted.sources(tinted_root)

  def made(*sources, **changes):
    settings = replaced(
      Settings(),
      {"loader.num_workers": 0, "fewshot.seeds": 2}
      | {key.replace("__", "."): value for key, value in changes.items()},
    )
    own_splits = Splits(*sources, test=None, found="", warnings=[])
    task = task_of(settings)
    settings, splits = evaluation.probe_data(settings, own_splits)
    probes = evaluation.make_probes(
      settings, task, model, mesh, tinted.PREPROCESSING, splits
    )
    (measure, *others) = probes.values()
    neighbours = others[0](params, untracked) if others else {}
    return measure(params, untracked) | neighbours

  own = made(*sources, data__root=tinted_root, fewshot__shots=3)
  assert own == tinted.few_shot(tinted_root, model)(params)
  nowhere = {"data__root": str(tmp_path / "nowhere"), "fewshot__shots": 3}
  y_of_equation_4 = {
    "fewshot__data__root": tinted_root,
    "fewshot__pre_logits": False,
  }
  opened, opener = [], evaluation.open_splits
  monkeypatch.setattr(
    evaluation, "open_splits", lambda data: opened.append(data) or opener(data)
  )
  y_of_equation_4["fewshot__neighbours"] = 3
  other = made(*reversed(sources), **nowhere, **y_of_equation_4)
  assert 0 <= other.pop("knn/top1") <= 1 and len(opened) == 1
  assert other == tinted.few_shot(tinted_root, model, pre_logits=False)(params)


def test_masked_rows_are_not_counted():
  rng = np.random.default_rng(0)
  y, label = rng.normal(size=(8, 4)).astype(np.float32), np.arange(8) % 3
  W = rng.normal(size=(2, 5, 3)).astype(np.float32)
  mean = rng.normal(size=(2, 4)).astype(np.float32)
  scale = rng.uniform(1, 2, (2, 4)).astype(np.float32)
  mask = np.float32([1, 1, 0, 1, 0, 1, 1, 0])
  batch = {"label": label, "mask": mask, "skipped": mask == 0}
  probes = {"mean": mean, "scale": scale, "W": W}
  count = jax.jit(count_right)
  found = jax.device_get(count(probes, y, batch))
  one = Metric(Measure(count, dict), found)
  totals = (one + one).result()
  z = (y - mean[:, None]) / scale[:, None]
  right = (z @ W[:, :-1] + W[:, -1:]).argmax(-1) == label
  np.testing.assert_array_equal(totals["correct"], 2 * (right * mask).sum(1))
  assert (int(totals["examples"]), int(totals["skipped"])) == (10, 6)
