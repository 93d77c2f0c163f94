"""Reads image files."""

import os
import re

import pytest

from tests.memory import bounded_memory
from vit_jax.data.example import UnreadableImageError
from vit_jax.data.reading.image_files import read_file


def test_what_is_no_regular_file_is_an_unreadable_image(tmp_path):
  """A FIFO would hang, and the others would fill the memory."""
  os.mkfifo(tmp_path / "fifo.png")
  (tmp_path / "device.png").symlink_to("/dev/zero")
  with (tmp_path / "sparse.png").open("wb") as file:
    file.truncate(6 * 2**30)
  reasons = {
    "fifo.png": "a FIFO, not a regular file",
    "device.png": "a device (by a link), not a regular file",
    "sparse.png": "larger than the",
  }
  for name, reason in reasons.items():
    said = re.escape(f"{name}: {reason}")
    with bounded_memory(2**24), pytest.raises(UnreadableImageError, match=said):
      read_file(os.fsencode(tmp_path / name))
