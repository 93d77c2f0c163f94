"""Masks of image files, at the images' own sizes, with overlays."""

import functools
import os
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from vit_jax.data.decoding.decode import decode_image
from vit_jax.data.example import ImageSpec, UnreadableImageError
from vit_jax.data.transforming.some_bands import whole_image
from vit_jax.inference import reading
from vit_jax.runtime.files import replacing
from vit_jax.runtime.printable import say, say_once
from vit_jax.tasks.answers import PixelFiles
from vit_jax.tasks.pictures import as_photograph

_AHEAD = 4  # Images decoded ahead of the one in use.
Mark = Callable[..., np.ndarray]
"""A function from an image's pixels (H, W, C) to its mask.

If the image may lack bands, booleans (C,) follow, which say which it has. The
function may raise UnreadableImageError."""
Track = Callable[[Sequence[str]], Iterable[str]]
"""A function that passes files on, and may show how many are done."""


def write_masks(
  mark: Mark,
  files: Iterable[str],
  folder: str,
  spec: ImageSpec,
  kind: PixelFiles,
  track: Track = iter,
  bands: Sequence[str] = (),
) -> tuple[int, int, list[str]]:
  """Writes masks and `overlays` into two folders below `folder`.

  Both have the images' names, see `mask_names`.

  Args:
    mark: Computes the mask from an image's pixels (H, W, C).
    files: The image files.
    folder: The folder; that of the masks is called as `kind.folder` says.
    spec: How a file becomes pixels.
    kind: How masks are written and shown.
    track: Passes the files on, and may show how many are done.
    bands: The names of the channels, if `spec` takes files that lack some.

  Returns:
    The number of masks, the number of unreadable images, and lines with
    statistics over all masks.

  Raises:
    ValueError: if the folder of masks holds files and has no overlays beside
      it, as it may be that of the masks that people have drawn.
  """
  files = [*files]
  masks = pathlib.Path(folder, kind.folder)
  overlays = pathlib.Path(folder, "overlays")
  if not overlays.exists() and masks.is_dir() and any(masks.iterdir()):
    raise ValueError(
      f"{masks} holds files that this command has not written, and would be "
      "written over: give another folder."
    )
  masks.mkdir(parents=True, exist_ok=True)
  overlays.mkdir(parents=True, exist_ok=True)
  written = 0

  def decode(encoded: bytes) -> tuple[np.ndarray, ...]:
    """The arguments of `mark`."""
    if spec.some_bands:
      return whole_image(encoded, spec, bands)
    image = decode_image(encoded, spec)
    reading.say_channels(encoded, spec)
    return (image,)

  decoded = reading.decode_ahead(track(files), decode, _AHEAD)
  names = mask_names(files, kind.ending)
  for (path, given), name in zip(decoded, names, strict=True):
    mask = given if isinstance(given, str) else _mask_or_reason(mark, *given)
    if isinstance(given, str) or isinstance(mask, str):
      say(f"{reading.name_of(path, 0)}: {mask}")
      continue
    image, *has = given
    if not np.all(has):
      say_once(reading.LACKS_BANDS)
    kind.add(mask)
    overlay = Image.fromarray(kind.overlay(as_photograph(image), mask))
    _save(masks / name, functools.partial(kind.save, mask))
    overlay_path = (overlays / name).with_suffix(".png")
    _save(overlay_path, functools.partial(overlay.save, format="PNG"))
    written += 1
    if os.path.splitext(os.path.basename(path))[0] != pathlib.Path(name).stem:
      say(f"{reading.name_of(path, 0)}: its {kind.one} is {masks / name}.")
  return written, len(files) - written, kind.lines()


def mask_names(files: Sequence[str], ending: str = ".png") -> list[str]:
  """The name of each image's mask, a relative path with this ending.

  It is relative to the innermost folder that holds all images. If two images
  would get the same name, the second gets a number.

  >>> from vit_jax.inference.mask_files import mask_names
  >>> mask_names(["a/x.jpg", "a/y.jpg", "a/x.png"])
  ['x.png', 'y.png', 'x_2.png']
  >>> mask_names(["a/x.jpg", "b/x.jpg"])
  ['a/x.png', 'b/x.png']
  """
  paths = [os.path.abspath(path) for path in files]
  folders = {os.path.dirname(path) for path in paths}
  top = os.path.commonpath(folders) if folders else ""
  # A folder may have the name that a mask would get.
  taken = {os.path.relpath(folder, top) for folder in folders}
  names = []
  for path in paths:
    stem = os.path.splitext(os.path.relpath(path, top))[0]
    name, number = f"{stem}{ending}", 2
    while name in taken:
      name = f"{stem}_{number}{ending}"
      number += 1
    taken.add(name)
    names.append(name)
  return names


def _mask_or_reason(mark: Mark, *image: np.ndarray) -> np.ndarray | str:
  """The mask of an image, or the reason why it cannot be computed."""
  try:
    return mark(*image)
  except UnreadableImageError as error:
    return str(error)


def _save(path: pathlib.Path, save: Callable[[Any], None]) -> None:
  """Has `save` write a file, which appears complete or not at all."""
  path.parent.mkdir(parents=True, exist_ok=True)
  with replacing(path) as out:
    save(out)
