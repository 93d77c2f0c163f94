"""Runs whose images share rows: the same steps as with a row for each."""

import contextlib
import io

import jax
import numpy as np
import pytest
from PIL import Image

from configs import image_folder
from tests import runs
from tests.tiny import compilations
from vit_jax.models import make_model
from vit_jax.run import any_size, loop
from vit_jax.run.plan import make_plan
from vit_jax.run.settings import read
from vit_jax.run.start import fresh_state
from vit_jax.run.summary import header
from vit_jax.tasks.choose import task_class
from vit_jax.tasks.table import ALL_TASKS
from vit_jax.training import sharding

SHAPES = ((20, 20), (40, 20), (20, 40), (90, 10), (10, 70), (33, 29))
PACKED = {"images_per_row": 2, "row_tokens": 24}
CROWDED = {"images_per_row": 2, "row_tokens": 15, "min_tokens": 3}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
  """Photographs of six proportions, and a file of labels for each task."""
  root = tmp_path_factory.mktemp("packed")
  lines = {
    "classification": ["file,split,label"],
    "multilabel": ["file,split,red,wide"],
    "regression": ["file,split,height,width"],
    "pairs": ["file,split,caption"],
  }
  for split in ("train", "test"):
    for name, colour in (("red", 0), ("green", 1)):
      for k in range(12):
        height, width = SHAPES[k % 6]
        path = root / split / name / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        draw = np.random.default_rng((k, colour, len(split)))
        pixels = draw.integers(0, 120, (height, width, 3), np.uint8)
        pixels[..., colour] += 130
        Image.fromarray(pixels).save(path)
        start = f"{split}/{name}/{k}.png,{split},"
        lines["classification"].append(f"{start}{name}")
        two = f"{int(colour == 0)},{int(width > 30)}"
        lines["multilabel"].append(start + two)
        lines["regression"].append(f"{start}{height},{width}")
        lines["pairs"].append(f"{start}{name} {height} by {width}")
  for task, rows in lines.items():
    (root / f"{task}.csv").write_text("\n".join(rows))
  return root


@pytest.fixture
def config(photos):
  c = image_folder.get_config()
  c.update(total_epochs=0.0, total_steps=4, batch_size=16, image_size=(24, 24))
  c.update(eval_every_epochs=0.0, save_every_epochs=0.0, save_every_steps=2)
  c.update(digest_every=1, log_every_steps=1, log_every_epochs=0.0)
  c.data.update(root=str(photos), tokens=12)
  c.model.update(
    variant="Ti/8", hidden_size=24, num_layers=1, mlp_size=32, num_heads=2
  )
  c.optimizer.update(warmup_epochs=0.0, warmup_steps=1)
  c.loss.mixup_alpha = 0.0
  c.loader.num_workers = 0
  return c


def of_task(config, task):
  if task == "autoencoder":
    config.autoencoder.update(
      rate=0.5, decoder_size=8, decoder_layers=1, decoder_heads=2
    )
    config.data.labels = False
    config.loss.label_smoothing = 0.0
    return
  config.data.update(
    task=task, labels_file=f"{config.data.root}/{task}.csv", root=None
  )
  if task == "classification":
    config.data.update(labels_file=None, root=config.data.labels_file[:-19])
  else:
    config.loss.label_smoothing = 0.0
  if task == "pairs":
    config.pairs.update(text_size=8, text_layers=1, text_heads=2)
    config.pairs.update(text_length=6, vocabulary=40)


def steps(config, monkeypatch, axes=None, count=1, **changes):
  """The state and the metrics after a few steps on some of the devices."""
  axes = {"data": 1, "fsdp": 1, "tensor": 1} | (axes or {})
  devices = jax.devices()[: int(np.prod([*axes.values()]))]
  config.mesh.update(axes)
  config.data.update(changes)
  make_mesh = sharding.make_mesh
  with monkeypatch.context() as patch:
    patch.setattr(
      sharding,
      "make_mesh",
      lambda **given: make_mesh(**{**given, "devices": devices}),
    )
    plan = make_plan(read(config))
    state, found = fresh_state(plan), []
    rows = sharding.batch_sharding(plan.mesh)
    with plan.open_batches(0) as batches:
      on_device = sharding.to_device(batches, rows, 1)
      for _, batch in zip(range(count), on_device, strict=False):
        state, metrics = plan.jitted_step(state, batch)
        found.append(jax.device_get(metrics))
  return jax.device_get(state), found


def assert_close(one, other, atol=1e-5):
  for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize(
  "task", ["classification", "multilabel", "regression", "pairs"]
)
def test_packed_is_padded(config, monkeypatch, task):
  """Loss, score, gradient and the parameters after SGD."""
  of_task(config, task)
  config.optimizer.update(kind="sgd", momentum=0.0, clip_norm=0.0)
  padded, (one,) = steps(config, monkeypatch)
  packed, (other,) = steps(config, monkeypatch, **PACKED)
  assert_close(one, other)
  assert_close(padded.params, packed.params)
  moved = jax.tree.map(lambda x, y: np.abs(x - y).max(), padded, packed)
  assert jax.tree.reduce(max, moved.params) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
  "task, changes",
  [
    ("classification", {}),
    ("classification", PACKED),
    *[(task, CROWDED) for task in ("classification", "pairs", "autoencoder")],
  ],
)
def test_eight_devices_and_parts_are_one(config, monkeypatch, task, changes):
  """Rows hold different numbers of images, by which parts are weighed."""
  of_task(config, task)
  config.optimizer.update(kind="sgd", momentum=0.0, clip_norm=0.0)
  state, one = steps(config, monkeypatch, count=2, **changes)
  for axes in ({"data": 8}, {"fsdp": 8}, {"data": 2, "fsdp": 2, "tensor": 2}):
    found, other = steps(config, monkeypatch, axes, count=2, **changes)
    assert_close(one, other)
    assert_close(state.params, found.params)
  config.accumulation_steps = 4
  if task == "autoencoder":  # Its score is a share of the part's variance.
    one = [{**metrics, "explained": 0} for metrics in one]
  found, other = steps(config, monkeypatch, count=2, **changes)
  if task == "autoencoder":
    other = [{**metrics, "explained": 0} for metrics in other]
  assert_close(one, other)
  assert_close(state.params, found.params)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classification", "pairs", "autoencoder"])
def test_a_packed_run_resumes_to_the_bit(config, tmp_path, task):
  of_task(config, task)
  config.data.update(CROWDED)
  config.eval_every_steps = 4
  with contextlib.redirect_stdout(io.StringIO()) as out:
    whole, evaluated = loop.train(read(config), str(tmp_path / "whole"))
    runs.stop(config, tmp_path / "part", step=2)
    resumed, _ = loop.train(read(config), str(tmp_path / "part"))
  assert "packed into rows of 15 patches that 2 images share" in out.getvalue()
  assert evaluated["eval/examples"] == 24  # One in a row, each once.
  for one, other in zip(
    jax.tree.leaves(whole), jax.tree.leaves(resumed), strict=True
  ):
    np.testing.assert_array_equal(one, other)
  rows = runs.rows(tmp_path / "whole")
  assert any("train/images_per_second" in row for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classification", "pairs", "autoencoder"])
def test_one_program_takes_all_packed_batches(config, task):
  of_task(config, task)
  config.data.update(CROWDED)
  plan = make_plan(read(config))
  state = jax.jit(plan.init)(jax.random.key(0))
  step = jax.jit(plan.train_step)
  with plan.open_batches(0) as batches, compilations() as found:
    for _, batch in zip(range(4), batches, strict=False):
      state, _ = step(state, batch)
  assert len(found) == 1


@pytest.mark.slow
def test_answers_in_bfloat16(config):
  config.data.update(CROWDED)
  plan = make_plan(read(config))
  params = jax.jit(plan.init)(jax.random.key(0)).params
  with plan.open_batches(0) as batches:
    batch = dict(next(batches))
  patches = plan.objective.inputs(jax.tree.map(jax.numpy.asarray, batch))

  def answers(dtype):
    model = plan.model.clone(dtype=dtype)
    return jax.jit(lambda p, x: model.apply({"params": p}, x, method="pooled"))(
      params, patches
    )

  exact, found = map(answers, (jax.numpy.float32, jax.numpy.bfloat16))
  there = np.asarray(patches.exists)
  assert len(np.unique(there.sum(axis=1))) > 1
  np.testing.assert_allclose(
    np.asarray(found, np.float32)[there], np.asarray(exact)[there], atol=2e-2
  )


def test_operations_are_those_of_an_image(config):
  """Rows twice as long for half of them, with attention over both images."""
  padded = make_plan(read(config)).operations
  config.data.update(PACKED)
  packed = make_plan(read(config))
  assert packed.batch_spec["image"].shape == (8, 24, 192)
  assert 1 < packed.operations.step / padded.step < 1.2


def test_the_header_says_how_images_share_rows(config):
  config.data.update(CROWDED)
  plan = make_plan(read(config))
  ((_, text),) = [row for row in header(plan, "w") if row[0] == "images"]
  start = "and packed into rows of 15 patches that 2 images share on average; "
  assert start in text and "would be with a row for each image" in text
  config.data.update(images_per_row=2, row_tokens=12, min_tokens=None)
  ((_, text),) = [
    row for row in header(make_plan(read(config)), "w") if row[0] == "images"
  ]
  assert "; 100% of the rows are too full for all images" in text


@pytest.mark.parametrize(
  "changes, message",
  [
    (dict(images_per_row=1, row_tokens=24), "data.row_tokens=24 is for images"),
    (dict(images_per_row=1, min_tokens=4), "data.min_tokens=4 is for images"),
    (dict(images_per_row=3), "batch_size=16 is no multiple of .*=3; .* is 18"),
    (
      dict(images_per_row=4),
      r"rows \(batch_size / data.images_per_row\)=4 does not split over 8 dev",
    ),
    (
      dict(images_per_row=2, row_tokens=11),
      "data.row_tokens=11 has no room for an image of data.tokens=12",
    ),
    (
      dict(images_per_row=2, min_tokens=13),
      "data.min_tokens=13 is more than data.tokens=12",
    ),
    (
      dict(images_per_row=2, tokens=None),
      "data.images_per_row=2 has no effect without data.tokens",
    ),
  ],
)
def test_rows_that_do_not_fit_are_refused(config, changes, message):
  config.data.update(changes)
  with pytest.raises(ValueError, match=f"^{message}") as info:
    make_plan(read(config))
  assert "\n" not in str(info.value)


TAKES_ANY_SIZE = {
  *("classification", "multilabel", "regression", "pairs"),
  *("autoencoder", "student"),
}


@pytest.mark.parametrize("name", sorted(ALL_TASKS))
def test_each_task_says_which_images_it_takes(config, name):
  task, settings = task_class(name)(), read(config)
  model = make_model("Ti/8", num_classes=2)
  if name in TAKES_ANY_SIZE:
    any_size.check(settings, task, model)
    return
  with pytest.raises(ValueError, match=f" {name} takes images of one size: "):
    any_size.check(settings, task, model)
