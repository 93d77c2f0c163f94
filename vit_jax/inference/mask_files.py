"""Masks of image files, at the images' own sizes, with overlays."""

import os
import pathlib
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from PIL import Image

from vit_jax.data.decoding.decode import decode_image
from vit_jax.data.example import ImageSpec, UnreadableImageError
from vit_jax.data.reading.mask_folder import IGNORED
from vit_jax.inference import reading
from vit_jax.runtime.files import replacing
from vit_jax.runtime.printable import say
from vit_jax.tasks.pictures import as_photograph
from vit_jax.tasks.segmentation.pictures import overlay, palette, strips
from vit_jax.tasks.task import class_name

_AHEAD = 4  # Images decoded ahead of the one in use.
Mark = Callable[[np.ndarray], np.ndarray]
Track = Callable[[Sequence[str]], Iterable[str]]


def write_masks(
  mark: Mark,
  files: Iterable[str],
  folder: str,
  spec: ImageSpec,
  names: Sequence[str],
  track: Track = iter,
) -> tuple[int, int, list[str]]:
  """Writes `masks` and `overlays` of images into a folder.

  Both have the images' names, see `mask_names`. A mask is a PNG of indices with
  a palette, or of 16 bits for more than 255 classes.

  Args:
    mark: From an image's pixels (H, W, C) to the class of each.
    spec: How a file becomes pixels.
    names: Names of the classes.
    track: Passes the files on, and may show how many are done.

  Returns:
    The number of masks, that of unreadable images, and lines with the share of
    the pixels that each class has.
  """
  files = [*files]
  places = [pathlib.Path(folder, kind) for kind in ("masks", "overlays")]
  for place in places:
    place.mkdir(parents=True, exist_ok=True)
  counts = np.zeros(0, np.int64)
  written = 0

  def decode(encoded: bytes) -> np.ndarray:
    return decode_image(encoded, spec)

  decoded = reading.decode_ahead(track(files), decode, _AHEAD)
  for (path, image), name in zip(decoded, mask_names(files), strict=True):
    mask = image if isinstance(image, str) else _marked(mark, image)
    if isinstance(image, str) or isinstance(mask, str):
      say(f"{reading.name_of(path, 0)}: {mask}")
      continue
    counts = _with_pixels(counts, mask)
    drawn = Image.fromarray(overlay(as_photograph(image), mask, len(names)))
    for place, picture in zip(
      places, (_indices(mask, len(names)), drawn), strict=True
    ):
      _save(place / name, picture)
    written += 1
    if os.path.splitext(os.path.basename(path))[0] != pathlib.Path(name).stem:
      say(f"{reading.name_of(path, 0)}: its mask is {places[0] / name}.")
  total = max(int(counts.sum()), 1)
  lines = [
    f"{counts[k] / total:6.1%}  {class_name(names, int(k))}"
    for k in np.argsort(-counts, kind="stable")
    if counts[k]
  ]
  return written, len(files) - written, lines


def mask_names(files: Sequence[str]) -> list[str]:
  """The name of each image's mask, a path from the folder of all images on.

  It has the folders that the images lie in below the innermost one that holds
  them all. Of two images of one name, the second gets a number.

  >>> from vit_jax.inference.mask_files import mask_names
  >>> mask_names(["a/x.jpg", "a/y.jpg", "a/x.png"])
  ['x.png', 'y.png', 'x_2.png']
  >>> mask_names(["a/x.jpg", "b/x.jpg"])
  ['a/x.png', 'b/x.png']
  """
  paths = [os.path.abspath(path) for path in files]
  folders = {os.path.dirname(path) for path in paths}
  top = os.path.commonpath(folders) if folders else ""
  # A folder may be called as a mask would be.
  taken = {os.path.relpath(folder, top) for folder in folders}
  names = []
  for path in paths:
    stem = os.path.splitext(os.path.relpath(path, top))[0]
    name, number = f"{stem}.png", 2
    while name in taken:
      name, number = f"{stem}_{number}.png", number + 1
    taken.add(name)
    names.append(name)
  return names


def _marked(mark: Mark, image: np.ndarray) -> np.ndarray | str:
  """The mask of an image, or why there is none."""
  try:
    return mark(image)
  except UnreadableImageError as error:
    return str(error)


def _with_pixels(counts: np.ndarray, mask: np.ndarray) -> np.ndarray:
  """The number of pixels of each class so far, and in one more mask."""
  for rows in strips(mask.shape):
    more = np.bincount(mask[rows].ravel(), minlength=len(counts))
    more[: len(counts)] += counts
    counts = more
  return counts


def _indices(mask: np.ndarray, classes: int) -> Image.Image:
  if classes > IGNORED or mask.max(initial=0) > IGNORED:
    return Image.fromarray(mask.astype(np.uint16))
  picture = Image.fromarray(mask.astype(np.uint8))
  picture.putpalette(palette().tobytes())
  return picture


def _save(path: pathlib.Path, picture: Image.Image) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  with replacing(path) as out:
    picture.save(out, "PNG")
