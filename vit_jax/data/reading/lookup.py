"""Finds the files that a list names, though it may spell them differently."""

import bisect
import collections
import difflib
import os
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from vit_jax.data.reading.folders import EXTENSIONS, is_folder
from vit_jax.runtime.printable import composed
from vit_jax.runtime.printable import printable_path as text

_ZEROS = re.compile(r"(?<![0-9])0+(?=[0-9])")  # Zeros before a number.
# In sorted order, the names on either side of a missing one that are compared.
_COMPARED = 500
_ENTERED = 200  # Folders in which a missing name is looked for.


class _Folder(NamedTuple):
  """The names in a folder, by their plain form; see `_plain`.

  Attributes:
    files: The names of the files with one of the endings that are looked for,
      by their plain form without the ending.
    folders: The names of the folders.
  """

  files: dict[str, list[bytes]]
  folders: dict[str, list[bytes]]


class Lookup:
  """The files below a folder, found by names that may differ in spelling.

  A folder is listed only once, and only if a name is not there as it is
  written.
  """

  def __init__(self, root: bytes, endings: tuple[bytes, ...] = EXTENSIONS):
    """`endings` are those of the files to find, in lower case."""
    self._root = root
    self._endings = endings
    self._known = tuple(dict.fromkeys((*endings, *EXTENSIONS)))
    self._last: tuple[bytes, ...] = ()  # The ending that the last name lacked.
    self._listed: dict[bytes, _Folder] = {}
    self._counts: collections.Counter[str] = collections.Counter()
    self._examples: dict[str, tuple[bytes, bytes]] = {}

  def find(self, name: bytes) -> bytes | None:
    """The path, relative to the root, of the file with this name, or None.

    It is the file of exactly this name. A name without an ending gets the one
    that the name before it lacked, or else the first of the endings with which
    there is a file. Otherwise names may differ in the encoding of accents; if
    no file is found, in case as well; and then in the zeros before a number or
    in the ending as well. If several files are found, the result is None. A
    backslash may separate folders.
    """
    if name.lower().endswith(self._known) and self._is_file(name):
      return name  # Nearly all names are like this.
    if b"\\" in name and not self._is_file(name):
      name = name.replace(b"\\", b"/")
    lacks = not self._ending(name)
    endings = (b"",)
    if lacks:  # Likely it lacks the same ending as the name before.
      endings = (*self._last, b"")
    for ending in endings:
      if self._is_file(name + ending):
        if lacks:
          self._last = (ending,)
        return name + ending
    path = self._similar(name)
    if path is None or not self._is_file(path):
      return None
    if lacks and path.startswith(name):
      self._last = (path.removeprefix(name),)
    self._note(name, path)
    return path

  def lines(self) -> list[str]:
    """A line for each kind of difference between names and files' own names."""
    lines = []
    for kind, count in self._counts.items():
      name, path = map(text, self._examples[kind])
      lines.append(
        f"names of files differ in {kind} from those that are asked for "
        f"({count:,}, such as {path!r} for {name!r})."
      )
    return lines

  def nearest(self, name: bytes) -> bytes | None:
    """The path of the file that a missing name most likely means, or None.

    The file has this name in another folder, or a similar one in the same
    folder.
    """
    name = name.replace(b"\\", b"/")
    for path in self._elsewhere(name):
      if self._is_file(path):
        return path
    folder, base = os.path.split(name)
    found = self._folder(folder)
    if found is None:
      return None
    files = self._list(found).files
    plain = _plain(self._stem(base))
    keys = sorted(files)
    middle = bisect.bisect(keys, plain)
    beside = keys[max(0, middle - _COMPARED) : middle + _COMPARED]
    near = difflib.get_close_matches(plain, beside, n=1)
    return os.path.join(found, min(files[near[0]])) if near else None

  def folders(self) -> list[bytes]:
    """The names of the folders directly in the root, at most 200 of them."""
    names: list[bytes] = []
    for spellings in self._list(b"").folders.values():
      names += spellings
    return sorted(names)[:_ENTERED]

  def inside(self, folder: bytes) -> "Lookup":
    """A lookup of the files below a folder of the root."""
    return Lookup(os.path.join(self._root, folder), self._endings)

  def _similar(self, name: bytes) -> bytes | None:
    """The file whose name differs in spelling or in its ending, or None.

    A name without an ending takes the first of the endings with which there is
    a file. Otherwise, None stands for several files, as it does for no file.
    """
    folder, base = os.path.split(name)
    found = self._folder(folder)
    if found is None:
      return None
    files = self._list(found).files
    stem = self._stem(base)
    candidates = [*files.get(_plain(stem), ())]
    if stem == base:
      for ending in (*self._endings, *map(bytes.upper, self._endings)):
        if base + ending in candidates:
          return os.path.join(found, base + ending)
      match = _only_match(base, candidates, [*map(self._stem, candidates)])
    else:
      candidates += files.get(_plain(base), ())
      match = _only_match(base, candidates, candidates)
    return None if match is None else os.path.join(found, match)

  def _folder(self, name: bytes) -> bytes | None:
    """The folder of this name, or the only one of another spelling, or None."""
    if not name or os.path.isdir(os.path.join(self._root, name)):
      return name
    above, base = os.path.split(name)
    found = self._folder(above) if base else None
    if found is None:
      return None
    candidates = self._list(found).folders.get(_plain(base), ())
    match = _only_match(base, candidates, candidates)
    return None if match is None else os.path.join(found, match)

  def _elsewhere(self, name: bytes) -> Iterator[bytes]:
    """Yields the paths that a file of this name would have in other folders."""
    parts = name.split(b"/")
    for start in range(1, len(parts)):
      yield b"/".join(parts[start:])
    endings = (b"",) if self._ending(name) else (b"", *self._endings)
    for folder in self.folders():
      for file in dict.fromkeys((name, parts[-1])):
        for ending in endings:
          yield os.path.join(folder, file + ending)

  def _list(self, folder: bytes) -> _Folder:
    """The names in a folder; a folder that cannot be read counts as empty."""
    if folder in self._listed:
      return self._listed[folder]
    files: dict[str, list[bytes]] = collections.defaultdict(list)
    folders: dict[str, list[bytes]] = collections.defaultdict(list)
    self._listed[folder] = _Folder(files, folders)
    try:
      with os.scandir(os.path.join(self._root, folder) or b".") as entries:
        for entry in entries:
          if entry.name.startswith(b"."):
            continue
          if is_folder(entry):
            folders[_plain(entry.name)].append(entry.name)
          elif entry.name.lower().endswith(self._endings):
            files[_plain(self._stem(entry.name))].append(entry.name)
    except (OSError, ValueError):
      pass  # A folder that cannot be listed has no readable file.
    return self._listed[folder]

  def _note(self, name: bytes, path: bytes) -> None:
    """Counts a name by how it differs from the path that it stands for."""
    ours = self._stem(name)
    theirs = self._stem(path)
    if _plain(name) == _plain(theirs):
      ours = name  # The name lacks an ending, or has more than one.
    ending = self._ending(name)
    other_ending = self._ending(path)
    kinds = [kind for kind, same in _KINDS.items() if not same(ours, theirs)]
    if ending and ending != other_ending:
      kinds.append("the ending")
    elif ending and name[-len(ending) :] != path[-len(other_ending) :]:
      # The endings differ in case.
      kinds = [*dict.fromkeys((_CASE, *kinds))]
    if kinds:
      kind = " and ".join(kinds)
      self._counts[kind] += 1
      self._examples.setdefault(kind, (name, path))

  def _is_file(self, name: bytes) -> bool:
    return os.path.isfile(os.path.join(self._root, name))

  def _ending(self, name: bytes) -> bytes:
    """The ending of an image's name, in lower case; b"" if it has none."""
    ending = os.path.splitext(name)[1].lower()
    return ending if ending in self._known else b""

  def _stem(self, name: bytes) -> bytes:
    return name[: len(name) - len(self._ending(name))]


def folders_of_all(root: str, names: Sequence[bytes]) -> list[bytes]:
  """The folders in `root` that have all of these files.

  The list is empty if the first file is in `root` itself.
  """
  lookup = Lookup(os.fsencode(root or "."))
  if not names or lookup.find(names[0]) is not None:
    return []
  return [
    folder
    for folder in lookup.folders()
    if all(map(lookup.inside(folder).find, names))
  ]


def _only_match(
  name: bytes, candidates: Sequence[bytes], spelled: Sequence[bytes]
) -> bytes | None:
  """The only candidate whose spelling is nearest; None for several or none.

  The candidates are alike in their plain form. `spelled` has them as they are
  compared with `name`, such as without their endings.
  """
  # In the last form all candidates are alike.
  for form in (_compose_accents, _fold_case, _plain):
    same = [
      candidate
      for candidate, other in zip(candidates, spelled, strict=True)
      if form is _plain or form(other) == form(name)
    ]
    if same:
      return same[0] if len({*same}) == 1 else None
  return None


def _compose_accents(name: bytes) -> str:
  """A name with composed accents."""
  return composed(os.fsdecode(name))


def _fold_case(name: bytes) -> str:
  """A name with composed accents, in lower case."""
  return _compose_accents(name).casefold()


def _plain(name: bytes) -> str:
  """A name with composed accents, in lower case, without leading zeros."""
  return _ZEROS.sub("", _fold_case(name))


def _agree_in_case(ours: bytes, theirs: bytes) -> bool:
  """Whether two names agree in upper and lower case, whatever else differs."""
  one, other = (
    _ZEROS.sub("", _compose_accents(name)) for name in (ours, theirs)
  )
  return one == other


def _agree_in_accents(ours: bytes, theirs: bytes) -> bool:
  """Whether two names agree in how accents are encoded."""
  one, other = (os.fsdecode(name).casefold() for name in (ours, theirs))
  return _ZEROS.sub("", one) == _ZEROS.sub("", other)


_CASE = "upper and lower case"
# Each kind of difference, with a test whether two similar names agree in it.
_KINDS = {
  _CASE: _agree_in_case,
  "the encoding of accents": _agree_in_accents,
  "the zeros before a number": lambda ours, theirs: (
    _fold_case(ours) == _fold_case(theirs)
  ),
}
