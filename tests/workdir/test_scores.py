"""Metrics of checkpoints, of which some are damaged."""

import contextlib
import shutil

import pytest
from etils import epath

from tests.workdir import saved
from vit_jax.workdir.checkpoint import Checkpoints, open_run
from vit_jax.workdir.scores import CLASSES, read_score

DAMAGED = [
  b"",
  b"{",
  b"17",
  b"[]",
  b"{}",
  b"\xff",
  b'{"eval/top2": 0.9}',
  b'{"eval/top1": "0.9"}',
  b'{"eval/top1": NaN}',
  b'{"eval/top1": 1' + b"0" * 400 + b"}",
  b"[" * 100_000,
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  folder = tmp_path_factory.mktemp("scores")
  saved.save(folder, [2, 4, 6, 8], {2: 0.5, 4: 0.75, 6: 0.25}, keep_last=4)
  return folder


@pytest.fixture
def folder(whole, tmp_path):
  return epath.Path(shutil.copytree(whole, tmp_path / "run"))


def _metrics(folder, step):
  return folder / "checkpoints" / str(step) / "metrics" / "metrics"


def test_the_score_of_a_checkpoint(folder):
  steps = [folder / "checkpoints" / str(s) for s in (2, 4, 6, 8)]
  found = [read_score(step, CLASSES) for step in steps]
  assert found == [0.5, 0.75, 0.25, None]


def test_of_two_as_good_the_later_is_the_best(folder):
  _metrics(folder, 2).write_text('{"eval/top1": 0.75}')
  with contextlib.closing(open_run(str(folder))) as checkpoints:
    assert checkpoints.best_step == 4
    _metrics(folder, 6).write_text('{"eval/top1": 0.75}')
    assert checkpoints.best_step == 6


def test_other_files_beside_the_checkpoints_are_left_alone(folder):
  (folder / "checkpoints/notes.txt").write_text("mine")
  _metrics(folder, 4).unlink()
  _metrics(folder, 4).mkdir()
  with contextlib.closing(Checkpoints(str(folder))) as checkpoints:
    (note,) = checkpoints.notes
  assert "checkpoint 4 are damaged (their file is a folder)" in note
  assert (folder / "checkpoints/notes.txt").read_text() == "mine"


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_one_stops_nobody(folder, content):
  _metrics(folder, 4).write_bytes(content)
  with contextlib.closing(open_run(str(folder))) as checkpoints:
    assert checkpoints.notes == []
    assert checkpoints.choose() == 8
    assert checkpoints.choose(best=True) == 2
    (note,) = checkpoints.notes
    assert note.startswith("the metrics of checkpoint 4 are damaged (")
    assert "\n" not in note
  assert _metrics(folder, 4).read_bytes() == content
  # A run that goes on keeps the file, under another name.
  with contextlib.closing(Checkpoints(str(folder), 1)) as checkpoints:
    assert len(checkpoints.notes) == 1
    state = saved.state(10)
    assert checkpoints.save(state, 10, saved.description(), None) is None
    assert checkpoints.wait() is None
    assert checkpoints.all_steps == [2, 10]
