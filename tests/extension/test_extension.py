"""Objectives in files of somebody's own, as they come to no other file.

Each file beside this one is what a user would write, and is trained, resumed,
estimated, evaluated and verified as the package's own tasks are.
"""

import csv
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import traverse_util
from PIL import Image

from configs import image_folder
from tests import runs
from tests.image_files import encode
from vit_jax import init_params
from vit_jax.data.example import Example
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.settings import TrainTransformSettings
from vit_jax.estimate import compiler
from vit_jax.models.parts import Parts
from vit_jax.pretrained.load import load_pretrained
from vit_jax.run import loop
from vit_jax.run.experiments.replay import verify
from vit_jax.run.plan import make_plan
from vit_jax.run.saved import evaluate_checkpoint
from vit_jax.run.settings import read
from vit_jax.runtime.settings import replaced
from vit_jax.tasks.choose import task_class
from vit_jax.training import sharding
from vit_jax.training.optimizer import make_optimizer, map_paths
from vit_jax.training.settings import OptimizerSettings

HERE = pathlib.Path(__file__).parent
TASKS = {
  "autoencoder": "AutoencoderTask",
  "padded": "PaddedTask",
  "pairs": "PairsTask",
}
COLOURS = ("red", "green", "blue")
SIDES = ((32, 32), (32, 16), (16, 32))
every_task = pytest.mark.parametrize("name", TASKS)


def place(name):
  return f"{HERE / name}.py:{TASKS[name]}"


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
  """Pictures of three colours and three proportions, with captions."""
  root, rng = tmp_path_factory.mktemp("extension"), np.random.default_rng(0)
  with (root / "captions.csv").open("w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["file", "caption", "split"])
    for split, count in (("train", 24), ("val", 9)):
      for k in range(count):
        colour, (h, w) = k % 3, SIDES[k // 3 % 3]
        pixels = rng.integers(0, 60, (h, w, 3)).astype(np.uint8)
        pixels[..., colour] += 150
        path = root / split / COLOURS[colour] / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
        shape = ("square", "tall", "wide")[k // 3 % 3]
        caption = f"a {COLOURS[colour]} {shape} picture"
        rows.writerow([path.relative_to(root), caption, split])
  return root


def config(name, photos, **changes):
  c = image_folder.get_config()
  c.update(
    total_epochs=0.0,
    total_steps=18,
    batch_size=8,
    image_size=(32, 32),
    log_every_epochs=0.0,
    log_every_steps=1,
    eval_every_epochs=0.0,
    eval_every_steps=18,
    save_every_epochs=0.0,
    save_every_steps=9,
    digest_every=1,
    ema_decay=0.9,
  )
  c.data.task = place(name)
  if name == "pairs":
    c.data.labels_file = str(photos / "captions.csv")
  else:
    c.data.root = str(photos)
  c.loss.label_smoothing = 0.0
  c.loader.num_workers = 0
  c.optimizer.update(warmup_epochs=0.0, warmup_steps=1, layer_decay=0.9)
  c.model.update(num_layers=2, hidden_size=32, mlp_size=64, dropout_rate=0.1)
  c.update(changes)
  return c


@pytest.fixture(scope="module")
def run(request, photos, tmp_path_factory):
  """A whole run of a task."""
  folder = tmp_path_factory.mktemp("runs") / request.param
  state, evaluated = loop.train(
    read(config(request.param, photos)), str(folder)
  )
  return request.param, folder, jax.device_get(state), evaluated


@pytest.mark.parametrize("run", TASKS, indirect=True, scope="module")
@pytest.mark.slow
def test_a_task_is_trained_resumed_evaluated_and_verified(
  run, photos, tmp_path, capsys
):
  name, folder, state, evaluated = run
  steps = runs.losses(folder)
  assert np.mean(steps[-6:]) < np.mean(steps[:6])
  found = evaluate_checkpoint(str(folder), task=place(name))
  assert f"eval/{task_class(place(name)).scores.best}" in found
  for key, value in found.items():
    if key in evaluated:
      assert value == pytest.approx(evaluated[key], rel=1e-5), key
  assert verify(str(folder), trust=True)
  again = config(name, photos)
  runs.stop(again, tmp_path, step=9)
  resumed, _ = loop.train(read(again), str(tmp_path))
  assert runs.identical(jax.device_get(resumed), state)
  # What leaves the run is a plain encoder, which needs no file of the user's.
  model, params = load_pretrained(str(folder), task=place(name))
  images = jnp.zeros((1, 32, 32, 3))
  assert model.apply({"params": params}, images).shape[0] == 1
  capsys.readouterr()


@pytest.mark.slow
@every_task
def test_eight_devices_share_the_parameters(name, photos, tmp_path):
  """By FSDP, with the losses of one device."""
  changes = {"total_steps": 4, "eval_every_steps": 4, "save_every_steps": 4}
  settings = config(name, photos, **changes)
  settings.model.dropout_rate = 0.0
  make_mesh = sharding.make_mesh

  def on_one(**axes):
    return make_mesh(devices=jax.devices()[:1])

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(sharding, "make_mesh", on_one)
    loop.train(read(settings), str(tmp_path / "one"))
  settings.mesh.update(data=1, fsdp=8)
  state, _ = loop.train(read(settings), str(tmp_path / "eight"))
  split = [
    leaf
    for leaf in jax.tree.leaves(state.params)
    if "fsdp" in leaf.sharding.spec
  ]
  assert len(split) > 10
  shares = [leaf.addressable_shards[0].data.size * 8 for leaf in split]
  assert shares == [leaf.size for leaf in split]
  np.testing.assert_allclose(
    runs.losses(tmp_path / "eight"), runs.losses(tmp_path / "one"), rtol=1e-4
  )


@pytest.mark.slow
@every_task
def test_a_task_is_estimated(name, photos):
  settings = replaced(read(config(name, photos)), {"model.num_layers": 1})
  (found,) = compiler.lower(settings, jax.devices()[:2], 3, 24)
  arrays = {
    "autoencoder": ["8x32x32x3xui8"],
    "padded": ["8x32x32x3xui8", "8x16xi1"],
    "pairs": ["8x32x32x3xui8", "8x6xi32"],
  }
  for array in arrays[name]:
    assert f"tensor<{array}>" in found.step.as_text()
  assert found.gflops > 0


def model_of(name, **changes):
  from vit_jax import make_vit

  fields = dict(
    num_layers=2, hidden_size=32, mlp_size=64, num_heads=2, pooling="gap"
  )
  model = make_vit("Ti/8", 0 if name != "padded" else 3, **fields | changes)
  return task_class(place(name))().adapted(model)


def test_the_encoder_sees_a_quarter_of_the_tokens():
  """By the shapes of its layers, and by operations."""
  model = model_of("autoencoder")
  images = jnp.zeros((2, 32, 32, 3))
  _, seen = jax.eval_shape(
    lambda: model.apply(
      {"params": init_params(model, jax.random.key(0), 32)},
      images,
      capture_intermediates=True,
      mutable="intermediates",
    )
  )
  seen = seen["intermediates"]
  assert seen["block_1"]["__call__"][0].shape == (2, 4, 32)  # Of 16.
  assert seen["decoder"]["block_1"]["__call__"][0].shape == (2, 16, 16)


@pytest.mark.slow
def test_layer_decay_and_muon_are_right_for_both_stacks():
  model = model_of("autoencoder")
  params = init_params(model, jax.random.key(0), 32)
  parts = Parts.of(model, params)
  depths = {}
  map_paths(lambda path, _: depths.update({path: parts.depth(path)}), params)
  by_hand = {
    "decoder/predict/kernel": 0,
    "decoder/norm/scale": 0,
    "decoder/block_1/mlp/expand/kernel": 1,
    "decoder/block_0/mlp/expand/kernel": 2,
    "decoder/embed/kernel": 3,
    "norm/scale": 3,
    "block_1/mlp/expand/kernel": 4,
    "block_0/mlp/expand/kernel": 5,
    "patches/E/kernel": 6,
  }
  assert by_hand == {path: depths[path] for path in by_hand}
  options = OptimizerSettings(kind="muon", weight_decay=0.0)
  tx = make_optimizer(options, optax.constant_schedule(1.0), parts=parts)
  rng = np.random.default_rng(0)
  grads = jax.tree.map(
    lambda x: jnp.array(rng.normal(size=x.shape).astype(np.float32)), params
  )
  paths = [f"{k}/mlp/expand/kernel" for k in ("decoder/block_0", "block_0")]

  @jax.jit
  def kernels(grads):  # XLA leaves out what is made of the other arrays.
    updates, _ = tx.update(grads, tx.init(params), params)
    return [traverse_util.flatten_dict(updates, sep="/")[k] for k in paths]

  for kernel in kernels(grads):
    singular = np.linalg.svd(np.asarray(kernel), compute_uv=False)
    assert singular.min() > 0.5 * singular.max()  # About orthogonal.


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["gap", "token"])
def test_padding_changes_nothing(pooling):
  """Not what it shows, and not how much of it there is."""
  model = model_of("padded", pooling=pooling, position="none")
  small = {"image": np.zeros((1, 16, 32, 3), np.float32)}
  rng = np.random.default_rng(0)
  small["image"][:] = rng.normal(size=small["image"].shape)
  real = np.zeros((1, 4, 4), bool)
  real[:, :2] = True
  padded = rng.normal(size=(1, 32, 32, 3)).astype(np.float32) * 1e6
  padded[:, :16] = small["image"]
  params = init_params(model, jax.random.key(0), 32)
  params["head"]["kernel"] = rng.normal(size=(32, 3)).astype(np.float32)
  params["patch_head"]["kernel"] = params["head"]["kernel"]
  objective = task_class(place("padded"))().objective(
    model, Preprocessing((32, 32))
  )
  target = jnp.eye(3)[:1]

  def loss_of(params, image, real):
    outputs = model.apply({"params": params}, (image, real))
    return objective.loss_and_score(outputs, target)[0].sum()

  gradient = jax.jit(jax.value_and_grad(loss_of))
  one = gradient(params, jnp.array(padded), jnp.array(real.reshape(1, 16)))
  shown = jnp.array(small["image"])
  other = gradient(params, shown, jnp.ones((1, 8), bool))
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6),
    one,
    other,
  )


def test_images_keep_their_proportions():
  padded = task_class(place("padded"))()
  transform = padded.train_transform(
    Preprocessing((32, 32)), TrainTransformSettings()
  )
  for h, w in SIDES:
    file = encode(Image.new("RGB", (w, h)), "PNG")
    row = transform.row(Example(image=file, label=0, id="x"))
    scale = 32 // max(h, w)
    expected = np.zeros((4, 4), bool)
    expected[: h * scale // 8, : w * scale // 8] = True
    np.testing.assert_array_equal(row["real"].reshape(4, 4), expected)


@pytest.mark.parametrize("size", [8, 16])
def test_a_loss_over_the_batch_is_not_computed_in_parts(photos, size):
  """No size of the batch is advised first, with which it would be refused."""
  accumulated = config("pairs", photos, accumulation_steps=2, batch_size=size)
  with pytest.raises(ValueError, match="accumulation_steps=2 computes a batch"):
    make_plan(read(accumulated))


def test_each_file_is_short():
  for name in TASKS:
    lines = (HERE / f"{name}.py").read_text().splitlines()
    assert len(lines) < 150
