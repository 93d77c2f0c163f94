"""Writes splits as shards of ArrayRecord, with TFDS's description of them.

Which image goes into which shard follows from the seed alone, and a shard
appears when it is complete, with a note of what it holds. So a command that is
started again makes only the missing ones. While it runs, memory holds the order
of the images and one shard's ids for each process.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from etils import epath

from vit_jax.data.example import Example, Source, UnreadableImageError
from vit_jax.pack import SUMS, shards
from vit_jax.pack.shards import Encoding

_LOOKED_AT = 32  # Images of a split whose mean size decides on its shards.


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
  """Packs splits into a folder, and goes on with one that is unfinished.

  The arguments are those of the command, with TFDS's names of the splits; `out`
  may be in a bucket, and a shard has about `shard_bytes`. Raises ValueError if
  the folder holds something else, or another packing.
  """
  folder = epath.Path(out).expanduser()
  name = name or re.sub(r"\W+", "_", folder.name.lower()).strip("_")
  if not re.fullmatch(r"[a-z]\w*", name):
    raise ValueError(f"--name={name!r} must be letters, digits and _.")
  counts: dict[str, int] = {}
  planned = {}
  for split, source in splits.items():
    few, count = _looked_at(source), len(source)
    counts[split] = _number_of_shards(few, count, encoding, shard_bytes)
    planned[split] = [count, counts[split], _digest(source.class_names, few)]
  images = {**dataclasses.asdict(encoding), "splits": planned}
  _check_plan(folder, {"name": name, "seed": seed, **images})
  for split, source in splits.items():
    _say(f"{split:<11}{len(source):,} images in {counts[split]} files")
    parts = np.array_split(_order(source, seed), counts[split])
    job = (source, encoding, folder, name, split, counts[split])
    _write_split(job, parts, workers)
  _describe(folder, name, splits, counts)


def _looked_at(source: Source) -> list[Example]:
  """A few examples, evenly spread; those that cannot be read are left out."""
  places = np.linspace(0, len(source) - 1, _LOOKED_AT).astype(int)
  return [*shards.examples(source, np.unique(places), [])]


def _number_of_shards(
  looked_at: list[Example], count: int, encoding: Encoding, shard_bytes: int
) -> int:
  """The number of shards, estimated by packing a few images."""
  sizes = []
  for example in looked_at:
    with contextlib.suppress(UnreadableImageError):
      sizes.append(len(encoding.encode(example["image"])))
  mean = sum(sizes) / len(sizes) if sizes else 0.0
  return min(count, max(1, round(mean * count / shard_bytes)))


def _digest(class_names: tuple[str, ...], looked_at: list[Example]) -> str:
  """A digest of the classes and of some images' ids and labels.

  A source with other images or classes has another digest; a change of a few
  labels among many may go unnoticed.
  """
  examples = [[e["id"], np.asarray(e["label"]).tolist()] for e in looked_at]
  text = json.dumps([class_names, examples])
  return hashlib.sha256(text.encode()).hexdigest()


def _check_plan(folder: epath.Path, plan: dict[str, Any]) -> None:
  """Writes the plan into the folder, or compares it with the one there."""
  path = folder / shards.NOTES / "plan.json"
  if path.exists():
    if json.loads(path.read_text()) != plan:
      raise ValueError(
        f"{folder} was packed from other images or labels, or with other "
        "flags; choose another folder, or remove it."
      )
    return
  if folder.exists() and next(iter(folder.iterdir()), None) is not None:
    raise ValueError(f"{folder} is not empty, and is no unfinished packing.")
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(json.dumps(plan))


def _write_split(
  job: tuple, parts: list[np.ndarray], workers: int | None
) -> None:
  _, _, folder, name, split, count = job
  missing = []
  for k in range(count):
    file = folder / shards.file_name(name, split, k, count)
    if not (shards.note_path(folder, split, k).exists() and file.exists()):
      missing.append(k)
  if len(missing) < count:
    _say(f"{'':<11}{count - len(missing)} of them are there already")
  if not missing:
    return
  processes = min(workers or os.cpu_count() or 1, len(missing))
  for done, _ in enumerate(shards.written(processes, job, parts, missing), 1):
    _say(f"{'':<11}{done} of {len(missing)} written")


def _order(source: Source, seed: int) -> np.ndarray:
  """The order of the images; a block, which is read whole, stays together."""
  random = np.random.Generator(np.random.Philox(seed))
  blocks = getattr(source, "blocks", None)
  if blocks is None:
    return random.permutation(len(source))
  starts, order = np.cumsum(blocks) - blocks, random.permutation(len(blocks))
  parts = [starts[k] + random.permutation(int(blocks[k])) for k in order]
  return np.concatenate(parts)


def _describe(
  folder: epath.Path,
  name: str,
  splits: Mapping[str, Source],
  counts: Mapping[str, int],
) -> None:
  """Writes TFDS's description, the checksums and the unreadable images."""
  template = tfds.core.ShardedFileTemplate(
    data_dir=folder,
    dataset_name=name,
    filetype_suffix="array_record",
    template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
  )
  infos, sums, unreadable = [], {}, []
  for split, count in counts.items():
    paths = [shards.note_path(folder, split, k) for k in range(count)]
    notes = [json.loads(path.read_text()) for path in paths]
    classes = np.array([note["classes"] for note in notes])
    num_bytes = sum(note["bytes"] for note in notes)
    info = tfds.core.SplitInfo(
      name=split,
      shard_lengths=classes.sum(axis=1).tolist(),
      num_bytes=num_bytes,
      filename_template=template.replace(split=split),
    )
    infos.append(info)
    for k, note in enumerate(notes):
      sums[shards.file_name(name, split, k, count)] = note["sha256"]
    lost = [line for note in notes for line in note["unreadable"]]
    unreadable += lost
    classes = classes.sum(axis=0)
    _say(
      f"{split:<11}{classes.sum():,} images of {np.count_nonzero(classes):,} "
      f"classes, {classes.min():,} to {classes.max():,} of a class, "
      f"{num_bytes / 2**20:,.0f} MiB"
      + (f"; {len(lost):,} unreadable" if lost else "")
    )
  (folder / SUMS).unlink(missing_ok=True)
  if unreadable:
    (folder / "unreadable.txt").write_text("\n".join(unreadable) + "\n")
    _say(f"The unreadable images are listed in {folder / 'unreadable.txt'}.")
  tfds.folder_dataset.write_metadata(
    data_dir=folder,
    features=shards.features(next(iter(splits.values()))),
    split_infos=infos,
    version="1.0.0",
    filename_template=template,
    check_data=False,
    supervised_keys=("image", "label"),
  )
  for path in sorted(folder.iterdir()):
    if path.suffix in (".json", ".txt"):
      sums[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
  lines = "".join(f"{digest}  {file}\n" for file, digest in sums.items())
  (folder / SUMS).write_text(lines)
  _say(f"Train on it by --config.data.dir={folder}")


def _say(line: str) -> None:
  print(line, flush=True)
