"""Files that have some of a run's bands, for models that do not need all.

Such a model has a token for each channel of a patch, and leaves out the tokens
of bands that an image lacks.
"""

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from vit_jax.data.batch import BANDS, ArraySpec, Spec
from vit_jax.data.decoding.bands import FileBands, file_bands
from vit_jax.data.decoding.decode import decode_image
from vit_jax.data.example import (
  Example,
  ImageSpec,
  Source,
  UnreadableImageError,
  evenly_spread,
)
from vit_jax.data.transforming.transforms import PlacedTransform, Places
from vit_jax.runtime.printable import counted, printable

_RGB = ("red", "green", "blue")
_LOOKED_AT = 256  # Images whose headers tell which bands are missing.


@dataclasses.dataclass(frozen=True)
class SomeBands(PlacedTransform):
  """Images with the bands that their files have; the run's other bands are 0.

  `image` has all bands of the run, and `bands`, booleans (C,), says which of
  them the file has. A file's bands are those whose names it holds, as GDAL
  writes them. Without such names, a file of C bands has those of the run in
  their order, and a file of colours has red, green and blue.

  Attributes:
    images: A transform from the module `transforms`.
    names: The bands of the run.
  """

  images: Any
  names: tuple[str, ...]
  topic: ClassVar[str] = "bands"  # The topic of the line that `about` gives.

  @property
  def image_shape(self) -> tuple[int, int, int]:
    return self.images.image_shape

  @property
  def spec(self) -> Spec:
    return {**super().spec, BANDS: ArraySpec((len(self.names),), bool)}

  def row(
    self, example: Example, *rng: np.random.Generator
  ) -> Mapping[str, np.ndarray]:
    arrays, _ = self.row_and_places(example["image"], *rng)
    return arrays

  def row_and_places(
    self, encoded: bytes, *rng: np.random.Generator
  ) -> tuple[Mapping[str, np.ndarray], Places]:
    """The pixels and `bands` of an encoded image, and where they lie in it.

    The pixels are uint8 (H, W, C), with 0 in bands that are missing. Raises
    UnreadableImageError as `places_of_bands` does, or if the file is damaged.
    """
    bands = file_bands(encoded, len(self.names))
    found = places_of_bands(bands, self.names)
    images = _with_channels(self.images, len(bands.names))
    pixels, places = images.pixels_and_places(encoded, *rng)
    image, has = _of_run(pixels, found, len(self.names))
    return {"image": image, BANDS: has}, places

  def about(self, source: Source) -> str:
    """A line if some of a few images lack bands, else ""."""
    lacks: Counter[str] = Counter()
    seen = 0
    for index in evenly_spread(_LOOKED_AT, len(source)):
      with contextlib.suppress(UnreadableImageError):
        bands = file_bands(source[index]["image"], len(self.names))
        found = places_of_bands(bands, self.names)
        seen += 1
        lacks.update(set(self.names) - {self.names[i] for i in found.values()})
    if not lacks:
      return ""
    missing = [name for name in self.names if lacks[name]]
    each = ", ".join(f"{lacks[name]} lack {name}" for name in missing)
    return f"of {seen} images looked at, {each}; these tokens are left out"


def whole_image(
  encoded: bytes, spec: ImageSpec, names: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
  """A whole image of a run whose files may have some of its bands.

  Returns all bands of the run, uint8 (H, W, C), with 0 in those that the file
  lacks, and booleans (C,), which say which bands it has. Raises
  UnreadableImageError as `places_of_bands` does, or if the file is damaged.
  `names` are the run's bands.
  """
  found = places_of_bands(file_bands(encoded, len(names)), names)
  return _of_run(decode_image(encoded, spec), found, len(names))


def _of_run(
  pixels: np.ndarray, found: Mapping[int, int], count: int
) -> tuple[np.ndarray, np.ndarray]:
  """The bands of a run, from those of a file, which are at the places `found`.

  Returns the pixels, uint8 (H, W, count), and booleans (count,), which say
  which bands the file has.
  """
  image = np.zeros((*pixels.shape[:2], count), np.uint8)
  image[..., [*found.values()]] = pixels[..., [*found]]
  has = np.zeros(count, bool)
  has[[*found.values()]] = True
  return image, has


def _with_channels(transform: Any, channels: int) -> Any:
  """The transform for files of `channels` bands, which are read as stored."""
  if hasattr(transform, "transform"):  # `UpperLeft`
    inner = _with_channels(transform.transform, channels)
    return dataclasses.replace(transform, transform=inner)
  spec = dataclasses.replace(
    transform.image_spec, channels=channels, stored=True, some_bands=False
  )
  return dataclasses.replace(transform, image_spec=spec)


def places_of_bands(bands: FileBands, names: Sequence[str]) -> dict[int, int]:
  """The places of a file's bands among a run's bands, which have these `names`.

  Returns the place in the run by the place in the file; bands that only the
  file or only the run has are left out. Bands are compared by their names,
  without regard to case. Raises UnreadableImageError if the file has none of
  the run's bands, or nothing says which bands it has.
  """
  wanted = [name.lower() for name in names]
  unnamed: Sequence[str] = ()  # The names where the file gives none.
  if len(bands.names) == len(names):
    unnamed = wanted
  elif bands.are_colours:
    unnamed = _RGB
  for known in (bands.names, unnamed):
    found: dict[str, int] = {}
    for index, name in enumerate(known):
      found.setdefault(name.lower(), index)
    if places := {found[n]: i for i, n in enumerate(wanted) if n in found}:
      return places
  given = [printable(name) for name in bands.names if name] or unnamed
  has = f"it has {', '.join(given)}"
  if not given:
    has = f"it does not name its {counted(len(bands.names), 'band')}"
  raise UnreadableImageError(
    f"its bands must be some of {', '.join(names)}, and {has}: name them in "
    "the file, as GDAL's descriptions of bands."
  )
