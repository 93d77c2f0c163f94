"""Reads the chunks of PNG files (ISO/IEC 15948)."""

from collections.abc import Iterator
from typing import NamedTuple

START = b"\x89PNG\r\n\x1a\n"


class Chunk(NamedTuple):
  """A chunk of a file, whose content lies from `start` to `end`."""

  kind: bytes
  start: int
  end: int


def chunks(encoded: bytes) -> Iterator[Chunk]:
  """Yields the chunks before IEND; the last has no kind if the file is cut."""
  at = len(START)
  while (kind := encoded[at + 4 : at + 8]) != b"IEND":
    end = at + 8 + int.from_bytes(encoded[at : at + 4], "big")
    yield Chunk(kind, at + 8, end)
    if not kind:
      return
    at = end + 4  # The content is followed by its checksum.
