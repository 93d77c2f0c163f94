"""Every file in `configs/` has the known keys and takes a step."""

import dataclasses
import functools
import importlib.util
import pathlib
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import (
  deit3,
  dense_regression,
  dino,
  finetune,
  lejepa,
  mae,
  masked_patches,
  pretrain,
  segmentation,
)
from tests import encoders
from tests.old_runs import UNSEEN
from tests.rows import some_slow
from vit_jax import load_pretrained
from vit_jax.models import make_model, variants
from vit_jax.models.grid import grid_of, param_shapes
from vit_jax.pretrained import known
from vit_jax.run import build, extras, loop, plan
from vit_jax.run.experiments import study
from vit_jax.run.settings import Settings, read
from vit_jax.runtime.settings import all_keys, flat
from vit_jax.training import sharding

CONFIGS = pathlib.Path(__file__).parents[1] / "configs"
ROWS = [
  f"{model},{dataset},{length}"
  for dataset, models in pretrain.TABLE_3.items()
  for model, (lengths, _) in models.items()
  for length in lengths
]


def test_table_3_has_the_papers_rows():
  assert len(ROWS) == 16 + 6 + 5


def _load(path: pathlib.Path, argument: str = ""):
  spec = importlib.util.spec_from_file_location(path.stem, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.get_config(argument) if argument else module.get_config()


@pytest.mark.parametrize(
  "path", sorted(CONFIGS.glob("*.py")), ids=lambda p: p.stem
)
def test_every_config_has_exactly_the_known_keys(path):
  assert sorted(flat(_load(path).to_dict())) == sorted(all_keys(Settings))


@pytest.mark.parametrize(
  "path", sorted(CONFIGS.glob("studies/*.py")), ids=lambda p: p.stem
)
def test_every_row_of_a_study_builds_and_can_be_drawn(path, tmp_path):
  opened = study.open_study(str(path), str(tmp_path), [])
  for row, settings in opened.settings.items():
    if settings.pretrained is None:
      build.build_model(settings, build.task_of(settings), ("a", "b"))
    columns = {*opened.rows[row]}
    for figure in opened.module.FIGURES.values():
      assert {figure["x"], figure["lines"]} <= columns
      assert figure["y"].startswith(("eval/", "fewshot/"))
  assert len({str(s) for s in opened.settings.values()}) == len(opened.rows)


@pytest.mark.parametrize(
  "module, argument, message",
  [
    (pretrain, "B/16", "'B/16' names no row of Table 3"),
    (pretrain, "B/16,cifar10", "one of jft300m, imagenet21k, imagenet2012"),
    (pretrain, "B/8,imagenet2012", "Table 3 has no B/8 on .*; it has B/16"),
    (pretrain, "L/16,jft300m,9", "for 7 or 14 epochs, not 9"),
    (finetune, "b16_i21k", "must be a checkpoint and a data set"),
    (finetune, "b16_i21k,dtd", "Table 4 has no dtd; it has .*b16_i21k,dtd,vta"),
    (finetune, "l16_i21k,cifar10,table2", "Table 2 is of imagenet2012; leave"),
    (finetune, "b16_i21k,cifar10,384", "only table2 or vtab may follow"),
    (masked_patches, "B/16", "'B/16' must be a model and a data set"),
    (mae, "B/8", "'B/8': give one of B/16, L/16, H/14, with ,finetune"),
    (mae, "B/16,probe", "'B/16,probe': give one of"),
    (mae, "continu", r"for a linear probe; or continue .* mean continue\?$"),
    (deit3, "H/14", "'H/14': give one of S/16, B/16, L/16"),
    (dense_regression, "all", "'all': give one of head, lora, whole"),
    (segmentation, "all", "'all': give one of head, lora, whole"),
  ],
)
def test_an_argument_that_is_no_row_is_refused(module, argument, message):
  with pytest.raises(ValueError, match=message):
    module.get_config(argument)


def test_a_few_images_train_a_head_from_a_probe():
  config, settings = finetune.get_config("small"), finetune.get_config()
  assert config.transfer.probe_head and not settings.transfer.probe_head
  assert config.optimizer.freeze_layers == -1 and config.total_epochs == 1
  assert config.image_size is settings.image_size is None


@pytest.mark.parametrize(
  "module, name, score",
  [
    (segmentation, "segmentation", "mean_iou"),
    (dense_regression, "dense_regression", "r2"),
  ],
)
def test_tasks_of_pixels_train_a_head_alone_or_more(module, name, score):
  head, lora, whole = map(module.get_config, module.KINDS)
  frozen = [c.optimizer.freeze_layers for c in (head, lora, whole)]
  assert frozen == [-1, 0, 0]
  assert [c.lora.rank for c in (head, lora, whole)] == [0, 16, 0]
  for c in (head, lora, whole):
    task = build.task_of(read(c))
    assert (task.name, task.scores.best) == (name, score)


def test_rows_carry_the_papers_numbers():
  config = pretrain.get_config("L/16,imagenet21k,30")
  assert config.total_epochs == 30
  assert config.batch_size == 4096
  assert config.optimizer.peak_lr == 1e-3
  assert config.optimizer.decay == "linear"
  assert config.optimizer.final_lr == 1e-5
  assert config.optimizer.warmup_steps == 10_000
  assert config.optimizer.weight_decay == 0.03
  assert config.model.dropout_rate == 0.1
  assert config.model.head_bias == -10
  assert config.model.representation_size == 1024
  config = pretrain.get_config("H/14,imagenet2012")
  assert config.optimizer.decay == "cosine"
  assert config.optimizer.weight_decay == 0.3
  assert config.optimizer.clip_norm == 1


def _one_step(config, size: int, batch_size: int, num_classes: int, mesh=None):
  """Traces or runs the configuration's step; returns it and its inputs."""
  config.update(image_size=(size, size), batch_size=batch_size)
  mesh = mesh or sharding.make_mesh(devices=jax.devices()[:1])
  made = plan.plan_of_shapes(
    read(config),
    num_classes=num_classes,
    num_examples=10**6,
    devices=list(mesh.devices.flat),
  )
  if made.extras.teacher is not None:
    teacher, _ = extras.open_teacher(made.settings, made.task)
    opened = extras.open_extras(
      made.settings, made.model, mesh, teacher, None, None
    )
    task = opened.with_teacher(made.task)
    made = dataclasses.replace(made, extras=opened, task=task)
  classes = np.arange(batch_size, dtype=np.int32) % num_classes
  batch = {name: one.zeros() for name, one in made.batch_spec.items()}
  pixels = np.arange(batch_size * size * size * 3, dtype=np.uint8)
  batch["image"] = pixels.reshape(batch_size, size, size, 3)
  batch["label"] += classes.reshape(-1, *[1] * (batch["label"].ndim - 1))
  if "text" in batch:
    batch["text"] += classes[:, None]
  return made.init, made.train_step, batch, *made.extras.frozen_params


@pytest.mark.slow
@pytest.mark.parametrize(
  "name",
  [
    "digits",
    "cifar10",
    "cifar10:hybrid",
    "cifar10_gpu",
    "image_folder",
    "channels",
    "masked_patches",
    "big_vision_s16",
    "mae",
    "pairs",
    "student:" + str(encoders.FOLDER / "hf_dinov2"),
  ],
)
def test_every_other_config_takes_a_step(name):
  name, _, argument = name.partition(":")
  config = _load(CONFIGS / f"{name}.py", argument)
  config.optimizer.warmup_epochs = 0.0
  config.model.num_layers = 1
  if name == "pairs":
    config.data.labels_file = "pairs.csv"
  size = (config.image_size or (64,))[0]
  init, step, *inputs = _one_step(config, size, 4, num_classes=10)
  state = nn.unbox(jax.jit(init)(jax.random.key(0)))
  after, metrics = jax.jit(step)(state, *inputs)
  if name == "pairs":  # -log sigmoid(10 cos - 10); the others add next to 0.
    expected = 10 - 10 * float(metrics["cosine"])
    assert float(metrics["loss"]) == pytest.approx(expected, rel=0.01)
    assert metrics["skipped_steps"] == 0
    return
  if name in ("mae", "student"):  # Their outputs are not zeros at first.
    assert 0.5 < float(metrics["loss"]) < 5 and metrics["skipped_steps"] == 0
    return
  alike = 512 if config.masked.rate else 10  # Colours, or classes.
  assert float(metrics["loss"]) == pytest.approx(np.log(alike), rel=1e-4)
  assert int(after.step) == 1


def test_masked_patches_carry_the_papers_numbers():
  config = masked_patches.get_config("B/16,imagenet2012")
  assert config.masked.to_dict() == {"rate": 0.5, "target": "colour"}
  assert config.batch_size == 4096
  assert config.optimizer.peak_lr == 2e-4
  assert config.optimizer.warmup_steps == 10_000
  assert config.optimizer.decay == "cosine"
  assert config.total_steps == 100_000
  assert masked_patches.get_config("B/16,jft300m").total_steps == 1_000_000


def test_masked_autoencoders_carry_the_papers_numbers():
  """Tables 8 and 9 of arXiv:2111.06377."""
  config = mae.get_config("B/16")
  assert config.autoencoder.to_dict() == {
    "rate": 0.75,
    "norm_pixels": True,
    "decoder_size": 512,
    "decoder_layers": 8,
    "decoder_heads": 16,
  }
  assert (config.batch_size, config.total_epochs) == (4096, 800)
  assert config.optimizer.peak_lr == pytest.approx(2.4e-3)
  assert (config.optimizer.b1, config.optimizer.b2) == (0.9, 0.95)
  assert config.optimizer.weight_decay == 0.05
  assert config.optimizer.warmup_epochs == 40
  assert config.train_transform.min_area == 0.2 and config.train_transform.flip
  tuned = mae.get_config("L/16,finetune")
  assert tuned.autoencoder.rate == 0 and tuned.model.variant is None
  assert tuned.optimizer.peak_lr == pytest.approx(4e-3)
  assert (tuned.optimizer.layer_decay, tuned.total_epochs) == (0.75, 50)
  assert (tuned.loss.mixup_alpha, tuned.loss.cutmix_alpha) == (0.8, 1.0)


@pytest.mark.parametrize("module", [dino, lejepa])
def test_a_run_on_a_few_images_of_ones_own_logs_before_it_evaluates(module):
  """It says how long it takes in the first epoch, whose steps may be slow."""
  settings = read(module.get_config("continue"))
  log, evaluation = (
    every.in_steps(settings.batch_size, 225)
    for every in (settings.log_every, settings.eval_every)
  )
  assert 0 < log < evaluation


def test_self_distillation_carries_dinov2s_numbers():
  """Those of ssl_default_config.yaml."""
  config = dino.get_config("B/16")
  own = config.self_distillation
  assert (own.prototypes, own.bottleneck, own.head_layers) == (65536, 256, 3)
  assert (own.head_size, own.separate_head) == (2048, False)
  assert (own.class_weight, own.patch_weight, own.koleo_weight) == (1, 1, 0.1)
  masks = own.mask_probability, own.mask_from, own.mask_to
  assert masks == (0.5, 0.1, 0.5)
  assert (own.small_crops, own.small_size, config.image_size) == (
    *(8, 96),
    (224, 224),
  )
  assert (own.min_area, own.area, own.centering) == (0.05, 0.32, "mean")
  temperatures = own.first_temperature, own.teacher_temperature
  assert (*temperatures, own.student_temperature) == (0.04, 0.07, 0.1)
  assert own.temperature_warmup_steps == 30 * 1250
  assert (own.freeze_last_steps, own.clip_norm) == (1250, 3.0)
  assert (config.ema_decay, config.batch_size) == (0.992, 1024)
  assert config.total_steps == 100 * 1250
  optimizer = config.optimizer
  decays = optimizer.weight_decay, optimizer.final_weight_decay
  assert decays == (0.04, 0.4)
  assert (optimizer.b1, optimizer.b2, optimizer.warmup_steps) == (
    *(0.9, 0.999),
    12_500,
  )
  assert (optimizer.peak_lr, optimizer.final_lr) == (pytest.approx(4e-3), 1e-6)
  assert (optimizer.layer_decay, optimizer.patches_lr) == (0.9, 0.2)
  assert config.model.drop_path_rate == 0.3
  shapes = _trained(config)
  decaying = re.compile(optimizer.weight_decay_on).search
  names = {path.rsplit("/", 1)[-1] for path in shapes if not decaying(path)}
  assert names == {"bias", "scale", "scale_msa", "scale_mlp"}
  with pytest.raises(ValueError, match="'Ti/16': give one of S/16, B/16"):
    dino.get_config("Ti/16")


def test_high_resolution_carries_dinov3s_numbers_at_half_the_size():
  """Those of dinov3_vit7b16_high_res_adapt.yaml."""
  config = dino.get_config("high_res")
  own, optimizer = config.self_distillation, config.optimizer
  published = (
    (512, 112, 768, 0.3),
    (768, 112, 1152, 0.3),
    (768, 168, 1152, 0.3),
    (768, 224, 1152, 0.05),
    (768, 336, 1152, 0.05),
  )
  for sizes, theirs in zip(own.crop_sizes, published, strict=True):
    assert sizes[3] == theirs[3]
    for side, other in zip(sizes[:3], theirs[:3], strict=True):
      assert side % 16 == 0 and abs(side - other / 2) <= 8
  gram = own.gram_weight, own.gram_every_steps, own.gram_every_epochs
  assert gram == (1.5, 0, 0)
  assert (own.small_crops, own.min_area, own.area) == (8, 0.05, 0.32)
  assert (own.patch_weight, own.koleo_weight) == (1.0, 0.1)
  assert (own.centering, own.separate_head) == ("sinkhorn", True)
  assert (own.teacher_temperature, own.clip_norm) == (0.07, 30.0)
  assert (optimizer.b1, optimizer.b2, optimizer.weight_decay) == (
    *(0.9, 0.99),
    0.04,
  )
  assert (optimizer.layer_decay, optimizer.patches_lr) == (0.98, 0.2)
  rate = 1.25e-5 * 4 * np.sqrt(config.batch_size / 1024)
  assert optimizer.peak_lr == pytest.approx(rate)
  # The rate rises in 10 of 30 epochs, and then stays.
  assert (optimizer.decay, optimizer.final_weight_decay) == ("constant", None)
  assert (config.total_epochs, optimizer.warmup_epochs) == (30, 10)
  assert config.ema_decay == 0.999 and not config.train_transform.flip
  read(config)
  with pytest.raises(ValueError, match=r"Did you mean high_res\?$"):
    dino.get_config("highres")


def _trained(config):
  """The shapes of the parameters that a configuration trains, by path."""
  config.model.update(num_layers=1, hidden_size=32, mlp_size=32, num_heads=2)
  settings = read(config)
  model = build.build_model(settings, build.task_of(settings), ())
  return param_shapes(model, (14, 14))


@pytest.mark.slow
def test_self_distillation_goes_on_from_a_run_whole_and_with_lora(tmp_path):
  folder = str(tmp_path / "first")
  first = dino.get_config()
  second, third = dino.get_config("continue"), dino.get_config("continue")
  for config, rank in ((second, 0), (third, 2)):
    config.update(pretrained=folder)
    config.lora.rank = rank
    config.self_distillation.update(prototypes=32, head_size=16, bottleneck=8)
    config.self_distillation.small_size = 8
    config.optimizer.peak_lr = 1e-2
  first.model.update(num_layers=1, hidden_size=16, mlp_size=32, num_heads=2)
  first.self_distillation.small_size = 8
  for number, config in enumerate((first, second, third)):
    workdir = folder if not number else str(tmp_path / f"run_{number}")
    config.update(image_size=(16, 16), batch_size=16)
    config.update(total_epochs=0.0, total_steps=3)
    config.data.update(name="digits", eval_split=None, labels=True)
    config.loader.num_workers = 0
    config.optimizer.update(warmup_epochs=0.0, warmup_steps=0)
    state, evaluated = loop.train(read(config), workdir)
    assert np.isfinite(evaluated["eval/loss"]) and "eval/rank" in evaluated
    heads = {"class_head"} & set(state.params)
    assert heads and jax.tree.structure(state.params) == jax.tree.structure(
      state.averaged_params
    )
  names = [
    str(path) for path, _ in jax.tree_util.tree_leaves_with_path(state.params)
  ]
  assert any("lora_a" in path for path in names)
  assert "mask_token" in state.params and "patches" not in state.params
  # What leaves the run is the teacher: the base with the averaged products.
  model, params = load_pretrained(workdir)
  _, base = load_pretrained(folder)
  assert model.num_classes == 0 and params.keys() == base.keys()
  place = ("block_0", "mlp", "expand")
  old, new = (functools.reduce(dict.get, place, x) for x in (base, params))
  average = functools.reduce(dict.get, place, state.averaged_params)
  product = np.asarray(average["lora_a"]) @ np.asarray(average["lora_b"])
  change = np.asarray(new["kernel"]) - np.asarray(old["kernel"])
  np.testing.assert_allclose(change, 8 * product, atol=1e-6)
  assert np.abs(product).max() > 1e-7


def test_a_linear_probe_of_a_masked_autoencoder_trains_the_head_alone():
  config = mae.get_config("L/16,linear")
  assert config.autoencoder.rate == 0 and config.model.variant is None
  assert config.transfer.probe_head and config.optimizer.freeze_layers == -1
  assert config.optimizer.weight_decay == 0 and config.total_epochs == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mae", "student"])
def test_eight_devices_do_as_one_without_labels(name):
  """For three steps of a model of one layer, with all axes of the mesh."""
  argument = str(encoders.FOLDER / "hf_dinov2") if name == "student" else ""
  losses, trained = [], []
  for devices, axes in ((1, ()), (8, (2, 2, 2))):
    config = _load(CONFIGS / f"{name}.py", argument)
    config.optimizer.warmup_epochs = 0.0
    config.model.num_layers = 1
    mesh = sharding.make_mesh(*axes, devices=jax.devices()[:devices])
    init, step, batch, *frozen = _one_step(config, 32, 8, 10, mesh)
    shapes = sharding.array_shapes(init, mesh)
    make = jax.jit(
      lambda key, init=init: nn.unbox(init(key)),
      out_shardings=sharding.shardings_of(shapes),
    )
    state = make(jax.random.key(0))
    step = sharding.jit_train_step(step, shapes, mesh, *frozen)
    batch = jax.device_put(batch, sharding.batch_sharding(mesh))
    for _ in range(3):
      state, metrics = step(state, batch, *frozen)
      losses.append(float(metrics["loss"]))
    trained.append(jax.tree_util.tree_leaves_with_path(state.params))
  assert losses[3:] == pytest.approx(losses[:3], rel=1e-5)
  for (path, one), (_, eight) in zip(*trained, strict=True):
    if UNSEEN not in jax.tree_util.keystr(path, simple=True, separator="/"):
      np.testing.assert_allclose(one, eight, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_masked_autoencoder_is_pretrained_and_fine_tuned_when_shrunken(
  tmp_path,
):
  folder = str(tmp_path / "mae")
  first = mae.get_config("B/16")
  first.model.update(num_layers=1, hidden_size=32, mlp_size=64, num_heads=2)
  first.model.patch_size = 8
  first.autoencoder.update(decoder_size=16, decoder_layers=1, decoder_heads=2)
  second = mae.get_config("B/16,finetune")
  second.pretrained = folder
  for config, workdir in ((first, folder), (second, str(tmp_path / "tuned"))):
    config.update(image_size=(32, 32), batch_size=16)
    config.update(total_epochs=0.0, total_steps=2)
    config.data.update(name="digits", eval_split=None)
    config.loader.num_workers = 0
    config.optimizer.warmup_epochs = 0.0
    _, evaluated = loop.train(read(config), workdir)
    assert np.isfinite(evaluated["eval/loss"])
  assert "eval/top1" in evaluated


@pytest.mark.slow
@pytest.mark.parametrize("name", deit3.MODELS)
def test_deit_3_takes_a_shrunken_step(name):
  """The zero head gives every class the loss log 2, whatever its target."""
  config = deit3.get_config(name)
  config.model.update(num_layers=1, hidden_size=32, mlp_size=32, num_heads=2)
  init, step, batch = _one_step(config, config.image_size[0], 4, num_classes=10)
  state = nn.unbox(jax.jit(init)(jax.random.key(0)))
  after, metrics = jax.jit(step)(state, batch)
  assert float(metrics["loss"]) == pytest.approx(10 * np.log(2), rel=1e-4)
  assert int(after.step) == 1


def _shrink(config, monkeypatch):
  """Shrinks the model, so that it takes a step in a second."""
  monkeypatch.setattr(
    variants, "RESNETS", dict.fromkeys(variants.RESNETS, (1,))
  )
  hybrid = dict.fromkeys(variants.HYBRID_LAYERS, (1,))
  monkeypatch.setattr(variants, "HYBRID_LAYERS", hybrid)
  if "/" in config.model.variant:
    config.model.update(num_layers=1, hidden_size=16, mlp_size=32, num_heads=2)
    config.model.representation_size = 16
  config.optimizer.warmup_steps = 0


@pytest.mark.slow
@pytest.mark.parametrize("row", sorted({row.rsplit(",", 1)[0] for row in ROWS}))
def test_every_row_of_table_3_takes_a_shrunken_step(row, monkeypatch):
  config = pretrain.get_config(row)
  _shrink(config, monkeypatch)
  size = 28 if "/14" in row else 32
  init, step, batch = _one_step(config, size, 4, num_classes=10)
  state = jax.jit(init)(jax.random.key(0))
  after, metrics = jax.jit(step)(state, batch)
  # With a head of zeros the softmax loss is log K. The sigmoid loss with logits
  # b is the sum of softplus(b) over all classes minus b for the true one.
  expected = np.log(10)
  if config.loss.kind == "sigmoid":
    expected = 10 * np.log1p(np.exp(-10.0)) + 10.0
  assert float(metrics["loss"]) == pytest.approx(expected, rel=1e-3)
  assert int(after.step) == 1
  moved = jax.tree.map(lambda a, b: bool((a != b).any()), state, after)
  assert moved.params["head"]["kernel"].value


@pytest.mark.parametrize(
  "argument, steps, peak_lr, size, decay",
  [
    ("b16_i21k,imagenet2012", 20_000, 0.03, 384, 0.0),
    ("b16_i21k,cifar10", 10_000, 0.01, 384, 0.0),
    ("b16_i21k,cifar100", 10_000, 0.01, 384, 0.0),
    ("b16_i21k,oxford_iiit_pet", 500, 0.01, 384, 0.0),
    ("b16_i21k,oxford_flowers102", 500, 0.01, 384, 0.0),
    ("b16_i21k,dtd,vtab", 2_500, 0.01, 384, 0.0),
    ("h14_i21k,cifar10", 10_000, 0.01, 378, 0.0),
    ("l16_i21k,imagenet2012,table2", 20_000, 0.03, 512, 0.9999),
    ("h14_i21k,imagenet2012,table2", 20_000, 0.03, 518, 0.9999),
  ],
)
def test_rows_carry_table_4s_numbers(argument, steps, peak_lr, size, decay):
  config = finetune.get_config(argument)
  assert config.pretrained == argument.split(",")[0]
  assert config.data.name == argument.split(",")[1]
  assert config.total_steps == steps
  assert config.batch_size == 512
  assert config.image_size == (size, size)
  assert config.ema_decay == decay
  assert config.optimizer.kind == "sgd"
  assert config.optimizer.momentum == 0.9
  assert config.optimizer.decay == "cosine"
  assert config.optimizer.peak_lr == peak_lr
  assert config.optimizer.weight_decay == 0
  assert config.optimizer.clip_norm == 1


@pytest.mark.parametrize(
  "dataset, train, test, flip",
  [
    ("cifar100", "train[:800]+train[45000:45200]", "test", True),
    ("eurosat/rgb", "train[:800]+train[16200:16400]", "train[21600:]", True),
    ("dtd", "train[:800]+validation[:200]", "test", True),
    ("svhn_cropped", "train[:800]+train[65931:66131]", "test", False),
    (
      "kitti/closest_vehicle_distance",
      *("train[:800]+validation[:200]", "test"),
      False,
    ),
    (
      "dsprites/label_orientation",
      "train[:800]+train[589824:590024]",
      "train[663552:]",
      False,
    ),
  ],
)
def test_vtab_has_800_and_200_images(dataset, train, test, flip):
  config = finetune.get_config(f"b16_i21k,{dataset},vtab")
  assert (config.data.train_split, config.data.eval_split) == (train, test)
  assert config.train_transform.flip == flip
  assert (config.train_transform.crop == "inception") == flip
  computed = {
    "kitti": "closest_vehicle_distance",
    "dsprites": "label_orientation/16",
  }
  assert config.data.tfds_label == computed.get(config.data.name)


@pytest.mark.parametrize(
  "argument, rates, share",
  [
    ("b16_i21k,imagenet2012", (0.003, 0.01, 0.03), 0.01),
    ("r50_b16_i21k,imagenet2012", (0.003, 0.01, 0.03, 0.06), 0.01),
    ("runs/mine,imagenet2012", (0.003, 0.01, 0.03), 0.01),
    ("l16_i21k,cifar100", (0.001, 0.003, 0.01, 0.03), 0.02),
    ("b16_i21k,oxford_flowers102", (0.001, 0.003, 0.01, 0.03), 0.1),
  ],
)
def test_rates_are_chosen_as_appendix_b_1_1_says(argument, rates, share):
  assert finetune.get_choices(argument) == (rates, share)
  with pytest.raises(ValueError, match="tasks at 0.01: leave out --select"):
    finetune.get_choices("b16_i21k,dtd,vtab")


@pytest.mark.parametrize(
  "argument, grid, dropout",
  [
    ("b16_i21k,cifar10", 24, None),
    ("b32_i21k,oxford_iiit_pet", 12, None),
    ("l16_i21k,imagenet2012", 24, 0.1),
    ("l32_i21k,dtd,vtab", 12, None),
    ("h14_i21k,cifar100", 27, 0.1),  # Of 384, 378 are cut.
    ("r50_b16_i21k,oxford_flowers102", 24, 0.1),
    ("l16_i21k,imagenet2012,table2", 32, 0.1),
    ("h14_i21k,imagenet2012,table2", 37, 0.1),
  ],
)
def test_the_models_of_tables_2_and_4_build_at_their_sizes(
  argument, grid, dropout
):
  config = finetune.get_config(argument)
  assert config.model.dropout_rate == dropout
  whole = config.cut_from or config.image_size
  assert whole[0] in (384, 512, 518)
  variant = known.list_models()[config.pretrained].model
  model = make_model(variant, num_classes=10, num_layers=1)
  image = jax.ShapeDtypeStruct((1, *config.image_size, 3), jnp.float32)
  shapes = jax.eval_shape(model.init, jax.random.key(0), image)["params"]
  positions = nn.unbox(shapes)["position"]["E_pos"].shape[-2]
  assert positions == grid**2 + 1


# Model -> dropout of the originals' fine-tuning; all others have none.
DROPOUT = {"L/16": 0.1, "H/14": 0.1, "R50+B/16": 0.1, "R50+L/32": 0.1}
WIDTHS = {"Ti": 192, "S": 384, "B": 768, "L": 1024, "H": 1280, "g": 1408}
ARCHITECTURES = {entry.model: name for name, entry in known.KNOWN.items()}


@pytest.mark.parametrize(
  "model",
  some_slow(ARCHITECTURES, {"S/14", "B/16", "L/16"}),
)
def test_every_published_model_fits_every_row(model):
  """A name, whatever it begins with, stands for an architecture."""
  name = ARCHITECTURES[model]
  rows = ["imagenet2012,table2", *finetune.TABLE_4]
  rows += [f"{task},vtab" for task in finetune.VTAB_SPLITS]
  for row in rows:
    config = finetune.get_config(f"{name},{row}")
    side, cut_from = 384, None
    if model.endswith("/14"):
      side, cut_from = 378, (384, 384)
    if row.endswith("table2"):
      side, cut_from = (518 if model.endswith("/14") else 512), None
    assert (config.image_size, config.cut_from) == ((side, side), cut_from)
    assert config.model.dropout_rate == DROPOUT.get(model)
    if width := WIDTHS.get(re.findall(r"([\w+]+)/", model)[0].split("+")[-1]):
      grid, shape = positions(model, side)
      assert shape == (1 + grid**2, width)


def test_every_published_name_stands_for_its_architecture():
  for name, entry in known.KNOWN.items():
    config = finetune.get_config(f"{name},cifar10")
    side = 378 if entry.model.endswith("/14") else 384
    assert (config.pretrained, config.image_size) == (name, (side, side))
    assert config.model.dropout_rate == DROPOUT.get(entry.model)


@functools.cache
def positions(architecture: str, side: int) -> tuple[int, tuple[int, ...]]:
  """Patches along a side, and the shape of the table, by jax.eval_shape."""
  fields = {"resnet_layers": (2, 2, 2, 2)} if "R26" in architecture else {}
  variant = architecture.replace("R26", "R50")
  model = make_model(variant, num_classes=10, num_layers=1, **fields)
  shapes = param_shapes(model, grid_of(model, (side, side)))
  return side // int(architecture.split("/")[1]), shapes["position/E_pos"]


def test_an_address_is_a_model_as_its_name_is():
  address = known.KNOWN["hf_h14_i21k"].url
  config = finetune.get_config(f"{address},cifar10")
  assert (config.image_size, config.model.dropout_rate) == ((378, 378), 0.1)
  own = finetune.get_config("h14_of_mine,cifar10")  # Unknown: as for B/16.
  assert (own.image_size, own.model.dropout_rate) == ((384, 384), None)
