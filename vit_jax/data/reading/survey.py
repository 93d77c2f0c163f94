"""Looks at every file of a folder of images before one trains on it."""

import collections
import dataclasses
import functools
import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from vit_jax.data.batch import CLASS, label_spec
from vit_jax.data.decoding.decode import decode_image
from vit_jax.data.decoding.pillow import describe
from vit_jax.data.example import RGB, ImageSpec, UnreadableImageError
from vit_jax.data.reading.image_folder import ImageFolder

_SMALL = 32  # Pixels; an image with a shorter side is odd.
_LONG = 4  # Ratio of the sides above which an image is odd.
UNREADABLE = "unreadable"
_KINDS = {
  **dict.fromkeys((".jpg", ".jpeg", ".jfif"), ("JPEG", "MPO")),
  **{f".{kind.lower()}": (kind,) for kind in ("PNG", "WEBP", "GIF", "BMP")},
  **dict.fromkeys((".tif", ".tiff"), ("TIFF",)),
  **dict.fromkeys((".heic", ".heif"), ("HEIF",)),
}
"""The formats that are usual for the endings of names."""
_CHUNK = 1000  # Files that the threads are given at once.


@dataclasses.dataclass(frozen=True)
class Look:
  """The facts about one file."""

  split: str
  label: int
  id: str  # The file, from the root on, with the reason if it is unreadable.
  kind: str  # Its format, such as "JPEG"; "unknown" if it cannot be told.
  # Height and width of the upright image; None if it is unreadable.
  size: tuple[int, int] | None
  odd: tuple[str, ...]  # Words for each unusual property.
  # Equal for images of equal pixels; None if it is unreadable.
  digest: bytes | None


@dataclasses.dataclass(frozen=True)
class Survey:
  """All files of a folder, split by split."""

  class_names: tuple[str, ...]
  looks: list[Look]

  @property
  def counts(self) -> dict[str, np.ndarray]:
    """The number of files of each class, (K,), by split."""
    zeros = functools.partial(np.zeros, len(self.class_names), int)
    counts: dict[str, np.ndarray] = collections.defaultdict(zeros)
    for look in self.looks:
      counts[look.split][look.label] += 1
    return dict(counts)

  @property
  def sizes(self) -> np.ndarray:
    """Heights and widths of the readable images, (N, 2)."""
    sizes = [look.size for look in self.looks if look.size is not None]
    return np.array(sizes, int).reshape(-1, 2)

  @property
  def odd(self) -> dict[str, list[str]]:
    """The files with each oddity, the rarest oddity first."""
    files: dict[str, list[str]] = collections.defaultdict(list)
    for look in self.looks:
      for oddity in look.odd:
        files[oddity].append(look.id)
    return dict(sorted(files.items(), key=lambda item: len(item[1])))

  @property
  def same(self) -> dict[str, list[list[str]]]:
    """Groups of files with equal pixels, by where the copies are, in words."""
    groups: dict[bytes, list[Look]] = collections.defaultdict(list)
    for look in self.looks:
      if look.digest is not None:
        groups[look.digest].append(look)
    copies: dict[str, list[list[str]]] = collections.defaultdict(list)
    for group in (looks for looks in groups.values() if len(looks) > 1):
      what = "twice in a class"
      if len({look.label for look in group}) > 1:
        what = "in several classes"
      elif len({look.split for look in group}) > 1:
        what = "in several splits"
      copies[what].append([look.id for look in group])
    return dict(copies)


def looks(
  splits: Sequence[ImageFolder], spec: ImageSpec = RGB
) -> Iterator[Look]:
  """Reads and decodes every file once, in threads."""
  with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
    for source in splits:
      for first in range(0, len(source), _CHUNK):
        chunk = range(first, min(first + _CHUNK, len(source)))
        yield from pool.map(lambda i, s=source: _look(s, i, spec), chunk)


def _look(source: ImageFolder, index: int, spec: ImageSpec) -> Look:
  of_class = label_spec(source) == CLASS
  label = int(source.labels([index])[0]) if of_class else 0
  name = source.ids([index])[0]
  inside = name.removeprefix(os.path.join(source.root, ""))
  try:
    encoded = source[index]["image"]
    pixels = decode_image(encoded, spec)
    kind, odd = describe(encoded)
  except UnreadableImageError as error:
    why = f"{inside}: {str(error).removeprefix(f'{name}: ')}"
    return Look(source.split, label, why, "unknown", None, (UNREADABLE,), None)
  size = pixels.shape[0], pixels.shape[1]
  content = np.array(size).tobytes() + pixels.tobytes()
  digest = hashlib.blake2b(content, digest_size=16).digest()
  if min(size) < _SMALL:
    odd.append(f"under {_SMALL} pixels")
  if max(size) > _LONG * min(size):
    odd.append(f"longer than {_LONG} : 1")
  ending = os.path.splitext(name)[1].lower()
  if kind not in _KINDS.get(ending, (kind,)):
    odd.append("of another format than their name")
  return Look(source.split, label, inside, kind, size, tuple(odd), digest)
