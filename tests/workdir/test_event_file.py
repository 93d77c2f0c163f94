"""Events as TensorBoard reads them, whatever happens to the file."""

import io
import secrets
import struct

import numpy as np
import pytest
from etils import epath
from PIL import Image
from tensorboardX.proto import event_pb2

from tests import runs
from vit_jax.workdir import bucket
from vit_jax.workdir.event_file import EventFile


def crc32c(data):
  """The masked CRC-32C of TFRecord, bit by bit."""
  crc = 0xFFFFFFFF
  for byte in data:
    crc ^= byte
    for _ in range(8):
      crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
  crc ^= 0xFFFFFFFF
  return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def read(content):
  """The events in a file, its checksums compared."""
  events, start = [], 0
  while start < len(content):
    length = content[start : start + 8]
    end = start + 12 + struct.unpack("<Q", length)[0]
    data = content[start + 12 : end]
    checks = content[start + 8 : start + 12] + content[end : end + 4]
    assert checks == struct.pack("<II", crc32c(length), crc32c(data))
    events.append(event_pb2.Event.FromString(data))
    start = end + 4
  return events


def scalars(events):
  return [
    (event.step, value.tag, value.simple_value)
    for event in events
    for value in event.summary.value
  ]


@pytest.fixture
def folder(tmp_path):
  return epath.Path(tmp_path / "tensorboard")


def test_a_file_begins_as_tensorboard_wants_it(folder):
  """Its version first; then what hides the later events of earlier starts."""
  EventFile(folder, 6).write(7, {"train/loss": 0.5, "count": 3})
  (path,) = folder.iterdir()
  assert "tfevents" in path.name
  version, purge, *rest = read(path.read_bytes())
  assert version.file_version == "brain.Event:2"
  assert (purge.step, purge.session_log.status) == (7, 1)  # START
  assert scalars(rest) == [(7, "train/loss", 0.5), (7, "count", 3.0)]
  assert all(event.wall_time > 1.7e9 for event in rest)


def test_an_image_is_there_pixel_by_pixel(folder):
  image = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
  EventFile(folder, 0).write_images(4, {"eval/worst": image})
  ((step, tag, value),) = runs.events(folder.parent)
  assert (step, tag) == (4, "eval/worst")
  assert (value.image.height, value.image.width) == (5, 7)
  decoded = Image.open(io.BytesIO(value.image.encoded_image_string))
  np.testing.assert_array_equal(np.asarray(decoded), image)


def test_a_folder_that_cannot_be_made_is_an_oserror(folder):
  folder.touch()
  events = EventFile(folder, 0)
  for _ in range(50):  # tensorboardX waited for ever at the eleventh.
    with pytest.raises(FileExistsError):
      events.write(1, {"loss": 1.0})
  with pytest.raises(FileExistsError):
    events.flush()


def test_events_on_a_store_are_one_object(store):
  folder = epath.Path(f"gs://bucket/{secrets.token_hex(4)}/tensorboard")
  events = EventFile(folder, 0)
  for step in (1, 2, 3):
    events.write(step, {"loss": step})
  (path,) = folder.iterdir()
  assert scalars(read(path.read_bytes())) == [(1, "loss", 1)]
  events.flush()
  content = bucket.blob(path).download_as_bytes()  # gcsfs remembers the size.
  found = scalars(read(content))
  assert found == [(step, "loss", step) for step in (1, 2, 3)]
