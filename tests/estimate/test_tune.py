"""The search for settings, with a step whose time is a formula."""

import dataclasses
import json

import pytest

from configs import digits
from tests import commands
from vit_jax.estimate import tune
from vit_jax.estimate.tune import Choice
from vit_jax.run.config_file import load_config
from vit_jax.run.settings import read
from vit_jax.runtime.settings import replaced

AXES = {
  "scoped_mib": (None, 24, 32, 48),
  "parts": (1, 2, 4),
  "fsdp": (1, 8),
  "scan": (False, True),
  "remat": ("none", "dots", "full"),
}
RULE = Choice(parts=2, fsdp=8, scoped_mib=24)


def row(ms, gib=1.0):
  return {"step_ms": [ms, 2 * ms], "mcycles": ms, "hbm_gib": {"peak": gib}}


class Steps:
  """Measures steps whose time is a sum over the parts of a choice."""

  def __init__(self, fits=lambda _: True, stop_after=1_000):
    self.fits = fits
    self.stop_after = stop_after
    self.calls = []

  def __call__(self, choice):
    if len(self.calls) == self.stop_after:
      raise KeyboardInterrupt
    self.calls.append(choice)
    if not self.fits(choice):
      return {"why": "it needs 20G of HBM, and a device has 16G."}
    ms = 50 + 10 * choice.scan + 4 * AXES["remat"].index(choice.remat)
    ms += {None: 5, 24: 3, 32: 1, 48: 0}[choice.scoped_mib]
    ms += {1: 8, 2: 2, 4: 0}[choice.parts] + (choice.fsdp == 1) * 6
    return row(ms)


def test_a_search_goes_on_where_it_gains_and_stops_where_nothing_does():
  steps = Steps()
  best, rows = tune.search([RULE, Choice()], AXES, steps, 100)
  assert best == Choice(parts=4, fsdp=8, scoped_mib=48)
  # The rule, scoped memory twice, parts; then the other neighbours of the best.
  first = [(2, 24), (2, 32), (2, 48), (4, 48)]
  assert [(c.parts, c.scoped_mib) for c in steps.calls[:4]] == first
  assert len(steps.calls) == len(set(steps.calls)) == len(rows) < 12
  assert best and rows[best]["step_ms"][0] == 50
  for other in tune.neighbours(best, AXES, "parts"):
    assert rows[other]["step_ms"][0] > 50


def test_a_search_takes_what_fits_and_at_most_as_many_steps():
  steps = Steps(fits=lambda choice: choice.remat == "full")
  dots = dataclasses.replace(RULE, remat="dots")
  full = dataclasses.replace(RULE, remat="full", scan=True)
  begin = [RULE, dots, full, Choice()]
  best, rows = tune.search(begin, AXES, steps, 4)
  assert steps.calls[:3] == begin[:3] and Choice() not in rows
  assert best and len(rows) == 4 and best.remat == "full"
  best, rows = tune.search(begin, AXES, Steps(fits=lambda _: False), 100)
  assert best is None and list(rows) == begin


def test_a_search_that_was_stopped_continues_from_its_folder(tmp_path):
  def through(steps, facts):
    return lambda choice: tune.kept(steps, tmp_path, facts, choice)

  first = Steps(stop_after=3)
  with pytest.raises(KeyboardInterrupt):
    tune.search([RULE], AXES, through(first, "a"), 100)
  rest = Steps()
  best, rows = tune.search([RULE], AXES, through(rest, "a"), 100)
  assert not set(rest.calls) & set(first.calls)
  assert {*rest.calls, *first.calls} == set(rows)
  assert best == Choice(parts=4, fsdp=8, scoped_mib=48)
  again = Steps()
  assert tune.search([RULE], AXES, through(again, "a"), 100) == (best, rows)
  assert not again.calls
  # Other facts, such as another libtpu, are measured anew; so is a broken file.
  tune.kept(again, tmp_path, "b", RULE)
  for path in tmp_path.glob("*.json"):
    path.write_text("{")
  tune.kept(again, tmp_path, "a", RULE)
  assert again.calls == [RULE, RULE]


def test_what_is_tried_divides_the_batch_and_the_devices():
  settings = replaced(read(digits.get_config()), {"mesh.tensor": 2})
  axes = tune.axes_of(settings, 32)  # 64 images over 16 devices.
  assert axes["parts"] == [1, 2, 4] and axes["fsdp"] == [1, 8, 16]
  first, *others = tune.starts(settings, axes)
  assert first == Choice(parts=2, fsdp=16, scoped_mib=24)
  assert others[-1] == Choice.of(settings) == Choice()
  changes = {"accumulation_steps": 2, "mesh.fsdp": 16, "scoped_vmem_mib": 24}
  assert first.changes(settings) == changes
  # Left open, they would be the fastest known, and not those of the choice.
  assert Choice().changes(settings) == {"accumulation_steps": 1, "mesh.fsdp": 1}
  fixed = replaced(settings, Choice().changes(settings))
  assert not Choice().changes(fixed)


def test_the_choice_is_written_as_a_configuration(tmp_path):
  path = tmp_path / "tuned.py"
  changes = {"batch_size": 512, "accumulation_steps": 2, "mesh.fsdp": 8}
  tune.write(path, "pretrain:B/16,imagenet21k", changes, "v5e:2x4")
  config = load_config(str(path))
  assert config.model.variant == "B/16" and config.mesh.fsdp == 8
  assert config.batch_size == 512 and config.accumulation_steps == 2
  plain = load_config("pretrain:B/16,imagenet21k")
  assert tune.different(read(plain), read(config)) == changes
  assert "v5e:2x4" in path.read_text()


@pytest.mark.parametrize(
  "flags, line",
  [
    (["--tune", "--forward"], "--forward and --tune are both given"),
    (["--write=tuned.py"], "--write is for --tune"),
    (["--tune", "--write=tuned.csv"], ".csv says another format"),
  ],
)
def test_flags_that_say_nothing_together_are_one_line(flags, line):
  assert line in commands.refused("vit_jax.estimate", "--config=digits", *flags)


@pytest.mark.slow
def test_the_compiler_tunes_a_tiny_model(tmp_path):
  pytest.importorskip("libtpu")
  path = tmp_path / "tuned.py"
  flags = ("--tune", "digits", "--topology=v5e:2x2", "--json", "--trials=3")
  flags = (*flags, "--config.model.num_layers=1", f"--write={path}")
  done = commands.run("vit_jax.estimate", *flags, VIT_JAX_CACHE=str(tmp_path))
  assert done.returncode == 0, done.stderr
  found = json.loads(done.stdout)
  assert found["trials"] == 3 and found["mcycles"] > 0
  assert len([*tmp_path.glob("tuned/*.json")]) == 3
  config = load_config(str(path))
  assert config.model.num_layers == 1
  for key, value in found["changes"].items():
    *sections, name = key.split(".")
    place = config[sections[0]] if sections else config
    assert place[name] == value
  again = commands.run("vit_jax.estimate", *flags, VIT_JAX_CACHE=str(tmp_path))
  assert json.loads(again.stdout) == found
