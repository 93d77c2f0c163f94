"""Runs with LoRA or with a teacher: resumed, opened again, and refused."""

import re
import shutil

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from configs import digits, dino
from tests import published, runs, tiny
from vit_jax import load_pretrained
from vit_jax.models import ResNet
from vit_jax.pretrained.load import open_base, open_checkpoint
from vit_jax.run import build, extras, loop
from vit_jax.run.experiments.replay import verify
from vit_jax.run.plan import make_plan
from vit_jax.run.saved import evaluate_checkpoint
from vit_jax.run.settings import base_config, read
from vit_jax.run.start import fresh_state
from vit_jax.workdir.checkpoint import Checkpoints


def adapted(data_dir, base, **changes):
  """A run with LoRA on the digits, with all sources of randomness."""
  config = runs.config(data_dir, total_steps=6, pretrained=base)
  config.update(image_size=None, eval_every_steps=3, save_every_steps=3)
  config.model = base_config().model
  config.model.dropout_rate = 0.1
  config.lora.update(rank=2, alpha=4.0)
  config.update(changes)
  return config


def taught(data_dir, teacher, **changes):
  """A run on the digits at 16 x 16 with a teacher at 8 x 8."""
  config = runs.config(data_dir, total_steps=6, image_size=(16, 16))
  config.update(eval_every_steps=3, save_every_steps=3)
  config.distill.teacher = teacher
  config.update(changes)
  return config


def stopped(config, workdir):
  """Ends a run after three of its steps, goes on with it, and replays it."""
  runs.stop(config, workdir, 3)
  state = loop.train(read(config), workdir)[0]
  assert verify(workdir, "1:2") and verify(workdir, "4:6")
  return state


def saved_arrays(workdir):
  """The paths of the arrays in a run's newest checkpoint."""
  checkpoints = Checkpoints(str(workdir), read_only=True)
  paths = checkpoints.describe(checkpoints.latest_step)["checksums"]
  checkpoints.close()
  return [*paths]


@pytest.fixture(scope="module")
def lora_run(data_dir, tmp_path_factory):
  """The configuration of a run with LoRA, its folder, and its last state."""
  folder = tmp_path_factory.mktemp("lora")
  base = str(folder / "base.npz")
  shutil.copy(published.path("google_vit.npz"), base)
  config = adapted(data_dir, base)
  state, evaluated = loop.train(read(config), str(folder / "run"))
  return config, folder, state, evaluated


@pytest.mark.slow
def test_a_run_with_lora_resumes_exactly(lora_run, tmp_path):
  config, _, whole, _ = lora_run
  state = stopped(config, str(tmp_path / "run"))
  assert runs.identical(jax.device_get(whole), jax.device_get(state))


@pytest.mark.slow
def test_only_products_and_head_are_saved_and_every_reader_merges(
  lora_run, tmp_path
):
  config, folder, state, evaluated = lora_run
  workdir = str(folder / "run")
  params = r"(averaged_)?params/(head/(kernel|bias)|block_\d/.*lora_[ab])"
  moments = r"opt_state/\d/(mu|nu)/(head|block_\d/.*lora_[ab])|.*count"
  for path in saved_arrays(workdir):
    assert re.match(f"{params}|{moments}", path), path
  model, found = load_pretrained(workdir)
  base = dict(load_pretrained(config.pretrained).read())
  own = flatten_dict(jax.device_get(state.averaged_params), sep="/")
  flat = flatten_dict(found, sep="/")
  assert flat.keys() == base.keys()
  for path in flat:
    expected = own.get(path, base[path])
    place = path.removesuffix("kernel")
    if place + "lora_a" in own:
      a, b = own[place + "lora_a"], own[place + "lora_b"]
      expected = expected + 2 * np.tensordot(a, b, 1)
      assert not np.allclose(expected, base[path])
    np.testing.assert_allclose(flat[path], expected, atol=1e-6)
  metrics = evaluate_checkpoint(workdir)
  for key in ("eval/loss", "eval/top1"):
    assert metrics[key] == pytest.approx(evaluated[key], rel=1e-5)
  assert model.num_classes == 10


@pytest.mark.slow
def test_a_mask_token_trained_beside_lora_is_opened_with_its_run(tmp_path):
  base = str(tmp_path / "base.npz")
  shutil.copy(published.path("google_vit.npz"), base)
  config = dino.get_config("continue")
  config.data.name = "digits"
  config.update(pretrained=base, batch_size=8, image_size=(32, 32))
  config.update(total_epochs=0.0, total_steps=1, save_every_epochs=0.0)
  config.update(save_every_steps=1, eval_every_epochs=0.0)
  config.optimizer.warmup_epochs = 0.0
  config.lora.rank = 2
  config.fewshot.neighbours = 0
  config.self_distillation.update(
    prototypes=16, head_size=8, bottleneck=4, small_size=16, small_crops=1
  )
  config.self_distillation.update(
    temperature_warmup_epochs=0.0, freeze_last_epochs=0.0
  )
  run = str(tmp_path / "run")
  state, _ = loop.train(read(config), run)
  own = jax.device_get(state.averaged_params)
  found = open_checkpoint(run, as_trained=True).params
  np.testing.assert_array_equal(found["mask_token"], own["mask_token"])
  plan = make_plan(read(config))
  shapes = {k: v.shape for k, v in flatten_dict(plan.param_shapes).items()}
  assert {k: v.shape for k, v in flatten_dict(found).items()} == shapes


@pytest.mark.slow
def test_a_base_that_changed_or_is_gone_is_said_in_a_line(
  lora_run, data_dir, tmp_path
):
  _, folder, *_ = lora_run
  folder = shutil.copytree(folder, tmp_path / "copy")
  base, workdir = folder / "base.npz", str(folder / "run")
  config = adapted(data_dir, str(base))
  loop.train(read(config), str(folder / "again"))
  arrays = published.arrays("google_vit.npz")
  name = next(k for k in arrays if k.endswith("MlpBlock_3/Dense_0/kernel"))
  np.savez(base, **{**arrays, name: arrays[name] * 1.001})
  for use in (
    lambda: evaluate_checkpoint(str(folder / "again")),
    lambda: load_pretrained(str(folder / "again")),
    lambda: loop.train(read(config), str(folder / "again")),
  ):
    with pytest.raises(ValueError, match=r"base.npz is not what .* digest"):
      use()
  base.unlink()
  for use in (
    lambda: load_pretrained(str(folder / "again")),
    lambda: loop.train(read(config), str(folder / "again")),
  ):
    with pytest.raises(ValueError, match="the base of this LoRA run cannot be"):
      use()
  # The run that was copied has its base where it was.
  assert load_pretrained(workdir).model.num_classes == 10


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lora", "teacher"])
def test_a_run_is_the_same_on_every_mesh_and_with_stacked_layers(
  kind, teacher_run, data_dir, tmp_path
):
  losses = []
  for name, mesh, scan in (
    ("plain", (1, 1), False),
    ("mesh", (2, 2), False),
    ("scan", (2, 1), True),
  ):
    if kind == "lora":
      config = adapted(data_dir, str(teacher_run))
    else:
      config = taught(data_dir, str(teacher_run))
    config.mesh.update(fsdp=mesh[0], tensor=mesh[1])
    # With stacked layers, dropout and a fresh start draw other numbers.
    config.model.update(scan=scan, dropout_rate=0.0)
    if kind == "teacher" and scan:
      continue
    _, evaluated = loop.train(read(config), str(tmp_path / name))
    losses.append(evaluated["eval/loss"])
    if kind == "lora":
      again = evaluate_checkpoint(str(tmp_path / name))
      assert again["eval/loss"] == pytest.approx(losses[-1], rel=1e-5)
  assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-4)


@pytest.mark.slow
def test_the_first_logits_are_those_of_the_base(data_dir):
  """Of a kept head, by the publisher's own code."""
  name = "google_vit.npz"
  config = adapted(data_dir, published.path(name))
  config.transfer.keep_head = True
  plan = make_plan(read(config))
  plan.evaluation.stream.close()
  state = fresh_state(plan)
  whole = plan.extras.merge(state.params)
  published.assert_same_logits(plan.model, whole, *published.examples(name))


@pytest.mark.slow
def test_a_bases_positions_stay_as_they_were_interpolated(data_dir):
  """Older records name no way: a ViT's positions were interpolated linearly."""
  config = adapted(data_dir, published.path("hf_vit"), image_size=(48, 48))
  plan = make_plan(read(config))
  plan.evaluation.stream.close()
  fresh_state(plan)
  (record,) = plan.extras.sources.values()
  assert record["interpolation"] == "bicubic"
  for known, found in ((record["interpolation"], "bicubic"), (None, "linear")):
    saved = {**record, "interpolation": known}
    assert open_base(saved, None).interpolation == found


@pytest.fixture(scope="module")
def teacher_run(data_dir, tmp_path_factory):
  """The workdir of a few steps on the digits."""
  config = digits.get_config()
  config.update(total_epochs=0.0, total_steps=3)
  config.data.data_dir = str(data_dir)
  config.optimizer.warmup_epochs = 0.0
  config.model.num_layers = 1
  config.normalization.std = (0.25, 0.25, 0.25)
  folder = tmp_path_factory.mktemp("teacher") / "run"
  loop.train(read(config), str(folder))
  return folder


@pytest.mark.slow
def test_a_taught_run_resumes_exactly_and_saves_no_teacher(
  teacher_run, data_dir, tmp_path
):
  """It is not needed to use the student, but to go on with it, unchanged."""
  teacher = shutil.copytree(teacher_run, tmp_path / "teacher")
  config = taught(data_dir, str(teacher))
  whole, _ = loop.train(read(config), str(tmp_path / "whole"))
  state = stopped(config, str(tmp_path / "stopped"))
  assert runs.identical(jax.device_get(whole), jax.device_get(state))
  alone = taught(data_dir, None)
  loop.train(read(alone), str(tmp_path / "alone"))
  assert saved_arrays(tmp_path / "whole") == saved_arrays(tmp_path / "alone")
  shutil.rmtree(teacher)
  evaluate_checkpoint(str(tmp_path / "whole"))
  with pytest.raises(ValueError, match="teacher"):
    loop.train(read(config), str(tmp_path / "whole"))
  other = digits.get_config()
  other.update(total_epochs=0.0, total_steps=3, seed=1)
  other.data.data_dir = str(data_dir)
  other.update(eval_every_epochs=0.0)
  loop.train(read(other), str(teacher))
  with pytest.raises(ValueError, match=r"teacher.digest was '\w+' and is now"):
    loop.train(read(config), str(tmp_path / "whole"))


def _open_teacher(
  folder,
  names=("a", "b"),
  num_classes=2,
  loss="softmax",
  mean=None,
  form="hinton",
):
  loaded, params = tiny.random_model()
  own = dict(mean=loaded.origin.mean, std=loaded.origin.std)
  tiny.save_run(
    folder, loaded.model, tiny.nested(params), (16, 24), "ab", **own
  )
  config = base_config()
  config.distill.update(teacher=str(folder), form=form)
  config.loss.kind = loss
  config.normalization.mean = mean
  student = ResNet(num_classes=num_classes, layers=(1,))
  settings = read(config)
  task = build.task_of(settings)
  teacher, same = extras.open_teacher(settings, task)
  assert same is task
  extras.check_teacher(teacher, settings, task, student, names)
  return teacher


def test_a_teacher_that_fits_is_opened(tmp_path):
  assert _open_teacher(tmp_path).class_names == ("a", "b")


@pytest.mark.parametrize(
  "options, message",
  [
    (dict(names=("b", "a")), r"2 classes \(a, b\) and the student 2 \(b, a\)"),
    (dict(names=("a", "b", "c"), num_classes=3), r"the student 3 \(a, b, c\)"),
    (dict(loss="sigmoid"), "loss: set loss.kind='softmax', not 'sigmoid'"),
    (dict(form="deit"), "needs .* a student with a distillation token: set mo"),
    (dict(mean=(0.5,)), "images of 3 channel.s., and the student of 1: they"),
  ],
)
def test_a_teacher_of_something_else_is_refused(tmp_path, options, message):
  with pytest.raises(ValueError, match=message):
    _open_teacher(tmp_path, **options)


@pytest.mark.slow
def test_deits_form_trains_both_heads_by_their_own(
  teacher_run, data_dir, tmp_path
):
  config = taught(data_dir, str(teacher_run))
  config.distill.update(form="deit", kind="hard", weight=1.0)
  config.model.update(block="deit", pooling="token", position="learned")
  config.optimizer.update(clip_norm=0.0)
  config.update(accumulation_steps=1, ema_decay=0.0)
  plan = make_plan(read(config))
  plan.evaluation.stream.close()
  state = fresh_state(plan)
  with plan.open_batches(0) as batches:
    batch = next(batches)
  batch = {k: batch[k] for k in ("image", "label")}
  step = jax.jit(plan.train_step)
  state, _ = step(step(state, batch, *plan.extras.frozen_params)[0], batch,
                  *plan.extras.frozen_params)  # fmt: skip
  # With all the weight on the teacher, the labels' head stays at its zeros.
  params = jax.device_get(state.params)
  assert not params["head"]["kernel"].any()
  assert params["head_dist"]["kernel"].any()


@pytest.mark.parametrize(
  "changes, message",
  [
    (dict(pretrained=None), "lora.rank=2 has no effect without pretrained: s"),
    (dict(optimizer=dict(freeze_layers=1)), "so optimizer.freeze_layers=1 has"),
    (dict(masked=dict(rate=0.5)), "lora.rank=2 applies to labels"),
  ],
)
def test_what_does_not_fit_lora_is_refused(data_dir, changes, message):
  config = adapted(data_dir, published.path("google_vit.npz"), **changes)
  if "masked" in changes:
    config.loss.update(mixup_alpha=0.0, label_smoothing=0.0)
  with pytest.raises(ValueError, match=message):
    make_plan(read(config))
