"""From photographs in a bucket to a trained model, over gs:// all the way."""

import secrets
from typing import Any

import fsspec
import pytest

from tests import commands
from tests.data.pictures import png, scene
from vit_jax.data.reading.sources import open_splits
from vit_jax.data.settings import DataSettings
from vit_jax.pack.sources import open_bucket
from vit_jax.workdir import bucket

pytestmark = pytest.mark.slow


@pytest.fixture
def photographs(store):
  """Two classes in a bucket, ten images each; returns the address and bytes."""
  address = f"gs://bucket/{secrets.token_hex(4)}"
  stored = {}
  for label, name in enumerate(("cat", "dog")):
    for i in range(10):
      key = f"{name}/some/{i}.png"
      stored[key] = png(scene(24, 36, seed=10 * label + i))
      bucket.blob(f"{address}/photos/{key}").upload_from_string(stored[key])
  bucket.blob(f"{address}/photos/cat/notes.txt").upload_from_string(b"x")
  return address, stored


def test_photographs_are_packed_and_trained_on(photographs, store, tmp_path):
  address, stored = photographs
  packed = f"{address}/packed"
  photos = f"{address}/photos"
  done = commands.run("vit_jax.pack", photos, packed, "--shard_mib=1")
  assert done.returncode == 0, done.stderr
  assert "train      20 images of 2 classes, 10 to 10 of a class" in done.stdout
  shard = "packed-train.array_record-00000-of-00001"
  for name in ("notes/plan.json", shard):
    bucket.blob(f"{packed}/{name}").upload_from_string(b"")
  assert commands.run("vit_jax.pack", "--verify", packed).returncode == 2
  done = commands.run("vit_jax.pack", photos, packed, "--shard_mib=1")
  assert f"{packed}/notes/plan.json is damaged" in done.stdout, done.stderr
  assert f"{packed}/{shard} differs from its note" in done.stdout
  assert commands.run("vit_jax.pack", "--verify", packed).returncode == 0
  splits = open_splits(DataSettings(dir=packed, eval_split="train[:4]"))
  assert (len(splits.train), len(splits.eval)) == (20, 4)
  examples = splits.train.read([*range(20)])
  for key, image in stored.items():
    (found,) = [e for e in examples if e["id"].endswith(f"{key})")]
    assert found["image"] == image
    assert found["label"] == ("cat", "dog").index(key[:3])
  # Processes of their own read the bucket as well.
  flags = (
    *("--config=configs/digits.py", f"--config.data.dir={packed}"),
    *("--config.data.name=None", "--config.data.train_split=train[4:]"),
    *("--config.data.eval_split=train[:4]", "--config.batch_size=8"),
    *("--config.total_epochs=0", "--config.total_steps=3"),
    *("--config.model.num_layers=1", "--config.loader.num_workers=2"),
    *("--config.optimizer.warmup_epochs=0", f"--workdir={tmp_path}/run"),
  )
  trained = commands.run("vit_jax.train", *flags)
  assert trained.returncode == 0, trained.stderr
  assert "(4 examples)" in trained.stdout
  moved = commands.run(
    "vit_jax.evaluate", f"{tmp_path}/run", f"--root={packed}"
  )
  assert moved.returncode == 0, moved.stderr


def test_a_bucket_without_classes_is_refused(photographs):
  address, _ = photographs
  done = commands.run("vit_jax.pack", f"{address}/photos/cat", f"{address}/out")
  assert done.returncode == 2
  (error,) = [x for x in done.stderr.splitlines() if "google_auth" not in x]
  assert "has 1 class folders, and two or more are needed" in error


def test_two_folders_of_one_split_are_refused():
  memory = fsspec.filesystem("memory")
  root = f"/{secrets.token_hex(4)}"
  for split in ("train", "val", "validation"):
    for name in ("cat", "dog"):
      memory.pipe(f"{root}/{split}/{name}/0.png", png(scene(8, 8, seed=1)))
  with pytest.raises(ValueError, match="has both 'val' and 'validation'"):
    open_bucket(f"memory:/{root}")


def test_by_products_in_a_bucket_are_left_out():
  memory = fsspec.filesystem("memory")
  root = f"/{secrets.token_hex(4)}"
  names = ("cat/0.png", "cat/._0.png", "dog/0.png", "dog/__MACOSX/0.png")
  for name in (*names, "__MACOSX/cat/0.png"):
    memory.pipe(f"{root}/{name}", png(scene(8, 8, seed=1)))
  source: Any = open_bucket(f"memory:/{root}")["train"]
  assert source.class_names == ("cat", "dog")
  assert len(source) == 2


def test_splits_in_a_bucket_are_told_as_in_a_folder():
  system = fsspec.filesystem("memory")
  for name in ("seg_train/a", "seg_train/b", "seg_test/a", "seg_pred/x"):
    system.pipe(f"/scenes/{name}/1.png", b"")
  splits = open_bucket("memory://scenes")
  assert {name: len(s) for name, s in splits.items()} == {"train": 2, "test": 1}
