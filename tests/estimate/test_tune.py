"""The search for settings, with a step whose time is a formula."""

import dataclasses
import functools
import importlib.metadata
import json

import jax
import pytest

from configs import digits
from tests import commands
from vit_jax.estimate import compiler, tune, tuned_config
from vit_jax.estimate.tune import Choice
from vit_jax.models import partitioning
from vit_jax.run.config_file import load_config
from vit_jax.run.settings import read
from vit_jax.runtime.settings import replaced
from vit_jax.training import sharding

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
  best, rows = tune.search([Choice(), RULE], AXES, steps, 100)
  assert best == Choice(parts=4, fsdp=8, scoped_mib=48)
  # The configuration's own, the rule, scoped memory twice, parts; then the
  # other neighbours of the best.
  first = [(1, None), (2, 24), (2, 32), (2, 48), (4, 48)]
  assert [(c.parts, c.scoped_mib) for c in steps.calls[:5]] == first
  assert len(steps.calls) == len(set(steps.calls)) == len(rows) < 13
  assert best and rows[best]["step_ms"][0] == 50
  for other in tune.neighbours(best, AXES, "parts"):
    assert rows[other]["step_ms"][0] > 50


def test_a_search_takes_what_fits_and_at_most_as_many_steps():
  steps = Steps(fits=lambda choice: choice.remat == "full")
  dots = dataclasses.replace(RULE, remat="dots")
  full = dataclasses.replace(RULE, remat="full", scan=True)
  begin = [Choice(), RULE, dots, full]
  best, rows = tune.search(begin, AXES, steps, 5)
  assert steps.calls[:4] == begin
  assert best and len(rows) == 5 and best.remat == "full"
  best, rows = tune.search(begin, AXES, Steps(fits=lambda _: False), 100)
  assert best is None and list(rows) == begin


def test_a_search_never_ends_slower_than_it_began():
  """Here each step towards the configuration's own choice is slower."""
  own = Choice(scoped_mib=48)
  best, rows = tune.search(
    [own, RULE], AXES, lambda c: row(80 if c == own else 100), 8
  )
  assert best == own and RULE in rows
  lines = tune.report(own, {own: row(80), RULE: {"why": ""}}, settings(own))
  assert lines[0] == "as configured  80.0 Mcycles, 80.0 ms, 1.0 GiB"
  assert lines[1] == "fastest of     1 compiled"
  assert "none: the configuration has the best" in lines[2]


def settings(choice=None):
  """Those of the digits, with a choice."""
  digits_settings = read(digits.get_config())
  changes = choice.changes(digits_settings) if choice else {}
  return replaced(digits_settings, changes)


@pytest.fixture
def compiles(monkeypatch):
  """Has the compiler answer what a function of the settings returns."""

  def answer(function):
    monkeypatch.setattr(
      compiler, "estimate", lambda s, *_: (function(s) | {"by_op": []}, "")
    )

  devices = jax.devices()[:8]
  monkeypatch.setattr(compiler, "devices_of", lambda _: (None, devices))
  # There may be no libtpu.
  monkeypatch.setattr(importlib.metadata, "version", lambda name: "1")
  return answer


def test_only_a_lack_of_memory_is_remembered(tmp_path, compiles):
  asked = []

  def with_a_faulty_compiler(settings):
    asked.append((settings.scoped_vmem_mib, bool(settings.model.scan)))
    if asked[-1] == (24, True):
      raise compiler.NotCompiled("the compiler failed: INTERNAL: a fault")
    if asked[-1] == (24, False):
      raise compiler.DoesNotFit("it needs 20G of HBM, and a device has 16G.")
    return row(50)

  compiles(with_a_faulty_compiler)
  search = functools.partial(tune.tune, topology="v5e:2x4", folder=tmp_path)
  once, rows = search(settings(), sizes=(10, 1_000), most=16)
  assert rows[once]["mcycles"] == 50 and (24, False) in asked
  del asked[:]
  assert search(settings(), sizes=(10, 1_000), most=16) == (once, rows)
  assert {*asked} == {(24, True)}


def test_a_configuration_that_cannot_be_built_ends_the_search(
  tmp_path, compiles
):
  def without_a_checkpoint(_):
    raise ValueError("'late.npz' is neither a file or folder here")

  for _ in range(2):
    compiles(without_a_checkpoint)
    with pytest.raises(ValueError, match=r"^'late\.npz' is neither"):
      tune.tune(settings(), "v5e:2x4", (10, 1_000), 16, tmp_path)
  compiles(lambda _: row(50))
  assert tune.tune(settings(), "v5e:2x4", (10, 1_000), 16, tmp_path)[0]
  few = replaced(settings(), {"batch_size": 4})
  with pytest.raises(ValueError, match="batch_size=4 does not split over 8"):
    tune.tune(few, "v5e:2x4", (10, 1_000), 16, tmp_path)


@pytest.mark.parametrize("key", ["pretrained", "distill.teacher"])
@pytest.mark.parametrize("name", ["model.npz", "model/config.json"])
def test_a_step_is_compiled_anew_for_another_model_of_its_name(
  tmp_path, compiles, key, name
):
  checkpoint = tmp_path / name.partition("/")[0]
  changes = {"model.variant": None, key: str(checkpoint)}
  given = replaced(settings(), changes)
  asked = []

  def measured(_):
    asked.append(None)
    if not checkpoint.exists():
      raise ValueError(f"{str(checkpoint)!r} is neither a file or folder here")
    return row(50)

  compiles(measured)
  sizes, folder = (10, 1_000), tmp_path / "tuned"
  file = tmp_path / name
  file.parent.mkdir(exist_ok=True)
  for text in ("small", "larger"):
    file.write_text(text)
    for calls in (2, 0):  # The second search finds what was kept.
      del asked[:]
      tune.tune(given, "v5e:2x4", sizes, 2, folder)
      assert len(asked) == calls
  file.unlink()
  if checkpoint.exists():
    checkpoint.rmdir()
  with pytest.raises(ValueError, match="is neither a file or folder here"):
    tune.tune(given, "v5e:2x4", sizes, 2, folder)


@pytest.mark.parametrize(
  "sizes, fsdp",
  [((2, -1, 1), 4), ((2, 2, -1), 2), ((4, 2, 1), 2), ((8, None, 1), 1)],
)
def test_a_mesh_that_is_given_in_full_stays(tmp_path, compiles, sizes, fsdp):
  axes = zip(sharding.AXES, sizes, strict=True)
  given = replaced(settings(), {f"mesh.{axis}": size for axis, size in axes})
  tried = []

  def measured(changed):
    tried.append(sharding.make_mesh(**vars(changed.mesh)).shape["fsdp"])
    return row(50 if changed.scoped_vmem_mib is None else 60)

  compiles(measured)
  best, rows = tune.tune(given, "v5e:2x4", (10, 1_000), 16, tmp_path)
  assert best == Choice(fsdp=fsdp) and {*tried} == {fsdp}
  assert "50.0 ms" in tune.report(best, rows, given)[0]


def test_a_search_that_was_stopped_continues_from_its_folder(tmp_path):
  def through(steps, facts):
    return lambda choice: tune.measure_once(steps, tmp_path, facts, choice)

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
  tune.measure_once(again, tmp_path, "b", RULE)
  for path in tmp_path.glob("*.json"):
    path.write_text("{")
  tune.measure_once(again, tmp_path, "a", RULE)
  assert again.calls == [RULE, RULE]


def test_what_is_tried_divides_the_batch_and_the_devices():
  tensor = replaced(settings(), {"mesh.tensor": 2})
  axes = tune.axes_of(tensor, 32)  # 64 images over 16 devices.
  assert axes["parts"] == [1, 2, 4] and axes["fsdp"] == [1, 8, 16]
  own, rule, *_ = tune.first_choices(tensor, axes)
  assert rule == Choice(parts=2, fsdp=16, scoped_mib=24)
  assert own == Choice.of(tensor) == Choice()
  changes = {"accumulation_steps": 2, "mesh.fsdp": 16, "scoped_vmem_mib": 24}
  assert rule.changes(tensor) == changes
  # Left open, they would be the fastest known, and not those of the choice.
  assert Choice().changes(tensor) == {"accumulation_steps": 1, "mesh.fsdp": 1}
  fixed = replaced(tensor, Choice().changes(tensor))
  assert not Choice().changes(fixed)


def test_a_search_begins_with_what_the_table_knows(monkeypatch):
  monkeypatch.setitem(partitioning.CHIPS, "cpu", "v5e")
  devices, sizes = jax.devices(), (1000, 1_281_167)
  h14 = read(load_config("pretrain:H/14,imagenet2012"))
  h14 = replaced(h14, {"model.pooling": "gap", "batch_size": 256})
  known = tune.known_choice(h14, devices, sizes)
  assert known == Choice(parts=2, fsdp=8, scoped_mib=48)  # A row of the table.
  axes = tune.axes_of(h14, 8, known)
  assert tune.first_choices(h14, axes, known)[:2] == [Choice.of(h14), known]
  assert all(getattr(known, name) in axes[name] for name in axes)
  # The table has no row for other images, and none where a key is set.
  for changes in ({"batch_size": 128}, {"mesh.fsdp": 4}, {"image_size": 1}):
    other = replaced(h14, changes)
    assert tune.known_choice(other, devices, sizes) == Choice.of(other)


def test_the_choice_is_written_as_a_configuration(tmp_path):
  path = tmp_path / "tuned.py"
  changes = {"batch_size": 512, "accumulation_steps": 2, "mesh.fsdp": 8}
  tuned_config.write(path, "pretrain:B/16,imagenet21k", changes, "v5e:2x4")
  config = load_config(str(path))
  assert config.model.variant == "B/16" and config.mesh.fsdp == 8
  assert config.batch_size == 512 and config.accumulation_steps == 2
  plain = load_config("pretrain:B/16,imagenet21k")
  assert tuned_config.differing_keys(read(plain), read(config)) == changes
  assert "v5e:2x4" in path.read_text()
  # It may be written again, but not over what it changes, nor another file.
  tuned_config.check_target(path, "pretrain:B/16,imagenet21k")
  with pytest.raises(ValueError, match="is the configuration that is tuned"):
    tuned_config.check_target(path, f"{path}:B/16")
  path.write_text("def get_config(): ...")
  with pytest.raises(ValueError, match="not written by --tune for digits: rem"):
    tuned_config.check_target(path, "digits")


def test_what_is_written_never_loads_itself(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  first, second = tmp_path / "first.py", tmp_path / "second.py"
  tuned_config.write(first, "digits", {"batch_size": 32}, "v5e:2x4")
  tuned_config.write(second, str(first), {"batch_size": 16}, "v5e:2x4")
  assert load_config(str(second)).batch_size == 16
  with pytest.raises(ValueError, match="not written by --tune for .*second"):
    tuned_config.check_target(first, str(second))
  # Another name of the same file.
  tuned_config.check_target(second, "first.py")
  # Such a file would hide the configuration that comes with the package.
  with pytest.raises(ValueError, match="is the configuration that is tuned"):
    tuned_config.check_target(tmp_path / "digits", "digits")


@pytest.mark.parametrize(
  "flags, line",
  [
    (["--tune", "--forward"], "--forward has no effect with --tune"),
    (["--tune", "--by_op=3"], "--by_op has no effect with --tune"),
    (["--write=tuned.py"], "--write needs --tune"),
    (["--trials=4"], "--trials needs --tune"),
    (["--by_op=-1"], "--by_op=-1: "),
    (["--num_classes=0"], "--num_classes=0: "),
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
