"""The bands of an image file, by its header alone."""

import html
import math
import re
from typing import NamedTuple

from vit_jax.data.decoding import png
from vit_jax.data.decoding.pillow import TIFF_STARTS, as_unreadable, open_tiff

_GDAL_METADATA = 42_112  # GDAL's tag of TIFF for its own metadata.
_PHOTOMETRIC, _IS_RGB = 262, 2
_ITEM = re.compile(r"<Item\b([^<>]*)>([^<>]*)</Item>")
_SAMPLE = re.compile(r'\bsample="(\d{1,4})"')
_RGBA = b"\x06"  # The colour type of RGBA in the header of a PNG file.


class FileBands(NamedTuple):
  """The bands of a file.

  Attributes:
    names: The name of each band; "" for a band that the file does not name.
    are_colours: Whether the first three bands are red, green and blue.
  """

  names: tuple[str, ...]
  are_colours: bool


def file_bands(encoded: bytes, channels: int) -> FileBands:
  """The bands of an image file, for a run of `channels` bands.

  TIFF files may name them, as GDAL writes the descriptions of bands. All other
  files are read as RGB; but if the run has four bands, a PNG file of RGBA has
  four as well.

  Raises UnreadableImageError if the file is damaged, or tifffile is needed and
  not installed.
  """
  if not encoded.startswith(TIFF_STARTS):
    is_rgba = encoded.startswith(png.START) and encoded[25:26] == _RGBA
    count = 4 if is_rgba and channels == 4 else 3
    return FileBands(("",) * count, are_colours=True)
  with as_unreadable(), open_tiff(encoded) as file:
    series = file.series[0]
    tags = file.pages.first.tags
    sizes = zip(series.axes, series.shape, strict=True)
    count = math.prod(size for axis, size in sizes if axis not in "YX")
    text = str(tags.valueof(_GDAL_METADATA) or "")
    are_colours = tags.valueof(_PHOTOMETRIC) == _IS_RGB and count >= 3
  return FileBands(_described(text, count), are_colours)


def _described(text: str, count: int) -> tuple[str, ...]:
  """The descriptions of bands in GDAL's metadata, "" for bands without one."""
  names = [""] * count
  for attributes, content in _ITEM.findall(text):
    sample = _SAMPLE.search(attributes)
    if sample is None or 'role="description"' not in attributes:
      continue
    if (place := int(sample[1])) < count:
      names[place] = html.unescape(content).strip()
  return tuple(names)
