"""Lines on how the images that a run answers relate to its training images."""

import contextlib
import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import numpy as np

from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading.folders import images_below
from vit_jax.data.reading.named_images import find_images
from vit_jax.data.reading.sources import open_source
from vit_jax.data.settings import settings_of_saved
from vit_jax.inference.reading import each_picture, make_reader, read_image
from vit_jax.runtime.printable import printable_path

_MOST_READ = 100  # Pictures whose pixels are read.
# With more images, in the run's folder or to be answered, none are compared.
MOST_IMAGES = 100_000
_MOST_COPIED = 10_000  # Training images among which copies are looked for.


def overlap_of_answers(
  description: Mapping[str, Any] | None, labels: Any, images: Any
) -> str:
  """A line on how many of the images to answer the run was trained on.

  The description holds the run's folder of images and how it was split, so the
  training split is opened again. The line counts the files of this split and,
  for up to 10,000 training images, files elsewhere that have the bytes of one
  of them. If no file can be of either kind, nothing is opened. The line is ""
  if the count is 0. With more than 100,000 images, in the run's folder or to be
  answered, nothing is counted: if any to be answered is in the run's folder,
  the line then says that the run was trained on this folder.

  Args:
    description: The description of a `Loaded`; None for published weights.
    labels: The kind of the labels of the run's task.
    images: Paths, folders and patterns; anything else is ignored.
  """
  return _overlap_line(description, labels, _files(images), "answer")


def digits_advice(
  description: Mapping[str, Any] | None,
  preprocessing: Preprocessing,
  images: Any,
) -> str:
  """A line on how pictures have to look for a run on the data set `digits`.

  Only the first 100 pictures are read. The line is "" for other runs, and if no
  picture can be read. All 1,797 digits have a black background, and their
  borders are at most 28 % bright on average. The pixels of a digit that are
  brighter than 25 % touch two opposite edges of its picture. A picture whose
  border is brighter than 50 %, or whose digit is neither as high nor as wide as
  the picture, does not look like these.

  Args:
    description: As in `overlap_of_answers`.
    images: Pictures, as `predict` takes them; an iterator is ignored.
    preprocessing: The model's preprocessing.
  """
  data = (description or {}).get("config", {}).get("data", {})
  size = preprocessing.image_size
  places = (data.get(key) for key in ("root", "dir", "labels_file"))
  if data.get("name") != "digits" or any(places) or size is None:
    return ""
  read = make_reader(preprocessing)
  # The answers have used up an iterator.
  pictures = () if isinstance(images, Iterator) else each_picture(images)
  some = itertools.islice(pictures, _MOST_READ)
  arrays = [read_image(picture, read) for picture in some]
  pixels = [each["image"] for each in arrays if not isinstance(each, str)]
  if not pixels:
    return ""
  general = (
    "This run was trained on light digits on black, as high or as wide as "
    f"their picture, and reads each picture in {size[0]} x {size[1]} pixels."
  )
  lines = [general]
  of = f"of these {len(pixels):,} pictures"
  are_bright = [_border(image) > 255 / 2 for image in pixels]
  if bright := sum(are_bright):
    count = f"{bright:,} {of} have bright borders"
    if len(pixels) == 1:
      count = "The border of this picture is bright"
    lines.append(f"{count}: invert dark digits on white paper.")
  pairs = zip(pixels, are_bright, strict=True)
  inverted = [255 - image if is_bright else image for image, is_bright in pairs]
  if small := sum(not _fills(image) for image in inverted):
    count = f"{small:,} {of} have a digit that does not fill them"
    if len(pixels) == 1:
      count = "The digit does not fill this picture"
    lines.append(
      f"{count}: crop to the digit, and pad it with black to a square."
    )
  return " ".join(lines)


def overlap_of_score(
  description: Mapping[str, Any] | None, labels: Any, files: Iterable[str]
) -> str:
  """A line on how many of the images of a score a run was trained on.

  It is "" if no image is in the training split, as in `overlap_of_answers`.

  Args:
    description, labels: As in `overlap_of_answers`.
    files: The paths of the images.
  """
  return _overlap_line(description, labels, files, "score")


def _overlap_line(
  description: Mapping[str, Any] | None,
  labels: Any,
  files: Iterable[str],
  what: Literal["answer", "score"],
) -> str:
  """The line of `overlap_of_answers` or `overlap_of_score`."""
  data = (description or {}).get("config", {}).get("data", {})
  root = data.get("root")
  if not (root and os.path.isdir(root)):
    return ""
  paths = [*itertools.islice(files, MOST_IMAGES + 1)]
  inside, elsewhere = _by_place(root, paths)
  count = (description or {}).get("train_examples") or MOST_IMAGES
  if count > _MOST_COPIED or len(paths) > MOST_IMAGES:
    elsewhere = []
  if not (inside or elsewhere):
    return ""
  if inside and (len(paths) > MOST_IMAGES or _has_too_many(root)):
    verdicts = {
      "answer": "its answers for those say nothing about new images.",
      "score": "the score says little about new ones.",
    }
    place = printable_path(os.fsencode(root))
    return f"This run was trained on images of {place}: {verdicts[what]}"
  with contextlib.suppress(ValueError, OSError):
    settings = settings_of_saved(data)
    source: Any = open_source("train", settings, labels)
    trained = len({*source.ids(range(len(source)))} & inside)
    if elsewhere:
      trained += _count_copies(elsewhere, source.files())
    if trained:
      return _counts_line(trained, len(paths), what)
  return ""


def _counts_line(trained: int, total: int, what: str) -> str:
  """The line for `trained` of `total` images that were trained on.

  `what`, "score" or "answer", is what then says little or nothing.
  """
  if trained == total == 1:
    return f"This image was trained on: its {what} says nothing about new ones."
  if trained == total:
    images = f"All {total:,} images were"
  else:
    images = f"{trained:,} of these {total:,} images were"
  if what == "score":
    says = "nothing" if trained == total else "little"
    return f"{images} trained on: the score says {says} about new ones."
  return f"{images} trained on: their answers say nothing about new images."


def _files(images: Any) -> Iterator[str]:
  """The files that `images` names; pictures in memory are left out."""
  several = isinstance(images, list | tuple)
  items: Iterable[Any] = images if several else (images,)
  paths = (one for one in items if isinstance(one, str | os.PathLike))
  return find_images(paths)


def _border(pixels: np.ndarray) -> float:
  """The mean of the outermost pixels of an image, (H, W, C)."""
  outer = np.ones(pixels.shape[:2], bool)
  outer[1:-1, 1:-1] = False
  return float(pixels[outer].mean())


def _fills(pixels: np.ndarray) -> bool:
  """Whether light pixels of an image, (H, W, C), touch two opposite edges."""
  is_light = pixels.max(axis=2) > 255 / 4
  rows = is_light.any(axis=1)
  columns = is_light.any(axis=0)
  return bool((rows[0] and rows[-1]) or (columns[0] and columns[-1]))


def _by_place(root: str, paths: Iterable[str]) -> tuple[set[str], list[str]]:
  """The ids of the files below the run's folder, and the paths of others."""
  top = os.path.join(os.path.realpath(root), "")
  ids = set()
  elsewhere = []
  for path in paths:
    real = os.path.realpath(path)
    if real.startswith(top):
      below = os.path.join(root, real.removeprefix(top))
      ids.add(printable_path(os.fsencode(below)))
    else:
      elsewhere.append(real)
  return ids, elsewhere


def _count_copies(paths: Iterable[str], of: Iterable[str]) -> int:
  """How many of the files have the bytes of one of the files `of`.

  Only files of a size that both have are read.
  """
  here = [(os.path.getsize(path), path) for path in paths]
  there = [(os.path.getsize(path), path) for path in of]
  common = {size for size, _ in here} & {size for size, _ in there}
  known = {_digest(path) for size, path in there if size in common}
  return sum(size in common and _digest(path) in known for size, path in here)


def _digest(path: str) -> bytes:
  """The SHA-256 of a file."""
  with open(path, "rb") as file:
    return hashlib.file_digest(file, "sha256").digest()


def _has_too_many(root: str) -> bool:
  """Whether a folder has more than `MOST_IMAGES` images."""
  beyond = itertools.islice(images_below(os.fsencode(root)), MOST_IMAGES, None)
  return any(True for _ in beyond)
