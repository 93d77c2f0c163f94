"""Looks at every file of a folder of images before one trains on it."""

import collections
import dataclasses
import functools
import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from vit_jax.data.decoding.decode import decode_image
from vit_jax.data.decoding.pillow import describe
from vit_jax.data.example import RGB, ImageSpec
from vit_jax.data.reading.labels import SINGLE, Labels

_SMALL = 32  # Pixels; an image with a shorter side is odd.
_LONG = 4  # An image with a larger ratio of its sides is odd.
UNREADABLE = "unreadable"
_KINDS = {
  **dict.fromkeys((".jpg", ".jpeg", ".jfif"), ("JPEG", "MPO")),
  **{f".{kind.lower()}": (kind,) for kind in ("PNG", "WEBP", "GIF", "BMP")},
  **dict.fromkeys((".tif", ".tiff"), ("TIFF",)),
  **dict.fromkeys((".heic", ".heif"), ("HEIF",)),
}
"""The formats that files with these endings usually have."""
_CHUNK = 1000  # Files that are handed to the threads at once.


@dataclasses.dataclass(frozen=True)
class Look:
  """The facts about one file."""

  split: str
  # As `Labels.summarise` gives it; None if it cannot be read.
  label: np.ndarray | None
  # The path relative to the root, with the reason if the file is unreadable.
  id: str
  kind: str  # Its format, such as "JPEG"; "unknown" if it cannot be told.
  # Height and width of the upright image; None if it is unreadable.
  size: tuple[int, int] | None
  odd: tuple[str, ...]  # Words for each unusual property.
  # Equal for images of equal pixels; None if it is unreadable.
  digest: bytes | None
  moments: np.ndarray | None = None  # See `_moments`; None if not measured.


@dataclasses.dataclass(frozen=True)
class Survey:
  """All files of a folder, split by split.

  Attributes:
    class_names: The names of classes, labels or targets.
    looks: The facts about each file.
    kind: The kind of the files' labels.
  """

  class_names: tuple[str, ...]
  looks: list[Look]
  kind: Labels = SINGLE

  @functools.cached_property
  def summaries(self) -> dict[str, np.ndarray]:
    """The summaries of the labels of a split's files, (N, ...), by split."""
    summaries: dict[str, list[np.ndarray]] = collections.defaultdict(list)
    for look in self.looks:
      if look.label is not None:
        summaries[look.split].append(look.label)
    return {split: np.stack(labels) for split, labels in summaries.items()}

  @property
  def overview(self) -> dict[str, dict[str, str]]:
    """A few words on each name, as `Labels.overview` gives them, by split."""
    return {
      split: self.kind.overview(labels, self.class_names)
      for split, labels in self.summaries.items()
    }

  @property
  def sizes(self) -> np.ndarray:
    """Heights and widths of the readable images, (N, 2)."""
    sizes = [look.size for look in self.looks if look.size is not None]
    return np.array(sizes, int).reshape(-1, 2)

  def normalization(self, split: str) -> list[np.ndarray]:
    """The mean and the standard deviation of each channel of a split's images.

    They are (C,), as shares of full scale; each image counts alike. The list is
    empty if no image was measured.
    """
    of_split = (look.moments for look in self.looks if look.split == split)
    found = [moments for moments in of_split if moments is not None]
    if not found:
      return []
    mean, square = np.mean(found, axis=0)
    return [mean, np.sqrt(np.maximum(square - mean**2, 0))]

  @property
  def oddities(self) -> dict[str, list[str]]:
    """The files with each oddity, the rarest oddity first."""
    files: dict[str, list[str]] = collections.defaultdict(list)
    for look in self.looks:
      for oddity in look.odd:
        files[oddity].append(look.id)
    return dict(sorted(files.items(), key=lambda item: len(item[1])))

  @property
  def copies(self) -> dict[str, list[list[str]]]:
    """Groups of files with equal pixels, by what is wrong with such copies.

    The words say whether their labels or their splits differ.
    """
    groups: dict[bytes, list[Look]] = collections.defaultdict(list)
    for look in self.looks:
      if look.digest is not None:
        groups[look.digest].append(look)
    copies: dict[str, list[list[str]]] = collections.defaultdict(list)
    for group in groups.values():
      if len(group) < 2:
        continue
      what = self.kind.copies_alike
      if len({np.asarray(look.label).tobytes() for look in group}) > 1:
        what = self.kind.copies_unlike
      elif len({look.split for look in group}) > 1:
        what = "in several splits"
      copies[what].append([look.id for look in group])
    return dict(copies)


def look_at(
  splits: Sequence[Any],
  image_spec: ImageSpec = RGB,
  kind: Labels = SINGLE,
  *,
  measured: bool = False,
) -> Iterator[Look]:
  """Reads and decodes every file once, in threads.

  Yields a `Look` for each file. `splits` are sources of files below their
  attribute `root`, whose labels are of this kind. With `measured`, the moments
  of the channels are computed as well.
  """
  with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
    for source in splits:
      for first in range(0, len(source), _CHUNK):
        chunk = range(first, min(first + _CHUNK, len(source)))
        look = functools.partial(
          _look,
          source,
          image_spec=image_spec,
          kind=kind,
          measured=measured,
        )
        yield from pool.map(look, chunk)


def _look(
  source: Any, index: int, image_spec: ImageSpec, kind: Labels, measured: bool
) -> Look:
  """Reads and decodes one file, and notes what is odd about it."""
  count = len(source.class_names)
  # A label in a file of its own is read with its image.
  known = None if kind.reader else source.labels([index])[0]
  label = None if known is None else kind.summarise(known, count)
  name = source.ids([index])[0]
  inside = name.removeprefix(os.path.join(source.root, ""))
  try:
    example = source[index]
    encoded = example["image"]
    if label is None:
      label = kind.summarise(example["label"], count)
    pixels = decode_image(encoded, image_spec)
    form, odd = describe(encoded, image_spec)
  except ValueError as error:  # The image or its mask is damaged.
    why = f"{inside}: {str(error).removeprefix(f'{name}: ')}"
    return Look(
      split=source.split,
      label=label,
      id=why,
      kind="unknown",
      size=None,
      odd=(UNREADABLE,),
      digest=None,
    )
  size = pixels.shape[0], pixels.shape[1]
  content = np.array(size).tobytes() + pixels.tobytes()
  digest = hashlib.blake2b(content, digest_size=16).digest()
  if min(size) < _SMALL:
    odd.append(f"under {_SMALL} pixels")
  if max(size) > _LONG * min(size):
    odd.append(f"longer than {_LONG} : 1")
  ending = os.path.splitext(name)[1].lower()
  if form not in _KINDS.get(ending, (form,)):
    odd.append("of another format than their name")
  return Look(
    split=source.split,
    label=label,
    id=inside,
    kind=form,
    size=size,
    odd=tuple(odd),
    digest=digest,
    moments=_moments(pixels) if measured else None,
  )


def _moments(pixels: np.ndarray) -> np.ndarray:
  """The mean of each channel and of its square, (2, C), scaled to 0 to 1."""
  x = pixels.reshape(-1, pixels.shape[-1]) / np.float32(255)
  return np.stack([x.mean(axis=0), np.square(x).mean(axis=0)]).astype(float)
