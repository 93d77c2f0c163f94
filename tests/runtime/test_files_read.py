import os
import socket
import threading

import pytest

from vit_jax.runtime.files import (
  NotRegularError,
  TooLargeError,
  open_regular,
  read_regular,
)


def test_a_regular_file_is_read_also_through_a_link(tmp_path):
  (tmp_path / "file").write_bytes(b"content")
  (tmp_path / "link").symlink_to("file")
  assert read_regular(tmp_path / "link") == b"content"
  with open_regular(str(tmp_path / "file"), at_most=7) as file:
    assert file.read() == b"content"


def test_a_fifo_is_refused_and_not_waited_for(tmp_path):
  os.mkfifo(tmp_path / "fifo")
  found: list[BaseException] = []

  def read() -> None:
    try:
      read_regular(tmp_path / "fifo")
    except OSError as error:
      found.append(error)

  thread = threading.Thread(target=read, daemon=True)
  thread.start()
  thread.join(30)
  assert not thread.is_alive()
  assert isinstance(found[0], NotRegularError)
  assert "a FIFO, not a regular file" in str(found[0])


def test_devices_folders_and_sockets_are_refused(tmp_path, monkeypatch):
  (tmp_path / "zero").symlink_to("/dev/zero")
  with pytest.raises(NotRegularError, match=r"a device \(by a link\)"):
    read_regular(tmp_path / "zero")
  with pytest.raises(NotRegularError, match="a folder"):
    read_regular(tmp_path)
  monkeypatch.chdir(tmp_path)  # A socket's path may have 107 bytes.
  with socket.socket(socket.AF_UNIX) as unix:
    unix.bind("socket")
    with pytest.raises(NotRegularError, match="a socket"):
      open_regular("socket")


def test_a_file_may_not_be_larger_than_its_purpose(tmp_path):
  with open(tmp_path / "sparse", "wb") as file:
    file.truncate(2**40)  # A terabyte that takes no disk.
  with pytest.raises(TooLargeError, match="larger than the 10 bytes"):
    read_regular(tmp_path / "sparse", at_most=10)
  with pytest.raises(TooLargeError):
    read_regular(tmp_path / "sparse")


def test_a_file_whose_size_is_not_known_beforehand_is_bounded_too():
  if not os.path.exists("/proc/self/maps"):
    pytest.skip("needs /proc, whose files say that they have 0 bytes")
  assert os.stat("/proc/self/maps").st_size == 0
  with pytest.raises(TooLargeError):
    read_regular("/proc/self/maps", at_most=100)


def test_a_missing_file_is_said_to_be_missing(tmp_path):
  with pytest.raises(FileNotFoundError):
    read_regular(tmp_path / "none")
