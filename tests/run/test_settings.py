"""Settings: bad durations, types, ranges and keys are refused in one line."""

import ast
import contextlib
import dataclasses
import pathlib
import re

import jax
import numpy as np
import pytest

from vit_jax.config import base_config
from vit_jax.models import extended_vit, layer, position, two_towers, vit
from vit_jax.run import settings
from vit_jax.run.plan import make_plan
from vit_jax.run.settings import Settings, read
from vit_jax.runtime.checks import checked
from vit_jax.runtime.settings import (
  Duration,
  all_keys,
  check_needs,
  flat,
  is_section,
  needs,
  replaced,
  to_dict,
  types_of,
  untuned,
)
from vit_jax.tasks.pairs import settings as pair_settings
from vit_jax.workdir import description as descriptions

# Values that a number must not have; the numbers not listed here may be 0.
NEGATIVE_MEANS_SOMETHING = {
  "loader.num_workers",  # -1 is "choose".
  "mesh.data",  # -1 is "the rest", here and below.
  "mesh.fsdp",
  "mesh.tensor",
  "model.head_bias",
  "pairs.bias",
  "optimizer.freeze_layers",  # -1 is "all but the head".
}
ZERO_MEANS_NOTHING = {
  *("autoencoder.decoder_heads", "autoencoder.decoder_layers"),
  *("autoencoder.decoder_size", "student.patch_weight"),
  *("accumulation_steps", "batch_size", "channels", "data.eval_fraction"),
  "self_distillation.gram_scale",
  *("distill.temperature", "distill.weight"),
  *("eval_transform.resize_ratio", "eval_transform.longest_ratio"),
  *("data.tokens", "fewshot.data.eval_fraction", "fewshot.data.tokens"),
  *("data.target_scale", "fewshot.data.target_scale"),
  *("data.images_per_row", "data.row_tokens", "data.min_tokens"),
  *("fewshot.data.images_per_row", "fewshot.data.row_tokens"),
  "fewshot.data.min_tokens",
  *("fewshot.seeds", "fewshot.most_images"),
  *("keep_last", "lora.alpha", "mesh.data", "mesh.fsdp"),
  *(
    "optimizer.epsilon",
    "mesh.tensor",
    "model.hidden_size",
    "model.layer_norm_epsilon",
  ),
  *("model.mlp_size", "model.num_classes", "model.num_heads"),
  *("model.num_layers", "model.patch_size", "model.representation_size"),
  *("optimizer.layer_decay", "total_epochs", "train_transform.min_area"),
  *("scoped_vmem_mib", "train_transform.repeats"),
  *(
    f"pairs.{name}"
    for name in (
      *("captions", "scale", "start_lr", "text_heads", "text_layers"),
      *("text_length", "text_size", "vocabulary"),
    )
  ),
  *(
    f"lejepa.{name}"
    for name in (
      "area",
      "directions",
      "min_area",
      "projections",
      "projector_size",
      "small_size",
    )
  ),
  *(
    f"self_distillation.{name}"
    for name in (
      *("area", "min_area", "mask_to", "head_size", "head_layers"),
      *("bottleneck", "small_size", "student_temperature"),
      *("first_temperature", "teacher_temperature"),
    )
  ),
}
KEYS = all_keys(Settings)
PACKAGE = pathlib.Path(settings.__file__).parent.parent


def section_of(config, key):
  """The section of a dotted key, and the key's name in it."""
  *sections, name = key.split(".")
  for step in sections:
    config = config[step]
  return config, name


def type_of(key):
  section, name = section_of(base_config(), key)
  return section.get_type(name)


NUMBERS = [key for key in KEYS if type_of(key) in (int, float)]


check = read


def plan(config):
  return make_plan(read(config))


def test_the_configuration_that_is_spoilt_below_is_in_order(config):
  assert plan(config).lengths.total == 6


@contextlib.contextmanager
def changed(config, key, value):
  """Changes a value of the configuration within a context."""
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
    if not key.endswith("bias"):
      section[name] = -2
      with pytest.raises(ValueError, match=f"{name}=-2.* -1 "):
        plan(config)
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


SIZES = {
  *("batch_size", "channels", "cut_from", "eval_batch_size", "fewshot.seeds"),
  *("eval_transform.resize_ratio", "eval_transform.longest_ratio"),
  *("image_size", "loader.num_workers"),
  *("lora.rank", "model.hidden_size", "model.mlp_size", "model.num_classes"),
  *("model.num_heads", "model.num_layers", "model.patch_size"),
  *("model.representation_size", "train_transform.pad"),
  "train_transform.randaugment_layers",
}


@pytest.mark.parametrize("key", sorted(SIZES))
def test_sizes_beyond_all_that_is_known_are_refused(config, key):
  """Nothing of that size is made first; 1 is taken."""
  for size in (1, 10**9, 10**8):
    sides = key in ("image_size", "cut_from")
    value = (size, size) if sides else size
    with changed(config, key, value):
      if size == 1:
        check(config)
        continue
      with pytest.raises(
        ValueError, match=f"^{key}=.* at most [0-9,]+"
      ) as info:
        check(config)
      assert str(info.value).isprintable() and len(str(info.value)) < 200


@pytest.mark.parametrize("key", ["mixup_alpha", "cutmix_alpha"])
def test_alphas_whose_draws_are_no_numbers_are_refused(config, key):
  """A draw from Beta(1e-38, 1e-38) is NaN."""
  for value in (1e-38, 1e-7, 1e7, 3e38):
    config.loss[key] = value
    with pytest.raises(
      ValueError, match=f"loss.{key}=.*, or lie between 1e-6 and 1e6"
    ):
      check(config)
  for value in (0.0, 1e-6, 1e6):
    config.loss[key] = value
    check(config)
    if value:
      draw = jax.random.beta(jax.random.key(0), value, value, (99,))
      assert np.isfinite(draw).all()


# A key -> a value of it that is not the default.
OTHERS = {
  "autoencoder.norm_pixels": False,
  "data.outside": True,
  "data.label_separator": ",",
  "data.held_out_by": "rank",
  "data.mask_values": "index",
  "data.held_out_below": (0.5, 0.25),
  "data.labels": False,
  "data.train_split": "test",
  "data.unknown": "?",
  "data.group_column": "patient",
  "data.uncertain": "ignore",
  "data.empty_cells": "absent",
  "self_distillation.crop_sizes": ((8, 4, 0, 1.0),),
  "self_distillation.gram_scale": 2,
  "self_distillation.gram_weight": 1.0,
  "self_distillation.gram_every_epochs": 2.0,
  "self_distillation.freeze_last_epochs": 2.0,
  "self_distillation.temperature_warmup_epochs": 2.0,
  "distill.form": "deit",
  "distill.kind": "hard",
  "eval_per_class": True,
  "dense_regression.head": "dpt",
  "dense_regression.layers": (1, 2),
  "dense_regression.loss": "silog",
  "dense_regression.unit": "m",
  "fewshot.data.root": "photos",
  "fewshot.pre_logits": False,
  "lejepa.colours": False,
  "loss.binary_targets": True,
  "lora.kernels": "query",
  "masked.target": "pixels",
  "pairs.distinct": False,
  "pairs.image": "frozen",
  "pairs.loss": "softmax",
  "pairs.template": "{}",
  "pairs.text": "frozen",
  "pairs.tokenizer": "tokenizer.json",
  "pairs.zero_shot": "photos",
  "model.channel_sampling": True,
  "model.drop_path_grows": True,
  "optimizer.momentum_correction": False,
  "optimizer.weight_decay_on": "head",
  "segmentation.head": "dpt",
  "segmentation.layers": (1, 2),
  "self_distillation.centering": "sinkhorn",
  "self_distillation.colours": False,
  "self_distillation.separate_head": True,
  "transfer.interpolation": "linear",
  "transfer.keep_head": True,
  "transfer.keep_pre_logits": True,
  "transfer.probe_head": True,
  "train_transform.randaugment_timm": True,
}
NEEDED = [pair for pair in needs(Settings) if "fewshot.data." not in pair[0]]


def test_what_keys_need_are_keys_that_there_are():
  for key, others in needs(Settings):
    for other in (key, *(name.partition("=")[0] for name in others)):
      assert any(k in (other, f"{other}_steps") for k in KEYS), (key, other)
  assert len(NEEDED) > 15
  assert ("fewshot.data.outside", ["fewshot.data.labels_file"]) in needs(
    Settings
  )


@pytest.mark.parametrize("key, needed", NEEDED)
def test_a_key_says_nothing_without_another(key, needed):
  default = flat(to_dict(Settings()))[key]
  value = OTHERS.get(key, default / 2 if isinstance(default, float) else 7)
  changes = {"eval_every_epochs": 0.0, "save_every_epochs": 0.0, key: value}
  if key == "loss.binary_targets":
    changes["loss.kind"] = "sigmoid"
  with pytest.raises(
    ValueError, match=f"^{key}=.* has no effect without "
  ) as e:
    check_needs(replaced(Settings(), changes))
  assert str(e.value).isprintable()
  assert f"leave {key} out ({key}={default!r} where" in str(e.value)


SMALL = {"self_distillation.small_crops": 2, "lejepa.small_crops": 2}
LARGE = {"self_distillation.small_crops": 0, "lejepa.small_crops": 0}
CENTER = {"eval_transform.crop": "center"}
SQUASH = {"eval_transform.crop": "squash"}
PAD = {"train_transform.crop": "pad"}
BY_CHANCE = {"train_transform.randaugment_layers": 2}
SGD, MUON = {"optimizer.kind": "sgd"}, {"optimizer.kind": "muon"}
CONSTANT = {"optimizer.decay": "constant"}
HARD = {"distill.kind": "hard"}
SILOG = {"dense_regression.loss": "silog"}
SOFTMAX = {"pairs.loss": "softmax"}
AREA = {"eval_transform.interpolation": "area"}
UNMASKED = {"self_distillation.patch_weight": 0.0}
SINKHORN = {"self_distillation.centering": "sinkhorn"}
# A key that tunes another, a value of it, and changes with which it has no
# effect and with which it has one.
TUNING = [
  ("ema_warmup", False, {}, {"ema_decay": 0.9}),
  ("train_transform.min_area", 0.3, PAD, {}),
  ("train_transform.as_published", True, PAD, {}),
  ("train_transform.as_published", True, PAD, PAD | BY_CHANCE),
  ("train_transform.pad", 2, {}, PAD),
  ("train_transform.randaugment_magnitude", 5.0, {}, BY_CHANCE),
  ("eval_transform.resize_ratio", 1.0, {}, CENTER),
  ("eval_transform.resize_ratio", 1.0, {}, SQUASH),
  ("eval_transform.corner", "even", {}, SQUASH),
  ("eval_transform.longest_ratio", 2.0, SQUASH, CENTER),
  ("eval_transform.antialias", False, AREA, {}),
  ("dense_regression.silog_lambda", 1.0, {}, SILOG),
  ("student.patch_weight", 2.0, {}, {"student.learns": "both"}),
  ("student.patch_weight", 2.0, {"student.learns": "class"}, {}),
  ("lejepa.small_size", 32, LARGE, SMALL),
  ("lejepa.min_area", 0.1, LARGE, SMALL),
  ("self_distillation.small_size", 32, LARGE, SMALL),
  ("self_distillation.min_area", 0.1, LARGE, SMALL),
  ("self_distillation.mask_probability", 1.0, UNMASKED, {}),
  ("self_distillation.mask_from", 0.2, UNMASKED, {}),
  ("self_distillation.mask_to", 0.4, UNMASKED, {}),
  ("self_distillation.center_momentum", 0.8, SINKHORN, {}),
  ("pairs.bias", -3.0, SOFTMAX, {}),
  ("pairs.template", "{}", {}, {"pairs.zero_shot": "photos"}),
  ("distill.temperature", 3.0, HARD, {}),
  ("optimizer.final_lr", 1e-5, CONSTANT, {"optimizer.decay": "deit"}),
  ("optimizer.b1", 0.8, SGD, MUON),
  ("optimizer.b2", 0.8, SGD, {}),
  ("optimizer.epsilon", 1e-6, SGD, {"optimizer.kind": "lamb"}),
  ("optimizer.momentum", 0.8, {}, MUON),
  ("optimizer.momentum", 0.8, {"optimizer.kind": "lamb"}, SGD),
]


def test_all_keys_that_tune_others_are_tried():
  tuning = {key for key, _ in needs(Settings, how="tunes")}
  assert tuning == {key for key, *_ in TUNING}


@pytest.mark.parametrize("key, value, off, on", TUNING)
def test_a_key_that_tunes_what_is_off_is_named(key, value, off, on):
  if key == "student.patch_weight":
    on = on or {"student.learns": "patches"}
  assert untuned(replaced(Settings(), off)) == {}
  found = untuned(replaced(Settings(), off | {key: value}))
  assert found.keys() == {key}
  assert found[key].startswith("without ")
  on_now = untuned(replaced(Settings(), on | {key: value}))
  assert key not in on_now


def test_the_data_of_probes_are_named_by_one_of_three_keys():
  probed = {"fewshot.shots": 2, "fewshot.data.eval_split": "val"}
  with pytest.raises(
    ValueError, match="fewshot.data.eval_split='val' has no e"
  ):
    check_needs(replaced(Settings(), probed))
  for name in ("name", "root", "dir", "labels_file"):
    own = {f"fewshot.data.{name}": "digits"}
    check_needs(replaced(Settings(), probed | own))


def test_a_duration_needs_another_key():
  change = {"self_distillation.freeze_last_steps": 5}
  with pytest.raises(
    ValueError,
    match="freeze_last_steps=5 has no effect without self_dist.*prototypes: ",
  ):
    check_needs(replaced(Settings(), change))


def test_keys_that_say_something_are_taken():
  together = {
    "masked.rate": 0.5, "masked.target": "pixels", "pretrained": "runs/a",
    "transfer.keep_head": True, "lora.rank": 2, "lora.alpha": 3.0,
    "distill.teacher": "runs/b", "distill.temperature": 3.0,
    "early_stop_evaluations": 3, "eval_pictures": 1, "fewshot.shots": 5,
    "fewshot.seeds": 2, "keep_last": 3, "ema_decay": 0.9, "ema_warmup": False,
    "data.name": "digits", "data.train_split": "train[:90%]",
    "train_transform.min_area": 0.2, "train_transform.repeats": 3,
    "train_transform.randaugment_layers": 2,
    "train_transform.randaugment_magnitude": 5.0,
    "eval_transform.crop": "center", "eval_transform.resize_ratio": 1.0,
    "loss.kind": "sigmoid", "loss.cutmix_alpha": 1.0,
    "loss.binary_targets": True, "optimizer.kind": "lamb",
    "optimizer.b1": 0.8, "optimizer.final_lr": 1e-5,
    "optimizer.weight_decay_on": "E$",
  }  # fmt: skip
  check_needs(replaced(Settings(), together))
  # A configuration may have set these before what they tune was turned off.
  left = {"train_transform.randaugment_magnitude": 5.0, "ema_warmup": False}
  check_needs(replaced(Settings(), left))


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
    (dict(normalization=dict(mean=())), "mean=.* must be a finite number for"),
    (dict(normalization=dict(std=(1, 1, 0))), "std=.* must be a number above"),
    (dict(optimizer=dict(b1=1.0)), "optimizer.b1=1.0 must be in .0, 1."),
    (
      dict(pretrained="runs/a", transfer=dict(keep_head=True, probe_head=True)),
      "probe_head=True needs keep_head=False",
    ),
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
  with pytest.raises(ValueError, match="^batchsize .* mean batch_size[?]"):
    check(config)
  with config.unlocked():
    del config.batchsize
    del config.optimizer.b1
  with pytest.raises(ValueError, match="has no optimizer.b1: start it from"):
    check(config)


def _all_fields(cls):
  for field in dataclasses.fields(cls):
    kind = types_of(cls)[field.name]
    if is_section(kind):
      yield from _all_fields(kind)
    else:
      yield cls, field, kind


@pytest.mark.parametrize("cls", [Settings, settings.ProbeSettings])
def test_defaults_are_what_their_checks_would_make_of_them(cls):
  """Sections take their defaults as they are."""
  for owner, field, kind in _all_fields(cls):
    if kind is Duration:
      assert sum(map(bool, dataclasses.astuple(field.default))) <= 1, field
      continue
    must, choices = field.metadata["must"], field.metadata["choices"]
    value = checked(field.name, kind, field.default, must, choices)
    assert value == field.default, field
    assert value is None or type(getattr(owner(), field.name)) is type(value)


def test_a_record_and_a_run_have_the_same_defaults():
  whole = Settings()
  for name, value in vars(descriptions.RecordedSettings()).items():
    assert value == getattr(whole, name), name


def test_choices_are_those_of_the_code_that_implements_them():
  """They are repeated so that `--help` need not import the models."""
  assert set(settings.POOLINGS) == {
    *vit.Vit.poolings,
    *extended_vit.ExtendedVit.poolings,
  }
  assert settings.POSITIONS == position.POSITIONS
  assert settings.PLACES == position.PLACES
  assert settings.GELUS == tuple(layer.GELUS)
  assert settings.REMATS == tuple(layer.REMATS)
  assert settings.ATTENTIONS == layer.ATTENTIONS
  assert pair_settings.HOW == two_towers.HOW


# Messages about something else, which they name first.
ABOUT_ANOTHER = (
  *("a data worker ended", "{}: convert the file to 8 bits", "the checkpoint "),
  *("{} takes one class for each image", "{} of shape {} does not divide over"),
  *("data is of type {}", "{} was loaded with settings that differ from"),
  "{} If the folder {} is meant, it is data.root",
  "{} If the folder {} is meant",  # After a message that begins with its key.
)


def _messages(rooms):
  """The place and the text of each ValueError, with {} for its values."""
  for room in rooms:
    for path in sorted((PACKAGE / room).rglob("*.py")):
      for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
          for given in node.exc.args[:1]:
            parts = getattr(given, "values", [given])
            texts = [getattr(part, "value", "{}") for part in parts]
            yield (
              path,
              "".join(t if isinstance(t, str) else "{}" for t in texts),
            )


def test_a_message_about_a_key_begins_with_it():
  """So that it can be told as its flag: "--config.batch_size=32 is ..."."""
  rooms = ("data", "run", "tasks", "training", "evaluation")
  key = "|".join(map(re.escape, sorted(KEYS, key=len, reverse=True)))
  dotted = "|".join(re.escape(k) for k in KEYS if "." in k)
  mentions = re.compile(
    rf"(?<![\w.])(?:{dotted})(?![\w.]*\w)|(?<![\w.])(?:{key})="
  )
  begins = re.compile(rf"--|\{{\}}=|(?:{key})(?!\w)")
  wrong = [
    f"{path.relative_to(PACKAGE)}: {text}"
    for path, text in _messages(rooms)
    if mentions.search(text)
    and not begins.match(text)
    and not text.startswith(ABOUT_ANOTHER)
  ]
  assert not wrong
