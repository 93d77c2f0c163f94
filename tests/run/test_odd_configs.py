"""Odd configurations: used rightly, or refused in a line."""

import contextlib

import pytest

from configs import image_folder
from tests.image_files import GOOD, make_folder
from vit_jax.config import base_config, leaf_keys
from vit_jax.pretrained import load
from vit_jax.run.config_check import check
from vit_jax.run.plan import make_plan

# What a number may not be, though it could be written; all others may be 0.
NEGATIVE_MEANS_SOMETHING = {
  "loader.num_workers",  # -1 is "choose".
  "mesh.data",  # -1 is "the rest", here and below.
  "mesh.fsdp",
  "mesh.tensor",
  "model.head_bias",
  "optimizer.freeze_layers",  # -1 is "all but the head".
}
ZERO_MEANS_NOTHING = {
  "accumulation_steps",
  "batch_size",
  "data.eval_fraction",
  "eval_transform.resize_ratio",
  "fewshot.data.eval_fraction",
  "fewshot.seeds",
  "keep_last",
  "mesh.data",
  "mesh.fsdp",
  "mesh.tensor",
  "model.hidden_size",
  "model.layer_norm_epsilon",
  "model.mlp_size",
  "model.num_classes",
  "model.num_heads",
  "model.num_layers",
  "model.patch_size",
  "model.representation_size",
  "optimizer.layer_decay",
  "total_epochs",
  "train_transform.min_area",
}
KEYS = list(leaf_keys(base_config()))


def section_of(config, key):
  """The section a dotted key is in, and its name there."""
  *sections, name = key.split(".")
  for step in sections:
    config = config[step]
  return config, name


def type_of(key):
  section, name = section_of(base_config(), key)
  return section.get_type(name)


NUMBERS = [key for key in KEYS if type_of(key) in (int, float)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return make_folder(
    tmp_path_factory.mktemp("data"),
    {
      f"{split}/{name}/{k}.png": GOOD
      for split in ("train", "test")
      for name in "abc"
      for k in range(8)
    },
  )


@pytest.fixture
def config(folder):
  config = image_folder.get_config()
  config.update(total_epochs=2.0, batch_size=8, image_size=(16, 16))
  config.data.root = folder
  config.model.update(
    variant="Ti/8", hidden_size=24, num_layers=1, mlp_size=32, num_heads=3
  )
  config.optimizer.warmup_epochs = 0.0
  config.loader.num_workers = 0
  return config


plan = make_plan


def test_the_configuration_that_is_spoilt_below_is_in_order(config):
  assert plan(config).total == 6


@pytest.mark.parametrize("key", KEYS)
def test_a_value_of_another_type_is_refused_when_it_is_set(key):
  wrong = 3.5 if type_of(key) in (str, tuple, bool) else "rubbish"
  section, name = section_of(base_config(), key)
  with pytest.raises((TypeError, ValueError)) as info:
    section[name] = wrong
  message = str(info.value)
  assert name in message and message.isprintable()


def test_misspelt_keys_are_refused_when_they_are_set():
  for key in KEYS:
    section, name = section_of(base_config(), key)
    with pytest.raises((AttributeError, KeyError), match=f"{name}x"):
      section[f"{name}x"] = 1


@contextlib.contextmanager
def changed(config, key, value):
  """The configuration with another value, for a while."""
  section, name = section_of(config, key)
  before = section[name]
  section[name] = value
  yield
  section[name] = before


@pytest.mark.parametrize("key", NUMBERS)
def test_negative_numbers_are_refused(config, key):
  section, name = section_of(config, key)
  section[name] = -1
  if key in NEGATIVE_MEANS_SOMETHING:
    check(config)
    return
  with pytest.raises(ValueError, match=name) as info:
    plan(config)
  assert "-1" in str(info.value) and str(info.value).isprintable()


@pytest.mark.parametrize("key", sorted(ZERO_MEANS_NOTHING))
def test_zero_is_refused_where_it_means_nothing(config, key):
  section, name = section_of(config, key)
  section[name] = 0
  name = "total_epochs" if key == "total_epochs" else name
  with pytest.raises(ValueError, match=name) as info:
    plan(config)
  assert str(info.value).isprintable()


def test_zero_is_taken_everywhere_else(config):
  for key in {*NUMBERS} - ZERO_MEANS_NOTHING:
    with changed(config, key, 0):
      check(config)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_have_to_be_finite(config, value):
  for key in (key for key in KEYS if type_of(key) is float):
    message = f"^{key}={value} must be a finite number[.]$"
    with changed(config, key, value), pytest.raises(ValueError, match=message):
      check(config)


def test_nothing_is_no_value_but_where_it_is_the_default(config):
  for key in KEYS:
    section, name = section_of(base_config(), key)
    with changed(config, key, None):
      if section[name] is None or key == "image_size":
        check(config)
        continue
      with pytest.raises(ValueError, match=f"^{key}=None: set it, such as "):
        check(config)


@pytest.mark.parametrize(
  "changes, message",
  [
    (dict(image_size=(16,)), r"image_size=\(16,\) must be a height and a wid"),
    (dict(image_size=(16, 0)), r"image_size=\(16, 0\) must be a height and"),
    (dict(image_size=(16, 8.5)), r"image_size=\(16, 8.5\) must be a height"),
    (dict(image_size=("a", 1)), r"image_size=\('a', 1\) must be a height"),
    (
      dict(normalization=dict(mean=(0.5,))),
      r"normalization.mean=\(0.5,\) must be finite, and be three numbers, a",
    ),
    (
      dict(normalization=dict(std=(0.5, 0.5, 0.0))),
      "normalization.std=.* must be more than 0, and be three numbers",
    ),
    (
      dict(normalization=dict(std=("a", 1, 1))),
      "std=.* be three numbers, as of re",
    ),
    (dict(optimizer=dict(b1=1.0)), "optimizer.b1=1.0 must be in .0, 1."),
    (dict(keep_last=0), "keep_last=0 must be 1 or more"),
  ],
)
def test_what_no_run_can_mean_is_refused(config, changes, message):
  config.update(changes)
  with pytest.raises(ValueError, match=message) as info:
    check(config)
  assert str(info.value).isprintable()


def test_a_configuration_has_all_keys_and_no_others(config):
  with config.unlocked():
    config.batchsize = 3
  with pytest.raises(
    ValueError, match="^batchsize is no .* mean batch_size[?]"
  ):
    check(config)
  with config.unlocked():
    del config.batchsize
    del config.optimizer.b1
  with pytest.raises(
    ValueError, match="has no optimizer.b1: let it start from"
  ):
    check(config)


@pytest.mark.parametrize(
  "changes, message",
  [
    (
      dict(total_steps=5),
      "total_steps=5 and total_epochs=2.0 are both given: set all but one to 0",
    ),
    (
      dict(optimizer=dict(warmup_steps=2, warmup_epochs=1.0)),
      "warmup_steps=2 and warmup_epochs=1.0 are both given",
    ),
    (
      dict(optimizer=dict(warmup_epochs=2.0)),
      "a warm-up of 6 steps leaves nothing of 6: shorten optimizer.warmup_st",
    ),
    (dict(batch_size=12), "batch_size=12 does not split .* that does is 16"),
    (
      dict(batch_size=32),
      "batch_size=32 is more than the 24 examples of photos",
    ),
    (dict(image_size=(16, 20)), "16 x 20 do not split .* 16 x 16 would"),
    (
      dict(model=dict(num_classes=2)),
      "has 3 classes and model.num_classes is 2: set it to 3 or more",
    ),
    (dict(model=dict(num_heads=5)), "hidden_size=24 .* num_heads=5; 4 heads"),
    (dict(model=dict(variant="B/17x")), "B/17x"),
    (
      dict(mesh=dict(data=3)),
      "mesh data=3, fsdp=1, tensor=1 does not lay out 8",
    ),
    (dict(pretrained="no_such_model"), "model.variant='Ti/8' and pretrained="),
    (
      dict(transfer=dict(interpolation="area")),
      "transfer.interpolation='area'",
    ),
    (dict(loss=dict(kind="hinge")), "loss.kind='hinge' is unknown; choose one"),
    (dict(optimizer=dict(weight_decay_on="(")), "weight_decay_on='[(]' is not"),
  ],
)
def test_what_does_not_fit_says_what_to_change(config, changes, message):
  config.update(changes)
  with pytest.raises(ValueError, match=message) as info:
    plan(config)
  assert str(info.value).isprintable()


@pytest.mark.parametrize(
  "changes, message",
  [
    (dict(total_steps=5), "both given: set all but one to 0"),
    (dict(save_every_steps=-1, save_every_epochs=0.0), "must not be negative"),
    (dict(batch_size=12), "does not split over 8 devices"),
    (dict(image_size=(0, 8)), "must be a height and a width"),
    (dict(mesh=dict(tensor=3)), "does not lay out 8 devices"),
    (dict(model=dict(num_heads=0)), "model.num_heads=0 must be 1 or more"),
    (dict(model=dict(dtype="half")), "model.dtype='half' is unknown"),
    (dict(model=dict(remat="some")), "model.remat='some' is unknown"),
    (dict(loss=dict(label_smoothing=1.0)), "label_smoothing=1.0 must be in"),
    (dict(optimizer=dict(kind="adamw")), "optimizer.kind='adamw' is unknown"),
    (dict(optimizer=dict(layer_decay=2.0)), "layer_decay=2.0 must be in"),
    (dict(train_transform=dict(crop="x")), "crop='x' is unknown"),
    (dict(eval_transform=dict(resize_ratio=0.5)), "resize_ratio=0.5; it has"),
    (dict(loader=dict(on_unreadable="x")), "on_unreadable='x' is unknown"),
    (dict(transfer=dict(interpolation="x")), "transfer.interpolation='x' is"),
  ],
)
def test_nothing_is_downloaded_for_what_is_refused(
  config, monkeypatch, changes, message
):
  def download(*_, **__):
    raise AssertionError("it was downloaded first")

  monkeypatch.setattr(load, "open_pretrained", download)
  config.model = base_config().model
  config.pretrained = "b16_augreg_i1k_384"
  config.update(changes)
  with pytest.raises(ValueError, match=message):
    plan(config)


def test_a_misnamed_class_of_the_evaluation_is_refused(config, tmp_path):
  config.data.root = make_folder(
    tmp_path, {"train/a/0.png": GOOD, "test/b/0.png": GOOD}
  )
  with pytest.raises(ValueError, match="the class 'b', which the train folder"):
    plan(config)
