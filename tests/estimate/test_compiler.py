"""Estimates by the TPU compiler, and its errors in one line."""

import json
import types
from typing import Any

import jax
import pytest

from configs import digits, pretrain
from tests import commands, encoders
from vit_jax.estimate import compiler
from vit_jax.estimate.__main__ import _table as estimated_table
from vit_jax.estimate.__main__ import suggestion
from vit_jax.models import partitioning, tpu
from vit_jax.run import build
from vit_jax.run.settings import read
from vit_jax.runtime.settings import replaced
from vit_jax.training import sharding


def _estimate(*flags, topology="v5e:2x2"):
  """The estimate of these flags, for four chips, as the command prints it."""
  pytest.importorskip("libtpu")
  flags = (*flags, f"--topology={topology}", "--json")
  done = commands.run("vit_jax.estimate", *flags)
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)


def _forward(S, N, P, D, M, L):
  """Operations of an image: S tokens, N patches of P values, ten classes."""
  layer = 4 * S * D * D + 2 * S * S * D + 2 * S * D * M
  return 2 * (L * layer + N * P * D + 10 * D)


# Ti/4 as configs/digits.py has it, at 8 x 8.
DIGITS = _forward(4, 4, 48, 64, 128, 4)


def test_of_several_programs_the_one_that_needs_most_memory_is_shown(
  monkeypatch,
):
  """The command line prints how many there are; else the row is its own."""
  plan: Any = types.SimpleNamespace(
    preprocessing=types.SimpleNamespace(patches=None)
  )
  every = [
    compiler.Lowered(f"{size} GiB", gflops, plan, plan)
    for size, gflops in ((3, 10.0), (9, 5.0), (6, 20.0))
  ]

  def cost(step, chip, mesh, images, gflops):
    peak = float(step.split()[0])
    gib = {"peak": peak, "of": 16, "arguments": 1, "temporaries": peak - 1}
    row = dict(hbm_gib=gib, model_tflop=gflops, chips=4, mesh={"data": 4})
    row |= dict(images_per_chip=images, compiled_tflop=1, mcycles=2, mfu=None)
    row |= dict(collectives={}, without_estimate={}, by_op=[])
    return {**row, "compile_seconds": 1, "topology": "v5e:2x2"}, step

  monkeypatch.setattr(compiler, "lower", lambda *_: every)
  monkeypatch.setattr(compiler, "cost", cost)
  settings = read(digits.get_config())
  chip = compiler.CHIPS["v5e"]
  row, text = compiler.estimate(settings, chip, [None] * 4, 10, 100)
  assert text == "9 GiB" and row["hbm_gib"]["peak"] == 9
  assert (row["programs"], row["model_tflop"]) == (3, 5.0)
  line = (
    "programs       3, for batches of several sizes; these figures are thos"
  )
  assert line in estimated_table(row)
  del row["programs"]  # A row of a search that an earlier version began.
  assert "programs" not in estimated_table(row)


@pytest.mark.slow
def test_a_step_compiled_for_four_chips():
  row = _estimate("--config=configs/digits.py")
  assert row["chips"] == 4 and row["mesh"]["data"] == 4
  assert row["images_per_chip"] == 16
  assert row["model_tflop"] == pytest.approx(16 * 3 * DIGITS / 1e12)
  assert row["mfu"] == pytest.approx(
    row["model_tflop"] * 1e12 / (row["mcycles"] * 1e6 * 131_072)
  )
  assert 0 < row["mfu"] < 1 and row["hbm_gib"]["peak"] < 0.1
  # The all-reduce takes all gradients, which are in float32.
  gradients = row["collectives"]["all-reduce"]["mib"]
  assert gradients == pytest.approx(137_802 * 4 / 2**20, rel=0.02)
  # It passes over the two links of a chip, three quarters of it there and back.
  low, high = row["step_ms"]
  network = high - row["mcycles"] / 1.5  # 1.5 GHz, in ms.
  assert network == pytest.approx(gradients * 2**20 * 1.5 / 2 / 50e9 * 1e3, 0.1)
  assert row["mcycles"] / 1.5 <= low <= high


@pytest.mark.slow
def test_the_forward_pass_alone():
  flags = ("--forward", "--config.batch_size=256")
  row = _estimate("--config=configs/digits.py", *flags)
  assert row["images_per_chip"] == 64
  assert row["model_tflop"] == pytest.approx(64 * DIGITS / 1e12)
  # A v5e's clock, from its peak of 197 TFLOP/s.
  clock = 197e12 / 131_072
  assert row["images_per_second"] == pytest.approx(
    64 / (row["mcycles"] * 1e6 / clock), rel=0.01
  )
  # Each chip sends its answers, a class and a probability for each image.
  sent = sum(kind["mib"] for kind in row["collectives"].values())
  assert sent * 2**20 <= 4 * 256 * 8


def test_the_forward_pass_has_the_form_for_the_chips(monkeypatch):
  """The mesh decides, here one that says it is of TPUs, not this machine."""
  calls, attend = [], tpu.attend
  monkeypatch.setattr(tpu, "attend", lambda *a: calls.append(a) or attend(*a))

  def on_tpu(layout, _):
    device = types.SimpleNamespace(platform="tpu", device_kind="TPU v4")
    return partitioning.use_layout(layout, device)

  monkeypatch.setattr(sharding, "use_layout", on_tpu)
  mesh = sharding.make_mesh(devices=jax.devices()[:1])
  compiler.lower_forward(read(digits.get_config()), mesh, 10)
  assert len(calls) >= 4  # One for each layer, at least.


OWN = """
import jax.numpy as jnp
from vit_jax.data.batch import ArraySpec
from vit_jax.tasks.classification.task import ClassificationTask
from vit_jax.training.losses import Classification

class Objective(Classification):
  def prepare(self, batch, key):
    assert batch["twice"].shape[1:] == (2, 8, 8, 3)
    images, targets = super().prepare(batch, key)
    return images + batch["twice"].mean(1) / 255, targets

class Twice:
  def __init__(self, transform):
    self.transform = transform
    (shape,) = (one.shape for one in transform.spec.values())
    self.spec = {**transform.spec, "twice": ArraySpec((2, *shape))}

class Own(ClassificationTask):
  name, objective_class = "own", Objective

  def train_transform(self, preprocessing, settings):
    return Twice(super().train_transform(preprocessing, settings))
"""


TEACHER = str(encoders.FOLDER / "hf_dinov2")


@pytest.mark.slow
@pytest.mark.parametrize(
  "changes, label",
  [
    ({}, "64xi32"),
    ({"loss.kind": "sigmoid"}, "64xi32"),
    ({"data.task": "multilabel"}, "64x5xf32"),
    ({"data.task": "regression"}, "64x5xf32"),
    ({"masked.rate": 0.5}, "64xi32"),
    ({"autoencoder.rate": 0.5}, "64xi32"),
    ({"student.learns": "both", "distill.teacher": TEACHER}, "64xi32"),
    (
      {
        "self_distillation.prototypes": 32,
        "self_distillation.small_size": 4,
        "ema_decay": 0.9,
      },
      "64x8x4x4x3xui8",
    ),
    ({"data.task": "segmentation"}, "64x8x8xi32"),
    ({"data.task": "dense_regression"}, "64x8x8xf32"),
    ({"data.task": "pairs", "pairs.text_length": 6}, "64x6xi32"),
    ({"data.task": "OWN"}, "64x2x8x8x3xui8"),
  ],
)
@pytest.mark.parametrize("forward", [False, True])
def test_every_task_can_be_estimated(changes, label, forward, tmp_path):
  """On the CPU, with the arrays that its batches have."""
  if changes.get("data.task") == "OWN":
    (tmp_path / "own.py").write_text(OWN)
    changes = {"data.task": f"{tmp_path}/own.py:Own"}
  elif "data.task" in changes:
    is_folder = changes["data.task"] in ("segmentation", "dense_regression")
    where = "data.root" if is_folder else "data.labels_file"
    changes = {**changes, "data.name": None, where: "labels.csv"}
  plain = {"loss.label_smoothing": 0.0, **changes}
  settings = replaced(read(digits.get_config()), plain)
  devices = jax.devices()[:2]
  answering = ("classification", "multilabel", "regression")
  if forward and build.task_of(settings).name not in answering:
    pytest.skip("it answers nothing for a whole image")
  if forward:
    mesh = sharding.make_mesh(devices=devices)
    found = compiler.lower_forward(settings, mesh, 5)
  else:
    (found,) = compiler.lower(settings, devices, 5, 1_000)
  text = found.step.as_text()
  assert f"tensor<{'64x8x8x3xui8' if forward else label}>" in text
  assert found.gflops > 0


def test_a_chip_has_the_published_peak():
  """The peaks in bfloat16 that Google Cloud's pages name, in TFLOP/s."""
  published = {"v3": 123, "v4": 275, "v5e": 197, "v5p": 459, "v6e": 918}
  for name, peak in published.items():
    chip = compiler.CHIPS[name]
    assert chip.flop_per_cycle * chip.mhz / 1e6 == pytest.approx(peak, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("fsdp", [1, 8])
def test_a_chip_of_two_devices_without_a_published_clock(fsdp):
  flags = ("--config=configs/digits.py", f"--config.mesh.fsdp={fsdp}")
  row = _estimate(*flags, topology="tpu7x:2x2x1")
  assert row["chips"] == 4 and row["mesh"]["fsdp"] == fsdp
  assert row["images_per_chip"] == 16 and row["hbm_gib"]["of"] == 192
  assert row["mcycles"] > 0
  assert row["mfu"] is row["images_per_second"] is row["step_ms"] is None
  done = commands.run("vit_jax.estimate", *flags, "--topology=tpu7x:2x2x1")
  assert "Mcycles, and no time: the clock of this chip" in done.stdout
  gathered = row["collectives"].get("all-gather", {"count": 0})["count"]
  assert (gathered > 0) == (fsdp > 1)


@pytest.mark.slow
def test_a_step_from_a_published_encoder():
  row = _estimate(
    "--config=configs/finetune.py",
    f"--config.pretrained={encoders.path('hf_dinov3')}",
    "--config.data.name=cifar10",
    "--config.batch_size=8",
    "--config.image_size=(32,32)",
  )
  S, D, M = 21, 32, 64  # A class token, four registers, sixteen patches.
  # In the last layer queries turn by their places, so all are compared.
  last = 3 * S * D * D + S * S * D + S * D + D * D + 2 * D * M
  forward = _forward(S, 16, 192, D, M, 1) + 2 * last
  assert row["model_tflop"] == pytest.approx(2 * 3 * forward / 1e12)


@pytest.mark.slow
def test_an_axis_may_take_part_of_a_row_of_chips():
  pytest.importorskip("libtpu")
  _, devices = compiler.devices_of("v5e:4x4")
  mesh = sharding.make_mesh(fsdp=8, devices=devices)
  assert dict(mesh.shape) == {"data": 2, "fsdp": 8, "tensor": 1}
  # The eight chips of a row are neighbours: they form a block of 2 x 4 chips.
  for row in mesh.devices[:, :, 0]:
    xs, ys = zip(*(device.coords[:2] for device in row), strict=True)
    assert sorted((len(set(xs)), len(set(ys)))) == [2, 4]


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["v4:2x2x1", "v5p:2x2x1"])
def test_both_cores_of_a_chip_are_one_device(topology):
  """As on the machines: JAX makes no mesh of cores there."""
  pytest.importorskip("libtpu")
  chip, devices = compiler.devices_of(topology)
  assert len(devices) == 4 and chip.devices == 1
  assert sharding.make_mesh(fsdp=4, devices=devices).size == 4


@pytest.mark.parametrize("topology", ["v9:2x4", "v5e", "v5e:2"])
def test_a_topology_that_there_is_not_is_one_line(topology):
  with pytest.raises(ValueError, match="v5p, v6e, tpu7x followed"):
    compiler.devices_of(topology)


def test_bad_input_is_one_line():
  flags = ("--config=configs/digits.py", "--topology=v5e")
  line = commands.refused("vit_jax.estimate", *flags)
  assert line.startswith("error: --topology=v5e must be one of")


@pytest.mark.parametrize(
  "text",
  [
    "in memory space hbm. Used 20.11G of 15.75G hbm. E",
    "temporaries (20.11G) exceeds available HBM (15.75G)",
  ],
)
def test_what_the_compiler_says_of_memory_is_explained(text):
  error = jax.errors.JaxRuntimeError(f"RESOURCE_EXHAUSTED: {text}")
  found = compiler.to_own_error(error)
  assert isinstance(found, compiler.DoesNotFit)
  assert str(found) == "it needs 20.11G of HBM, and a device has 15.75G."


def test_another_error_of_the_compiler_is_one_line():
  error = jax.errors.JaxRuntimeError("INTERNAL: another\nat an address")
  found = compiler.to_own_error(error)
  assert isinstance(found, compiler.NotCompiled)
  assert str(found) == "the compiler failed: INTERNAL: another"
  silent = compiler.to_own_error(jax.errors.JaxRuntimeError(""))
  assert str(silent) == "the compiler failed: JaxRuntimeError"


@pytest.mark.parametrize("mends", [False, True])
def test_a_suggestion_goes_on_after_a_fault_of_the_compiler(
  monkeypatch, capsys, mends
):
  def estimate(settings, *_):
    if not settings.model.remat:
      raise compiler.NotCompiled("the compiler failed: INTERNAL: a fault")
    if not mends:
      raise compiler.DoesNotFit("it needs 20G of HBM, and a device has 16G.")
    return {"hbm_gib": {"peak": 1.0}, "mfu": 0.5}, ""

  monkeypatch.setattr(compiler, "estimate", estimate)
  devices = [None] * 8
  chip = compiler.CHIPS["v5e"]
  settings = read(digits.get_config())
  text = suggestion(settings, chip, devices, (10, 1_000))
  assert "the compiler failed: INTERNAL: a fault" in capsys.readouterr().err
  if mends:
    assert text.endswith("--config.mesh.fsdp=8 --config.model.remat=dots")
  else:
    assert text.endswith("compile: the compiler failed: INTERNAL: a fault")


def test_a_suggestion_says_if_no_change_is_possible():
  """One group of devices has its data and two halves of each kernel."""
  settings = read(digits.get_config())
  settings = replaced(settings, {"mesh.data": 4})
  chip = compiler.CHIPS["v5e"]
  text = suggestion(settings, chip, jax.devices()[:2], (10, 1_000))
  assert text.startswith("None of these changes is possible: "), text
  assert "data=4" in text


def test_changes_keep_the_devices_of_a_kernel_together():
  settings = replaced(read(digits.get_config()), {"mesh.tensor": 2})
  changes = list(compiler.changes(settings, 16))
  assert {change["mesh.fsdp"] for change in changes} == {8}


def test_the_size_of_a_folder_is_not_that_of_a_data_set_it_replaces():
  flags = "digits", "--topology=v5e:1x1", "--config.data.root=photos"
  done = commands.run("vit_jax.estimate", *flags)
  assert done.returncode == 2
  assert "the size of photos is unknown: give --num_classes" in done.stderr


def test_changes_begin_with_what_costs_least():
  config = pretrain.get_config("L/16,imagenet2012")
  config.batch_size = 64
  settings = read(config)
  changes = list(compiler.changes(settings, 16))
  assert changes[0] == {"mesh.fsdp": 16}
  assert changes[1]["model.remat"] == "dots"
  assert [c.get("batch_size") for c in changes] == [None, None, None, 32, 16]
  for change in changes:
    replaced(settings, change)
