"""The plan of a packing and the notes about its shards, in OUT/notes.

A repeated command uses them to skip finished shards. A power cut or a failing
disk may have damaged any file of the folder, so every file is checked: each
note has the plan's digest and a digest of itself.
"""

import concurrent.futures
import dataclasses
import hashlib
import io
import json
import os
import pathlib
import shutil
from collections.abc import Iterable, Mapping
from typing import IO, Any

from etils import epath

from vit_jax.data.reading.holdout import Holdout
from vit_jax.runtime import files
from vit_jax.runtime.files import (
  NotRegularError,
  open_anywhere,
  read_regular,
  replacing,
)

_FOLDER = "notes"
_PLAN = "plan.json"
_AGAIN = "its images are packed again."
_OTHER = (
  "{} was packed from other images or labels, or with other flags; choose "
  "another folder, or remove it."
)


@dataclasses.dataclass(frozen=True)
class Note:
  """The contents of a complete shard.

  Attributes:
    classes: The number of images of each class.
    bytes: The size of the shard.
    sha256: The SHA-256 of the shard, in hexadecimal digits.
    unreadable: A line on each image that could not be packed.
    plan: The digest of the plan that the shard belongs to; None in the notes of
      earlier versions.
  """

  classes: list[int]
  bytes: int
  sha256: str
  unreadable: list[str]
  plan: str | None = None


def publish(file: IO[bytes], path: epath.Path) -> None:
  """Copies a file to a path.

  The copy is on the disk, or complete in the bucket, when this returns.
  """
  place = os.fspath(path)
  file.seek(0)
  if "://" in place:  # An object appears once it is complete.
    with path.open("wb") as copy:
      return shutil.copyfileobj(file, copy, 2**22)
  with replacing(pathlib.Path(place)) as copy:
    shutil.copyfileobj(file, copy, 2**22)


def file_digest(path: epath.Path) -> str | None:
  """The SHA-256 of a file; None if there is no regular file at the path."""
  try:
    with open_anywhere(path) as file:
      opened: Any = file
      return hashlib.file_digest(opened, "sha256").hexdigest()
  except (FileNotFoundError, NotRegularError, ValueError):
    return None


def path_of(folder: epath.Path, split: str, number: int) -> epath.Path:
  """The path of the note about a complete shard."""
  return folder / _FOLDER / f"{split}-{number:05}.json"


def write(path: epath.Path, note: Note) -> None:
  """Writes a note."""
  fields = dataclasses.asdict(note)
  text = json.dumps({**fields, "digest": digest(fields)})
  publish(io.BytesIO(text.encode()), path)


def read(path: epath.Path) -> Note | None:
  """Reads a note; None if it is missing or damaged.

  Notes of earlier versions have no digest of their own.
  """
  fields = _read_object(path) or {}
  if fields.pop("digest", None) not in (None, digest(fields)):
    return None
  try:
    note = Note(**fields)
    numbers = [*note.classes, note.bytes]
    texts = [note.sha256, *note.unreadable]
  except TypeError:
    return None
  are_ints = all(type(number) is int for number in numbers)
  are_texts = all(isinstance(text, str) for text in texts)
  return note if are_ints and are_texts else None


def digest(content: Mapping[str, Any]) -> str:
  """The SHA-256 of a plan or a note."""
  return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def reread(folder: epath.Path, split: str, number: int) -> Note:
  """Reads the note about a shard that was just written or compared.

  Raises OSError if it is missing or damaged.
  """
  path = path_of(folder, split, number)
  note = read(path)
  if note is None:
    raise OSError(f"{path} was changed meanwhile: repeat this command.")
  return note


def sums(folder: epath.Path) -> dict[str, str]:
  """The SHA-256 of the plan and the notes, by their names in the folder."""
  paths = sorted((folder / _FOLDER).glob("*.json"))
  return {
    f"{_FOLDER}/{path.name}": hashlib.sha256(read_regular(path)).hexdigest()
    for path in paths
  }


def _read_object(path: epath.Path) -> dict[str, Any] | None:
  """Reads a JSON object; None if there is none, or it is damaged."""
  try:
    content = json.loads(read_regular(path))
  except (FileNotFoundError, ValueError, RecursionError):
    return None
  return content if isinstance(content, dict) else None


def rule_in_plan(rule: Holdout | None) -> dict[str, Any]:
  """The part of a plan on the rule that holds images out.

  It is {} without a rule, and for the rule "rank", which plans do not name.
  """
  if rule is None or rule.by == "rank":
    return {}
  chosen = {k: v for k, v in rule.as_settings().items() if v is not None}
  return json.loads(json.dumps(chosen))


def keys_of_held_out(out: str, by: str | None = None) -> dict[str, Any]:
  """The keys of `DataSettings` that choose the images to hold out.

  They are those of a packing in `out`, unless `by` names another rule. In a
  plan without a rule, as earlier versions wrote it, the rule is "rank".
  """
  plan = _read_object(epath.Path(out).expanduser() / _FOLDER / _PLAN)
  if plan is None:
    return {"held_out_by": by}
  kept = plan.get("held_out_by", "rank")
  if by not in (None, kept):
    return {"held_out_by": by}
  return {"held_out_by": kept, "held_out_below": plan.get("held_out_below")}


def is_begun(out: str) -> bool:
  """Whether a packing was begun in `out`, maybe by an earlier version."""
  plan = epath.Path(out).expanduser() / _FOLDER / _PLAN
  return _read_object(plan) is not None


def is_lossless(out: str) -> bool:
  """Whether the packing in `out` stores lossless images as PNG.

  A new packing does. One that an earlier version began stores them as JPEG.
  """
  plan = _read_object(epath.Path(out).expanduser() / _FOLDER / _PLAN)
  return plan is None or plan.get("lossless") is True


def settle_plan(
  folder: epath.Path, plan: Mapping[str, Any], shards: Iterable[str]
) -> str | None:
  """Writes the plan into the folder, or compares it with the one there.

  Returns a line if the plan there was damaged or missing, and has been made
  again; notes without a plan's digest must then be ignored. Otherwise returns
  None. Raises ValueError if the folder holds something else, or another
  packing.

  Args:
    shards: The names of all shards of the plan.
  """
  path = folder / _FOLDER / _PLAN
  there = _read_object(path)
  if there == plan:
    return None
  if there is None and not _names(folder):
    publish(io.BytesIO(json.dumps(plan).encode()), path)
    return None
  if _FOLDER not in _names(folder):
    raise ValueError(
      f"{folder} is not empty, and holds no unfinished packing: choose another "
      "folder."
    )
  notes = map(read, sorted((folder / _FOLDER).glob("*-*.json")))
  plans = {note.plan for note in notes if note and note.plan}
  strange = {name for name in _names(folder) if "array_record" in name}
  # Notes or shards there belong to another plan, or the plan there is another
  # and no note belongs to this one.
  if plans - {digest(plan)} or strange - {*shards} or (there and not plans):
    raise ValueError(_OTHER.format(folder))
  is_first = not plans and not strange and not path.exists()
  publish(io.BytesIO(json.dumps(plan).encode()), path)
  if is_first:
    return None
  return f"{path} is damaged or missing: it is made again."


def _names(folder: epath.Path) -> set[str]:
  """Names in a folder, without those of drafts and hidden files."""
  if not folder.exists():
    return set()
  return {p.name for p in folder.iterdir() if not p.name.startswith(".")}


def remove_drafts(folder: epath.Path) -> None:
  """Removes the drafts that a killed command or a power cut has left."""
  if "://" not in os.fspath(folder):
    for place in (folder, folder / _FOLDER):
      files.remove_drafts(pathlib.Path(place))


def compare_shards(
  shards: list[tuple[epath.Path, epath.Path]],
  plan: str,
  trust_older: bool,
  processes: int,
) -> list[tuple[bool, str | None]]:
  """Compares shards with their notes, reading all of their bytes.

  Args:
    shards: Paths of each shard and of its note.
    plan: Digest of the plan.
    trust_older: Whether to believe notes that name no plan.
    processes: Number of files that are read at the same time.

  Returns:
    For each shard, whether it is as it was packed; and if not, a line on the
    damage, or None if it was never there.
  """

  def check(places: tuple[epath.Path, epath.Path]) -> tuple[bool, str | None]:
    """The result for one shard, by the paths of the shard and its note."""
    shard, about = places
    note = read(about)
    if note is None:
      return False, f"{about} is damaged: {_AGAIN}" if about.exists() else None
    if note.plan != plan and not (note.plan is None and trust_older):
      return False, (
        f"{about} is from a packing of other images or with other flags: "
        f"{_AGAIN}"
      )
    if not shard.exists():
      return False, f"{shard} is missing: {_AGAIN}"
    same_length = shard.stat().length == note.bytes
    if not same_length or file_digest(shard) != note.sha256:
      return False, f"{shard} differs from its note: {_AGAIN}"
    return True, None

  with concurrent.futures.ThreadPoolExecutor(processes) as threads:
    return [*threads.map(check, shards)]
