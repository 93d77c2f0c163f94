"""Settings that a plan refuses before anything is compiled or downloaded."""

import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.image_files import write_noise
from tests.server import serving
from vit_jax.config import base_config
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.models import attention, gpu, partitioning
from vit_jax.models.vit import Vit
from vit_jax.run import build, loop
from vit_jax.run.plan import make_plan, plan_of_shapes
from vit_jax.run.settings import read
from vit_jax.run.start import fresh_state
from vit_jax.run.summary import header
from vit_jax.workdir import description as descriptions


def plan(config):
  return make_plan(read(config))


@pytest.mark.parametrize(
  "changes, message",
  [
    (dict(total_steps=5), "total_epochs=2.0 are given together: set all but"),
    (dict(optimizer=dict(warmup_steps=2, warmup_epochs=1.0)), "given together"),
    (dict(batch_size=12), "batch_size=12 does not split .* that does is 16"),
    (dict(batch_size=32), "batch_size=32 is more than the 24 examples of"),
    (
      dict(image_size=(16, 20)),
      r"^image_size=\(16, 20\) does not .* \(16, 16\) does",
    ),
    (
      dict(model=dict(num_classes=2)),
      "^model.num_classes=2 is less than the 3 cl",
    ),
    (dict(model=dict(num_heads=5)), "hidden_size=24 .* num_heads=5; 4 heads"),
    (dict(model=dict(variant="B/17x")), "B/17x"),
    (dict(mesh=dict(data=3)), "fsdp=1, tensor=1 does not lay out 8"),
    (dict(pretrained="no_such_model"), "model.variant='Ti/8' and pretrained="),
    (dict(transfer=dict(interpolation="area")), "interpolation='area' is"),
    (dict(loss=dict(kind="hinge")), "loss.kind='hinge' is unknown; choose one"),
    (dict(optimizer=dict(weight_decay_on="(")), "weight_decay_on='[(]' must"),
    (dict(optimizer=dict(weight_decay_on="x$")), "'x[$]' is found in the path"),
    (
      dict(train_transform=dict(repeats=9)),
      "repeats=9 is more than batch_size",
    ),
  ],
)
def test_what_does_not_fit_says_what_to_change(config, changes, message):
  config.update(changes)
  with pytest.raises(ValueError, match=message) as info:
    plan(config)
  assert str(info.value).isprintable()


@pytest.mark.parametrize(
  "changes, size",
  [
    (dict(batch_size=32), 24),
    (dict(batch_size=48, accumulation_steps=2), 16),  # In 2 x 8 parts.
    (dict(batch_size=16), 16),
  ],
)
def test_a_batch_that_may_is_lowered_to_the_data(config, capsys, changes, size):
  """The data are 24 images, on 8 devices."""
  config.update(changes)
  lowered = make_plan(read(config), may_lower_batch=True)
  assert lowered.settings.batch_size == size
  assert lowered.description(1)["config"]["batch_size"] == size
  said = f"taking batch_size={size} in place of {changes['batch_size']}.\n"
  assert capsys.readouterr().err.endswith(
    said if size < changes["batch_size"] else ""
  )
  config.update(accumulation_steps=4, batch_size=32)
  with pytest.raises(ValueError, match="batch_size=32 is more than the 24 ex"):
    make_plan(read(config), may_lower_batch=True)


@pytest.mark.parametrize(
  "changes, message",
  [
    (dict(total_steps=5), "together: set all but one to 0"),
    (dict(batch_size=12), "does not split over 8 devices"),
    (dict(mesh=dict(tensor=3)), "does not lay out 8 devices"),
    (dict(model=dict(remat="some")), "model.remat='some' is unknown"),
    (dict(eval_transform=dict(resize_ratio=0.5)), "resize_ratio=0.5 must be 1"),
    (dict(loader=dict(on_unreadable="x")), "on_unreadable='x' is unknown"),
  ],
)
def test_nothing_is_downloaded_for_what_is_refused(config, changes, message):
  config.model = base_config().model
  config.update(changes)
  with serving() as site:
    config.pretrained = f"{site.root}/b16.npz"
    with pytest.raises(ValueError, match=message):
      plan(config)
  assert not site.requests


@pytest.mark.parametrize(
  "root, workdir, is_refused",
  [
    ("train", "train", True),  # Its classes are a, b and c.
    ("train", "train/run", True),
    ("train", "run", False),
    ("train", "train-run", False),
    (".", "train/run", True),
    (".", "run", False),  # Beside train and test, which are not classes.
    ("..", "../run", True),  # Beside the only folder, which stands for it.
    (".", "gs://bucket/run", False),
    ("nowhere", "run", False),
  ],
)
def test_a_run_does_not_write_among_the_classes(
  config, folder, monkeypatch, root, workdir, is_refused
):
  """There it would be taken for one, and could not be resumed."""
  monkeypatch.chdir(folder)
  config.data.root = root
  if not is_refused:
    assert build.check_workdir(read(config), workdir) is None
    return
  with pytest.raises(ValueError, match=f"^--workdir={workdir} lies in {root}"):
    loop.train(read(config), workdir)
  assert not pathlib.Path(workdir, "checkpoints").exists()


def test_a_misnamed_class_of_the_evaluation_is_refused(config, tmp_path):
  write_noise(tmp_path, "train/a", "train/c", "test/b")
  config.data.root = str(tmp_path)
  with pytest.raises(ValueError, match="the class 'b', which the train folder"):
    plan(config)


@pytest.mark.parametrize(
  "epochs, total, steps",
  [
    (2.0, 7, 6),  # 48 examples in batches of 8.
    (2.0, 6, 0),
    (10.0, 20, 2),
    (0.0, 20, 0),
  ],
)
def test_a_warm_up_as_long_as_the_run_is_shortened(
  config, epochs, total, steps
):
  config.optimizer.warmup_epochs = epochs
  config.update(total_epochs=0.0, total_steps=total)
  made = plan_of_shapes(
    read(config), num_classes=3, num_examples=24, devices=jax.devices()[:1]
  )
  assert made.warmup_steps == steps


def test_a_shortened_warm_up_is_said(config):
  config.optimizer.warmup_epochs = 2.0
  rows = dict(header(plan(config), "runs/x"))
  assert rows["warm-up"].startswith("shortened from 6 to 0 steps")
  config.optimizer.warmup_epochs = 1.0
  assert "warm-up" not in dict(header(plan(config), "runs/x"))
  config.optimizer.update(warmup_epochs=0.0, warmup_steps=5)
  assert dict(header(plan(config), "runs/x"))["warm-up"] == (
    "5 of 6 steps; --config.optimizer.warmup_steps=0 takes a tenth"
  )


def test_a_rate_of_0_is_said(config):
  config.optimizer.update(peak_lr=0.0, final_lr=0.0, decay="linear")
  rows = dict(header(plan(config), "runs/x"))
  assert rows["learning rate"].startswith("0 at every step, so no weight")
  config.optimizer.final_lr = 1e-4
  assert "learning rate" not in dict(header(plan(config), "runs/x"))
  config.optimizer.update(peak_lr=1e-3, final_lr=0.0)
  assert "learning rate" not in dict(header(plan(config), "runs/x"))


DINOV3 = dict(block="dinov3", position="none")


@pytest.mark.parametrize(
  "model, whole, said",
  [
    (DINOV3, 9, "our form for TPUs"),  # A class token, registers, 4 patches.
    (DINOV3 | dict(splash=True), 8, "JAX's splash attention kernel"),
    (dict(attention_dropout_rate=0.1), 9, "as written, A as an array"),
    *(
      pytest.param(*row, marks=pytest.mark.slow)
      for row in [
        (DINOV3, 8, "our form for TPUs, some heads and images at a time"),
        (DINOV3 | dict(splash=True), 9, "our form for TPUs"),
        (dict(patch_dropout_rate=0.5), 3, "our form for TPUs"),
        (dict(block="axial", pooling="gap"), 9, None),
      ]
    ),
  ],
)
def test_the_form_of_attention_on_a_tpu_is_said(
  config, monkeypatch, model, whole, said
):
  config.model.update(**model)
  assert "attention" not in dict(header(plan(config), "runs/x"))
  monkeypatch.setattr(partitioning, "platform", lambda: "tpu")
  monkeypatch.setattr(attention, "WHOLE", whole)
  assert dict(header(plan(config), "runs/x")).get("attention") == said


def test_the_form_of_attention_on_a_gpu_is_said(config, monkeypatch):
  auto = plan(config)
  config.model.attention = "cudnn"
  asked = plan(config)
  said = "as written, A as an array; cuDNN's kernels are not used: "
  found = dict(header(asked, "runs/x"))["attention"]
  assert found == said + "it needs a GPU, and this is a CPU"
  monkeypatch.setattr(partitioning, "platform", lambda: "gpu")
  found = dict(header(asked, "runs/x"))["attention"]
  assert found == said + "it needs bfloat16 or float16, and dtype is float32"
  monkeypatch.setattr(gpu, "refusal", lambda *_: "")
  found = dict(header(asked, "runs/x"))["attention"]
  assert found == "cuDNN's kernels"
  found = dict(header(auto, "runs/x"))["attention"]
  assert found.endswith("; model.attention=cudnn takes cuDNN's kernels")


def test_a_cut_is_said_and_described(config):
  config.cut_from = (20, 20)
  found = plan(config)
  assert "the upper left 16 x 16" in dict(header(found, "runs/x"))["images"]
  assert descriptions.preprocessing(found.description(0)) == found.preprocessing
  with found.open_batches(0) as batches:
    assert next(batches)["image"].shape == (8, 16, 16, 3)
  config.cut_from = (20, 12)
  with pytest.raises(ValueError, match=r"cut_from=\(20, 12\) is smaller than"):
    plan(config)


def test_an_epoch_shows_each_image_once(config, tmp_path):
  folders = [f"{split}/{x}" for split in ("train", "test") for x in "abcdefgh"]
  write_noise(tmp_path, *folders)
  config.data.root = str(tmp_path)
  with plan(config).open_batches(0) as batches:
    shown = [next(batches)["label"] for _ in range(2)]
  assert [sorted(labels) for labels in shown] == 2 * [[*range(8)]]


def test_classes_are_sampled_evenly_and_it_is_said(config, folder, tmp_path):
  root = shutil.copytree(folder, tmp_path / "photos")
  for k in range(2, 8):
    (root / f"train/b/{k}.png").unlink()
  config.data.update(root=str(root), sampling="classes")
  found = plan(config)
  line = dict(header(found, "runs/x"))["sampling"]
  assert "an image of the rarest, b, comes 4 times as often as" in line
  with found.open_batches(0) as batches:
    seen = np.concatenate([next(batches)["label"] for _ in range(30)])
  assert np.bincount(seen).tolist() == [80, 80, 80]  # Ten epochs of 24.


def test_a_checkpoints_cut_is_kept_with_its_size(config):
  """As SigLIP's of 384 pixels, whose patches of 14 fill 378."""
  start = Preprocessing((378, 378), cut_from=(384, 384))
  config.image_size = None
  found = build.make_preprocessing(build.resolved(read(config), start))
  assert (found.image_size, found.whole) == ((378, 378), (384, 384))
  config.image_size = (224, 224)
  found = build.make_preprocessing(build.resolved(read(config), start))
  assert (found.image_size, found.whole) == ((224, 224), (224, 224))


def test_a_default_that_has_changed_leaves_an_old_run_as_it_began(config):
  saved = plan(config).description(0)
  del saved["config"]["ema_warmup"]  # It is newer, and False is as before.
  saved["config"]["transfer"]["interpolation"] = "linear"  # The old default.
  found = make_plan(read(config), saved).settings
  assert found.ema_warmup is False
  assert found.transfer.interpolation == "linear"
  config.transfer.interpolation = "bicubic"
  found = make_plan(read(config), saved).settings
  assert found.transfer.interpolation == "bicubic"


def test_a_run_of_another_task_does_not_go_on(config):
  """As where a folder's run is begun again by another configuration."""
  of_classes = plan(config).description(0)
  config.loss.label_smoothing = 0.0
  config.autoencoder.rate = 0.75
  without_labels = plan(config).description(0)
  message = (
    "task classification, .* of autoencoder: choose another workdir, as in --w"
  )
  with pytest.raises(ValueError, match=message):
    make_plan(read(config), of_classes)
  config.autoencoder.rate = 0.0
  message = (
    "task autoencoder, .* of classification: choose another workdir, as in --w"
  )
  with pytest.raises(ValueError, match=message):
    make_plan(read(config), without_labels)


def test_shapes_and_first_arrays_come_of_one_trace(config, monkeypatch):
  traced, trace = [], Vit.__call__

  def counted(self, *args, **options):
    traced.append(self)
    return trace(self, *args, **options)

  monkeypatch.setattr(Vit, "__call__", counted)
  made = plan(config)
  shapes = made.shapes
  assert len(traced) == 1
  state = fresh_state(made)
  assert len(traced) == 1
  assert jax.tree.map(jnp.shape, state.params) == jax.tree.map(
    lambda x: x.shape, shapes.params
  )
