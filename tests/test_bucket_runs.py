"""Runs whose workdir is on Google Cloud Storage, on a server on loopback."""

import contextlib
import json
import re
import secrets
import signal

import pytest

from tests import commands, image_files
from vit_jax.workdir import bucket
from vit_jax.workdir.checkpoint import open_run

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(store):
  """A name in the bucket; processes that a test starts find the store."""
  return f"gs://bucket/{secrets.token_hex(4)}"


def _command(data_dir, workdir, *overrides):
  return [
    "--config=configs/digits.py",
    *("--config.total_epochs=0", "--config.total_steps=200"),
    *("--config.eval_every_epochs=0", "--config.eval_every_steps=100"),
    *("--config.save_every_epochs=0", "--config.save_every_steps=40"),
    *("--config.optimizer.warmup_epochs=0", "--config.log_every_steps=1"),
    *("--config.model.num_layers=1", "--config.model.dropout_rate=0.1"),
    f"--config.data.data_dir={data_dir}",
    f"--workdir={workdir}",
    *overrides,
  ]


def _train(*arguments):
  found = commands.run("vit_jax.train", *_command(*arguments))
  errors = [line for line in found.stderr.splitlines() if not _known(line)]
  return found.returncode, " ".join(found.stdout.split()), errors


def _known(line):
  """Whether it is TensorStore's on missing credentials, or ours on digits."""
  is_ours = line.startswith("This run was trained on light digits")
  return is_ours or "google_auth_provider.cc" in line


def _saved(workdir, step=200):
  with contextlib.closing(open_run(str(workdir))) as checkpoints:
    return checkpoints.describe(step)["checksums"]


def _objects(folder):
  parts = bucket.blob(folder)
  return {
    found.name.removeprefix(f"{parts.name}/"): found
    for found in parts.bucket.list_blobs(prefix=f"{parts.name}/")
  }


@pytest.fixture(scope="module")
def local(data_dir, tmp_path_factory):
  """The checksums of an undisturbed local run."""
  workdir = tmp_path_factory.mktemp("bucket") / "run"
  code, _, errors = _train(data_dir, workdir)
  assert (code, errors) == (0, [])
  return _saved(workdir)


def test_a_run_that_is_killed_ends_as_a_local_one(
  data_dir, folder, local, tmp_path
):
  flags = _command(data_dir, folder)
  with commands.start("-m", "vit_jax.train", *flags) as process:
    for line in process.stdout:
      if re.match(r"step +83/", line):
        break
    process.send_signal(signal.SIGKILL)
  assert _objects(folder)["lock"]
  code, printed, errors = _train(data_dir, folder)
  assert (code, errors) == (0, [])
  assert "Resuming from the checkpoint of step " in printed
  assert _saved(folder) == local
  found = _objects(folder)
  tops = {name.partition("/")[0] for name in found}
  assert tops == {
    "log.txt",
    *("checkpoints", "metrics.jsonl", "digests.jsonl", "starts.jsonl"),
    "tensorboard",
  }
  rows = found["metrics.jsonl"].download_as_bytes().splitlines()
  steps = [row["step"] for row in map(json.loads, rows) if "train/loss" in row]
  assert steps == sorted(set(steps)) and steps[-1] == 200
  _read_by_all_commands(folder, tmp_path)
  _damage_is_set_aside(data_dir, folder, local)


def _read_by_all_commands(folder, tmp_path):
  (tmp_path / "a.png").write_bytes(image_files.GOOD)
  for command in (
    ("evaluate", "--workdir", folder, "--best"),
    ("predict", folder, str(tmp_path / "a.png")),
    ("convert", folder, str(tmp_path / "timm"), "--to=timm"),
    ("report", folder, "--out", str(tmp_path / "report.html")),
  ):
    found = commands.run(f"vit_jax.{command[0]}", *command[1:])
    assert found.returncode == 0, found.stderr
    assert [x for x in found.stderr.splitlines() if not _known(x)] == []


def _damage_is_set_aside(data_dir, folder, local):
  arrays = [
    found
    for name, found in _objects(folder).items()
    if name.startswith("checkpoints/200/params/ocdbt.process_0/d/")
  ]
  largest = max(arrays, key=lambda found: found.size)
  content = bytearray(largest.download_as_bytes())
  content[len(content) // 2] ^= 0x10
  largest.upload_from_string(bytes(content))
  code, printed, errors = _train(data_dir, folder)
  assert (code, errors) == (0, [])
  assert f"checkpoint 200 of {folder} is damaged" in printed
  assert f"It was moved to {folder}/damaged/200." in printed
  assert "Resuming from the checkpoint of step 160." in printed
  assert _saved(folder) == local
  assert "damaged/200/params/_METADATA" in _objects(folder)


def test_without_a_permission_nothing_is_begun(data_dir, folder, store):
  store.fault = lambda method, _: 403 if method == "DELETE" else None
  code, printed, (error,) = _train(data_dir, folder)
  assert (code, printed) == (2, "")
  assert f"error: {folder} cannot be used: the permission storage.obj" in error


def test_a_store_that_fails_for_a_while_ends_no_run(
  data_dir, folder, store, local
):
  """Many requests get a 503, and some of those that add to a file a 412."""
  asked = []

  def fail(method, page):
    asked.append(page)
    if len(asked) % 40 == 0:
      return 503
    added = "metrics.jsonl" in page or "tfevents" in page
    return 412 if method == "POST" and added and len(asked) % 3 == 0 else None

  store.fault = fail
  code, _, errors = _train(data_dir, folder)
  assert (code, errors) == (0, [])
  store.fault = lambda *_: None  # What follows are requests of this test.
  assert _saved(folder) == local


def test_two_runs_do_not_share_a_workdir(data_dir, folder):
  endless = _command(data_dir, folder, "--config.total_steps=100000")
  with commands.start("-m", "vit_jax.train", *endless) as process:
    try:
      for line in process.stdout:
        if line.startswith("step"):
          break
      code, _, errors = _train(data_dir, folder)
      assert code == 2
      (error,) = errors
      owner = f"process {process.pid} "
      assert f"belongs to a run that has not ended, {owner}" in error
    finally:
      process.kill()
