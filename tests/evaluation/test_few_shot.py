"""Few-shot evaluation: which images are drawn, and that all others count."""

import json
import pathlib
import types
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from tests.commands import run
from vit_jax import data, make_model, make_vit
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.splits import Loader
from vit_jax.evaluation import few_shot as few_shot_module
from vit_jax.evaluation.probe_step import Totals, count_right, without_head
from vit_jax.evaluation.shots import Subset, draw_shots
from vit_jax.models import to_fields
from vit_jax.run.plan import make_few_shot
from vit_jax.run.probe import probe_checkpoint
from vit_jax.run.settings import ProbeSettings, Settings
from vit_jax.runtime.settings import replaced
from vit_jax.training import sharding
from vit_jax.training.state import TrainState
from vit_jax.workdir.checkpoint import Checkpoints

CLASSES = ("blue", "green", "red")
MEAN, STD = (0.4, 0.5, 0.6), (0.3, 0.2, 0.25)


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> str:
  """Noise with a tint: 12, 10 and 8 images to draw from, 11 to test on."""
  folder = tmp_path_factory.mktemp("images")
  rng = np.random.default_rng(0)
  for split, counts in (("train", (12, 10, 8)), ("test", (4, 4, 3))):
    for label, (name, count) in enumerate(zip(CLASSES, counts, strict=True)):
      (folder / split / name).mkdir(parents=True)
      for i in range(count):
        image = rng.normal(128, 60, (8, 8, 3))
        image[..., 2 - label] += 25
        pixels = np.clip(image, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / split / name / f"{i:02}.png")
  return str(folder)


@pytest.fixture(scope="module")
def model_and_params():
  model = make_vit(
    "Ti/4",
    num_classes=5,
    num_layers=1,
    hidden_size=16,
    mlp_size=32,
    num_heads=2,
    representation_size=8,
  )
  init = jax.jit(lambda key: model.init(key, jnp.zeros((1, 8, 8, 3))))
  return model, nn.unbox(init(jax.random.key(0))["params"])


PREPROCESSING = Preprocessing((8, 8), mean=MEAN, std=STD)


def _probe_settings(root):
  return replaced(ProbeSettings(), {"data.root": root, "loader.num_workers": 0})


def _sources(root):
  return [
    data.open_source(split, data.DataSettings(root=root))
    for split in ("train", "eval")
  ]


def _of_sources(
  model, train, test, mesh=None, batch_size=128, on_unreadable="stop", **options
):
  return few_shot_module.FewShot(
    model,
    mesh or sharding.make_mesh(),
    train,
    test,
    PREPROCESSING,
    loader=Loader(on_unreadable=on_unreadable),
    batch_size=batch_size,
    **options,
  )


def _few_shot(root, model, mesh=None, shots=3, seeds=2, **options):
  return _of_sources(
    model, *_sources(root), mesh, shots=shots, seeds=seeds, **options
  )


class Labelled:
  """A source of labels alone, which counts what is read."""

  name = "labelled"

  def __init__(self, labels):
    self._labels = np.array(labels)
    self.class_names = tuple(f"class {k}" for k in range(max(labels) + 1))
    self.reads = 0

  def __len__(self):
    return len(self._labels)

  def __getitem__(self, index):
    self.reads += 1
    label = int(self._labels[index])
    return {"image": b"", "label": label, "id": str(index)}

  def read(self, indices):
    return [self[i] for i in indices]


def test_a_draw_is_of_n_images_of_each_class(root):
  train, _ = _sources(root)
  drawn = draw_shots(train, 4, seed=0)
  assert drawn.shape == (3, 4)
  for label, indices in enumerate(drawn):
    assert len(set(indices)) == 4
    assert (train.labels(indices) == label).all()


def test_a_draw_depends_on_its_seed_alone(root):
  train, _ = _sources(root)
  draws = [draw_shots(train, 4, seed) for seed in range(20)]
  for seed, drawn in enumerate(draws):
    np.testing.assert_array_equal(drawn, draw_shots(train, 4, seed))
  assert len({tuple(np.sort(drawn).flat) for drawn in draws}) == 20
  # Labels that cost no reading give the same as labels that are read.
  again = Labelled(train.labels(range(len(train))))
  again.class_names = train.class_names
  np.testing.assert_array_equal(draws[0], draw_shots(again, 4, 0))


def test_every_image_is_drawn_as_often_as_others():
  source = Labelled([0] * 10 + [1] * 5)
  counts = np.zeros(15)
  for seed in range(400):
    np.add.at(counts, draw_shots(source, 2, seed).ravel(), 1)
  assert np.abs(counts[:10] - 80).max() < 40  # 5 standard deviations
  assert np.abs(counts[10:] - 160).max() < 50


def test_a_draw_reads_no_further_than_needed():
  source = Labelled(np.arange(100_000) % 4)
  draw_shots(source, 5, seed=0)
  assert source.reads == 256


def test_a_class_with_too_few_images_is_named():
  source = Labelled([0] * 4 + [1] * 2 + [2] * 9)
  with pytest.raises(
    ValueError,
    match="^3 shots of each class need as many training images, and in "
    "labelled 'class 1' has 2: choose fewer shots.$",
  ):
    draw_shots(source, 3, seed=0)
  with pytest.raises(ValueError, match="readable .*'class 0' has 2, 'class 1'"):
    draw_shots(source, 3, seed=0, without={0, 1})
  many = Labelled(range(9))
  with pytest.raises(ValueError, match="'class 4' has 1, and 4 more classes h"):
    draw_shots(many, 2, seed=0)


def test_a_subset_is_a_source(root):
  train, _ = _sources(root)
  subset = Subset(train, [7, 2, 20])
  assert len(subset) == 3 and subset.class_names == CLASSES
  assert subset[2] == train[20]
  assert subset.read([0, 2]) == [train[7], train[20]]
  assert subset.read(range(1, 3)) == [train[2], train[20]]


def test_the_representation_is_y_of_equation_4(model_and_params):
  model, params = model_and_params
  body = without_head(model)
  variables = {"params": params}
  y = jax.jit(lambda: body.apply(variables, jnp.ones((2, 8, 8, 3))))()
  assert y.shape == (2, 16)
  outputs = jax.jit(
    lambda: model.apply(
      variables, jnp.ones((2, 8, 8, 3)), capture_intermediates=True
    )
  )()[1]
  norm = outputs["intermediates"]["norm"]["__call__"][0]
  np.testing.assert_allclose(y, norm, rtol=1e-5, atol=1e-6)
  assert without_head(make_model("R50x1", 3)).num_classes == 0


def _features_by_hand(model, params, source):
  """Features and labels of a whole split, in one batch with no padding."""
  images = np.stack([data.decode_rgb(e["image"]) for e in source])
  x = (np.float32(images) / 255 - np.float32(MEAN)) / np.float32(STD)
  body = without_head(model)
  y = jax.jit(lambda: body.apply({"params": params}, jnp.asarray(x)))()
  return np.asarray(y), np.array([e["label"] for e in source])


@pytest.mark.parametrize("batch_size", [8, 128])
def test_every_test_image_counts_once(root, model_and_params, batch_size):
  """11 images: batches are padded to 16 in all, or once to 24."""
  model, params = model_and_params
  few_shot = _few_shot(root, model, batch_size=batch_size)
  probes = few_shot.fit(params)
  outcome = few_shot.measure(params)
  _, test = _sources(root)
  y, labels = _features_by_hand(model, params, test)
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


def test_probes_are_fitted_to_the_shots_alone(root, model_and_params):
  model, params = model_and_params
  train, test = _sources(root)
  few_shot = _of_sources(model, train, test, shots=3, seeds=2)
  test.read = lambda indices: pytest.fail("a test image was read")
  probes = few_shot.fit(params)
  y, _ = _features_by_hand(model, params, train)
  for seed, probe in enumerate(probes):
    shots = y[draw_shots(train, 3, seed)].reshape(-1, 16)
    np.testing.assert_allclose(probe.mean, shots.mean(0), rtol=1e-4, atol=1e-5)


def test_masked_rows_are_not_counted():
  rng = np.random.default_rng(0)
  y, label = rng.normal(size=(8, 4)).astype(np.float32), np.arange(8) % 3
  W = rng.normal(size=(2, 5, 3)).astype(np.float32)
  mean = rng.normal(size=(2, 4)).astype(np.float32)
  scale = rng.uniform(1, 2, (2, 4)).astype(np.float32)
  mask = np.float32([1, 1, 0, 1, 0, 1, 1, 0])
  batch = {"label": label, "mask": mask, "skipped": mask == 0}
  probes = {"mean": mean, "scale": scale, "W": W}
  totals = Totals.zeros(2)
  for _ in range(2):
    totals = jax.jit(count_right)(totals, probes, y, batch)
  z = (y - mean[:, None]) / scale[:, None]
  right = (z @ W[:, :-1] + W[:, -1:]).argmax(-1) == label
  np.testing.assert_array_equal(totals.right, 2 * (right * mask).sum(1))
  assert (int(totals.examples), int(totals.skipped)) == (10, 6)


def test_several_devices_do_as_one(root, model_and_params):
  model, params = model_and_params
  alone = np.array(jax.devices()[:1]).reshape(1, 1, 1)
  meshes = jax.sharding.Mesh(alone, sharding.AXES), sharding.make_mesh(2, 4)
  found = [_few_shot(root, model, mesh).measure(params) for mesh in meshes]
  assert found[0] == found[1]


@pytest.mark.slow
def test_worker_processes_change_nothing(root, model_and_params):
  model, params = model_and_params
  found = [
    _few_shot(
      root, model, batch_size=8, loader=dict(num_workers=workers)
    ).measure(params)
    for workers in (0, 2)
  ]
  assert found[0] == found[1]


def test_unreadable_images_stop_it_or_are_replaced(
  root, model_and_params, tmp_path
):
  model, params = model_and_params
  for file in pathlib.Path(root).rglob("*.png"):
    copy = tmp_path / file.relative_to(root)
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(file.read_bytes())
  train, _ = _sources(str(tmp_path))
  drawn = draw_shots(train, 3, seed=0)
  broken = int(drawn[1, 0])
  pathlib.Path(train[broken]["id"]).write_bytes(b"\x89PNG")
  (tmp_path / "test" / "red" / "00.png").write_bytes(b"")
  few_shot = _few_shot(str(tmp_path), model)
  with pytest.raises(data.UnreadableImageError, match="green/.*not an image"):
    few_shot.measure(params)
  few_shot = _few_shot(str(tmp_path), model, on_unreadable="skip")
  outcome = few_shot.measure(params)
  assert (outcome.examples, outcome.skipped_images) == (10, 1)
  replaced = few_shot._draws[0]
  assert broken not in replaced and replaced.shape == (3, 3)
  np.testing.assert_array_equal(replaced[0], drawn[0])
  assert (train.labels(replaced[1]) == 1).all()


def test_what_does_not_fit_is_said_at_once(root, model_and_params, tmp_path):
  model, _ = model_and_params
  for changes, message in [
    (dict(shots=0), "shots=0 must be 1 or more"),
    (dict(seeds=0), "seeds=0 must be 1 or more"),
    (dict(shots=9), "'red' has 8: choose fewer shots"),
  ]:
    with pytest.raises(ValueError, match=message):
      _few_shot(root, model, **changes)
  train, test = _sources(root)
  test.class_names = ("blue", "red")
  with pytest.raises(ValueError, match="has 3 classes .* 2,.*only: green"):
    _of_sources(model, train, test, shots=1, seeds=1)


def test_a_run_measures_on_its_own_data_or_on_others(
  root, model_and_params, tmp_path
):
  model, params = model_and_params
  mesh, sources = sharding.make_mesh(), _sources(root)

  def made(*sources, **changes):
    settings = replaced(
      Settings(),
      {"loader.num_workers": 0, "fewshot.seeds": 2}
      | {key.replace("__", "."): value for key, value in changes.items()},
    )
    return make_few_shot(settings, model, mesh, PREPROCESSING, *sources)

  assert made(*sources) is None
  own = made(*sources, data__root=root, fewshot__shots=3)
  assert own is not None
  expected = _few_shot(root, model).measure(params)
  assert own.measure(params) == expected
  nowhere = {"data__root": str(tmp_path / "nowhere"), "fewshot__shots": 3}
  other = made(*reversed(sources), **nowhere, fewshot__data__root=root)
  assert other is not None
  assert other.measure(params) == expected


@pytest.fixture(scope="module")
def workdir(model_and_params, tmp_path_factory) -> str:
  """A run's checkpoint of step 3 and of step 4, where all weights are 0."""
  model, params = model_and_params
  folder = str(tmp_path_factory.mktemp("run"))
  config = dict(
    image_size=(8, 8),
    normalization=dict(mean=MEAN, std=STD),
    ema_decay=0.0,
  )
  description = {
    "config": config,
    "model": to_fields(model),
    "class_names": list("abcde"),
  }
  checkpoints = Checkpoints(folder)
  zeros = jax.tree.map(jnp.zeros_like, params)
  for step, saved in ((3, params), (4, zeros)):
    state = TrainState(jnp.int32(step), saved, {"count": jnp.int32(step)})
    checkpoints.save(state, step, description, None)
  checkpoints.close()
  return folder


def test_a_checkpoint_is_given_images_as_it_was_trained(
  root, model_and_params, workdir
):
  model, params = model_and_params
  settings = _probe_settings(root)
  expected = _few_shot(root, model).measure(params)
  found = probe_checkpoint(workdir, settings, shots=3, seeds=2, step=3)
  assert found == expected
  newest = probe_checkpoint(workdir, settings, shots=3, seeds=2)
  assert {draw.top1 for draw in newest.draws} == {4 / 11}  # All are class 0.
  shown: list[tuple[str, str]] = []
  display = types.SimpleNamespace(header=shown.extend)
  options: Any = dict(step=3, image_size=(16, 16), display=display)
  larger = probe_checkpoint(workdir, settings, shots=3, seeds=1, **options)
  assert larger.examples == 11 and larger.top1_std is None
  assert ("model", f"{workdir} at 16 x 16") in shown


def test_the_command_prints_json(root, workdir):
  done = run(
    "vit_jax.fewshot",
    workdir,
    f"--config.data.root={root}",
    "--shots=3",
    "--step=3",
    "--json",
  )
  assert done.returncode == 0, done.stderr
  assert done.stderr == ""
  found = json.loads(done.stdout)
  assert found["shots"] == 3 and found["examples"] == 11
  assert [draw["seed"] for draw in found["draws"]] == [0, 1, 2]
  top1 = [draw["top1"] for draw in found["draws"]]
  assert found["top1"] == pytest.approx(np.mean(top1))
  assert found["top1_std"] == pytest.approx(np.std(top1, ddof=1))


@pytest.mark.parametrize(
  "arguments, message",
  [
    ([], "CHECKPOINT is missing"),
    (["there", "--shots=many"], "flag --shots=many: invalid literal"),
    (["there", "--config.dat.root=x"], "did you mean --config.data.root?"),
    (["there", "--config.total_steps=9"], "config.total_steps is a key of a"),
    (["there", "--config.batch_size=many"], "flag --config.batch_size=many"),
    (["there", "--image_size=1,2,3"], "--image_size=1,2,3: give a side in"),
  ],
)
def test_bad_input_is_one_line(arguments, message):
  done = run("vit_jax.fewshot", *arguments)
  assert done.returncode == 2
  assert message in done.stderr
  assert done.stderr.startswith("error: ")
  assert done.stderr.count("\n") == 1
