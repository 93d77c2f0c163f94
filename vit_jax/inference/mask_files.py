"""Masks of image files, at the images' own sizes, with overlays."""

import collections
import io
import os
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from vit_jax.data.decoding.decode import decode_image
from vit_jax.data.example import ImageSpec
from vit_jax.data.reading.mask_folder import IGNORED
from vit_jax.inference import reading
from vit_jax.runtime.files import replacing
from vit_jax.runtime.printable import say
from vit_jax.tasks.reconstructed_pictures import as_photograph
from vit_jax.tasks.segmentation_pictures import overlay, palette
from vit_jax.tasks.task import class_name

_AHEAD = 4  # Images decoded ahead of the one in use.
Mark = Callable[[np.ndarray], np.ndarray]


def write_masks(
  mark: Mark,
  files: Iterable[str],
  folder: str,
  spec: ImageSpec,
  names: Sequence[str],
) -> tuple[int, int, list[str]]:
  """Writes `masks` and `overlays` of images into a folder.

  Each has the name of its image, and a number if that is taken. A mask is a PNG
  of indices with a palette, or of 16 bits for more than 255 classes.

  Args:
    mark: From an image's pixels (H, W, C) to the class of each.
    spec: How a file becomes pixels.
    names: Names of the classes.

  Returns:
    The number of masks, that of unreadable images, and lines with the share of
    the pixels that each class has.
  """
  places = [pathlib.Path(folder, kind) for kind in ("masks", "overlays")]
  for place in places:
    place.mkdir(parents=True, exist_ok=True)
  taken: collections.Counter[str] = collections.Counter()
  pixels: collections.Counter[int] = collections.Counter()
  unreadable = 0

  def decode(encoded: bytes) -> np.ndarray:
    return decode_image(encoded, spec)

  for path, image in reading.decode_ahead(files, decode, _AHEAD):
    if isinstance(image, str):
      unreadable += 1
      say(f"{reading.name_of(path, 0)}: {image}")
      continue
    mask = mark(image)
    pixels.update(dict(zip(*np.unique(mask, return_counts=True), strict=True)))
    name = _name(path, taken)
    drawn = Image.fromarray(overlay(as_photograph(image), mask))
    for place, picture in zip(places, (_indices(mask), drawn), strict=True):
      _save(place / name, picture)
  total = max(sum(pixels.values()), 1)
  lines = [
    f"{count / total:6.1%}  {class_name(names, int(k))}"
    for k, count in pixels.most_common()
  ]
  return sum(taken.values()), unreadable, lines


def _name(path: Any, taken: collections.Counter[str]) -> str:
  stem = os.path.splitext(os.path.basename(os.fspath(path)))[0]
  taken[stem] += 1
  return f"{stem}_{taken[stem]}.png" if taken[stem] > 1 else f"{stem}.png"


def _indices(mask: np.ndarray) -> Image.Image:
  if mask.max(initial=0) > IGNORED:
    return Image.fromarray(mask.astype(np.uint16))
  picture = Image.fromarray(mask.astype(np.uint8)).convert("P")
  picture.putpalette(palette().tobytes())
  return picture


def _save(path: pathlib.Path, picture: Image.Image) -> None:
  file = io.BytesIO()
  picture.save(file, "PNG")
  with replacing(path) as out:
    out.write(file.getvalue())
