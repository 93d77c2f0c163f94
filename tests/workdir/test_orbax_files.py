"""Files of checkpoints: whole or not there, quietly refused, plain Orbax's."""

import contextlib
import gc
import os
import pathlib
import secrets
import shutil
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from tests import runs
from tests.memory import bounded_memory
from tests.pages import ROOT, blocks
from tests.workdir import saved
from vit_jax.training.state import TrainState
from vit_jax.workdir import bucket
from vit_jax.workdir.checkpoint import Checkpoints, open_run
from vit_jax.workdir.checkpoint_reader import DamagedError
from vit_jax.workdir.orbax_files import CLASSES, read_score

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
  folders = [folder / "checkpoints" / str(step) for step in (2, 4, 6, 8)]
  found = [read_score(folder, CLASSES) for folder in folders]
  assert found == [0.5, 0.75, 0.25, None]


def test_a_save_without_an_evaluation_is_not_warned_of(tmp_path, caplog):
  with caplog.at_level("WARNING"):
    saved.save(tmp_path / "run", [2], {})
  assert not [r for r in caplog.records if "metric" in r.getMessage()]


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
  assert "checkpoint 4 are damaged (their file is a folder," in note
  assert (folder / "checkpoints/notes.txt").read_text() == "mine"


def test_metrics_of_a_partial_checkpoint_are_nobodys(folder):
  partial = folder / "checkpoints/9.orbax-checkpoint-tmp/metrics"
  partial.mkdir(parents=True)
  (partial / "metrics").touch()
  with contextlib.closing(Checkpoints(str(folder))) as checkpoints:
    assert checkpoints.notes == []


def test_a_checkpoint_is_on_the_disk_before_its_name_and_older_ones_go(
  tmp_path, monkeypatch
):
  """Arrays are synced by TensorStore too, which is not seen here."""
  synced, named, fsync = set(), [], os.fsync
  folder = tmp_path / "checkpoints"

  def record(number):
    path = pathlib.Path(os.readlink(f"/proc/self/fd/{number}"))
    synced.add(path.relative_to(tmp_path.parent).parts[1:])
    if path == folder:  # Names are on the disk after this, and not before.
      named.append(sorted(os.listdir(folder)))
    fsync(number)

  checkpoints = Checkpoints(str(tmp_path), keep_last=1)
  (tmp_path / "metrics.jsonl").touch()
  monkeypatch.setattr(os, "fsync", record)
  for step in (2, 4):
    synced.clear()
    top1 = {"eval/top1": step / 10}
    checkpoints.save(saved.state(step), step, saved.description(), top1)
    assert checkpoints.wait() is None
  checkpoints.close()
  assert named == [["2"], ["2", "4"]]
  assert os.listdir(folder) == ["4"]
  draft = "4.orbax-checkpoint-tmp"
  files = {p.relative_to(folder / "4").parts for p in folder.rglob("4/**/*")}
  assert ("params", "_METADATA") in files and ("metrics", "metrics") in files
  expected = {("checkpoints", draft, *parts) for parts in files}
  others = {(), ("metrics.jsonl",), ("checkpoints",), ("checkpoints", draft)}
  assert synced == expected | others


def test_plain_orbax_reads_a_checkpoint_as_the_page_says(
  whole, tmp_path, monkeypatch, capsys
):
  page = (ROOT / "docs/howto/own_loop.md").read_text()
  (block,) = [b for b in blocks(page) if "orbax.checkpoint" in b.text]
  (tmp_path / "runs").mkdir()
  (tmp_path / "runs/own_loop").symlink_to(whole)
  monkeypatch.chdir(tmp_path)
  names = {}
  exec(block.text, names)
  assert capsys.readouterr().out == "8 ['a', 'b']\n"
  params = names["found"]["params"]
  assert isinstance(params["head"]["kernel"], np.ndarray)
  assert runs.identical(params, jax.device_get(saved.state(8).params))


def test_a_checkpoint_without_its_name_is_none(whole, tmp_path):
  """A run that is killed between the last file and the name."""
  run = tmp_path / "run"
  shutil.copytree(whole, run)
  draft = run / "checkpoints/8.orbax-checkpoint-tmp"
  (run / "checkpoints/8").rename(draft)
  with contextlib.closing(open_run(str(run))) as checkpoints:
    assert checkpoints.all_steps == [2, 4, 6]
  assert draft.exists()
  Checkpoints(str(run)).close()
  assert not draft.exists()


@pytest.mark.slow
@pytest.mark.parametrize("last", ["commit_success.txt", "description/metadata"])
def test_on_a_store_a_checkpoint_counts_from_its_last_objects_on(store, last):
  run = f"gs://bucket/{secrets.token_hex(4)}"
  saved.save(run, [4, 8])
  bucket.blob(f"{run}/checkpoints/8/{last}").delete()
  with contextlib.closing(open_run(run)) as checkpoints:
    assert checkpoints.all_steps == [4]
  # Nothing is deleted where the store does not say whether it is complete.
  store.fault = lambda _, page: 403 if "%2Fcommit_success" in page else None
  with pytest.raises(OSError, match="cannot be opened"):
    Checkpoints(run)
  store.no_fault()
  folder = epath.Path(run) / "checkpoints"
  assert {*bucket.names(folder)} == {"4", "8"}
  Checkpoints(run).close()
  assert bucket.names(folder) == ["4"]


def test_a_file_of_another_length_is_named_before_orbax_reads(whole, tmp_path):
  run = shutil.copytree(whole, tmp_path / "run")
  path = run / "checkpoints/8/params/manifest.ocdbt"
  length = path.stat().st_size
  path.write_bytes(path.read_bytes()[:-1])
  with contextlib.closing(open_run(str(run))) as checkpoints:
    said = f"params/manifest.ocdbt had {length} bytes, and now there is "
    with pytest.raises(DamagedError, match=f"{said}{length - 1} bytes"):
      checkpoints.restore(8, saved.shapes(saved.state(8)))
    path.unlink()
    with pytest.raises(DamagedError, match=f"{said}nothing"):
      checkpoints.restore(8, saved.shapes(saved.state(8)))


def _emptied(path):
  if path.is_dir():
    shutil.rmtree(path)
    path.mkdir()
  else:
    path.write_bytes(b"")


@pytest.mark.slow
def test_whatever_is_empty_the_one_before_is_resumed(folder, tmp_path):
  """As after a power cut, where nothing was synced."""
  whole = folder / "checkpoints/8"
  for path in (whole, *sorted(pathlib.Path(whole).rglob("*"))):
    run = tmp_path / "other"
    shutil.copytree(folder, run)
    _emptied(pathlib.Path(str(path).replace(str(folder), str(run))))
    with contextlib.closing(Checkpoints(str(run), 4)) as checkpoints:
      found = 8
      try:
        checkpoints.describe(8)
        state = checkpoints.restore(8, saved.shapes(saved.state(8)))
      except DamagedError:
        found = 6
        checkpoints.set_aside(8)
        checkpoints.describe(6)
        state = checkpoints.restore(6, saved.shapes(saved.state(6)))
      assert runs.identical(state, saved.state(found)), path
      new = saved.state(10)
      assert checkpoints.save(new, 10, saved.description(), None) is None
      assert checkpoints.wait() is None
    shutil.rmtree(run)


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
  # A run that goes on deletes it.
  with contextlib.closing(Checkpoints(str(folder), 1)) as checkpoints:
    assert len(checkpoints.notes) == 1
    state = saved.state(10)
    assert checkpoints.save(state, 10, saved.description(), None) is None
    assert checkpoints.wait() is None
    assert checkpoints.all_steps == [2, 10]


_ARRAYS = 40  # So that many reads are under way when the first fails.


@pytest.fixture(scope="module")
def cut_run(tmp_path_factory):
  """A run with many arrays, all of whose data files are cut."""
  cut_run = tmp_path_factory.mktemp("many")
  checkpoints = Checkpoints(str(cut_run))
  arrays = np.random.default_rng(0).normal(size=(_ARRAYS, 16, 64))
  params = {str(i): jnp.float32(array) for i, array in enumerate(arrays)}
  description = {"config": {}, "model": {}, "class_names": []}
  state = TrainState(jnp.int32(1), params, {"mu": jnp.zeros(3)})
  checkpoints.save(state, 1, description, None)
  checkpoints.close()
  files = [
    path
    for path in (cut_run / "checkpoints/1/params").rglob("d/*")
    if path.stat().st_size > 10_000  # Those that hold arrays, one or several.
  ]
  assert files
  for path in files:
    path.write_bytes(path.read_bytes()[:1000])
  return cut_run, params


def _on_the_host(params):
  return {
    key: np.broadcast_to(np.float32(0), x.shape) for key, x in params.items()
  }


def _on_devices(params):
  return {
    key: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
    for key, x in params.items()
  }


@pytest.mark.slow
@pytest.mark.parametrize("place", [_on_the_host, _on_devices])
def test_reads_under_way_say_nothing_when_another_fails(
  cut_run, place, capfd, caplog
):
  path, params = cut_run
  checkpoints = Checkpoints(str(path), read_only=True)
  for _ in range(10):
    with pytest.raises(
      DamagedError, match=r"bytes, and now there is 1,000"
    ) as info:
      checkpoints.restore_params(1, place(params), averaged=False)
    assert "\n" not in str(info.value)
  checkpoints.close()
  del info
  time.sleep(0.2)
  gc.collect()  # asyncio complains of an error that nobody took when it goes.
  assert capfd.readouterr() == ("", "")
  assert caplog.records == []


def test_only_a_number_as_we_write_it_is_a_step(folder):
  for name in ("0006", "٦", "99999999999", "2147483648", "-1", "6.0", "１"):
    (folder / "checkpoints" / name).mkdir()
  with contextlib.closing(open_run(str(folder))) as checkpoints:
    assert checkpoints.all_steps == [2, 4, 6, 8]
    with pytest.raises(ValueError, match="no checkpoint of step 99999999999"):
      checkpoints.choose(99999999999)
  for step in (2, 4, 6, 8):
    shutil.rmtree(folder / "checkpoints" / str(step))
  with (
    contextlib.closing(open_run(str(folder))) as checkpoints,
    pytest.raises(ValueError, match="holds no finished checkpoint"),
  ):
    checkpoints.choose()


def _fifo(path):
  os.mkfifo(path)


def _device(path):
  path.symlink_to("/dev/zero")


def _sparse(path):
  with path.open("wb") as file:
    file.truncate(6 * 2**30)


@pytest.mark.parametrize("make", [_fifo, _device, _sparse])
@pytest.mark.parametrize(
  "name", ["description/metadata", "params/_METADATA", "params/manifest.ocdbt"]
)
def test_a_file_that_is_not_regular_is_damage_at_once(folder, name, make):
  """Opening a FIFO would hang, and a device fill the memory."""
  path = pathlib.Path(folder / "checkpoints" / "4" / name)
  path.unlink()
  make(path)
  start = time.monotonic()
  with contextlib.closing(open_run(str(folder))) as checkpoints:
    shapes = saved.shapes(saved.state(4))
    with bounded_memory(2**24), pytest.raises(DamagedError) as caught:
      checkpoints.restore(4, shapes)
  assert "\n" not in str(caught.value)
  assert time.monotonic() - start < 4  # It was not tried again.


@pytest.mark.parametrize("make", [_fifo, _device, _sparse])
def test_metrics_that_are_not_regular_are_no_score(folder, make):
  path = pathlib.Path(_metrics(folder, 4))
  path.unlink()
  make(path)
  with bounded_memory(2**24), pytest.raises(ValueError, match="their file is"):
    read_score(folder / "checkpoints" / "4", CLASSES)
