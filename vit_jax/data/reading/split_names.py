"""Tells by their names which folders are splits."""

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
"""How sure a name is: that of a split, with plain words beside, or others."""

OLDER = (
  " If the folder has not changed: earlier versions knew fewer names of "
  "splits, and took folders such as seg_train, train2017 and copies for "
  "classes."
)
"""Why the classes or images of an older run may differ, as a sentence."""

_BY_WORD = {os.fsdecode(n): s for s, names in NAMES.items() for n in names}
# Short for a split beside a plain word alone, as in imagesTr.
_SHORT = {"tr": "train", "trn": "train", "ts": "test", "tst": "test"}
_PLAIN = frozenset(
  "data dataset datasets dir files folder folders full image images img imgs "
  "jpg jpeg photo photos pic pics picture pictures png set sets split "
  "splits".split()
)
_ENDINGS = ("set", "data", "dataset", "images", "imgs", "img")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_A-Za-z]+")


class Named(NamedTuple):
  """A folder whose name has the word of a split.

  Attributes:
    name: The name.
    split: "train", "val" or "test".
    sure: `EXACT`, `PLAIN` or `WORD`.
    rest: The other words of the name, without plain ones.
  """

  name: bytes
  split: str
  sure: int
  rest: str


def split_named(name: bytes) -> str | None:
  """The split that a name alone stands for, or None."""
  return next((s for s, names in NAMES.items() if name.lower() in names), None)


def words(name: bytes) -> list[str]:
  """The words of a name in lower case, such as train and set of TrainSet2."""
  return [word.lower() for word in _WORDS.findall(os.fsdecode(name))]


def is_plain(name: bytes) -> bool:
  """Whether a name says no more than that images are in the folder."""
  found = words(name)
  return bool(found) and _PLAIN.issuperset(found)


def named(name: bytes) -> Named | None:
  """The split that a name's whole words tell; None if they tell none.

  >>> from vit_jax.data.reading.split_names import named
  >>> [(named(n).split, named(n).rest) for n in (b"seg_train", b"val2017")]
  [('train', 'seg'), ('val', '')]
  >>> named(b"trainer") is named(b"train_or_test") is None
  True
  """
  if split := split_named(name):
    return Named(name, split, EXACT, "")
  found = words(name)
  splits = [*map(_split_of_word, found)]
  rest = [w for w, s in zip(found, splits, strict=True) if s is None]
  chosen = {*splits} - {None}
  if not chosen and rest and _PLAIN.issuperset({*rest} - _SHORT.keys()):
    chosen = {_SHORT[word] for word in rest if word in _SHORT}
    chosen = chosen if len(rest) > 1 else set()
    rest = [word for word in rest if word not in _SHORT]
  if len(chosen) != 1:
    return None
  others = " ".join(word for word in rest if word not in _PLAIN)
  (split,) = chosen
  assert split
  return Named(name, split, WORD if others else PLAIN, others)


def _split_of_word(word: str) -> str | None:
  for ending in ("", *_ENDINGS):
    if word.endswith(ending) and (
      split := _BY_WORD.get(word.removesuffix(ending))
    ):
      return split
  return None


Inside = Callable[[bytes], Collection[bytes]]
"""The names of the folders in a folder of this name."""


def likely_splits(names: Sequence[bytes], inside: Inside) -> list[Named]:
  """The folders beside each other that are likely splits.

  One that has other words in its name, as seg_train, is a split beside another
  split with the same words, seg_test, or with some of the same folders inside,
  which no folder that is no split has; the class freight_train is none. A plain
  name such as test_images needs another split beside it, unless it is the one
  to train on.
  """
  candidates = [one for one in map(named, names) if one]
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
      or _confirmed(one, candidates, folders, names, inside)
    )
  ]
  by_words = [
    one
    for one in candidates
    if one.sure == WORD and _confirmed(one, candidates, folders, names, inside)
  ]
  return [*sure, *plain, *by_words]


def _is_for_training(one: Named, folders: dict[bytes, set[bytes]]) -> bool:
  return one.split == "train" and bool(folders[one.name])


def _has_split_beside(one: Named, candidates: Sequence[Named]) -> bool:
  """Whether another split has a name without other words."""
  return any(
    other.split != one.split and other.sure != WORD for other in candidates
  )


def _confirmed(
  one: Named,
  candidates: Sequence[Named],
  folders: dict[bytes, set[bytes]],
  names: Sequence[bytes],
  inside: Inside,
) -> bool:
  """Whether a name with other words is a split's, see `likely_splits`."""
  others = [other for other in candidates if other.split != one.split]
  if any(other.rest == one.rest for other in others):
    if folders[one.name]:
      return True
    # Folders of images alone may be classes, beside others that are.
    return 2 * len(candidates) > len(names)
  shared = set()
  for other in others:
    shared |= folders[other.name] & folders[one.name]
  strangers = [name for name in names if name not in folders]
  return bool(shared) and not any(shared & {*inside(n)} for n in strangers)
