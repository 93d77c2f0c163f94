"""Keys that change nothing in a run are named, and others are not."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image

from configs import dense_regression, dino, finetune, lejepa, segmentation
from tests import published
from tests.rows import some_slow
from tests.tasks import made_up
from tests.tasks.made_up import HALF
from tests.tiny import SIZES
from vit_jax import make_vit
from vit_jax.data.settings import TrainTransformSettings
from vit_jax.models.two_towers import IMAGE, TEXT
from vit_jax.run import build
from vit_jax.run.no_effect import keys_without_effect
from vit_jax.run.plan import make_plan
from vit_jax.run.settings import read
from vit_jax.run.start import transferred_leaves
from vit_jax.run.summary import header
from vit_jax.runtime.settings import replaced, untuned
from vit_jax.tasks.pairs.settings import PairsSettings
from vit_jax.tasks.pairs.task import PairsTask
from vit_jax.tasks.pairs.text_setup import TextSetup
from vit_jax.training.distillation import Teacher
from vit_jax.training.settings import DistillSettings


def named(plan):
  """The keys without effect, each with its reason."""
  lines = (line.split(", ", 1) for line in keys_without_effect(plan))
  return {line.split("=")[0]: reason for line, reason in lines}


def of_small_images(config, made):
  """A shipped configuration, as small as that of the fixture."""
  made.update(total_epochs=2.0, batch_size=8, image_size=(16, 16))
  made.eval_every_epochs = 0.0
  made.fewshot.neighbours = 0
  made.data.update(root=config.data.root, labels=True)
  made.model.update(
    variant="Ti/8", hidden_size=24, num_layers=1, mlp_size=32, num_heads=3
  )
  made.loader.num_workers = 0
  return made


def test_a_header_names_what_is_without_effect(config):
  names = [name for name, _ in header(make_plan(read(config)), "runs/x")]
  assert "unused" not in names
  config.optimizer.update(momentum=0.5, b1=0.8)
  config.data.update(eval_fraction=0.5, mask_values="index")
  plan = make_plan(read(config))
  rows = header(plan, "runs/x")
  at = [name for name, _ in rows].index("unused")
  others = "without optimizer.kind=sgd or optimizer.kind=muon"
  assert rows[at:] == [
    ("unused", f"optimizer.momentum=0.5, {others}"),
    ("", "data.eval_fraction=0.5, as the images to evaluate on are given"),
    ("", "data.mask_values='index', as the labels are no masks"),
  ]
  # A run that goes on has said it before.
  rows = dict(header(plan, "runs/x", is_new=False))
  assert "unused" not in rows


def test_images_that_are_held_out_need_their_share(config):
  config.data.update(root=f"{config.data.root}/train", eval_fraction=0.5)
  config.data.held_out_by = "count"
  assert named(make_plan(read(config))) == {}


@pytest.mark.parametrize("bits", [8, 16])
def test_a_window_is_for_more_than_8_bits(config, tmp_path, bits):
  root = tmp_path / "photos"
  shade = {8: np.uint8(99), 16: np.uint16(2048)}[bits]
  for k in range(12):
    path = root / "ab"[k % 2] / f"{k}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((16, 16), shade)).save(path)
  config.data.root = str(root)
  config.normalization.window = (0.0, 4095.0)
  plan = make_plan(read(config))
  assert ("normalization.window" in named(plan)) == (bits == 8)
  start: Any = plan  # A checkpoint that has the same window.
  same = dataclasses.replace(plan, start=start)
  assert "normalization.window" not in named(same)


def test_no_positions_are_added_anywhere(config):
  for position in ("learned", "none"):
    config.model.update(position=position, position_at="shared")
    found = named(make_plan(read(config)))
    assert ("model.position_at" in found) == (position == "none")


# A value of each key of `train_transform` that is not the default.
OTHERS = {
  "crop": "resize",
  "min_area": 0.4,
  "as_published": True,
  "resizer": "bicubic",
  "pad": 2,
  "flip": False,
  "randaugment_layers": 2,
  "randaugment_magnitude": 5.0,
  "randaugment_timm": True,
  "three_augment": True,
  "colour_jitter": 0.2,
  "erase": 0.3,
  "repeats": 2,
}


@pytest.mark.parametrize("name", ["self_distillation", "lejepa"])
def test_crops_of_two_sizes_have_their_own_changes(config, name):
  made = dino if name == "self_distillation" else lejepa
  made = of_small_images(config, made.get_config())
  made[name].small_size = 8
  plan = make_plan(read(made))
  assert named(plan) == {}
  transform = plan.train_transform
  assert OTHERS.keys() == {
    field.name for field in dataclasses.fields(TrainTransformSettings)
  }
  for key, value in OTHERS.items():
    settings = replaced(plan.settings, {f"train_transform.{key}": value})
    other = dataclasses.replace(plan, settings=settings)
    reason = named(other).get(f"train_transform.{key}")
    differs = key == "repeats" or other.train_transform != transform
    assert (reason is None) == differs, key
    if not differs:
      assert reason == f"as {name} has crops and colours of its own"
  settings = replaced(plan.settings, {"ema_warmup": False, "ema_decay": 0.9})
  other = dataclasses.replace(plan, settings=settings)
  own_decay = plan.objective.decay(np.int32(1)) is not None
  assert ("ema_warmup" in named(other)) == own_decay


def tuned(config, file="google_vit.npz", **changes):
  """The plan of a run from weights for images of 32 x 32 pixels."""
  made = finetune.get_config()
  made.update(pretrained=str(published.path(file)), batch_size=8)
  made.data.root = config.data.root
  made.loader.num_workers = 0
  keys = {key.replace("__", "."): value for key, value in changes.items()}
  return make_plan(replaced(read(made), keys))


@pytest.mark.parametrize("resized", [False, True])
def test_positions_of_the_same_grid_need_no_interpolation(config, resized):
  plan = tuned(config)
  assert plan.start
  height, width = plan.preprocessing.image_size
  size = (2 * height, width) if resized else (height, width)
  plans = [
    tuned(config, image_size=size, transfer__interpolation=method)
    for method in ("linear", "bicubic")
  ]
  first, second = (dict(transferred_leaves(p, p.start)) for p in plans)
  differ = any(np.any(first[path] != second[path]) for path in first)
  assert differ == resized
  for one in plans:
    assert ("transfer.interpolation" not in named(one)) == differ


def test_a_layer_that_is_not_there_or_kept_anyway_is_named(config):
  key = "transfer.keep_pre_logits"
  plan = tuned(config, transfer__keep_pre_logits=True)
  assert named(plan)[key] == "as the checkpoint has no representation layer"
  file = "google_vit_prelogits.npz"
  plan = tuned(config, file, transfer__keep_pre_logits=True)
  assert key not in named(plan)
  settings = replaced(plan.settings, {"transfer.keep_head": True})
  plan = dataclasses.replace(plan, settings=settings)
  assert named(plan)[key] == "as transfer.keep_head keeps that layer"


def test_a_head_that_is_given_has_its_bias(config):
  assert named(tuned(config, model__head_bias=-3.0)) == {}
  plan = tuned(config, model__head_bias=-3.0, transfer__probe_head=True)
  why = "as transfer.probe_head gives the head its bias"
  assert named(plan)["model.head_bias"] == why


RATES = [
  {},
  {"optimizer.freeze_layers": 1},
  {"optimizer.freeze_layers": -1},
  {"lora.rank": 2},
  {"lora.rank": 2, "lora.kernels": "(msa|mlp|patches)/"},
]


@pytest.mark.parametrize("changes", some_slow(RATES, [RATES[2]]))
def test_rates_of_what_is_not_trained_are_named(config, changes):
  base = {key.replace(".", "__"): value for key, value in changes.items()}
  base["optimizer__warmup_epochs"] = 0.0  # So that the first rate is not 0.

  def updates(plan):
    """The first updates, of parameters and gradients that are all 1."""
    ones = jax.tree.map(lambda x: np.ones(x.shape), plan.shapes.params)
    first, _ = jax.jit(plan.optimizer.update)(
      ones, plan.optimizer.init(ones), ones
    )
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(first)])

  plain = tuned(config, **base)
  assert named(plain) == {}
  for key, value in (("patches_lr", 0.5), ("layer_decay", 0.75)):
    plan = tuned(config, **base, **{f"optimizer__{key}": value})
    differ = (updates(plan) != updates(plain)).any()
    assert (f"optimizer.{key}" not in named(plan)) == differ, key


TEXT_SIZES = ("length", "size", "layers", "heads")


@pytest.mark.parametrize(
  "weights, changes, keys",
  [
    ((), {}, {"start_lr"}),
    ((), {"tokenizer": "tokens.json"}, {"start_lr", "vocabulary"}),
    ((IMAGE,), {}, set()),
    ((IMAGE,), {"image": "frozen"}, {"start_lr"}),
    (
      (IMAGE, TEXT),
      {"image": "frozen"},
      {"tokenizer", "vocabulary", *(f"text_{x}" for x in TEXT_SIZES)},
    ),
  ],
)
def test_keys_of_towers_that_are_there_are_named(weights, changes, keys):
  pairs = PairsSettings(**changes)
  task = PairsTask(pairs=pairs, text_setup=TextSetup(weights=weights))
  found = task.unread.keys() - {"transfer.keep_pre_logits"}
  assert found == {f"pairs.{key}" for key in keys}


@pytest.mark.parametrize("module", [segmentation, dense_regression])
@pytest.mark.parametrize("kind", ["head", "lora", "whole"])
def test_shipped_configurations_set_nothing_in_vain(module, kind):
  assert untuned(read(module.get_config(kind))) == {}


def test_keys_of_what_the_model_lacks_are_named(config):
  config.model.update(block="dinov2", position=None)
  plan = make_plan(read(config))
  keys = {"model.drop_path_grows": True, "fewshot.pre_logits": False}
  settings = replaced(plan.settings, keys)
  idle = dataclasses.replace(plan, settings=settings)
  assert named(idle) == {
    "model.drop_path_grows": "as model.drop_path_rate is 0",
    "fewshot.pre_logits": "as the model has no representation layer",
  }
  model: Any = plan.model.clone(drop_path_rate=0.1, representation_size=5)
  assert named(dataclasses.replace(idle, model=model)) == {}


@pytest.mark.parametrize("weight", [0.5, 1.0])
def test_the_labels_keys_are_named_if_a_teacher_has_all_of_the_loss(
  config, weight
):
  keys = {"loss.label_smoothing": 0.2, "loss.class_weights": "balanced"}
  teacher = {"distill.teacher": "runs/a", "distill.weight": weight}
  plan = make_plan(read(config))
  settings = replaced(plan.settings, keys | teacher)
  teach = Teacher(plan.model, (16, 16), HALF, HALF, settings.distill)
  logits = jax.numpy.ones((2, 3))
  first, second = (
    teach.loss("softmax", logits, logits, jax.numpy.full(2, labelled))
    for labelled in (0.0, 1.0)
  )
  has_effect = bool((first != second).any())
  found = named(dataclasses.replace(plan, settings=settings))
  assert found.keys() == (set() if has_effect else keys.keys())


REPRESENTED = make_vit("Ti/8", 0, representation_size=5, **SIZES)


@pytest.mark.parametrize(
  "name", ["segmentation", "dense_regression", "student"]
)
def test_a_representation_layer_that_is_left_out_is_named(name):
  changes = {"data__task": name}
  if name == "student":
    changes = {"student__learns": "both", "distill__teacher": "teacher"}
  task = made_up.task(**changes)
  if name == "student":
    options = (16, 16), HALF, HALF, DistillSettings()
    task = task.with_teacher(Teacher(REPRESENTED, *options))
  without = REPRESENTED.clone(representation_size=None)
  assert task.adapted(REPRESENTED) == task.adapted(without)
  assert task.unread.keys() == {
    "model.representation_size",
    "transfer.keep_pre_logits",
  }


def test_keys_for_tpus_and_of_other_probes_are_named(config):
  plan = make_plan(read(config))
  keys = {"scoped_vmem_mib": 64, "model.splash": True}
  probed = {"fewshot.shots": 2, "fewshot.data.name": "digits"}
  probed |= {"fewshot.data.sampling": "classes", "fewshot.data.bands": "a,b"}
  settings = replaced(plan.settings, keys | probed)
  found = named(dataclasses.replace(plan, settings=settings))
  assert found.keys() == {
    *keys,
    "fewshot.data.sampling",
    "fewshot.data.bands",
  }
  assert found["model.splash"] == "as it is for TPUs, not a cpu"


def test_sizes_of_crops_take_the_place_of_one(config):
  made = of_small_images(config, dino.get_config())
  made.self_distillation.small_size = 8
  settings = read(made)
  sizes = {"self_distillation.crop_sizes": ((16, 8, 0, 1.0),)}
  for changes in ({}, sizes):
    unread = build.task_of(replaced(settings, changes)).unread
    assert ("self_distillation.small_size" in unread) == bool(changes)


@pytest.mark.parametrize("steps", [9, 10])
def test_a_trace_needs_ten_steps(config, steps):
  config.update(total_epochs=0.0, total_steps=steps, profile_steps=2)
  found = named(make_plan(read(config)))
  assert ("profile_steps" in found) == (steps < 10)
