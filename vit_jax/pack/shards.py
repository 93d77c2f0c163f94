"""Encodes images, and writes shards of ArrayRecord in several processes."""

import dataclasses
import hashlib
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
import simplejpeg
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordWriter
from etils import epath
from tensorflow_datasets.core.example_serializer import ExampleSerializer

from vit_jax.data.batching.batches import read
from vit_jax.data.batching.workers import BatchIterator
from vit_jax.data.decoding import bitmap, decode, jpeg
from vit_jax.data.example import Source, UnreadableImageError
from vit_jax.pack import notes
from vit_jax.pack.lossless import is_lossless
from vit_jax.runtime.checks import COUNT, checked

_READ = 32  # Images that are read at a time.
_KEPT = (b"\xff\xd8", b"\x89PNG\r\n\x1a\n")  # JPEG and PNG begin so.


@dataclasses.dataclass(frozen=True)
class Encoding:
  """How images are stored."""

  # Length in pixels that the shorter side of larger images is reduced to; None
  # keeps every size.
  size: int | None = None
  # JPEG quality of images that are encoded anew, from 1 to 100; None stores the
  # pixels of every image instead, see `bitmap`.
  quality: int | None = 95
  # Whether files of a lossless coding that are not reduced become PNG, not
  # JPEG. A packing that an earlier version began is finished with JPEG.
  lossless: bool = False

  def __post_init__(self):
    checked("--size", int | None, self.size, COUNT)

  def in_plan(self) -> dict[str, Any]:
    """The part of a plan on the coding, without `lossless` if that is False.

    Plans of earlier versions have no such key.
    """
    fields = dataclasses.asdict(self)
    if not self.lossless:
      del fields["lossless"]
    return fields

  def encode(self, encoded: bytes) -> bytes:
    """The image's bytes as they are packed.

    Raises UnreadableImageError if the image cannot be decoded.
    """
    image, is_full_size = self._decode(encoded)
    height, width = image.shape[:2]
    scale = self.size / min(height, width) if self.size else 1.0
    if scale < 1:
      sides = (max(1, round(width * scale)), max(1, round(height * scale)))
      image = cv2.resize(image, sides, interpolation=cv2.INTER_AREA)
    elif is_full_size and encoded.startswith(_KEPT) and self.quality:
      return encoded
    if self.quality is None:
      return bitmap.encode(image)
    if self.lossless and is_full_size and scale >= 1 and is_lossless(encoded):
      return _encode_png(image)
    return simplejpeg.encode_jpeg(
      np.ascontiguousarray(image), self.quality, "RGB", "420"
    )

  def _decode(self, encoded: bytes) -> tuple[np.ndarray, bool]:
    """Decodes an image; also returns whether it has its full size.

    A JPEG that is large enough is decoded at a half of its size or less. Raises
    UnreadableImageError if the image cannot be decoded.
    """
    header = jpeg.read_header(encoded) if self.size else None
    if header and self.size:
      side = min(header.height, header.width)
      reduction = decode.reduction(header, side / self.size)
      image = decode.decode_jpeg(encoded, header, reduction)
      if image is not None:
        return image, reduction == 1
    return decode.decode_rgb(encoded), True


def _encode_png(image: np.ndarray) -> bytes:
  """A PNG file of an RGB image."""
  bgr = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
  _, encoded = cv2.imencode(".png", bgr)
  return encoded.tobytes()


@dataclasses.dataclass(frozen=True)
class SplitJob:
  """The facts that all shards of a split share.

  Attributes:
    source: The examples of the split.
    encoding: How images are stored.
    folder: The folder that the shards are written to.
    name: The name of the data set.
    split: The name of the split.
    count: The number of the split's shards.
    plan: The digest of the plan by which the shards are written.
  """

  source: Source
  encoding: Encoding
  folder: epath.Path
  name: str
  split: str
  count: int
  plan: str

  def path(self, number: int) -> epath.Path:
    """The path of the shard of this number."""
    name = file_name(self.name, self.split, number, self.count)
    return self.folder / name

  def note_path(self, number: int) -> epath.Path:
    """The path of the note on the shard of this number."""
    return notes.path_of(self.folder, self.split, number)


def write_missing(
  processes: int, job: SplitJob, parts: list[np.ndarray], missing: list[int]
) -> Iterator[None]:
  """Writes the missing shards of a split, and yields None after each of them.

  `parts` are the indices of the examples of each shard.
  """
  if processes == 1:
    for k in missing:
      yield _write_shard(k, parts[k], job)
    return
  shards = _Shards(job, parts, missing)
  with BatchIterator(shards, first=0, num_workers=processes) as written:
    for _ in missing:
      next(written)
      yield


@dataclasses.dataclass(frozen=True)
class _Shards:
  """Has data workers write shards: batch k is for the k-th missing shard."""

  job: SplitJob
  parts: list[np.ndarray]
  missing: list[int]

  def compute(self, k: int, out: dict | None = None) -> dict[str, Any]:
    """Writes the k-th missing shard, if there is one; returns no arrays."""
    for number in self.missing[k : k + 1]:
      _write_shard(number, self.parts[number], self.job)
    return {}


def _write_shard(number: int, indices: np.ndarray, job: SplitJob) -> None:
  """Writes the examples of these indices as a shard, and the note on it."""
  classes = np.zeros(max(1, len(job.source.class_names)), np.int64)
  unreadable: list[str] = []
  descriptor, temporary = tempfile.mkstemp()
  with open(descriptor, "rb") as file:
    # Decompressing pixels would take longer than reading them.
    compression = ",uncompressed" if job.encoding.quality is None else ""
    writer = ArrayRecordWriter(temporary, f"group_size:1{compression}")
    os.unlink(temporary)  # Nothing is left behind, however this process ends.
    for label, record in _records(job, indices, unreadable):
      writer.write(record)
      classes[label] += 1
    writer.close()
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    size = file.tell()
    notes.publish(file, job.path(number))
  note = notes.Note(classes.tolist(), size, digest, unreadable, job.plan)
  notes.write(job.note_path(number), note)


def _records(
  job: SplitJob, indices: np.ndarray, unreadable: list[str]
) -> Iterator[tuple[Any, bytes]]:
  """Yields the label and the record of each example.

  A line on each unreadable example is added to `unreadable`.
  """
  root = getattr(job.source, "root", None)
  feature_dict = features(job.source)
  info: Any = feature_dict.get_serialized_info()
  serializer = ExampleSerializer(info)
  for example in examples(job.source, indices, unreadable):
    try:
      image = job.encoding.encode(example["image"])
    except UnreadableImageError as error:
      unreadable.append(f"{example['id']}: {error}")
      continue
    # The id is the same on other machines.
    id_ = os.path.relpath(example["id"], root) if root else example["id"]
    values = {
      **example,
      "image": image,
      "caption": [text.encode() for text in example.get("captions", ())],
      "id": id_.encode("utf-8", "surrogateescape"),
    }
    fields = {key: values[key] for key in feature_dict}
    record = serializer.get_tf_example(fields)
    # Otherwise the order of the fields differs from process to process.
    yield example["label"], record.SerializeToString(deterministic=True)


def examples(
  source: Source, indices: np.ndarray, unreadable: list[str]
) -> Iterator[Any]:
  """Yields examples; a line on each unreadable one is added to `unreadable`."""
  for example in read(source, indices.tolist(), _READ):
    if isinstance(example, UnreadableImageError):
      unreadable.append(str(example))
    else:
      yield example


def features(source: Source) -> tfds.features.FeaturesDict:
  """The features of an example, as TFDS describes them.

  An example has a label if there are classes, and captions if the source has
  them.
  """
  named: dict[str, Any] = {"image": tfds.features.Image(shape=(None, None, 3))}
  if source.class_names:
    names = list(source.class_names)
    named["label"] = tfds.features.ClassLabel(names=names)
  if captions := getattr(source, "captions", None):
    least, most = captions
    length = most if least == most else None
    text = tfds.features.Text()
    named["caption"] = tfds.features.Sequence(text, length=length)
  named["id"] = tfds.features.Text()
  return tfds.features.FeaturesDict(named)


def file_name(name: str, split: str, number: int, count: int) -> str:
  """The name of a shard, in TFDS's form."""
  return f"{name}-{split}.array_record-{number:05}-of-{count:05}"
