"""What is written is on the disk before it has its name; the name is soon."""

import errno
import os
import pathlib

import pytest

from vit_jax.runtime import atomic_file


@pytest.fixture
def calls(monkeypatch):
  """The names of what is synced, and the word "rename", in their order."""
  calls, replace = [], os.replace

  def fsync(number):
    calls.append(pathlib.Path(os.readlink(f"/proc/self/fd/{number}")).name)

  def rename(*paths):
    calls.append("rename")
    replace(*paths)

  monkeypatch.setattr(os, "fsync", fsync)
  monkeypatch.setattr(os, "replace", rename)
  return calls


def test_a_file_is_synced_before_its_name_and_its_folder_after(tmp_path, calls):
  with atomic_file.replacing(tmp_path / "a") as file:
    file.write(b"1")
  (part, *rest) = calls
  assert part.startswith(".a.")
  assert rest == ["rename", tmp_path.name]
  assert (tmp_path / "a").read_bytes() == b"1"


def test_a_folder_is_synced_with_all_that_it_holds(tmp_path, calls):
  with atomic_file.filling(tmp_path / "folder") as folder:
    (folder / "in").mkdir()
    (folder / "in" / "a").touch()
    (folder / "b").touch()
  before = calls[: calls.index("rename")]
  assert {"in", "a", "b"} < {*before} and len(before) == 4
  assert calls[5:] == [tmp_path.name]
  calls.clear()
  (tmp_path / "there").mkdir()
  with atomic_file.filling(tmp_path / "there") as folder:
    (folder / "c").touch()
  assert calls == ["c", "rename", "there"]


def test_a_file_system_that_cannot_sync_folders_stops_nobody(
  tmp_path, monkeypatch
):
  def fsync(_):
    raise OSError(errno.EINVAL, "Invalid argument")

  monkeypatch.setattr(os, "fsync", fsync)
  atomic_file.sync(tmp_path)

  def fail(_):
    raise OSError(errno.EIO, "Input/output error")

  monkeypatch.setattr(os, "fsync", fail)
  with (
    pytest.raises(OSError, match="Input/output"),
    atomic_file.replacing(tmp_path / "a"),
  ):
    pass
  assert not (tmp_path / "a").exists()
