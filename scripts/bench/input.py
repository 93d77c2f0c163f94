"""Compares the training input with its bare work, with Grain and with tf.data.

python scripts/bench/input.py --root FOLDER_OF_PHOTOGRAPHS [--tf_data] [--cold]

The pipeline decodes images, takes an Inception crop at 224 pixels, flips and
batches them, in as many workers as there are cores: from the folder, and from
copies that `vit_jax.pack` makes of it, with shorter sides of 512 and 256 pixels
at most, the last of them as pixels too (raw). The bare loop does the same to
the folder's files on one core, with nothing around it.

Grain, if it is installed, makes the same batches of the folder
(`data.as_grain`): in as many processes, and in as many threads of this process.

With --tf_data, tf.data takes part, if TensorFlow is installed: on the same
files, and on a TFRecord copy of each packed set, which holds the same encoded
bytes. It has the same distribution of boxes, `decode_and_crop_jpeg`, bilinear
resizing, flips and batches, as the published pipelines do.

With --cold, the system forgets the files before each turn, which is as many
images as there are: so nearly each is read from the disk. Take more photographs
than --batch_size times ten.

All take turns, round after round. The table has medians of images per second,
and per second of processor time, which other work on the machine hardly
changes; then the ratio to the first row, in the same round, as median and
range; and the memory of its processes.
"""

import argparse
import contextlib
import functools
import importlib.util
import itertools
import math
import multiprocessing
import os
import pathlib
import re
import tempfile
import time
from collections.abc import Callable, Iterator

import cv2
import numpy as np
from absl import flags

from vit_jax import data
from vit_jax.data.reading.tfds.source import open_prepared
from vit_jax.pack.shards import Encoding
from vit_jax.pack.writer import pack


class FlatFolder:
  """The images of one folder, without classes: every label is 0."""

  def __init__(self, root: str):
    self.name, self.class_names = root, ("any",)
    self.paths = sorted(
      str(p) for p in pathlib.Path(root).rglob("*") if p.is_file()
    )

  def __len__(self) -> int:
    return len(self.paths)

  def __getitem__(self, index: int) -> data.Example:
    path = self.paths[index]
    return {"image": pathlib.Path(path).read_bytes(), "label": 0, "id": path}

  def read(self, indices) -> list[data.Example]:
    return [self[i] for i in indices]


def bare_batches(source: FlatFolder, batch_size: int) -> Iterator:
  """Images read, decoded and cropped in this thread, with nothing around it."""
  transform, rng = data.make_train_transform(224), np.random.default_rng(0)
  for start in itertools.count(step=batch_size):
    places = [(start + row) % len(source) for row in range(batch_size)]
    yield [transform(source[place]["image"], rng) for place in places]


def processor_seconds() -> float:
  """Processor time of this process and of those that it has running."""
  spent = time.process_time()
  for child in multiprocessing.active_children():
    fields = pathlib.Path(f"/proc/{child.pid}/stat").read_text().split()
    spent += sum(map(int, fields[13:15])) / os.sysconf("SC_CLK_TCK")
  return spent


def pipeline_rate(batches: Iterator, seconds: float) -> tuple[float, float]:
  """Images per second, and per second of processor time.

  The first second is not counted: batches were prepared during the pause.
  """
  start = time.perf_counter()
  while time.perf_counter() - start < 1:
    next(batches)
  count, start, spent = 0, time.perf_counter(), processor_seconds()
  while time.perf_counter() - start < seconds:
    count += len(image_of(next(batches)))
  wall = time.perf_counter() - start
  return count / wall, count / (processor_seconds() - spent)


def cold_rate(batches: Iterator, images: int) -> tuple[float, float]:
  """As `pipeline_rate`, over a number of images."""
  count, start, spent = 0, time.perf_counter(), processor_seconds()
  while count < images:
    count += len(image_of(next(batches)))
  wall = time.perf_counter() - start
  return count / wall, count / (processor_seconds() - spent)


def forget(folders: list[str]) -> None:
  """Lets the system forget what it holds of the folders' files."""
  os.sync()
  for folder in folders:
    for path in filter(pathlib.Path.is_file, pathlib.Path(folder).rglob("*")):
      with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def image_of(batch) -> np.ndarray:
  return batch["image"] if isinstance(batch, dict) else batch


def tf_data_batches(files: list[str], batch_size: int, raw: bool):
  """Batches of 224 x 224 images, made as TensorFlow's ImageNet pipelines do.

  Args:
    files: JPEG files, or one TFRecord file of them.
    batch_size: Images of a batch.
    raw: Whether pixels are stored, not JPEG files.
  """
  import tensorflow as tf

  def box(height, width):
    """Draws a box as ours does; TensorFlow's own op draws smaller ones."""
    area = tf.random.uniform((10,), 0.05, 1.0) * height * width
    ratio = tf.exp(tf.random.uniform((10,), math.log(3 / 4), math.log(4 / 3)))
    h, w = tf.round(tf.sqrt(area / ratio)), tf.round(tf.sqrt(area * ratio))
    fits = tf.concat([(h <= height) & (w <= width), [True]], 0)
    first = tf.argmax(fits)
    h = tf.concat([h, [tf.minimum(height, tf.round(width * 4 / 3))]], 0)[first]
    w = tf.concat([w, [tf.minimum(width, tf.round(height * 4 / 3))]], 0)[first]
    corner = tf.random.uniform((2,)) * tf.stack([height - h + 1, width - w + 1])
    return tf.cast(tf.concat([tf.floor(corner), [h, w]], 0), tf.int32)

  def cropped_jpeg(encoded):
    shape = tf.cast(tf.io.extract_jpeg_shape(encoded), tf.float32)
    window = box(shape[0], shape[1])
    return tf.io.decode_and_crop_jpeg(encoded, window, channels=3)

  def cropped_pixels(encoded):
    image = tf.io.decode_bmp(encoded, channels=3)
    shape = tf.cast(tf.shape(image), tf.float32)
    top, left, h, w = tf.unstack(box(shape[0], shape[1]))
    return image[top : top + h, left : left + w]

  def prepare(encoded):
    image = (cropped_pixels if raw else cropped_jpeg)(encoded)
    image = tf.image.resize(image, (224, 224))
    image = tf.image.random_flip_left_right(image)
    return tf.cast(image, tf.uint8)

  if files[0].endswith(".tfrecord"):
    dataset, load = tf.data.TFRecordDataset(files).shuffle(1000), tf.identity
  else:
    dataset = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files))
    load = tf.io.read_file
  dataset = dataset.repeat().map(
    lambda found: prepare(load(found)), tf.data.AUTOTUNE, deterministic=False
  )
  dataset = dataset.batch(batch_size, drop_remainder=True)
  return dataset.prefetch(tf.data.AUTOTUNE).as_numpy_iterator()


def grain_batches(
  source: data.Source, args: argparse.Namespace, processes: bool
):
  """The batches of our loader, prepared by Grain; two for each worker ahead."""
  import grain

  flags.FLAGS.mark_as_parsed()  # Its processes read some.
  threads = 1 if processes else args.workers
  options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2)
  found = data.as_grain(source, data.make_train_transform(224))
  batches = found.batch(args.batch_size).to_iter_dataset(options)
  if processes:
    batches = batches.mp_prefetch(
      grain.MultiprocessingOptions(args.workers, per_worker_buffer_size=2),
      worker_init_fn=lambda index, count: cv2.setNumThreads(0),
    )
  return iter(batches)


def own_memory(pids: set[int]) -> float:
  """MiB that processes hold, where shared pages count in parts."""
  lines = "".join(
    pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids
  )
  return sum(map(int, re.findall(r"^Pss: +(\d+) kB", lines, re.M))) / 1024


def packed(source: data.Source, out: str, encoding: Encoding) -> data.Source:
  """The photographs, packed into a folder."""
  pack({"train": source}, out, encoding)
  return open_prepared(out, "train")


def tf_record(source: data.Source, path: str) -> str:
  """Copies a source's encoded bytes to a TFRecord file."""
  import tensorflow as tf

  with tf.io.TFRecordWriter(path) as writer:
    for index in range(len(source)):
      writer.write(source[index]["image"])
  return path


def contestants(
  args: argparse.Namespace, folder: str, stack: contextlib.ExitStack
) -> dict[str, Callable[[], Iterator]]:
  """Functions that begin a turn, by the names of the rows.

  Our loaders run on between their turns, but fill no more than their queue.
  tf.data would go on, which slows the others and flatters its next turn, so it
  starts anew.
  """
  flat = FlatFolder(args.root)
  sources: dict[str, data.Source] = {"folder": flat}
  forms = Encoding(512), Encoding(256), Encoding(256, None)
  for name, form in zip(("512", "256", "256, raw"), forms, strict=True):
    out = f"{folder}/packed_{len(sources)}"
    sources[f"packed at {name}"] = packed(flat, out, form)
  transform = data.make_train_transform(224)
  rows: dict[str, Callable[[], Iterator]] = {}
  if args.tf_data:
    for name, source in sources.items():
      files = [tf_record(source, f"{folder}/{name}.tfrecord")]
      files = flat.paths if source is flat else files
      rows[f"tf.data, {name}"] = functools.partial(
        tf_data_batches, files, args.batch_size, name.endswith("raw")
      )

  def started(source: data.Source) -> Iterator:
    sizes = {"batch_size": args.batch_size, "seed": 0}
    batches = data.Loader(args.workers).train(source, transform, **sizes)
    return stack.enter_context(batches)

  for name, source in sources.items():
    rows[name] = functools.cache(functools.partial(started, source))
  if importlib.util.find_spec("grain"):
    for kind in ("processes", "threads"):
      rows[f"Grain, {kind}, folder"] = functools.cache(
        functools.partial(grain_batches, flat, args, kind == "processes")
      )
  bare = bare_batches(flat, args.batch_size)
  rows["bare loop, one core"] = functools.partial(iter, bare)
  return rows


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--root", required=True, help="folder of photographs")
  parser.add_argument("--workers", type=int, default=os.cpu_count())
  parser.add_argument("--batch_size", type=int, default=64)
  parser.add_argument("--rounds", type=int, default=8)
  parser.add_argument("--seconds", type=float, default=3.0, help="a turn")
  parser.add_argument("--tf_data", action="store_true")
  parser.add_argument("--cold", action="store_true", help="read from the disk")
  args = parser.parse_args()
  cv2.setNumThreads(0)
  with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
    rows = contestants(args, folder, stack)
    found: dict[str, list] = {name: [] for name in rows}
    known: set[int] = set()
    memory = dict.fromkeys(rows, 0.0)
    for turn in range(args.rounds):
      for name, begin in rows.items():
        batches = begin()
        if args.cold:
          next(batches)  # Processes have started.
          forget([args.root, folder])
          images = sum(
            path.is_file() for path in pathlib.Path(args.root).rglob("*")
          )
          found[name].append(cold_rate(batches, images))
        else:
          found[name].append(pipeline_rate(batches, args.seconds))
        if turn == 0:  # The processes that came with it are its own.
          running = {c.pid for c in multiprocessing.active_children() if c.pid}
          memory[name], known = own_memory(running - known), running
      rates = ", ".join(f"{turns[-1][0]:.0f}" for turns in found.values())
      print(f"round {turn + 1}: {rates} images/s", flush=True)
  show(found, memory)


def show(
  found: dict[str, list[tuple[float, float]]], memory: dict[str, float]
) -> None:
  """Prints the table: a row for each contestant, against the first."""
  print(f"{'':26}{'images/s':>9}{'':20}{'by processor time':>18}{'MiB':>20}")
  first = np.array(next(iter(found.values())))
  for name, rates in found.items():
    ratios = np.array(rates) / first
    cells = (
      f"{rate:9.0f} {ratio:5.2f} x ({low:.2f}-{high:.2f})"
      for rate, ratio, low, high in zip(
        np.median(rates, axis=0),
        np.median(ratios, axis=0),
        ratios.min(axis=0),
        ratios.max(axis=0),
        strict=True,
      )
    )
    print(f"{name:26}" + "   ".join(cells) + f"{memory[name]:7.0f}")


if __name__ == "__main__":
  main()
