"""Counts the items of a msgpack file, before objects are made of them.

An item of one byte becomes an object of a hundred: 30 MB of empty maps took
2.3 GB. The headers are those of msgpack's specification.
"""

from typing import NamedTuple

from vit_jax.pretrained.npz import UnreadableFileError

MOST = 2**19  # Maps, names, numbers and arrays; a model has some thousands.
_MOST_IN_ARRAY = 80  # A shape, a type and the bytes.
# Nil, false, true and floats.
_FIXED = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8}
_INTEGERS = {0xCC + k: 2 ** (k % 4) for k in range(8)}
_SIZED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}  # Bytes, texts.
_EXTENSIONS = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_FIXED_EXTENSIONS = {0xD4 + k: 2**k for k in range(5)}
_ARRAYS, _MAPS = {0xDC: 2, 0xDD: 4}, {0xDE: 2, 0xDF: 4}


def check(content: bytes) -> None:
  """Raises UnreadableFileError for too many items, or if an item is cut off."""
  count_items(content, 0, len(content), MOST, inside=True)


def count_items(
  content: bytes, at: int, end: int, most: int, inside: bool = False
) -> int:
  """The number of items that the value at `at` consists of, itself included.

  The value has to end before `end`, both places in `content`. With `inside`,
  the items in extensions, which hold arrays, count as well.
  Raises UnreadableFileError for more than `most`, or if the value is cut off.
  """
  left = 1
  seen = 0
  while left:
    left -= 1
    seen += 1
    if seen + left > most:
      raise UnreadableFileError(
        f"it holds more than {most:,} parts, which no model has; get it again."
      )
    if at >= end:
      raise UnreadableFileError("it is damaged or incomplete; get it again.")
    first = content[at]
    header = _read_header(first, content, at + 1)
    left += header.items
    is_extension = first in _EXTENSIONS or first in _FIXED_EXTENSIONS
    at = header.end + header.num_bytes
    if is_extension and inside and header.num_bytes > 1:
      array_start = header.end + 1  # The first byte is the extension's type.
      seen += count_items(content, array_start, min(at, end), _MOST_IN_ARRAY)
  return seen


class _Header(NamedTuple):
  """The contents of an item, as its header states them.

  Attributes:
    items: The number of items in it.
    num_bytes: The number of bytes after the header; those of an extension begin
      with its type.
    end: Where the header ends.
  """

  items: int
  num_bytes: int
  end: int


def _read_header(first: int, content: bytes, at: int) -> _Header:
  """Reads a header: its first byte is `first`, the others begin at `at`."""

  def number(size: int) -> int:
    return int.from_bytes(content[at : at + size], "big")

  if first < 0x80 or first >= 0xE0:  # A small number.
    return _Header(0, 0, at)
  if first < 0x90:  # A small map.
    return _Header(2 * (first & 15), 0, at)
  if first < 0xA0:  # A small array.
    return _Header(first & 15, 0, at)
  if first < 0xC0:  # A short text.
    return _Header(0, first & 31, at)
  if size := _MAPS.get(first):
    return _Header(2 * number(size), 0, at + size)
  if size := _ARRAYS.get(first):
    return _Header(number(size), 0, at + size)
  if size := _SIZED.get(first):
    return _Header(0, number(size), at + size)
  if size := _EXTENSIONS.get(first):
    return _Header(0, 1 + number(size), at + size)
  if size := _FIXED_EXTENSIONS.get(first):
    return _Header(0, 1 + size, at)
  return _Header(0, _FIXED.get(first, 0) or _INTEGERS.get(first, 0), at)
