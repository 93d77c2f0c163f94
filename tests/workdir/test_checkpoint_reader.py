"""Choosing a checkpoint and reading it, good, damaged or out of reach."""

import contextlib
import json
import os
import secrets
import shutil

import pytest
from etils import epath

from tests import commands, runs
from tests.workdir import saved
from vit_jax.workdir import bucket, checkpoint_reader, orbax_files
from vit_jax.workdir.bucket import reason
from vit_jax.workdir.checkpoint import open_run
from vit_jax.workdir.checkpoint_reader import DamagedError, is_damage
from vit_jax.workdir.description import with_digest


@pytest.fixture
def run(tmp_path):
  """A folder with the checkpoints of steps 2 and 4, and its reader."""
  saved.save(tmp_path, [2, 4], {2: 0.5, 4: 0.25})
  with contextlib.closing(open_run(str(tmp_path))) as checkpoints:
    yield tmp_path, checkpoints


@pytest.mark.slow
def test_reading_a_description_starts_no_backend(run):
  """`vit_jax train` does it before the processes of a run meet."""
  folder, _ = run
  done = commands.python(
    "-c",
    "import sys\n"
    "from jax._src import xla_bridge\n"
    "from vit_jax.workdir.checkpoint import latest_description\n"
    "assert latest_description(sys.argv[1])['step'] == 4\n"
    "assert not xla_bridge.backends_are_initialized()",
    str(folder),
  )
  assert done.returncode == 0, done.stderr


def test_a_checkpoint_is_chosen_by_step_or_score(run):
  _, checkpoints = run
  assert checkpoints.choose() == 4
  assert checkpoints.choose(best=True) == 2
  assert checkpoints.choose(2) == 2
  with pytest.raises(
    ValueError, match="no checkpoint of step 3; .* are those of the steps 2, 4"
  ):
    checkpoints.choose(3)
  with pytest.raises(ValueError, match="give one"):
    checkpoints.choose(2, best=True)


def test_there_may_be_none_to_choose(tmp_path):
  (tmp_path / "checkpoints").mkdir()
  with contextlib.closing(open_run(str(tmp_path))) as checkpoints:
    assert checkpoints.latest_step is None
    assert checkpoints.newest_description() is None
    with pytest.raises(
      ValueError, match="no finished checkpoint: wait for .* again"
    ):
      checkpoints.choose()


def _damage_description(folder, step):
  (folder / f"checkpoints/{step}/description/metadata").write_text("{")


def _newest(folder):
  with contextlib.closing(open_run(str(folder))) as checkpoints:
    return checkpoints.newest_description()


def test_the_newest_good_description_comes_with_its_step(run):
  folder, _ = run
  for step in (4, 2):
    found, description = _newest(folder)
    assert found == description["step"] == step
    _damage_description(folder, step)
  with pytest.raises(DamagedError, match="checkpoint 4 of .* is damaged"):
    _newest(folder)


@pytest.mark.parametrize("item", ["params", "opt_state"])
def test_only_what_is_asked_for_needs_to_be_good(run, item):
  folder, checkpoints = run
  shutil.rmtree(folder / "checkpoints/4" / item)
  state = saved.state(4)
  with pytest.raises(
    DamagedError, match=f"{item}/.* bytes, and now there is n"
  ):
    checkpoints.restore(4, saved.shapes(state))
  shapes = saved.shapes(state.params)
  if item == "opt_state":
    found = checkpoints.restore_params(4, shapes, averaged=False)
    assert runs.identical(found, state.params)


def _without_lengths(checkpoint):
  """Makes its description one of an earlier version."""
  path = checkpoint / "description/metadata"
  description = json.loads(path.read_text())
  del description["files"], description["digest"]
  path.write_text(json.dumps(with_digest(description)))


def test_arrays_of_another_checkpoint_are_noticed(run):
  """They are complete and decode, but are not those of the description."""
  folder, checkpoints = run
  _without_lengths(folder / "checkpoints/4")
  shutil.rmtree(folder / "checkpoints/4/params")
  shutil.copytree(
    folder / "checkpoints/2/params", folder / "checkpoints/4/params"
  )
  with pytest.raises(DamagedError, match="checksum of params/head/kernel"):
    checkpoints.restore(4, saved.shapes(saved.state(4)))


def test_another_configuration_is_not_called_damage(run):
  _, checkpoints = run
  with pytest.raises(ValueError, match="only one of them has") as info:
    checkpoints.restore(4, saved.shapes(saved.state(4, averaged=True)))
  assert not isinstance(info.value, DamagedError)
  state = saved.state(4)
  more = state.replace(opt_state={**state.opt_state, "nu": state.params})
  with pytest.raises(ValueError, match="nu/head/bias and 1 more") as info:
    checkpoints.restore(4, saved.shapes(more))
  assert not isinstance(info.value, DamagedError)


class Store:
  """Fails to read some times, as a store that is out of reach does."""

  def __init__(self, monkeypatch, errors):
    self._read, self._errors = orbax_files.read_description, list(errors)
    self.waits = []
    monkeypatch.setattr(orbax_files, "read_description", self.read)
    monkeypatch.setattr(checkpoint_reader.time, "sleep", self.waits.append)

  def read(self, checkpoint):
    if self._errors:
      with bucket.as_library_error("gs://bucket/run"):  # As its reader does.
        raise self._errors.pop(0)
    return self._read(checkpoint)


TROUBLE = [
  ValueError("UNAVAILABLE: Error reading x: connection reset"),
  PermissionError(13, "Permission denied"),
  TimeoutError("timed out"),
  RuntimeError("Barrier timed out"),
]


@pytest.mark.parametrize("error", TROUBLE, ids=lambda e: type(e).__name__)
def test_trouble_is_tried_again_and_never_called_damage(
  run, monkeypatch, error
):
  folder, checkpoints = run
  Store(monkeypatch, [error] * 2)
  assert checkpoints.describe(4)["step"] == 4
  store = Store(monkeypatch, [error] * 9)
  with pytest.raises(OSError, match="cannot be read now .*; it may be good"):
    _newest(folder)
  assert store.waits == [1, 4]


def test_a_checkpoint_that_its_run_deletes_is_not_called_damaged(run):
  folder, checkpoints = run
  saved.save(folder, [6], keep_last=1)  # As the run does that goes on.
  assert not (folder / "checkpoints/4").exists()
  with pytest.raises(OSError, match="was deleted while it was read") as info:
    checkpoints.describe(4)
  assert not isinstance(info.value, DamagedError)


def test_one_that_is_half_deleted_is_none(run, monkeypatch):
  """Its name goes first, so no reader takes it for a damaged one."""
  folder, checkpoints = run
  monkeypatch.setattr(type(epath.Path(folder)), "rmtree", lambda _: None)
  saved.save(folder, [6], keep_last=1)
  names = os.listdir(folder / "checkpoints")
  assert sorted(names) == ["2", "4.orbax-checkpoint-tmp", "6"]
  with pytest.raises(OSError, match="was deleted while it was read"):
    checkpoints.describe(4)
  monkeypatch.undo()
  saved.save(folder, [8], keep_last=1)
  assert sorted(os.listdir(folder / "checkpoints")) == ["2", "8"]


@pytest.mark.slow
def test_a_bucket_that_refuses_is_not_damage(store, monkeypatch):
  monkeypatch.setattr(checkpoint_reader, "RETRY_AFTER", ())
  run = f"gs://bucket/{secrets.token_hex(4)}"
  saved.save(run, [4])
  with contextlib.closing(open_run(run)) as checkpoints:
    for part in ("description", "params"):
      store.fault = lambda _, page, part=part: (
        403 if f"%2F{part}%2F" in page else None
      )
      with pytest.raises(OSError, match="cannot be read now .* may be good"):
        checkpoints.restore(4, saved.shapes(saved.state(4)))
    store.no_fault()
    checkpoints.restore(4, saved.shapes(saved.state(4)))


@pytest.mark.slow
def test_a_checkpoint_deleted_from_a_bucket_is_not_damage(store):
  run = f"gs://bucket/{secrets.token_hex(4)}"
  saved.save(run, [4, 8])
  with contextlib.closing(open_run(run)) as checkpoints:
    assert checkpoints.all_steps == [4, 8]
    target = bucket.blob(f"{run}/checkpoints/4/")
    for found in target.bucket.list_blobs(prefix=target.name):
      found.delete()
    with pytest.raises(OSError, match="checkpoint 4 .* was deleted while it"):
      checkpoints.describe(4)


def _raised(function):
  try:
    function()
  except Exception as error:
    return error
  raise AssertionError


def _wrapped(error):
  """As Orbax wraps TensorStore's errors."""
  wrapper = Exception("Encountered error while reading array index: (slice(0")
  wrapper.__cause__ = error
  return wrapper


# Messages as TensorStore 0.1.86 words them, their paths left out.
CUT = 'OUT_OF_RANGE: Error reading "a/0.0" in OCDBT database: Requested byte r'
FLIPPED = 'DATA_LOSS: Error opening "zarr" driver: CRC-32C checksum verifi'
UNDECODED = 'FAILED_PRECONDITION: Error reading "a/0.0": Truncated Zstd-com'
MISSING = 'NOT_FOUND: Error opening "zarr" driver: Error reading "a/.zarray"'
UNPARSED = 'Error opening "zarr" driver: Error decoding b-tree node: End of'


@pytest.mark.parametrize(
  "error",
  [
    *map(ValueError, (CUT, FLIPPED, UNDECODED, MISSING, UNPARSED)),
    FileNotFoundError("Metadata file does not exist"),
    KeyError('Item "params" was not found in the checkpoint.'),
    _raised(lambda: json.loads('{"a')),
    _raised(lambda: b"\xff".decode()),
    RecursionError("maximum recursion depth exceeded"),
  ],
)
def test_damage(error):
  assert is_damage(error)
  assert is_damage(_wrapped(error))


@pytest.mark.parametrize(
  "error",
  [
    ValueError("PERMISSION_DENIED: Error reading x: HTTP response code: 403"),
    ValueError("UNAVAILABLE: Error reading x: HTTP response code: 503"),
    ValueError("DEADLINE_EXCEEDED: Error reading x"),
    ValueError("UNAUTHENTICATED: no token"),
    PermissionError(13, "Permission denied"),
    OSError(5, "Input/output error"),
    TimeoutError(),
    ConnectionResetError(),
    RuntimeError("Barrier timed out"),
  ],
)
def test_trouble(error):
  assert not is_damage(error)
  assert not is_damage(_wrapped(error))


def test_a_reason_is_one_line_of_the_cause():
  error = ValueError(f"{CUT} [tensorstore_spec='{{\n  many: 'lines'}}']")
  assert reason(_wrapped(error)) == CUT
  assert reason(KeyError('Item "params"')) == 'Item "params"'
  missing = FileNotFoundError(2, "No such file or directory", "a/b")
  assert reason(missing) == "[Errno 2] No such file or directory: 'a/b'"
  assert reason(TimeoutError()) == "TimeoutError"
  long = reason(ValueError("a" * 100 + "b" * 200))
  assert long.startswith("a") and long.endswith("b") and len(long) == 200
