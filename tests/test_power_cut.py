"""A power cut costs a run two saves at most, and a packing its last shard.

They lie on an ext4 file system in a file, which is shut down as a power
cut does it: what was not forced onto the disk is lost.
"""

import contextlib
import fcntl
import os
import random
import re
import shutil
import struct
import subprocess
import time

import pytest

from tests import commands
from tests.image_files import write_noise
from vit_jax.workdir.checkpoint import open_run

pytestmark = pytest.mark.slow

_EVERY, _STEPS = 10, 300
_RUN = [
  *("-m", "vit_jax.train", "--config=configs/digits.py"),
  *("--config.total_epochs=0", f"--config.total_steps={_STEPS}"),
  *("--config.log_every_steps=1", "--config.eval_every_epochs=0"),
  *("--config.eval_every_steps=50", "--config.save_every_epochs=0"),
  *(f"--config.save_every_steps={_EVERY}", "--config.ema_decay=0.9"),
  *("--config.accumulation_steps=2", "--config.model.dropout_rate=0.1"),
]
_SHUTDOWN, _NO_FLUSH = 0x8004587D, 2  # Of linux/fs/ext4: EXT4_IOC_SHUTDOWN.


class Disk:
  """An ext4 file system in a file; its journal writes nothing by itself."""

  def __init__(self, folder):
    self._image, self.folder = folder / "image", folder / "disk"
    self.folder.mkdir()
    with open(self._image, "wb") as file:
      file.truncate(512 * 2**20)
    self._do("mkfs.ext4", "-q", self._image)
    self.mount()

  def mount(self):
    self._do("mount", "-o", "loop,commit=600", self._image, self.folder)

  def cut(self):
    folder = os.open(self.folder, os.O_RDONLY)
    fcntl.ioctl(folder, _SHUTDOWN, struct.pack("I", _NO_FLUSH))
    os.close(folder)

  def repair(self):
    self.unmount()
    subprocess.run(["e2fsck", "-fy", self._image], capture_output=True)
    self.mount()

  def unmount(self):
    for _ in range(50):  # The killed run may hold it for a moment.
      done = subprocess.run(["umount", self.folder], capture_output=True)
      if not done.returncode:
        return
      time.sleep(0.1)
    raise OSError(done.stderr)

  def _do(self, *command):
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def disk(tmp_path):
  if missing := [x for x in ("mkfs.ext4", "e2fsck") if not shutil.which(x)]:
    pytest.skip(f"there is no {missing[0]} here.")
  try:
    disk = Disk(tmp_path)
  except subprocess.CalledProcessError as error:
    pytest.skip(f"no disk can be mounted here: {error.stderr.decode()}")
  yield disk
  disk.unmount()


def _names(folder):
  with contextlib.suppress(FileNotFoundError):
    return set(os.listdir(folder / "checkpoints"))
  return set()


def _wait_for(moment, folder, process, rng):
  """Waits until a run, some seconds on, is at this moment of a save."""
  time.sleep(rng.uniform(1, 4))
  before = names = _names(folder)
  while process.poll() is None:
    # All is written, and being forced onto the disk.
    whole = (folder / "checkpoints").glob("*-tmp/description/metadata")
    if moment == "any" or (moment == "renaming" and any(whole)):
      return
    # Older ones are deleted once there is another name.
    if moment == "deleting" and {*filter(str.isdecimal, names)} - before:
      return
    names = _names(folder)


def _cut_once(disk, moment, data_dir, rng):
  """Cuts a run's power; returns its last step and where it started from."""
  where = (
    f"--workdir={disk.folder / 'run'}",
    f"--config.data.data_dir={data_dir}",
  )
  with commands.start(*_RUN, *where) as process:
    said = []
    for line in process.stdout:
      said.append(line)
      if re.match(r"step +\d", line):
        break
    else:
      raise RuntimeError("".join(said) + process.stderr.read())
    _wait_for(moment, disk.folder / "run", process, rng)
    disk.cut()
    process.kill()
    said += process.stdout.readlines()
  disk.repair()
  text = "".join(said)
  steps = re.findall(r"^step +([\d,]+)", text, re.M)
  assert "damaged" not in text
  found = re.search(r"Resuming from the checkpoint of step ([\d,]+)", text)
  start = int(found[1].replace(",", "")) if found else 0
  return int(steps[-1].replace(",", "")), start


def _end(workdir):
  with contextlib.closing(open_run(str(workdir))) as checkpoints:
    step = checkpoints.latest_step
    return step, checkpoints.describe(step)["checksums"]


def test_a_power_cut_costs_no_more_than_two_saves(disk, data_dir, tmp_path):
  rng = random.Random(0)
  moments = ["any"] * 5 + ["renaming"] * 3 + ["deleting"] * 2
  rng.shuffle(moments)
  last = 0
  for moment in moments:
    reached, start = _cut_once(disk, moment, data_dir, rng)
    saves = last // _EVERY - start // _EVERY
    print(f"{moment}: from {start} to {reached}; {saves} saves were lost")
    assert saves <= 2
    rows = (disk.folder / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(rows) >= start
    assert (disk.folder / "run" / "starts.jsonl").read_text()
    last = reached
  for folder in (disk.folder / "run", tmp_path / "whole"):
    where = f"--workdir={folder}", f"--config.data.data_dir={data_dir}"
    done = commands.python(*_RUN, *where)
    assert not done.returncode, done.stderr
  assert _end(disk.folder / "run") == _end(tmp_path / "whole")
  assert _end(tmp_path / "whole")[0] == _STEPS


def _content(folder):
  paths = (path for path in folder.rglob("*") if path.is_file())
  return {str(p.relative_to(folder)): p.read_bytes() for p in paths}


def test_a_power_cut_damages_no_packing(disk, tmp_path):
  """Cut while it packs, going on each time; then right after its last line."""
  photos = tmp_path / "photos"
  write_noise(photos, "cat", "dog", count=6, size=(600, 600))
  command = ("-m", "vit_jax.pack", photos)
  whole, out = tmp_path / "whole" / "out", disk.folder / "out"
  options = ("--workers=2", "--shard_mib=1")
  done = commands.python(*command, whole, *options)
  assert not done.returncode, done.stderr
  for lines in (1, 3, 4, 2):
    with commands.start(*command, out, *options) as process:
      for _ in range(lines):
        assert process.stdout.readline()
      disk.cut()
      process.kill()
    disk.repair()
  for _ in range(2):  # The second packs all of it.
    with commands.start(*command, out, *options) as process:
      while not process.stdout.readline().startswith("Train on it with"):
        assert process.poll() is None
      disk.cut()
    disk.repair()
    assert _content(out) == _content(whole)
    shutil.rmtree(out)
