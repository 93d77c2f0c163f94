"""TensorBoard's event files, written by the thread that measures.

tensorboardX's own writer has a thread that ends with the first failed write;
whoever adds events then waits for it for ever. Here a failed write is an error.
"""

import os
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from etils import epath
from jaxtyping import UInt8
from tensorboardX import summary
from tensorboardX.proto import event_pb2
from tensorboardX.record_writer import masked_crc32c

from vit_jax.workdir.append_file import MOST_WAITING, AppendFile, Uploads

Event: Any = event_pb2.Event  # pyright: ignore[reportAttributeAccessIssue]
SessionLog: Any = event_pb2.SessionLog  # pyright: ignore[reportAttributeAccessIssue]
_UPLOAD_EVERY = 120  # Seconds; each upload makes one object.


class EventFile:
  """The events of one start of a run.

  Object stores cannot append, so that there every upload is a file of its own;
  TensorBoard reads all the files of a folder, one after the other.

  Args:
    folder: For the file, local or such as gs://bucket/run/tensorboard.
    first_step: The step from which the run starts; TensorBoard drops events
      beyond it that earlier starts wrote.
  """

  def __init__(self, folder: epath.Path, first_step: int):
    host = f"{socket.gethostname()}.{os.getpid()}"
    self._path = folder / f"events.out.tfevents.{int(time.time())}.{host}"
    purge = Event(
      step=first_step + 1, session_log=SessionLog(status=SessionLog.START)
    )
    header = _version() + _record(purge)
    self._local = None
    if "://" not in str(folder):
      self._local = AppendFile(self._path, header)
    self._waiting = header
    self._uploads, self._uploaded = Uploads(), 0
    self._next_upload = 0.0

  def write(self, step: int, numbers: Mapping[str, float]) -> None:
    """Adds numbers; raises OSError if they cannot be written."""
    values = [summary.scalar(key, value) for key, value in numbers.items()]
    self._write(step, values)

  def write_images(
    self, step: int, images: Mapping[str, UInt8[np.ndarray, "H W 3"]]
  ) -> None:
    """Adds pictures; raises OSError if they cannot be written."""
    values = [
      summary.image(key, image, dataformats="HWC")
      for key, image in images.items()
    ]
    self._write(step, values)

  def close(self, failed: bool = False) -> None:
    """Writes the events that still wait; raises OSError if that cannot be."""
    del failed  # Weights & Biases shows it, TensorBoard does not.
    if self._local is not None:
      self._local.flush()
    elif self._waiting:
      self._upload(last=True)

  def _write(self, step: int, values: list[Any]) -> None:
    now = time.time()
    data = b"".join(
      _record(Event(step=step, wall_time=now, summary=value))
      for value in values
    )
    if self._local is not None:
      self._local.append(data)
      return
    if len(self._waiting) + len(data) > MOST_WAITING:
      self._waiting = b""
    self._waiting = (self._waiting or _version()) + data
    if self._uploads.failing or time.monotonic() >= self._next_upload:
      self._upload()

  def _upload(self, last: bool = False) -> None:
    part = self._path.with_name(f"{self._path.name}.{self._uploaded:06}")
    self._uploads.write(part, self._waiting, last)
    self._uploaded += 1
    self._waiting = b""
    self._next_upload = time.monotonic() + _UPLOAD_EVERY


def _version() -> bytes:
  """The record with which every event file begins."""
  return _record(Event(file_version="brain.Event:2"))


def _record(event: Any) -> bytes:
  """An event in a record of TFRecord: length, data, a checksum of each."""
  data = event.SerializeToString()
  length = struct.pack("<Q", len(data))
  checks = [struct.pack("<I", masked_crc32c(part)) for part in (length, data)]
  return length + checks[0] + data + checks[1]
