"""Reads and preprocesses images: files, Pillow images and arrays."""

import io
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from vit_jax.data.decoding.orientation import upright
from vit_jax.data.example import MAX_BYTES, UnreadableImageError
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading.image_files import find_images
from vit_jax.data.transforming.transforms import EvalTransform
from vit_jax.runtime.files import open_regular
from vit_jax.runtime.printable import printable_path
from vit_jax.training.sharding import begun_ahead

Picture = str | os.PathLike | Image.Image | np.ndarray
"""A path, a Pillow image, or an array, uint8 (H, W) or (H, W, 1 to 4)."""
Pictures = Picture | Iterable[Picture]
"""Pictures, a single one, or a folder or a pattern, for all of its images."""

_MOST_CHANNELS = 4
_MOST_THREADS = 16
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")


def each_picture(images: Pictures) -> Iterable[Picture]:
  """Iterates over pictures; a single one need not be in a list.

  An array (H, W) or (H, W, 1 to 4) is a single picture, and (B, H, W, C) has B
  of them. A folder or a pattern, such as "photos/*.jpg", has all images that it
  stands for. Raises ValueError for other arrays of pixels, and for what is
  neither a picture nor iterable.
  """
  if isinstance(images, str | os.PathLike):
    return [*find_images(images)] or [images]
  if isinstance(images, Image.Image):
    return [images]
  pictures: Any = images
  shape = getattr(pictures, "shape", None)
  if shape is None:
    if isinstance(pictures, bytes) or not isinstance(pictures, Iterable):
      raise ValueError(
        f"images of type {type(pictures).__name__}; give paths, Pillow images "
        "or arrays, uint8 (H, W, 3), one or a list."
      )
    return pictures
  if _is_picture(shape):
    return [pictures]
  if len(shape) not in (1, 4):  # An array of paths has one axis.
    raise ValueError(
      f"an array of shape {tuple(shape)} is no picture, (H, W, 3), and no "
      "batch, (B, H, W, 3): transpose channels that come first, and give grey "
      "pictures as (B, H, W, 1)."
    )
  return pictures


def _is_picture(shape: tuple[int, ...]) -> bool:
  """Whether an array of this shape is one picture: (H, W) or (H, W, 1 to 4).

  An array (W, 3) is a row of pixels, not a grey picture of width 3.
  """
  if 0 in shape:
    return False
  if len(shape) == 2:
    return shape[1] > _MOST_CHANNELS
  return len(shape) == 3 and 1 <= shape[2] <= _MOST_CHANNELS


def read_images(
  preprocessing: Preprocessing, images: Pictures
) -> UInt8[np.ndarray, "B H W C"]:
  """Reads images and preprocesses them, except for the normalisation.

  A single one is a batch of one. Raises ValueError if an image cannot be read,
  or the image size is unknown. The images should be few, as all are held in
  memory.
  """
  transform = preprocessing.transform()
  pixels = []
  for number, picture in enumerate(each_picture(images), start=1):
    image = read_image(picture, transform)
    if isinstance(image, str):
      raise ValueError(f"{name_of(picture, number)}: {image}")
    pixels.append(image)
  return np.stack(pixels)


def name_of(picture: Picture, number: int) -> str:
  """The name of a file, or "image 3" for the third image if it has no file."""
  if isinstance(picture, str | os.PathLike):
    return printable_path(os.fspath(picture))
  return f"image {number}"


def decode_ahead(
  images: Iterable[Picture], transform: EvalTransform, ahead: int
) -> Iterator[tuple[Any, np.ndarray | str]]:
  """Yields each picture with its pixels, or why it cannot be read.

  Threads read `ahead` pictures in advance.
  """
  pool = ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1))
  reads = ((p, pool.submit(read_image, p, transform)) for p in images)
  try:
    for picture, image in begun_ahead(reads, ahead):
      yield picture, image.result()
  finally:
    pool.shutdown(wait=False, cancel_futures=True)  # A read may hang.


def read_image(picture: Picture, transform: EvalTransform) -> np.ndarray | str:
  """Returns an image, uint8 (H, W, C), or the reason it cannot be read.

  Raises ValueError for an array of another type or shape.
  """
  try:
    return transform(_encoded(picture))
  except UnreadableImageError as error:
    return str(error)
  except OSError as error:
    return f"{error.strerror}."


def _encoded(picture: Picture) -> bytes:
  """The bytes of an image file; an image in memory becomes a PNG file.

  So every image takes the one way whose pixels are tested against other
  libraries.
  """
  if isinstance(picture, str | os.PathLike):
    with open_regular(picture, MAX_BYTES) as file:
      return file.read()
  image = picture if isinstance(picture, Image.Image) else _from_array(picture)
  image = upright(image)
  if image.mode not in _PNG_MODES:
    image = image.convert("RGB")
  file = io.BytesIO()
  image.save(file, "PNG", compress_level=0)
  return file.getvalue()


def _from_array(array: Any) -> Image.Image:
  """A Pillow image; raises ValueError for another type or shape."""
  shape = getattr(array, "shape", ())
  dtype = getattr(array, "dtype", None)
  if dtype != np.uint8 or not _is_picture(shape):
    floats = ""
    if dtype is not None and np.dtype(dtype).kind in "fV":  # bfloat16 is V.
      floats = (
        " Floats that are normalised already are for the model: "
        'model.apply({"params": params}, images).'
      )
    raise ValueError(
      f"an image of shape {tuple(shape)} and type {dtype or type(array)}; give "
      "a path, a Pillow image or an array, uint8 (H, W, 3), one image each."
      f"{floats}"
    )
  image = np.asarray(array)
  return Image.fromarray(image[..., 0] if shape[2:] == (1,) else image)
