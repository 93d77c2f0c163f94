"""Writes splits as shards of ArrayRecord, with TFDS's description of them.

The seed alone decides which image goes into which shard, and a shard appears
when it is complete, with a note on its contents. So a command that is started
again writes only the missing shards. While it runs, memory holds the order
of the images and one shard's ids for each process.
"""

import contextlib
import hashlib
import io
import itertools
import json
import os
import pathlib
import re
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from etils import epath

from vit_jax.data.example import Source, UnreadableImageError, evenly_spread
from vit_jax.data.reading.class_lists import SUMS, check_names
from vit_jax.data.reading.tables import without_advice
from vit_jax.pack import notes, shards
from vit_jax.pack.shards import Encoding
from vit_jax.runtime.printable import counted, say

_UNREADABLE = "unreadable.txt"
_TEXTS = (".json", ".txt")  # Endings of the files of TFDS's description.
_SAMPLE_SIZE = 32  # Images whose mean size tells the number of shards.


def pack(
  splits: Mapping[str, Source],
  out: str,
  encoding: Encoding,
  *,
  name: str | None = None,
  seed: int = 0,
  shard_bytes: int = 2**27,
  workers: int | None = None,
) -> None:
  """Packs splits into a folder, or finishes a packing that was begun.

  The arguments are those of the command, with TFDS's names of the splits; `out`
  may be in a bucket, and a shard has about `shard_bytes`. Raises ValueError if
  `name` is invalid, the folder holds something else, or another packing, TFDS
  cannot list the classes, or no image of a split could be packed.
  """
  folder = epath.Path(out).expanduser()
  processes = workers or os.cpu_count() or 1
  name = name or re.sub(r"\W+", "_", folder.name.lower()).strip("_")
  if not re.fullmatch(r"[a-z]\w*", name):
    raise ValueError(
      f"--name={name!r} must be letters, digits and _, and begin with a letter "
      "in lower case."
    )
  for source in splits.values():
    check_names(source.class_names)
  counts, plan = _plan(splits, encoding, name, seed, shard_bytes)
  files = {
    split: [shards.file_name(name, split, k, count) for k in range(count)]
    for split, count in counts.items()
  }
  damage_line = notes.settle_plan(
    folder, plan, itertools.chain(*files.values())
  )
  if damage_line:
    _say(damage_line)
  notes.remove_drafts(folder)
  digest = notes.digest(plan)
  if "train" in splits:
    warnings: Any = getattr(splits["train"], "warnings", list)
    for line in without_advice(warnings()):
      _say(line)
  for split, source in splits.items():
    files_of_split = counted(counts[split], "file")
    _say(f"{split:<11}{counted(len(source), 'image')} in {files_of_split}")
    parts = np.array_split(packing_order(source, seed), counts[split])
    job = shards.SplitJob(
      source=source,
      encoding=encoding,
      folder=folder,
      name=name,
      split=split,
      count=counts[split],
      plan=digest,
    )
    trust_older = damage_line is None
    _write_split(job, parts, trust_older=trust_older, processes=processes)
  _describe(folder, name, splits, files)


def _plan(
  splits: Mapping[str, Source],
  encoding: Encoding,
  name: str,
  seed: int,
  shard_bytes: int,
) -> tuple[dict[str, int], dict[str, Any]]:
  """Each split's number of shards, and the plan, for `notes.settle_plan`."""
  counts: dict[str, int] = {}
  of_splits = {}
  for split, source in splits.items():
    sample = _sample(source)
    count = len(source)
    counts[split] = _number_of_shards(sample, count, encoding, shard_bytes)
    digest = _digest(source.class_names, sample)
    of_splits[split] = [count, counts[split], digest]
  plan = {"name": name, "seed": seed, **encoding.in_plan(), "splits": of_splits}
  rules = [getattr(source, "held_out", None) for source in splits.values()]
  return counts, plan | notes.rule_in_plan(next(filter(None, rules), None))


def _sample(source: Source) -> list[Any]:
  """A few examples, evenly spread; those that cannot be read are left out."""
  indices = np.array(evenly_spread(_SAMPLE_SIZE, len(source)))
  return [*shards.examples(source, indices, [])]


def _number_of_shards(
  sample: list[Any], count: int, encoding: Encoding, shard_bytes: int
) -> int:
  """The number of shards, estimated by packing a few images."""
  sizes = []
  for example in sample:
    with contextlib.suppress(UnreadableImageError):
      sizes.append(len(encoding.encode(example["image"])))
  mean = sum(sizes) / len(sizes) if sizes else 0.0
  return min(count, max(1, round(mean * count / shard_bytes)))


def _digest(class_names: tuple[str, ...], sample: list[Any]) -> str:
  """A digest of the classes and of some images' ids, labels and captions.

  A source with other images or classes has another digest; a change of a few
  labels among many may go unnoticed.
  """
  examples = [
    [e["id"], np.asarray(e["label"]).tolist(), *e.get("captions", ())]
    for e in sample
  ]
  text = json.dumps([class_names, examples])
  return hashlib.sha256(text.encode()).hexdigest()


def _write_split(
  job: shards.SplitJob,
  parts: list[np.ndarray],
  trust_older: bool,
  processes: int,
) -> None:
  """Writes the shards that are missing, and those that have changed."""
  count = job.count
  places = [(job.path(k), job.note_path(k)) for k in range(count)]
  names = {path.name for path in job.folder.iterdir()}
  if there := sum(shard.name in names for shard, _ in places):
    _say(f"{'':<11}{there} files are there; comparing their checksums")
  missing = []
  states = notes.compare_shards(
    places, job.plan, trust_older=trust_older, processes=processes
  )
  for k, (is_whole, damage) in enumerate(states):
    if damage:
      _say(damage)
    if not is_whole:
      missing.append(k)
  if len(missing) < count:
    _say(f"{'':<11}{count - len(missing)} of them are as they were packed")
  if not missing:
    return
  written = shards.write_missing(
    min(processes, len(missing)), job, parts, missing
  )
  for number, _ in enumerate(written, 1):
    _say(f"{'':<11}{number} of {len(missing)} written")


def packing_order(source: Source, seed: int) -> np.ndarray:
  """The indices of the images in the order in which they are packed, (N,).

  The images of a block, which is read whole, stay together. A source without
  `blocks` has each image in a block of its own.
  """
  random = np.random.Generator(np.random.Philox(seed))
  blocks = getattr(source, "blocks", None)
  if blocks is None:
    return random.permutation(len(source))
  starts = np.cumsum(blocks) - blocks
  order = random.permutation(len(blocks))
  parts = [starts[k] + random.permutation(int(blocks[k])) for k in order]
  return np.concatenate(parts)


def _describe(
  folder: epath.Path,
  name: str,
  splits: Mapping[str, Source],
  files: Mapping[str, list[str]],
) -> None:
  """Writes TFDS's description, the checksums and a list of unreadable images.

  Prints a line on each split. Raises ValueError if no image of a split could be
  packed.
  """
  lengths: dict[str, tuple[list[int], int]] = {}
  sums: dict[str, str] = {}
  unreadable: list[str] = []
  empty_splits: list[str] = []
  for split, names in files.items():
    of_shards = [notes.reread(folder, split, k) for k in range(len(names))]
    classes = np.array([note.classes for note in of_shards])
    num_bytes = sum(note.bytes for note in of_shards)
    lengths[split] = classes.sum(axis=1).tolist(), num_bytes
    for file, note in zip(names, of_shards, strict=True):
      sums[file] = note.sha256
    lost = [line for note in of_shards for line in note.unreadable]
    unreadable += lost
    if lost and not classes.sum():
      empty_splits.append(split)
    counts = classes.sum(axis=0)
    for line in _one_based_lines(splits[split], split, counts):
      _say(line)
    more = f"; {len(lost):,} unreadable" if lost else ""
    _say(
      f"{split:<11}{_count_words(splits[split], counts)}, "
      f"{num_bytes / 2**20:,.0f} MiB{more}"
    )
  if empty_splits:
    raise ValueError(_report_unreadable(folder, empty_splits, unreadable))
  texts = _description_files(name, next(iter(splits.values())), lengths, files)
  if unreadable:
    texts[_UNREADABLE] = ("\n".join(unreadable) + "\n").encode()
    _say(f"The unreadable images are listed in {folder / _UNREADABLE}.")
  else:
    (folder / _UNREADABLE).unlink(missing_ok=True)
  # Lines on the shards come last. Each shard needs a line, so the loss of the
  # file's end is noticed.
  described = {k: hashlib.sha256(v).hexdigest() for k, v in texts.items()}
  sums = {**described, **notes.sums(folder), **sums}
  lines = "".join(f"{digest}  {file}\n" for file, digest in sums.items())
  texts[SUMS] = lines.encode()
  for file, text in texts.items():
    notes.publish(io.BytesIO(text), folder / file)
  _say(f"Train on it with --config.data.dir={folder}")


def _report_unreadable(
  folder: epath.Path, splits: list[str], unreadable: list[str]
) -> str:
  """Lists unreadable images in a file.

  Returns the message for splits none of whose images could be packed.
  """
  text = "\n".join(unreadable) + "\n"
  notes.publish(io.BytesIO(text.encode()), folder / _UNREADABLE)
  return (
    f"no image of the split {' and '.join(splits)} could be packed, and there "
    f"is nothing to read in {folder}. The first: {unreadable[0]} All are in "
    f"{folder / _UNREADABLE}."
  )


def _one_based_lines(
  source: Source, split: str, counts: np.ndarray
) -> list[str]:
  """A line if only class 0 has no image: labels probably count from 1."""
  if split != "train" or len(counts) < 3:
    return []
  if counts[0] or not counts[1:].all():
    return []
  line = (
    f"class 0 ({source.class_names[0]}) has no image and all others have some: "
    "if labels are counted from 1, subtract 1, as classes count from 0."
  )
  return [line]


def _count_words(source: Source, classes: np.ndarray) -> str:
  """How many images there are, in all and in a class, and how many captions.

  `classes` has the number of images of each class.
  """
  parts = [counted(int(classes.sum()), "image")]
  if source.class_names:
    parts = [
      f"{parts[0]} of {counted(len(source.class_names), 'class', 'classes')}",
      f"{classes.min():,} to {classes.max():,} of a class",
    ]
  if captions := getattr(source, "captions", None):
    parts.append("{:,} to {:,} captions each".format(*captions))
  return ", ".join(parts)


def _description_files(
  name: str,
  source: Source,
  lengths: Mapping[str, tuple[list[int], int]],
  files: Mapping[str, list[str]],
) -> dict[str, bytes]:
  """The files of TFDS's description, by name.

  Args:
    lengths: For each split, the number of examples in each of its shards, and
      the bytes of all of them.
    files: The names of each split's shards.
  """
  with tempfile.TemporaryDirectory() as folder:
    draft = epath.Path(folder)
    template = tfds.core.ShardedFileTemplate(
      data_dir=draft,
      dataset_name=name,
      filetype_suffix="array_record",
      template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
    )
    infos = []
    for split, (shard_lengths, num_bytes) in lengths.items():
      (draft / files[split][0]).touch()  # TFDS looks for the splits' names.
      info = tfds.core.SplitInfo(
        name=split,
        shard_lengths=shard_lengths,
        num_bytes=num_bytes,
        filename_template=template.replace(split=split),
      )
      infos.append(info)
    tfds.folder_dataset.write_metadata(
      data_dir=draft,
      features=shards.features(source),
      split_infos=infos,
      version="1.0.0",
      filename_template=template,
      check_data=False,
      supervised_keys=("image", "label" if source.class_names else "caption"),
    )
    paths = sorted(pathlib.Path(folder).iterdir())
    return {p.name: p.read_bytes() for p in paths if p.suffix in _TEXTS}


def _say(line: str) -> None:
  """Prints a line to standard output."""
  say(line, sys.stdout)
