"""Saving checkpoints, and opening those of a run."""

import contextlib
import gc
import json
import logging
import os
import shutil
import sys
import threading
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import logging as absl_logging

from tests import runs
from tests.workdir import saved
from tests.workdir.test_rows import room_for
from vit_jax.training.state import TrainState
from vit_jax.workdir.checkpoint import (
  Checkpoints,
  is_run,
  latest_description,
  open_run,
)


@pytest.fixture
def opened(tmp_path):
  """Opens the checkpoints in `tmp_path`, and closes them in the end."""
  with contextlib.ExitStack() as stack:

    def open_(**options):
      checkpoints = Checkpoints(str(tmp_path), **options)
      stack.callback(checkpoints.close)
      return checkpoints

    yield open_


@pytest.mark.parametrize("averaged", [False, True])
def test_what_was_saved_comes_back(opened, averaged):
  checkpoints = opened()
  state = saved.state(3, averaged)
  assert checkpoints.save(state, 3, saved.description(), None) is None
  assert checkpoints.wait() is None
  found = checkpoints.restore(3, saved.shapes(state))
  assert jax.tree.structure(found) == jax.tree.structure(state)
  assert runs.identical(found, state)
  tree = state.averaged_params if averaged else state.params
  params = checkpoints.restore_params(3, saved.shapes(tree), averaged=averaged)
  assert runs.identical(params, tree)


def test_a_checkpoint_consists_of_the_items_that_are_promised(tmp_path):
  saved.save(tmp_path, [2])
  folders = {p.name for p in (tmp_path / "checkpoints/2").iterdir()}
  assert {"params", "opt_state", "description"} <= folders
  assert "averaged_params" not in folders
  text = (tmp_path / "checkpoints/2/description/metadata").read_text()
  assert set(json.loads(text)["checksums"]) == {
    "params/head/kernel",
    "params/head/bias",
    "opt_state/mu/head/kernel",
    "opt_state/mu/head/bias",
  }


def test_the_newest_and_the_best_are_kept(tmp_path, opened):
  top1 = {2: 0.9, 4: 0.2, 6: 0.3}
  saved.save(tmp_path, [2, 4, 6, 8, 10], top1, keep_last=2)
  checkpoints = opened(read_only=True)
  assert checkpoints.all_steps == [2, 8, 10]
  assert checkpoints.best_step == opened().best_step == 2
  assert checkpoints.latest_step == 10


def test_without_an_evaluation_the_newest_is_the_best(tmp_path, opened):
  saved.save(tmp_path, [2, 4])
  assert opened(read_only=True).best_step == 4


def test_keep_last_must_be_positive(tmp_path):
  with pytest.raises(ValueError, match="keep_last=0 must be 1 or more"):
    Checkpoints(str(tmp_path), 0)


def test_a_step_that_is_there_already_cannot_be_saved(tmp_path):
  saved.save(tmp_path, [2])
  shown = [*absl_logging.get_absl_logger().filters]
  checkpoints = Checkpoints(str(tmp_path))
  state = saved.state(2)
  problem = checkpoints.save(state, 2, saved.description(), None)
  assert problem.startswith("the checkpoint of step 2 could not be saved (")
  assert "\n" not in problem
  with pytest.raises(OSError, match="there is one of step 2 already"):
    checkpoints.close()
  # What fails later because of it must not be logged beside that line.
  assert len(absl_logging.get_absl_logger().filters) == len(shown) + 1


def test_a_save_may_fail_and_the_next_succeed(tmp_path, opened):
  checkpoints = opened()
  state = saved.state(4)
  assert checkpoints.save(state, 4, saved.description(), None) is None
  assert checkpoints.wait() is None
  folder = tmp_path / "checkpoints"
  folder.rename(tmp_path / "elsewhere")
  folder.touch()  # So that Orbax cannot make a folder in it.
  problem = checkpoints.save(state, 6, saved.description(), None)
  assert problem.startswith("the checkpoint of step 6 could not be saved (")
  assert "\n" not in problem
  # No thread waits for the folder, and would keep the process from ending.
  for thread in threading.enumerate():
    if type(thread).__module__.startswith("orbax"):
      thread.join(10)
      assert not thread.is_alive()
  folder.unlink()
  (tmp_path / "elsewhere").rename(folder)
  assert checkpoints.save(state, 8, saved.description(), None) is None
  assert checkpoints.wait() is None
  assert checkpoints.all_steps == [4, 8]


@pytest.mark.parametrize("earlier", [[], [2]])
def test_the_end_says_if_the_newest_could_not_be_saved(tmp_path, earlier):
  """Though `save` has said it already, and the run went on."""
  saved.save(tmp_path, earlier)
  checkpoints = Checkpoints(str(tmp_path))
  folder = tmp_path / "checkpoints"
  folder.rename(tmp_path / "elsewhere")
  folder.touch()
  assert checkpoints.save(saved.state(6), 6, saved.description(), None)
  others = "step 2 is good" if earlier else "there is no other"
  with pytest.raises(OSError, match=f"of step 6 could not .*; {others}"):
    checkpoints.close()


@pytest.mark.slow
def test_a_failed_save_is_said_once_and_nothing_else_is(tmp_path, capfd):
  draw = np.random.default_rng(0)
  params = {
    str(i): jnp.asarray(draw.normal(size=(40, 40)), jnp.float32)
    for i in range(40)
  }
  state = TrainState(jnp.int32(2), params, params)
  checkpoints = Checkpoints(str(tmp_path))
  assert checkpoints.save(state, 1, saved.description(), None) is None
  assert checkpoints.wait() is None
  with room_for(1000):
    said = checkpoints.save(state, 2, saved.description(), None)
    assert said or checkpoints.wait()
    assert checkpoints.wait() is None
    checkpoints.save(state, 3, saved.description(), None)
    with pytest.raises(OSError, match=r"step 3 could .*; step 1 is good\.$"):
      checkpoints.close()
  del checkpoints
  gc.collect()
  assert capfd.readouterr() == ("", "")


def test_what_will_not_fit_is_said_and_not_begun(tmp_path, monkeypatch):
  checkpoints = Checkpoints(str(tmp_path))

  def save(step, free):
    usage = types.SimpleNamespace(free=int(free))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    state = saved.state(step), step, saved.description(), None
    return checkpoints.save(*state) or checkpoints.wait()

  arrays = (
    2 * 4 * (32 * 16 + 5)
  )  # A kernel and a bias, and the moments of both.
  said = "the checkpoint of step {} could not be saved (it takes 0.0 MB, "
  said += "and 0.0 MB are free)"
  assert save(2, 0.89 * arrays) == said.format(2)
  assert os.listdir(tmp_path / "checkpoints") == []
  assert save(4, 0.91 * arrays) is None
  newest = (tmp_path / "checkpoints/4").rglob("*")
  size = sum(path.stat().st_size for path in newest if path.is_file())
  assert save(6, size - 1).startswith("the checkpoint of step 6 could not be ")
  assert save(8, size) is None
  assert checkpoints.all_steps == [4, 8]
  checkpoints.close()


def test_partial_checkpoints_are_deleted_before_the_next(tmp_path, opened):
  checkpoints = opened()
  # By then Orbax has looked for partial folders itself, as it does when opened.
  checkpoints.save(saved.state(2), 2, saved.description(), None)
  checkpoints.wait()
  partial = tmp_path / "checkpoints" / "3.orbax-checkpoint-tmp"
  partial.mkdir()
  (partial / "half").write_bytes(bytes(10))
  checkpoints.save(saved.state(4), 4, saved.description(), None)
  assert not partial.exists()


def test_orbax_is_quiet_only_while_a_run_saves(tmp_path, caplog):
  # Another test of this process may have run a command, which sets it.
  absl_logging.set_verbosity(absl_logging.WARNING)
  loggers = [absl_logging.get_absl_logger(), logging.getLogger("asyncio")]

  def hooks():
    return [list(x.filters) for x in loggers], sys.unraisablehook

  before = hooks()
  checkpoints = Checkpoints(str(tmp_path))
  assert hooks() != before
  checkpoints.close()
  assert hooks() == before
  with caplog.at_level(logging.WARNING, logger="absl"):
    Checkpoints(str(tmp_path), read_only=True).close()
    assert absl_logging.get_verbosity() == absl_logging.WARNING
  assert hooks() == before
  assert caplog.records == []


def test_setting_aside_overwrites_nothing(tmp_path, opened):
  for place in ("2", "2_2"):
    saved.save(tmp_path, [2])
    content = tmp_path / "checkpoints/2/description/metadata"
    content.write_text(place)
    checkpoints = opened()
    assert checkpoints.set_aside(2) == tmp_path / "damaged" / place
    assert checkpoints.all_steps == []
    moved = tmp_path / "damaged" / place / "description/metadata"
    assert moved.read_text() == place


def test_a_folder_is_a_run_once_it_has_checkpoints(tmp_path):
  assert not is_run(str(tmp_path))
  with pytest.raises(ValueError, match="holds no checkpoints: give the workd"):
    open_run(str(tmp_path))
  assert latest_description(str(tmp_path)) is None
  saved.save(tmp_path, [2])
  assert is_run(str(tmp_path))
  assert not is_run(f"https://{tmp_path}")


def test_images_or_a_wrong_name_lead_to_the_run(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  saved.save(tmp_path / "runs" / "my_photos", [2])
  (tmp_path / "my_photos").mkdir()
  runs = ("runs", "runs/my_photos/checkpoints", "runs/my_photos/checkpoints/2")
  for name in ("my_photos", "runs/my_photo", *runs):
    with pytest.raises(
      ValueError,
      match=f"{name} holds no .*run; did you mean runs/my_photos\\?$",
    ):
      open_run(name)


def test_opening_a_run_writes_nothing(tmp_path):
  saved.save(tmp_path, [2])

  def listing():
    return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}

  before = listing()
  with contextlib.closing(open_run(str(tmp_path))) as checkpoints:
    checkpoints.restore(2, saved.shapes(saved.state(2)))
  assert listing() == before
