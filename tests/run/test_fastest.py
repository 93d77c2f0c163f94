"""The settings that a run on TPUs takes where its own leave them open."""

import csv
import dataclasses
import pathlib
from typing import Any, NamedTuple

import pytest

from vit_jax.models import make_vit
from vit_jax.run import build, fastest, summary
from vit_jax.run.plan import make_plan
from vit_jax.run.settings import Settings, read
from vit_jax.runtime.settings import replaced
from vit_jax.training.sharding import SCOPED_VMEM

EVIDENCE = pathlib.Path(__file__).parents[2] / "docs" / "evidence"


class Device(NamedTuple):
  device_kind: str = "TPU v5 lite"


V5E = [Device()] * 8
OWN = {"model.variant": "B/16", "batch_size": 512}
CHOICE = {"accumulation_steps": 2, "mesh.fsdp": 8, "scoped_vmem_mib": 24}


def chosen(changes=(), devices=V5E, **fields):
  """The keys that a run of B/16 takes, and the line about them."""
  settings = replaced(Settings(), {**OWN, **dict(changes)})
  settings = build.resolved(settings, None)
  model = make_vit("B/16", 1000, **{"dtype": "bfloat16", **fields})
  task = build.task_of(settings)
  found = fastest.chosen(settings, task, model, devices)
  line = fastest.fastest_line(found, task, model, devices)
  values: dict[str, Any] = {
    "accumulation_steps": found.accumulation_steps,
    "mesh.fsdp": found.mesh.fsdp,
    "scoped_vmem_mib": found.scoped_vmem_mib,
  }
  return {k: v for k, v in values.items() if v is not None}, line


def test_a_run_that_sets_nothing_takes_the_row_of_its_chip_model_and_images():
  found, line = chosen()
  assert found == CHOICE
  assert line == (
    "accumulation_steps=2, mesh.fsdp=8, scoped_vmem_mib=24, the fastest known "
    "for 64 images of B/16 on a device of v5e (estimate: 79.8 in place of "
    "101.8 Mcycles)"
  )
  assert chosen({"batch_size": 2048}, V5E * 4)[0] == CHOICE
  v6e = [Device("TPU v6 lite")] * 8
  without = {"accumulation_steps": 2, "mesh.fsdp": 8}
  assert chosen(devices=v6e)[0] == without
  # One that sets them so itself is told the same.
  assert chosen(CHOICE) == (CHOICE, line)


@pytest.mark.parametrize(
  "changes, options",
  [
    ({"accumulation_steps": 1}, {}),
    ({"mesh.fsdp": 1}, {}),
    ({"mesh.data": 8}, {}),
    ({"scoped_vmem_mib": 32}, {}),
    # Nobody searched these.
    ({"batch_size": 256}, {}),
    ({"image_size": (384, 384)}, {}),
    ({"lora.rank": 4}, {}),
    ({"optimizer.freeze_layers": -1}, {}),
    ({"optimizer.kind": "muon"}, {}),
    ({}, {"dtype": "float32"}),
    ({}, {"patch_dropout_rate": 0.75}),
    ({}, {"attention_dropout_rate": 0.1}),
    ({}, {"position": "relative"}),
    ({}, {"block": "dinov3", "registers": 0}),
    ({}, {"attention_dtype": "bfloat16"}),
    ({}, {"pooling": "gap"}),
    ({}, {"num_layers": 6}),
    ({}, {"scan": True}),
    ({}, {"remat": "dots"}),
    ({}, {"devices": [Device("cpu")] * 8}),
    ({}, {"devices": [Device("TPU v4")] * 8}),
    ({"batch_size": 256}, {"devices": V5E[:4]}),
  ],
)
def test_other_runs_keep_what_they_have(changes, options):
  found, line = chosen(changes, **options)
  assert found == {k: v for k, v in changes.items() if k in fastest.KEYS}
  assert line is None


def test_the_variable_of_the_compiler_counts_as_set(monkeypatch):
  monkeypatch.setenv("LIBTPU_INIT_ARGS", f"--{SCOPED_VMEM}=16384")
  assert chosen()[0] == {}


def test_the_table_has_what_the_pages_say():
  scaling = (EVIDENCE / "scaling.md").read_text()
  table = EVIDENCE.parent / "_static" / "scoreboard.csv"
  with table.open(newline="") as file:
    compiled = {round(float(row["mcycles"]), 1) for row in csv.DictReader(file)}
  for row in fastest.rows():
    assert f"| {row.mcycles:.1f} |" in scaling
    if row.untuned:
      assert row.untuned in compiled or f" {row.untuned:.1f} " in scaling


def test_a_run_goes_on_with_what_it_took(config, monkeypatch):
  """Whatever the table says by then; the header names it in both cases."""
  monkeypatch.setattr(summary, "for_tpu", lambda: True)
  plain = make_plan(read(config))
  model = dataclasses.replace(plain.model, parent=None)
  images = config.batch_size // 8
  row = fastest.Row("v5e", "own", 0, images, 1, 8, 24, 2.0, 0.0)
  with monkeypatch.context() as patch:
    patch.setattr(fastest, "row_of", lambda *_: row)
    begun = make_plan(read(config))
    lines = dict(summary.header(begun, "runs"))
  assert model == begun.model
  assert dict(begun.mesh.shape) == {"data": 1, "fsdp": 8, "tensor": 1}
  assert begun.settings.scoped_vmem_mib == 24
  assert lines["settings"].startswith("accumulation_steps=1, mesh.fsdp=8, ")
  saved = begun.description(0)
  again = make_plan(read(config), saved)
  assert again.description(0)["config"] == saved["config"]
  assert again.mesh.shape == begun.mesh.shape
  # A run that was begun without a choice does not get one later.
  with monkeypatch.context() as patch:
    patch.setattr(fastest, "row_of", lambda *_: row)
    later = make_plan(read(config), plain.description(0))
  assert later.settings == plain.settings
