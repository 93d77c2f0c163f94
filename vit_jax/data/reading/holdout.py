"""Chooses the images to hold out from data that come without splits."""

import collections
import dataclasses
import hashlib
import math
import os
import posixpath
import unicodedata
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

FEW = 1_000  # For fewer images than this, the default rule is "count".
_LEAST = 2  # The fewest images of a class that are held out by count.


@dataclasses.dataclass
class Holdout:
  """The rule by which images of each class are held out, and its choice.

  Attributes:
    by: "name" or "rank", see `held_out`; or "count", see `below`.
    fraction: The share of each class that is held out.
    below: For the rule "count", a number for each class, in their order: images
      of the class whose hash is lower are held out. Given numbers are used, and
      those chosen for further classes are appended. With these numbers a run
      keeps each image on its side, as the image's own hash then decides. If
      whole groups are held out, there is one number, for the groups' hashes.
    root: The folder of the images, as for `held_out`.
  """

  by: str
  fraction: float
  below: list[float]
  root: bytes | None = None

  @classmethod
  def of(
    cls,
    images: int,
    fraction: float,
    by: str | None = None,
    below: Sequence[float] | None = None,
    root: bytes | None = None,
  ) -> "Holdout":
    """The rule `by`; if that is None, the usual one for a number of images."""
    by = by or ("count" if images < FEW else "name")
    return cls(by, fraction, [*(below or ())], root)

  def of_class(self, place: int, files: Collection[bytes]) -> set[bytes]:
    """The held-out files of the class at a place in the order of classes."""
    if self.by != "count":
      return held_out(files, self.fraction, self.by, self.root)
    while place > len(self.below):  # Classes before it may have no file.
      self.below.append(self.fraction)
    if place == len(self.below):
      self.below.append(_bound(files, self.fraction, self.root))
    return held_out(files, self.below[place], "name", self.root)

  def of_groups(self, groups: Sequence[str]) -> set[str]:
    """The groups that are held out; `groups` has the group of each image.

    By "name", they are those whose hash is below the fraction, as in
    `held_out`. By "count", they are the groups with the lowest hashes that
    together have the fraction of the images, or just more. Raises ValueError if
    there are fewer than two groups, or the rule is "rank".
    """
    sizes = collections.Counter(groups)
    names = {os.fsencode(group): group for group in sizes}
    if self.by == "rank":
      raise ValueError(
        "data.held_out_by='rank' knows no groups: set it to name or count."
      )
    if len(names) < 2:
      raise ValueError(
        f"data.group_column: all {len(groups):,} images are of one group, and "
        "whole groups are held out: give two groups or more, or leave the key "
        "out."
      )
    bound = self.fraction
    if self.by == "count":
      if not self.below:
        images = {name: sizes[group] for name, group in names.items()}
        self.below.append(_bound_of_groups(images, self.fraction))
      bound = self.below[0]
    return {names[name] for name in held_out(names, bound)}

  def lines(self) -> list[str]:
    """A line on the rule "count", whose choice depends on the other images.

    The list is empty for the other rules.
    """
    if self.by != "count":
      return []
    count = "count" if len(self.below) == 1 else "the count of their class"
    line = (
      f"Images are held out by {count}: a run keeps its choice "
      "as the folder grows, and a new run chooses again."
    )
    return [line]

  def as_settings(self) -> dict[str, Any]:
    """The keys of `data` that choose the same images again."""
    below = tuple(self.below) if self.by == "count" else None
    return {"held_out_by": self.by, "held_out_below": below}


def held_out(
  files: Collection[bytes],
  fraction: float,
  by: str = "name",
  root: bytes | None = None,
) -> set[bytes]:
  """Chooses about a fraction of the files of a class, by their names.

  By "name", a file is chosen if the hash of its own name, a number in [0, 1),
  is below the fraction. So the file keeps its side whatever files are added or
  removed, and the share of N files is only near the fraction, with a standard
  deviation of sqrt(fraction (1 - fraction) / N). No rule can keep every file on
  its side and also fix the share: if the side of a file does not depend on
  other files, it depends on its own name, and the names of all files may put
  them on one side.

  Of two files or more, at least one is chosen and one is not. If names leave a
  side empty, the file whose hash is nearest to the fraction moves there. It may
  move again: as a small class grows, another file may be nearer, and once names
  fill both sides, it is back on its own side. A single file is not chosen.

  By "rank", as in earlier versions, the files of the lowest CRC-32 are chosen,
  in the number nearest to the fraction; some change sides as files are added.

  Args:
    files: Names, relative to one folder.
    root: The folder, which is needed only if some names are full paths: these
      have the hash of their part below it.
  """
  if len(files) < 2:
    return set()
  if by == "rank":
    count = min(max(round(fraction * len(files)), 1), len(files) - 1)
    ranked = sorted(files, key=lambda file: (zlib.crc32(file), file))
    return {*ranked[:count]}
  hashes = _hashes(files, root)
  chosen = {file for file in files if hashes[file] < fraction}
  if not chosen:
    return {min(files, key=lambda file: (hashes[file], file))}
  if len(chosen) == len(files):
    chosen.remove(max(files, key=lambda file: (hashes[file], file)))
  return chosen


def _bound(
  files: Collection[bytes], fraction: float, root: bytes | None
) -> float:
  """The number that lies just above the hashes of the files to hold out.

  Of N files, min(max(2, N fraction), N - 1) are held out, those of the lowest
  hashes, so that both sides have a file if N > 1. If N < 2, the number is the
  fraction.
  """
  count = min(max(_LEAST, round(fraction * len(files))), len(files) - 1)
  if count < 1:
    return fraction
  highest = sorted(_hashes(files, root).values())[count - 1]
  return math.nextafter(highest, math.inf)


def _bound_of_groups(images: Mapping[bytes, int], fraction: float) -> float:
  """The number that lies just above the hashes of the groups to hold out.

  Together these groups have the fraction of all images or more. At least one
  group is not held out.
  """
  hashes = _hashes(images, None)
  # The group with the highest hash is never held out.
  *ranked, _ = sorted(images, key=hashes.__getitem__)
  total = np.cumsum([images[name] for name in ranked])
  count = int(np.searchsorted(total, fraction * sum(images.values()))) + 1
  last = ranked[:count][-1]
  return math.nextafter(hashes[last], math.inf)


def _hashes(files: Collection[bytes], root: bytes | None) -> dict[bytes, float]:
  """The hash of each file's name, without the part that names `root`."""
  top = None if root is None else posixpath.join(_plain(_absolute(root)), "")
  return {file: _hash(file, top) for file in files}


def _hash(file: bytes, top: str | None) -> float:
  """The BLAKE2b hash of a name, of 64 bits, as a number in [0, 1].

  It is the same on all platforms, and however a path is written.
  """
  name = _plain(file)
  if top is not None:
    name = name.removeprefix(top)
  encoded = name.encode("utf-8", "surrogateescape")
  digest = hashlib.blake2b(encoded, digest_size=8).digest()
  return int.from_bytes(digest, "big") / 2**64


def _plain(path: bytes) -> str:
  """A path with composed accents (NFC), "/" for a backslash, and no "./"."""
  name = path.decode("utf-8", "surrogateescape").replace("\\", "/")
  return posixpath.normpath(unicodedata.normalize("NFC", name))


def _absolute(folder: bytes) -> bytes:
  return os.path.abspath(os.path.expanduser(folder))
