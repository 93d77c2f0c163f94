"""Reads and preprocesses images: files, Pillow images and arrays."""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from vit_jax.data.batch import Batch
from vit_jax.data.decoding.picture import Picture, as_file, is_picture
from vit_jax.data.example import ImageSpec, UnreadableImageError
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading.folders import EXTENSIONS
from vit_jax.data.reading.named_images import find_images, say_left_out
from vit_jax.runtime.files import real_path
from vit_jax.runtime.printable import printable_path, say_once
from vit_jax.training.sharding import start_ahead

Pictures = Picture | Iterable[Picture]
"""Pictures, a single one, or a folder or a pattern that stands for several."""

_MOST_THREADS = 16
LACKS_BANDS = (
  "Some images lack bands of the model: the tokens of these bands are left out."
)
"""The line on images of which a batch's `bands` are not all true."""
_ADDS_ALPHA = (
  "Some images have no alpha, which is the last of the model's {} channels: it "
  "is 255 for them."
)
_LEAVES_OUT = (
  "Some images have further bands or pages that are not marked as alpha: the "
  "model's channels={} leaves them out, or takes one for alpha if the file has "
  "no marks."
)


def each_picture(images: Pictures) -> Iterable[Picture]:
  """The pictures one by one; a single one need not be in a list.

  The bytes of a file, or an open file, are a single picture; so is an array
  (H, W) or (H, W, 1 to 4), and (B, H, W, C) has B pictures. A folder or a
  pattern, such as "photos/*.jpg", stands for its images, in a list too. Raises
  ValueError for other arrays of pixels, and for anything else that is neither a
  picture nor iterable.
  """
  if isinstance(images, str | os.PathLike):
    return _images_of(images)
  if isinstance(images, Image.Image | bytes):
    return [images]
  pictures: Any = images
  if hasattr(pictures, "read"):  # An open file.
    return [pictures.read()]
  shape = getattr(pictures, "shape", None)
  if shape is None:
    if not isinstance(pictures, Iterable):
      raise ValueError(
        f"images of type {type(pictures).__name__}; give paths, Pillow images "
        "or arrays, uint8 (H, W, 3), one or a list."
      )
  elif is_picture(shape):
    return [pictures]
  elif len(shape) not in (1, 4):  # An array of paths has one axis.
    raise ValueError(
      f"an array of shape {tuple(shape)} is neither a picture, (H, W, 3), nor "
      "a batch, (B, H, W, 3): transpose channels that come first, and give "
      "grey pictures as (B, H, W, 1)."
    )
  return itertools.chain.from_iterable(map(_images_of, pictures))


def _images_of(picture: Picture) -> Iterable[Picture]:
  """The images that a path stands for, or else the picture itself."""
  if not isinstance(picture, str | os.PathLike):
    return [picture]
  say_left_out(picture)
  return [*find_images(picture)] or [picture]


def is_one(images: Pictures) -> bool:
  """Whether these are one picture, and not a list, a folder or a pattern."""
  if isinstance(images, str | os.PathLike):
    path = os.path.expanduser(os.fspath(images))
    return [*itertools.islice(find_images(path), 2)] in ([], [path])
  if isinstance(images, Image.Image | bytes) or hasattr(images, "read"):
    return True
  return is_picture(getattr(images, "shape", ()))


def is_text(query: Any) -> bool:
  """Whether a query is a text, and not the name of a file.

  A query with a folder, a "*" or the ending of images is the name of a file,
  even if that file is missing.
  """
  if not isinstance(query, str) or os.path.lexists(os.path.expanduser(query)):
    return False
  if os.sep in query or "*" in query:
    return False
  ending = os.path.splitext(query)[1].lower()
  return os.fsencode(ending) not in EXTENSIONS


def without_query(images: Pictures, query: Picture) -> list[Any]:
  """The pictures without the file `query`, to which they are compared.

  Raises ValueError if no picture is left.
  """
  query_path = None
  if isinstance(query, str | os.PathLike):
    query_path = real_path(query)

  def is_query(picture: Any) -> bool:
    is_file = isinstance(picture, str | os.PathLike)
    return is_file and os.path.realpath(picture) == query_path

  others = [one for one in each_picture(images) if not is_query(one)]
  if not others:
    raise ValueError(
      "there are no other images to search: give a folder or a list of them."
    )
  return others


def read_images(
  preprocessing: Preprocessing, images: Pictures
) -> UInt8[np.ndarray, "B H W C"]:
  """Reads images and preprocesses them, except for the normalisation.

  A single image is a batch of one. The images should be few, as all are held in
  memory. Raises ValueError if an image cannot be read, no image is given, or
  the image size is unknown.
  """
  return read_batch(preprocessing, images)["image"]


def read_batch(preprocessing: Preprocessing, images: Pictures) -> Batch:
  """The batch of images, with all arrays of the preprocessing's transform.

  Raises ValueError as `read_images` does.
  """
  read = make_reader(preprocessing)
  rows: list[Mapping[str, Any]] = []
  for number, picture in enumerate(each_picture(images), start=1):
    arrays = read_image(picture, read)
    if isinstance(arrays, str):
      raise ValueError(f"{name_of(picture, number)}: {arrays}")
    rows.append(arrays)
  if not rows:
    raise ValueError("there is no image: give at least one.")
  return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def make_reader(
  preprocessing: Preprocessing,
) -> Callable[[bytes], Mapping[str, Any]]:
  """Returns a function that preprocesses an image file's bytes.

  A line says if any image gets an alpha of 255 as the model's last channel, or
  has bands that the model's channels leave out.
  """
  transform = preprocessing.transform()
  spec = preprocessing.spec

  def read(encoded: bytes) -> Mapping[str, Any]:
    arrays = transform.row({"image": encoded, "label": 0, "id": ""})
    say_channels(encoded, spec)
    return arrays

  return read


def say_channels(encoded: bytes, spec: ImageSpec) -> None:
  """Says if a readable image gets an alpha of 255, or if bands are left out."""
  from vit_jax.data.decoding.pillow import gets_alpha, leaves_out_bands

  if gets_alpha(encoded, spec):
    say_once(_ADDS_ALPHA.format(spec.channels))
  if leaves_out_bands(encoded, spec):
    say_once(_LEAVES_OUT.format(spec.channels))


def name_of(picture: Picture, number: int) -> str:
  """The name of a file, or "image 3" for the third image if it has no file."""
  if isinstance(picture, str | os.PathLike):
    return printable_path(os.fspath(picture))
  return f"image {number}"


def decode_ahead(
  images: Iterable[Picture], transform: Callable[[bytes], Any], ahead: int
) -> Iterator[tuple[Any, Any | str]]:
  """Yields each picture, and its transform or the reason it cannot be read.

  Threads read `ahead` pictures in advance.
  """
  pool = ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1))
  reads = ((p, pool.submit(read_image, p, transform)) for p in images)
  try:
    for picture, image in start_ahead(reads, ahead):
      yield picture, image.result()
  finally:
    pool.shutdown(wait=False, cancel_futures=True)  # A read may hang.


def read_image(
  picture: Picture, transform: Callable[[bytes], Any]
) -> Any | str:
  """Returns the transform of an image, or the reason it cannot be read.

  Raises ValueError for an array that is no picture by its type or shape.
  """
  try:
    return transform(as_file(picture))
  except UnreadableImageError as error:
    return str(error)
  except OSError as error:
    return f"{error.strerror}."
