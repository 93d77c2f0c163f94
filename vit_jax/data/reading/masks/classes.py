"""Reads the names and the colours of masks' classes from classes.txt."""

import codecs
import os
import re
from typing import NamedTuple

from vit_jax.runtime.files import TooLargeError, read_regular
from vit_jax.runtime.printable import printable, quoted
from vit_jax.runtime.printable import printable_path as text

IGNORED = 255
"""What masks, and labels of up to 255 classes, have for pixels of no class."""
CLASSES = "classes.txt"
"""A file in the folder with the name of a class in each line, from class 0 on.

A name may be followed by a colour, as in "road 128 64 128". Masks may then be
in colours. Pixels with the number or the colour of the line "ignored" have no
class. This line takes up a number of the masks, but is not one of the classes.
"""
NO_CLASS = "ignored"
NONE = -1  # In place of a class, for "ignored".
_CHANNEL = r"([0-9]{1,3})[\s,]++"
# It matches a reversed line, so that each letter is looked at once.
_REVERSED_LINE = re.compile(_CHANNEL * 3 + r"(.*)")
_MOST_BYTES = 1 << 20
_MOST_CLASSES = (1 << 16) - 1
_UTF_16 = codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE


class Classes(NamedTuple):
  """The classes of masks.

  Attributes:
    names: The names of the classes, from class 0 on.
    numbers: The class of each number of a mask, from 0 on; -1 for none.
    colours: The class of each colour, 65536 R + 256 G + B, if masks have them.
  """

  names: tuple[str, ...]
  numbers: tuple[int, ...]
  colours: dict[int, int]


def ignored_label(classes: int) -> int:
  """The label of a pixel of no class, which no class has.

  >>> from vit_jax.data.reading.masks.classes import ignored_label
  >>> ignored_label(150), ignored_label(300)
  (255, 65535)
  """
  return IGNORED if classes <= IGNORED else _MOST_CLASSES


def find_classes(root: bytes, earlier: bool = False) -> bytes | None:
  """The file of classes in a folder; None if there is none.

  Its name may be in upper or lower case; with `earlier`, in lower case alone.
  """
  if os.path.isfile(path := os.path.join(root, os.fsencode(CLASSES))):
    return path
  if earlier:
    return None
  with os.scandir(root) as entries:
    others = [e.path for e in entries if e.name.lower() == CLASSES.encode()]
  return others[0] if len(others) == 1 and os.path.isfile(others[0]) else None


def read_classes(path: bytes, earlier: bool = False) -> Classes:
  """Reads the file of classes.

  With `earlier`, as earlier versions did: bytes that are no UTF-8 are replaced,
  and the line "ignored" has no number.

  Raises ValueError if a line is not that of a class, or as `_lines` and
  `_check` do.
  """
  where = text(path)
  names: dict[str, None] = {}
  numbers: list[int] = []
  colours: dict[int, int] = {}
  for number, line in enumerate(_lines(path, earlier), start=1):
    if not line:
      continue
    name, values = _split_line(line)
    is_class = name.lower() != NO_CLASS
    if not name or name in names or max(values, default=0) > 255:
      raise ValueError(
        f"{where}, line {number}, is {quoted(printable(line))}: each line is "
        "the name of a class, which no other line has, and may end in its "
        "colour, as in road 128 64 128."
      )
    code = int.from_bytes(bytes(values), "big")
    if values and code in colours:
      raise ValueError(
        f"{where}, line {number}, has the colour of another line: give each "
        "class a colour of its own."
      )
    index = len(names) if is_class else NONE
    if values:
      colours[code] = index
    if is_class or not earlier:
      numbers.append(index)
    if is_class:
      names[name] = None
  _check(where, names, numbers, colours)
  return Classes(tuple(map(printable, names)), tuple(numbers), colours)


def _lines(path: bytes, earlier: bool) -> list[str]:
  """The lines of the file of classes, without spaces at their ends.

  Raises ValueError if the file is too large, or not UTF-8.
  """
  where = text(path)
  try:
    encoded = read_regular(os.fsdecode(path), _MOST_BYTES)
  except TooLargeError:
    raise ValueError(
      f"{where} is larger than {_MOST_BYTES:,} bytes: write the name of one "
      "class in each line."
    ) from None
  if not earlier and (encoded.startswith(_UTF_16) or b"\0" in encoded):
    raise ValueError(f"{where} is UTF-16: save it as UTF-8.")
  try:
    decoded = encoded.decode("utf-8-sig", "replace" if earlier else "strict")
  except UnicodeDecodeError as error:
    line = encoded.count(b"\n", 0, error.start) + 1
    raise ValueError(
      f"{where}, line {line}, is not UTF-8: save it as UTF-8."
    ) from None
  return [line.strip() for line in decoded.splitlines()]


def _split_line(line: str) -> tuple[str, list[int]]:
  """The name in a line, and the three channels after it, if there are any.

  >>> from vit_jax.data.reading.masks.classes import _split_line
  >>> _split_line("the sky 128, 0 7"), _split_line("the sky")
  (('the sky', [128, 0, 7]), ('the sky', []))
  """
  match = _REVERSED_LINE.fullmatch(line[::-1])
  if match is None or not match[4]:
    return line, []
  *channels, name = match.groups()
  return name[::-1], [int(channel[::-1]) for channel in channels[::-1]]


def _check(
  where: str,
  names: dict[str, None],
  numbers: list[int],
  colours: dict[int, int],
) -> None:
  """Raises ValueError if the names of classes or their colours are invalid.

  There may be no names, too many, or colours for only some of the classes.
  `names`, `numbers` and `colours` are as `read_classes` has gathered them.
  """
  if not names:
    what = f"only {NO_CLASS!r}" if numbers or colours else "empty"
    raise ValueError(
      f"{where} is {what}: write the name of a class in each line, or remove "
      "it to have numbers as classes."
    )
  if colours and len({*colours.values()} - {NONE}) < len(names):
    raise ValueError(
      f"{where} has colours for some classes: give all of them one, or none."
    )
  if len(numbers) > _MOST_CLASSES:
    raise ValueError(
      f"{where} names {len(names):,} classes: at most {_MOST_CLASSES:,} are "
      "read, so name fewer."
    )
