"""Looks into class folders for signs that they are no classes."""

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from vit_jax.data.reading.folders import peek
from vit_jax.data.reading.masks import names as mask_names
from vit_jax.data.reading.split_names import (
  WORD,
  is_plain,
  parse_name,
  split_named,
  words,
)
from vit_jax.runtime.printable import printable_path as text

_DEEPEST = 8  # The most levels of folders, each alone in the one above.
_MOST = 64  # Class folders that are looked into.
_PARTS = frozenset(
  "batch chunk cv fold folds kfold part partition shard split subset".split()
)
"""Words of folders that hold parts of one data set, as fold_1."""
_OF_IMAGES = frozenset(
  "image images img imgs photo photos picture pictures".split()
)


class Found(NamedTuple):
  """The facts about class folders.

  Attributes:
    copies: The names of folders that hold copies of all the others.
    notes: Lines on what may be a mistake.
  """

  copies: frozenset[bytes]
  notes: list[str]


class _Inside(NamedTuple):
  """The names of the folders in a class folder.

  Attributes:
    place: The class folder, or the last of a chain of folders below it, each
      alone in the one above.
    names: The names of the folders in `place`.
  """

  place: bytes
  names: frozenset[bytes]


def look(folder: bytes, names: Sequence[bytes], strict: bool = True) -> Found:
  """Looks into some of the class folders of these names in a folder.

  With `strict`, raises ValueError if they are no classes, or if one may be a
  copy of the others.
  """
  insides = _insides(folder, names)
  copies = _copies(folder, names, insides, strict)
  insides = {n: inside for n, inside in insides.items() if n not in copies}
  if not strict:
    return Found(copies, [])
  _check_splits(insides)
  common = _common(insides)
  first = next(iter(insides.values()), None)
  if first and mask_names.holds_images_and_masks(first.place, sorted(common)):
    return Found(copies, [])
  if len(common) < 2:
    return Found(copies, _lines_on_parts(folder, names))
  shown = " and ".join(repr(text(name)) for name in sorted(common)[:2])
  if len(insides) == len(names) and not _PARTS.isdisjoint(_alike(names)):
    raise ValueError(
      f"{text(folder)!r} has {_shown(names)}, which look like parts of one "
      f"data set, as each holds {shown}: put the parts to train on together, "
      "into a folder train, and the others into a folder val, or give one of "
      "the parts."
    )
  line = (
    f"all class folders looked into hold folders of the same names, {shown}, "
    "whose images count for the class above: if the inner folders are the "
    f"classes, give one of those that hold them, as {text(names[0])!r}."
  )
  return Found(copies, [line])


def _insides(folder: bytes, names: Sequence[bytes]) -> dict[bytes, _Inside]:
  """The folders inside of class folders, by the class folders' names.

  Of many class folders only some are looked into, besides those whose names
  say that they may be no classes.
  """
  own = os.path.basename(os.path.abspath(folder)).lower()
  odd = [n for n in names if n.lower() == own or is_plain(n) or parse_name(n)]
  looked_into = [*odd, *names[:_MOST]] if len(names) > _MOST else names
  return {name: _inside(os.path.join(folder, name)) for name in looked_into}


def _inside(folder: bytes) -> _Inside:
  """The folders in a folder, or in the last of a chain of single folders.

  A folder that is named after a split ends the chain.
  """
  found = peek(folder)
  for _ in range(_DEEPEST):
    if len(found) != 1 or split_named(found[0]):
      break
    below = os.path.join(folder, found[0])
    if not (deeper := peek(below)):
      break
    folder, found = below, deeper
  return _Inside(folder, frozenset(found))


def _copies(
  folder: bytes,
  names: Sequence[bytes],
  insides: Mapping[bytes, _Inside],
  strict: bool,
) -> frozenset[bytes]:
  """The class folders that are copies of all class folders beside them.

  A copy holds folders that are named like all class folders but the copies.
  With `strict`, raises ValueError for a folder that holds two or more of the
  others' names, but not all.
  """
  all_names = {*names}
  # The folders that hold two of the others' names or more, and these names.
  repeated = {}
  for name, (place, inside) in insides.items():
    # A copy of the data may have splits, with the classes inside of train.
    train = next((n for n in inside if split_named(n) == "train"), None)
    if train is not None and train not in all_names:
      inside = frozenset(peek(os.path.join(place, train)))
    if len(same := inside & (all_names - {name})) > 1:
      repeated[name] = same
  originals = all_names - repeated.keys()
  copies = []
  for name, same in repeated.items():
    if originals <= same and len(originals) > 1:
      copies.append(name)
    elif strict and len(same & originals) > 1:
      shown = " and ".join(repr(text(n)) for n in sorted(same & originals)[:2])
      raise ValueError(
        f"{text(os.path.join(folder, name))!r} holds folders that are named "
        f"like the class folders beside it, {shown}: if it is a copy of the "
        "data, move it away; if it is a class, rename the folders in it."
      )
  return frozenset(copies)


def _check_splits(insides: Mapping[bytes, _Inside]) -> None:
  """Raises ValueError if a class folder holds the folders of splits.

  A single folder train counts as a split if it holds class folders.
  """
  for name, (place, inside) in insides.items():
    found = [one for one in map(parse_name, sorted(inside)) if one]
    splits = {one.split: text(one.name) for one in found if one.sure != WORD}
    if "train" not in splits:
      continue
    train = os.path.join(place, os.fsencode(splits["train"]))
    if len(splits) > 1 or len(peek(train)) > 1:
      listed = " and ".join(splits.values())
      raise ValueError(
        f"{text(place)!r} holds {listed}, named after splits: give this "
        "folder in place of the one above, or, if it is a class, put a folder "
        f"of its name into those of the splits, as train/{text(name)}."
      )


def _common(insides: Mapping[bytes, _Inside]) -> frozenset[bytes]:
  """The names of the folders that all class folders have."""
  if len(insides) < 2:
    return frozenset()
  first, *others = [inside.names for inside in insides.values()]
  return first.intersection(*others)


def _lines_on_parts(folder: bytes, names: Sequence[bytes]) -> list[str]:
  """A line if folders are named like parts of one data set, as part_1.

  Raises ValueError if their names say that they hold images, as images_001.
  """
  alike = _alike(names)
  are_parts = not _PARTS.isdisjoint(alike)
  of_images = not _OF_IMAGES.isdisjoint(alike)
  if of_images and (are_parts or is_plain(names[0])):
    raise ValueError(
      f"{text(folder)!r} has {_shown(names)}, whose names are no more than "
      "a word for images and a number: give the labels in a file, "
      "--config.data.labels_file=FILE.csv, or sort the images into a folder "
      "for each class."
    )
  if not are_parts:
    return []
  line = (
    f"{_shown(names)} are named like parts of one data set, and are taken for "
    "classes: if they are not, give the labels in a file, "
    "--config.data.labels_file=FILE.csv."
  )
  return [line]


def _alike(names: Sequence[bytes]) -> set[str]:
  """The words of the names if all are alike but for a number, else no words."""
  found = {tuple(words(name)) for name in names}
  return {*found.pop()} if len(found) == 1 and len(names) > 1 else set()


def _shown(names: Sequence[bytes]) -> str:
  """The first names, for a message."""
  return ", ".join(map(text, names[:3]))
