"""A run is replayed: its digests are the same, and each change is found."""

import json
import re
import shutil

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests import commands, runs
from tests.old_runs import CHECKPOINTS, described, description_file
from tests.test_faults import _flip
from vit_jax.data.batching.batches import batch_ids
from vit_jax.data.reading.sources import Digits
from vit_jax.run import loop
from vit_jax.run.experiments import replay
from vit_jax.run.experiments.replay import verify
from vit_jax.run.settings import Settings, read
from vit_jax.runtime.settings import replaced
from vit_jax.workdir.description import (
  checksum_on_host,
  digest,
  digest_of,
  with_digest,
)


def _rows(folder):
  lines = (folder / "digests.jsonl").read_text().splitlines()
  return [json.loads(line) for line in lines]


def _edit(path, change):
  """Rewrites each row of a file with what `change` makes of it."""
  rows = [json.loads(line) for line in path.read_text().splitlines()]
  path.write_text("".join(json.dumps(change(r)) + "\n" for r in rows))


def test_a_digest_is_the_sum_of_its_formula():
  """Derived in NumPy; a single bit of a pixel or a parameter changes it."""
  rng = np.random.default_rng(0)
  params = {"a": rng.normal(size=(3, 5)).astype(np.float32), "b": np.ones(4)}
  batch = {"image": rng.integers(0, 256, (2, 4, 4, 3), np.uint8)}
  batch["skipped"] = np.array([True, False])

  def c(x):
    kinds = {1: np.uint8, 4: np.uint32}
    bits = np.ravel(x).view(kinds[x.dtype.itemsize]).astype(np.uint64)
    return int((bits * (2 * np.arange(bits.size, dtype=np.uint64) + 1)).sum())

  params["b"] = params["b"].astype(np.float32)
  step, found = jax.jit(digest_of)({"params": params}, batch, jnp.int32(7))
  assert int(step) == 7
  assert int(found["params"]) == (c(params["a"]) + 3 * c(params["b"])) % 2**32
  assert int(found["batch/image"]) == c(batch["image"]) % 2**32
  assert int(found["batch/skipped"]) == 1
  near = digest({"params": params}, batch, checksum_on_host)
  assert {k: int(v) for k, v in near.items()} == {
    k: int(v) for k, v in found.items()
  }
  batch["image"][1, 2, 3, 0] ^= 1
  _, other = jax.jit(digest_of)({"params": params}, batch, jnp.int32(7))
  assert int(other["batch/image"]) != int(found["batch/image"])


@pytest.mark.slow
def test_a_run_writes_its_digests(whole_run):
  rows = _rows(whole_run.folder)
  assert [row["step"] for row in rows] == [2, 4, 6, 8, 10, 12]
  keys = {"params", "averaged_params", "loss", "gradient_norm", "seed"}
  assert all(keys < row.keys() and row["seed"] == 0 for row in rows)
  _, last = jax.jit(digest_of)(
    {"params": whole_run.state.params}, {}, jnp.int32(0)
  )
  assert rows[-1]["params"] == int(last["params"])


@pytest.mark.slow
@pytest.mark.parametrize(
  "steps, compared",
  [(None, "steps 9 to 12"), ("5:6", "steps 5 to 6"), ("1:4", "steps 1 to 4")],
)
def test_a_replay_is_the_run(run_copy, capsys, steps, compared):
  """From a checkpoint, the newest before the last digest, or from the seed."""
  assert verify(str(run_copy), steps)
  out = " ".join(capsys.readouterr().out.split())
  assert f"Replayed {compared} of " in out and "to the last bit: equal" in out


def _pixel(folder, patch):
  """Inverts one pixel of one image of step 10."""
  source, get = Digits("train"), Digits.__getitem__
  wanted = batch_ids(source, 64, 0, 9)[5]

  def changed(self, index):
    example = get(self, index)
    if example["id"] == wanted:
      coded = np.frombuffer(example["image"], np.uint8)
      pixels = cv2.imdecode(coded, cv2.IMREAD_UNCHANGED)
      pixels[4, 3] = 255 - pixels[4, 3]
      example["image"] = cv2.imencode(".png", pixels)[1].tobytes()
    return example

  patch.setattr(Digits, "__getitem__", changed)


def _code(folder, patch):
  adam = optax.scale_by_adam
  patch.setattr(
    optax, "scale_by_adam", lambda b1, b2, e: adam(b1, b2 - 1e-4, e)
  )


def _setting(folder, patch):
  here = replay.settings_here

  def other(*args):
    return replaced(here(*args), {"loss.label_smoothing": 0.2})

  patch.setattr(replay, "settings_here", other)


def _seed(folder, patch):
  """Writes another seed into the descriptions, with digests that fit."""
  for path in folder.glob("checkpoints/*/description/metadata"):
    saved = json.loads(path.read_text())
    del saved["digest"]
    saved["config"]["seed"] = 1
    path.write_text(json.dumps(with_digest(saved)))


def _row(folder, patch):
  def change(row):
    return row | ({"loss": row["loss"] + 1e-7} if row["step"] == 10 else {})

  _edit(folder / "digests.jsonl", change)


def _other_checkpoint(folder, patch):
  """Puts the checkpoint of step 4 in place of that of step 8."""
  shutil.rmtree(folder / "checkpoints" / "8")
  shutil.copytree(folder / "checkpoints" / "4", folder / "checkpoints" / "8")


TAMPERED = [
  (_pixel, "1:10", "from step 10 on, where .*batch/image.* be other data"),
  (
    _code,
    "10:10",
    "where .*params differ; the cause may be another setting, co",
  ),
  (_setting, "10:12", "loss.* differ; the cause may be another setting"),
  (_seed, "10:12", "seed differ; the cause may be another seed"),
  (_row, "9:12", "1 of 3 digests .* step 10 on, where loss .* an edited row"),
  (_other_checkpoint, "9:12", "checkpoint 8 does not have the digest of"),
]


@pytest.mark.slow
@pytest.mark.parametrize("tamper, steps, says", TAMPERED)
def test_what_was_changed_is_found(
  run_copy, monkeypatch, capsys, tamper, steps, says
):
  tamper(run_copy, monkeypatch)
  assert not verify(str(run_copy), steps)
  out = " ".join(capsys.readouterr().out.split())
  assert "they DIFFER" in out
  assert re.search(says, out), out


@pytest.mark.slow
def test_another_optimizer_is_told_from_another_loss(
  data_dir, tmp_path, monkeypatch, capsys
):
  """With a digest of each step, the first that differs has the same loss."""
  config = runs.config(data_dir, total_steps=2, digest_every=1, ema_decay=0.0)
  loop.train(read(config), str(tmp_path))
  _code(tmp_path, monkeypatch)
  assert not verify(str(tmp_path))
  out = " ".join(capsys.readouterr().out.split())
  said = "step 2 on, where params differ; the cause may be another optimizer"
  assert said in out


@pytest.mark.slow
def test_a_damaged_checkpoint_is_named(run_copy):
  _flip(run_copy / "checkpoints" / "8")
  with pytest.raises(ValueError, match="checkpoint 8 of .* is damaged"):
    verify(str(run_copy), "9:12")


@pytest.mark.slow
def test_other_versions_and_devices_are_told(run_copy, capsys):
  """On other devices, the numbers are compared within a tolerance."""
  starts = run_copy / "starts.jsonl"
  _edit(starts, lambda row: row | {"packages": {"jax": "0.1"}})
  assert verify(str(run_copy), "9:12")
  out = " ".join(capsys.readouterr().out.split())
  assert "bit: equal. - packages.jax was 0.1 and is " in out
  _edit(starts, lambda row: row | {"devices": "4 x TPU v9"})
  _edit(run_copy / "digests.jsonl", _slightly_other)
  assert verify(str(run_copy), "9:12")
  out = " ".join(capsys.readouterr().out.split())
  assert "within 1e-05, except params: equal. - devices was 4 x TPU v9" in out
  _edit(run_copy / "digests.jsonl", lambda row: row | {"loss": 2.5})
  assert not verify(str(run_copy), "9:12")


def _slightly_other(row):
  loss = row["loss"] * (1 + 9e-6)
  return row | {"params": 1, "averaged_params": 2, "loss": loss}


@pytest.mark.slow
def test_what_cannot_be_replayed_is_refused(run_copy, monkeypatch):
  with pytest.raises(ValueError, match=r"steps 13 to 20; .* steps \[10, 12\]"):
    verify(str(run_copy), "13:20")
  with pytest.raises(
    ValueError, match="--steps=7: give the first and the last"
  ):
    verify(str(run_copy), "7")
  _edit(run_copy / "starts.jsonl", lambda row: row | {"devices": "4 x TPU v9"})
  monkeypatch.setattr(replay, "MOST_STEPS", 2)
  with pytest.raises(
    ValueError, match="4 x TPU.* at most 2 steps after a checkpoint"
  ):
    verify(str(run_copy), "9:12")
  for folder in (run_copy / "checkpoints").iterdir():
    shutil.rmtree(folder)
  with pytest.raises(ValueError, match="holds no finished checkpoint"):
    verify(str(run_copy), "1:2")
  (run_copy / "digests.jsonl").unlink()
  with pytest.raises(ValueError, match="has no digests .*digest_every is not"):
    verify(str(run_copy))


@pytest.mark.parametrize(
  "change, start",
  [
    ({"model.block": "os:system"}, 4),
    ({"data.task": "evil.py:Task"}, 4),
    ({"distill.teacher": "https://evil.org/a.npz"}, 4),
    ({"pretrained": "https://evil.org/a.npz"}, 0),
    ({"pretrained": "https://evil.org/a.npz", "lora.rank": 2}, 4),
    ({"data.dir": "gs://evil/packed"}, 4),
    ({"data.data_dir": "gs://evil/tfds", "data.name": "cifar10"}, 4),
    ({"fewshot.shots": 5, "fewshot.data.dir": "gs://evil/packed"}, 4),
  ],
)
def test_what_only_a_checkpoint_names_needs_trust(change, start):
  settings = replaced(Settings(), change)
  with pytest.raises(
    ValueError, match="import or open .*(evil|os).* only the run"
  ):
    replay.check_trusted(settings, start, "run", {})


@pytest.mark.parametrize(
  "change, workdir, moved",
  [
    ({"pretrained": "https://evil.org/a.npz"}, "run", {}),  # From a checkpoint.
    ({"data.dir": "gs://b/packed"}, "run", {"root": "gs://b/packed"}),
    ({"data.dir": "gs://b/packed"}, "gs://b/run", {}),  # The user named it.
    ({"data.dir": "packed", "data.data_dir": "gs://unused/tfds"}, "run", {}),
  ],
)
def test_what_the_user_names_needs_none(change, workdir, moved):
  replay.check_trusted(replaced(Settings(), change), 4, workdir, moved)


def test_a_replay_asks_for_trust_before_it_opens_anything(tmp_path):
  folder = shutil.copytree(CHECKPOINTS / "workdirs/plain", tmp_path / "plain")
  saved = described(folder)
  saved.pop("digest", None)
  saved["config"]["data"] |= {"name": "x", "data_dir": "gs://evil/tfds"}
  description_file(folder).write_text(json.dumps(with_digest(saved)))
  (folder / "digests.jsonl").write_text('{"step": 30}\n')
  with pytest.raises(ValueError, match="gs://evil/tfds, which .* only the run"):
    verify(str(folder))


@pytest.mark.slow
def test_the_command_needs_a_run(tmp_path):
  line = commands.refused("vit_jax.verify", str(tmp_path))
  assert "holds no checkpoints" in line


@pytest.mark.slow
def test_a_hundred_replays_raise_no_false_alarm(run_copy):
  assert all(verify(str(run_copy), "9:12") for _ in range(100))
