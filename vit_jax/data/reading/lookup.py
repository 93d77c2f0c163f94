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

_ZEROS = re.compile(r"(?<![0-9])0+(?=[0-9])")  # Those before a number.
_COMPARED = 500  # Names that are compared with one that is missing.
_ENTERED = 200  # Folders in which it is looked for.


class _Folder(NamedTuple):
  """The files in a folder, by the plain form of their names.

  Attributes:
    files: The names without endings, of the files that have one of those taken.
    folders: The names.
  """

  files: dict[str, list[bytes]]
  folders: dict[str, list[bytes]]


class Lookup:
  """The files below a folder, found by names that may differ in spelling.

  A folder is listed only if a name is not there as it is written, and once.
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
    """The path, from the root on, of the file with this name; None without.

    It is the file of exactly this name, with the first of the endings if the
    name has none. Else it is the only file whose name differs in the encoding
    of accents, then in case as well, then in the zeros before a number or in
    its ending as well; None if there are several. A backslash may part folders.
    """
    if name.lower().endswith(self._known) and self._is_file(name):
      return name  # As nearly all are.
    if b"\\" in name and not self._is_file(name):
      name = name.replace(b"\\", b"/")
    lacks = not self._ending(name)
    for ending in (*self._last, b"") if lacks else (b"",):
      if self._is_file(name + ending):
        self._last = (ending,) if lacks else self._last
        return name + ending
    path = self._similar(name)
    if path is None or not self._is_file(path):
      return None
    if lacks and path.startswith(name):
      self._last = (path.removeprefix(name),)
    self._note(name, path)
    return path

  def lines(self) -> list[str]:
    """A line for each kind of difference between names and those of files."""
    lines = []
    for kind, count in self._counts.items():
      name, path = map(text, self._examples[kind])
      lines.append(
        f"names of files differ in {kind} from those that are asked for "
        f"({count:,}, such as {path!r} for {name!r})."
      )
    return lines

  def nearest(self, name: bytes) -> bytes | None:
    """The file that was most likely meant by a name that is not found.

    It has this name in another folder, or else a similar one in the same.
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
    """The names of the folders directly in this one, at most 200."""
    inside = [
      each for same in self._list(b"").folders.values() for each in same
    ]
    return sorted(inside)[:_ENTERED]

  def inside(self, folder: bytes) -> "Lookup":
    """The files below a folder of this one."""
    return Lookup(os.path.join(self._root, folder), self._endings)

  def _similar(self, name: bytes) -> bytes | None:
    """The only file whose name differs in spelling alone."""
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
      match = _only(base, candidates, [*map(self._stem, candidates)])
    else:
      candidates += files.get(_plain(base), ())
      match = _only(base, candidates, candidates)
    return None if match is None else os.path.join(found, match)

  def _folder(self, name: bytes) -> bytes | None:
    """The folder of this name, or the only one that is spelled differently."""
    if not name or os.path.isdir(os.path.join(self._root, name)):
      return name
    above, base = os.path.split(name)
    found = self._folder(above) if base else None
    if found is None:
      return None
    candidates = self._list(found).folders.get(_plain(base), ())
    match = _only(base, candidates, candidates)
    return None if match is None else os.path.join(found, match)

  def _elsewhere(self, name: bytes) -> Iterator[bytes]:
    """Paths of files with the same name in folders nearby."""
    parts = name.split(b"/")
    for start in range(1, len(parts)):
      yield b"/".join(parts[start:])
    for folder in self.folders():
      for file in dict.fromkeys((name, parts[-1])):
        for ending in (b"",) if self._ending(file) else (b"", *self._endings):
          yield os.path.join(folder, file + ending)

  def _list(self, folder: bytes) -> _Folder:
    """The names in a folder; none if it cannot be read."""
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
    ours, theirs = self._stem(name), self._stem(path)
    if _plain(name) == _plain(theirs):
      ours = name  # It lacks an ending, or has another one more.
    endings = self._ending(name), self._ending(path)
    kinds = [kind for kind, same in _KINDS.items() if not same(ours, theirs)]
    if endings[0] and endings[0] != endings[1]:
      kinds.append("the ending")
    elif endings[0] and name[-len(endings[0]) :] != path[-len(endings[1]) :]:
      kinds = [*dict.fromkeys((_CASE, *kinds))]
    if kinds:
      kind = " and ".join(kinds)
      self._counts[kind] += 1
      self._examples.setdefault(kind, (name, path))

  def _is_file(self, name: bytes) -> bool:
    return os.path.isfile(os.path.join(self._root, name))

  def _ending(self, name: bytes) -> bytes:
    """The ending of an image's name, in lower case; empty without."""
    ending = os.path.splitext(name)[1].lower()
    return ending if ending in self._known else b""

  def _stem(self, name: bytes) -> bytes:
    return name[: len(name) - len(self._ending(name))]


def folders_of_all(root: str, names: Sequence[bytes]) -> list[bytes]:
  """The folders in one folder that have all of these files.

  There are none if the first file is where its name says.
  """
  lookup = Lookup(os.fsencode(root or "."))
  if not names or lookup.find(names[0]) is not None:
    return []
  return [
    folder
    for folder in lookup.folders()
    if all(map(lookup.inside(folder).find, names))
  ]


def _only(
  name: bytes, candidates: Sequence[bytes], spelled: Sequence[bytes]
) -> bytes | None:
  """The only candidate of the nearest spelling; None if there is none or more.

  `spelled` are the candidates as they are compared.
  """
  for form in (_accents, _case, _plain):
    same = [
      candidate
      for candidate, other in zip(candidates, spelled, strict=True)
      if form is _plain or form(other) == form(name)
    ]
    if same:
      return same[0] if len({*same}) == 1 else None
  return None


def _accents(name: bytes) -> str:
  return composed(os.fsdecode(name))


def _case(name: bytes) -> str:
  return _accents(name).casefold()


def _plain(name: bytes) -> str:
  """A name without what may differ: accents' encoding, case and zeros."""
  return _ZEROS.sub("", _case(name))


def _same_but_for_case(ours: bytes, theirs: bytes) -> bool:
  """Whether case makes no difference, whatever else does."""
  one, other = (_ZEROS.sub("", _accents(name)) for name in (ours, theirs))
  return one == other


def _same_but_for_accents(ours: bytes, theirs: bytes) -> bool:
  one, other = (os.fsdecode(name).casefold() for name in (ours, theirs))
  return _ZEROS.sub("", one) == _ZEROS.sub("", other)


_CASE = "upper and lower case"
# Each kind of difference, and whether two similar names have none of it.
_KINDS = {
  _CASE: _same_but_for_case,
  "the encoding of accents": _same_but_for_accents,
  "the zeros before a number": lambda ours, theirs: (
    _case(ours) == _case(theirs)
  ),
}
