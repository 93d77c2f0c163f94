"""Counts what a file of msgpack holds, before objects are made of it.

An item of one byte becomes an object of a hundred: 30 MB of empty maps took
2.3 GB. The headers are those of msgpack's specification.
"""

from vit_jax.pretrained.npz import UnreadableFileError

_MOST = 2**19  # Maps, names, numbers and arrays; a model has some thousands.
_MOST_IN_ARRAY = 80  # A shape, a type and the bytes.
_FIXED = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8}  # Nothing and floats.
_INTEGERS = {0xCC + k: 2 ** (k % 4) for k in range(8)}
_SIZED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}  # Bytes, texts.
_EXTENSIONS = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_FIXED_EXTENSIONS = {0xD4 + k: 2**k for k in range(5)}
_ARRAYS, _MAPS = {0xDC: 2, 0xDD: 4}, {0xDE: 2, 0xDF: 4}


def check(content: bytes) -> None:
  """Raises UnreadableFileError if there are too many items, or they are cut."""
  _count(content, 0, len(content), _MOST, inside=True)


def _count(
  content: bytes, at: int, end: int, most: int, inside: bool = False
) -> int:
  """The number of items of one value from `at` on, at most `most`.

  With `inside`, those of extensions, which are arrays, count as well.
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
    at += 1
    items, size, at = _header(first, content, at)
    left += items
    is_extension = first in _EXTENSIONS or first in _FIXED_EXTENSIONS
    if is_extension and inside and size > 1:
      stop = min(at + size, end)
      seen += _count(content, at + 1, stop, _MOST_IN_ARRAY)
    at += size
  return seen


def _header(first: int, content: bytes, at: int) -> tuple[int, int, int]:
  """The items and the bytes that follow a header, and where these begin.

  `first` is the header's first byte. The bytes of an extension begin with its
  type.
  """

  def number(size: int) -> int:
    return int.from_bytes(content[at : at + size], "big")

  if first < 0x80 or first >= 0xE0:  # A small number.
    return 0, 0, at
  if first < 0x90:
    return 2 * (first & 15), 0, at
  if first < 0xA0:
    return first & 15, 0, at
  if first < 0xC0:
    return 0, first & 31, at
  if size := _MAPS.get(first):
    return 2 * number(size), 0, at + size
  if size := _ARRAYS.get(first):
    return number(size), 0, at + size
  if size := _SIZED.get(first):
    return 0, number(size), at + size
  if size := _EXTENSIONS.get(first):
    return 0, 1 + number(size), at + size
  if size := _FIXED_EXTENSIONS.get(first):
    return 0, 1 + size, at
  return 0, _FIXED.get(first, 0) or _INTEGERS.get(first, 0), at
