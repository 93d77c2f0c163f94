"""TensorBoard's event files, written by the calling thread.

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

from vit_jax.workdir.append_file import AppendFile

Event: Any = event_pb2.Event  # pyright: ignore[reportAttributeAccessIssue]
SessionLog: Any = event_pb2.SessionLog  # pyright: ignore[reportAttributeAccessIssue]


class EventFile(AppendFile):
  """The events of one start of a run.

  Args:
    folder: For the file, local or such as gs://bucket/run/tensorboard.
    first_step: The step from which the run starts; TensorBoard drops events
      beyond it that earlier starts wrote.
  """

  def __init__(self, folder: epath.Path, first_step: int):
    host = f"{socket.gethostname()}.{os.getpid()}"
    name = f"events.out.tfevents.{int(time.time())}.{host}"
    version = _record(Event(file_version="brain.Event:2"))
    purge = Event(
      step=first_step + 1, session_log=SessionLog(status=SessionLog.START)
    )
    super().__init__(folder / name, version + _record(purge))

  def write(self, step: int, numbers: Mapping[str, float]) -> None:
    """Adds numbers; raises OSError if they cannot be written."""
    values = [summary.scalar(key, value) for key, value in numbers.items()]
    self._add(step, values)

  def write_images(
    self, step: int, images: Mapping[str, UInt8[np.ndarray, "H W 3"]]
  ) -> None:
    """Adds pictures; raises OSError if they cannot be written."""
    values = [
      summary.image(key, image, dataformats="HWC")
      for key, image in images.items()
    ]
    self._add(step, values)

  def _add(self, step: int, values: list[Any]) -> None:
    now = time.time()
    self.append(
      b"".join(
        _record(Event(step=step, wall_time=now, summary=value))
        for value in values
      )
    )


def _record(event: Any) -> bytes:
  """An event in a record of TFRecord: length, data, a checksum of each."""
  data = event.SerializeToString()
  length = struct.pack("<Q", len(data))
  checks = [struct.pack("<I", masked_crc32c(part)) for part in (length, data)]
  return length + checks[0] + data + checks[1]
