"""Tells which folders are splits, by their names."""

import os
import re
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

NAMES = {
  "train": (b"train", b"training"),
  "val": (
    b"val",
    b"valid",
    b"validation",
    b"validate",
    b"dev",
    b"eval",
    b"evaluation",
  ),
  "test": (b"test", b"testing"),
}
"""Names of the splits' folders, in lower case."""

EXACT, PLAIN, WORD = range(3)
"""How surely a name is a split's.

It is the name of a split alone, or has plain words besides, or other words.
"""

OLDER = (
  " If the folder has not changed, the version of vit_jax has: earlier ones "
  "knew fewer names of splits, and took folders such as seg_train, train2017 "
  "and copies for classes."
)
"""Why the classes or images of an older run may differ, as a sentence."""

_BY_WORD = {os.fsdecode(n): s for s, names in NAMES.items() for n in names}
# Short names of splits, which count only beside a plain word, as in imagesTr.
_SHORT = {"tr": "train", "trn": "train", "ts": "test", "tst": "test"}
_PLAIN = frozenset(
  "data dataset datasets dir files folder folders full image images img imgs "
  "jpg jpeg photo photos pic pics picture pictures png set sets split "
  "splits".split()
)
_ENDINGS = ("set", "data", "dataset", "images", "imgs", "img")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_A-Za-z]+")


class SplitName(NamedTuple):
  """The name of a folder with the word of a split in it.

  Attributes:
    name: The name itself.
    split: "train", "val" or "test".
    sure: How surely it is a split: `EXACT`, `PLAIN` or `WORD`.
    rest: The other words of the name, without plain ones.
  """

  name: bytes
  split: str
  sure: int
  rest: str


def split_named(name: bytes) -> str | None:
  """The split whose name this is, or None."""
  return next((s for s, names in NAMES.items() if name.lower() in names), None)


def words(name: bytes) -> list[str]:
  """The words of a name in lower case, such as train and set of TrainSet2."""
  return [word.lower() for word in _WORDS.findall(os.fsdecode(name))]


def is_plain(name: bytes) -> bool:
  """Whether a name says no more than that images are in the folder."""
  found = words(name)
  return bool(found) and _PLAIN.issuperset(found)


def parse_name(name: bytes) -> SplitName | None:
  """The split that the words of a name tell; None if they tell none or several.

  >>> from vit_jax.data.reading.split_names import parse_name
  >>> parse_name(b"seg_train")
  SplitName(name=b'seg_train', split='train', sure=2, rest='seg')
  >>> parse_name(b"trainer") is parse_name(b"train_or_test") is None
  True
  """
  if split := split_named(name):
    return SplitName(name, split, EXACT, "")
  found = words(name)
  splits = [*map(_split_of_word, found)]
  rest = [w for w, s in zip(found, splits, strict=True) if s is None]
  chosen = {*splits} - {None}
  # Beside plain words alone, a short name such as tr counts as well.
  if not chosen and rest and _PLAIN.issuperset({*rest} - _SHORT.keys()):
    chosen = {_SHORT[word] for word in rest if word in _SHORT}
    chosen = chosen if len(rest) > 1 else set()
    rest = [word for word in rest if word not in _SHORT]
  if len(chosen) != 1:
    return None
  others = " ".join(word for word in rest if word not in _PLAIN)
  (split,) = chosen
  assert split
  return SplitName(name, split, WORD if others else PLAIN, others)


def _split_of_word(word: str) -> str | None:
  """The split that a word names, maybe with an ending, as in trainset.

  None if it names no split.
  """
  for ending in ("", *_ENDINGS):
    if word.endswith(ending) and (
      split := _BY_WORD.get(word.removesuffix(ending))
    ):
      return split
  return None


Inside = Callable[[bytes], Collection[bytes]]
"""A function that lists the folders in a folder, by its name."""


def likely_splits(names: Sequence[bytes], inside: Inside) -> list[SplitName]:
  """Finds the folders that are likely splits among folders beside each other.

  Returns them with the surest first. A folder with other words in its name, as
  seg_train, is a split if another split beside it has the same words, as
  seg_test, or has some of the same folders inside, which no folder but splits
  may have. So freight_train may be a class. A plain name such as test_images
  needs another split beside it, unless it names the split to train on and its
  folder holds folders.
  """
  candidates = [one for one in map(parse_name, names) if one]
  sure = [one for one in candidates if one.sure == EXACT]
  if len(candidates) == len(sure):
    return sure
  folders = {one.name: {*inside(one.name)} for one in candidates}
  plain = [
    one
    for one in candidates
    if one.sure == PLAIN
    and (
      _is_for_training(one, folders)
      or _has_split_beside(one, candidates)
      or _is_confirmed(one, candidates, folders, names, inside)
    )
  ]
  by_words = [
    one
    for one in candidates
    if one.sure == WORD
    and _is_confirmed(one, candidates, folders, names, inside)
  ]
  return [*sure, *plain, *by_words]


def _is_for_training(one: SplitName, folders: dict[bytes, set[bytes]]) -> bool:
  """Whether a folder is named after the training split, and holds folders."""
  return one.split == "train" and bool(folders[one.name])


def _has_split_beside(one: SplitName, candidates: Sequence[SplitName]) -> bool:
  """Whether another split has a folder whose name has no other words."""
  return any(
    other.split != one.split and other.sure != WORD for other in candidates
  )


def _is_confirmed(
  one: SplitName,
  candidates: Sequence[SplitName],
  folders: dict[bytes, set[bytes]],
  names: Sequence[bytes],
  inside: Inside,
) -> bool:
  """Whether folders of other splits show that this one is a split as well.

  `likely_splits` gives the rule.
  """
  others = [other for other in candidates if other.split != one.split]
  if any(other.rest == one.rest for other in others):
    if folders[one.name]:
      return True
    # Folders that hold images alone may be classes, unless most of the folders
    # here are named after splits.
    return 2 * len(candidates) > len(names)
  shared = set()
  for other in others:
    shared |= folders[other.name] & folders[one.name]
  strangers = [name for name in names if name not in folders]
  return bool(shared) and not any(shared & {*inside(n)} for n in strangers)
