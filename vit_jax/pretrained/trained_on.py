"""What is said of images that a run answers, beside those it was trained on."""

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import numpy as np

from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading.folders import images_below
from vit_jax.data.reading.image_files import find_images
from vit_jax.data.reading.sources import open_source
from vit_jax.data.settings import DataSettings
from vit_jax.inference.reading import arrays_by, read_image
from vit_jax.runtime.printable import printable_path
from vit_jax.runtime.settings import from_dict, types_of

_LOOKED_AT = 100  # Pictures whose pixels are looked at.
# A folder with more images is not listed for this, nor are more asked about.
_MOST = 100_000


def line_on(
  description: Mapping[str, Any] | None, labels: Any, images: Any
) -> str:
  """A line on how many of some images a run was trained on, or "".

  The run keeps its folder and the rule that parts it, so its training split is
  opened again. Images that are not files, and those of another folder, are not
  of it, and nothing is listed for them.

  Args:
    description: The run's, as a `Loaded` has it; None is no run of ours.
    labels: The kind of its task's labels.
    images: Paths, folders and patterns; anything else is passed over.
  """
  return _line_on(description, labels, _files(images), "answer")


def line_on_digits(
  description: Mapping[str, Any] | None,
  preprocessing: Preprocessing,
  images: Any,
) -> str:
  """A line on what pictures have to be like for a run on our digits, or "".

  Paper is black in all 1,797 digits, whose border is at most 28 % bright on
  average. A picture with a border that is brighter than half is unlike them.

  Args:
    description, images: As in `line_on`.
    preprocessing: The model's.
  """
  data = (description or {}).get("config", {}).get("data", {})
  size = preprocessing.image_size
  places = (data.get(key) for key in ("root", "dir", "labels_file"))
  if data.get("name") != "digits" or any(places) or size is None:
    return ""
  read = arrays_by(preprocessing.transform())
  files = itertools.islice(_files(images), _LOOKED_AT)
  arrays = [read_image(file, read) for file in files]
  borders = [
    _border(each["image"]) for each in arrays if not isinstance(each, str)
  ]
  if not borders:
    return ""
  line = (
    "This run was trained on light digits on black that fill their picture, "
    f"and reads each picture in {size[0]} x {size[1]} pixels."
  )
  bright = sum(border > 255 / 2 for border in borders)
  if not bright:
    return line
  which = f"{bright:,} of these {len(borders):,} pictures have bright borders"
  if len(borders) == 1:
    which = "The border of this picture is bright"
  return (
    f"{line} {which}: invert dark digits on white paper, and leave some black "
    "beside light ones."
  )


def line_on_score(
  description: Mapping[str, Any] | None, labels: Any, files: Iterable[str]
) -> str:
  """As `line_on`, for the images that a score was measured on; may be "".

  Args:
    description, labels: As in `line_on`.
    files: The paths of the images.
  """
  return _line_on(description, labels, files, "score")


def _line_on(
  description: Mapping[str, Any] | None,
  labels: Any,
  files: Iterable[str],
  what: Literal["answer", "score"],
) -> str:
  data = (description or {}).get("config", {}).get("data", {})
  root = data.get("root")
  if not (root and os.path.isdir(root)):
    return ""
  asked = [*itertools.islice(files, _MOST + 1)]
  inside = _inside(asked, root)
  if not inside:
    return ""
  if len(asked) > _MOST or _has_more(root):
    said = {
      "answer": "its answers for those say nothing about new images.",
      "score": "the score says little about new ones.",
    }
    place = printable_path(os.fsencode(root))
    return f"This run was trained on images of {place}: {said[what]}"
  kept = {name: data[name] for name in types_of(DataSettings) if name in data}
  with contextlib.suppress(ValueError, OSError):
    source: Any = open_source(
      "train", from_dict(DataSettings, kept, saved=True), labels
    )
    trained = {*source.ids(range(len(source)))} & inside
    if trained:
      return _line(len(trained), len(asked), what)
  return ""


def _line(trained: int, asked: int, what: str) -> str:
  if trained == asked == 1:
    return f"This image was trained on: its {what} says nothing about new ones."
  if trained == asked:
    which = f"All {asked:,} images were"
  else:
    which = f"{trained:,} of these {asked:,} images were"
  if what == "score":
    says = "nothing" if trained == asked else "little"
    return f"{which} trained on: the score says {says} about new ones."
  return f"{which} trained on: their answers say nothing about new images."


def _files(images: Any) -> Iterator[str]:
  """The files among what may also be pictures in memory."""
  given: Iterable[Any] = (images,)
  if isinstance(images, list | tuple):
    given = images
  paths = (one for one in given if isinstance(one, str | os.PathLike))
  return find_images(paths)


def _border(pixels: np.ndarray) -> float:
  """The mean of the outermost pixels of an image, (H, W, C)."""
  outer = np.ones(pixels.shape[:2], bool)
  outer[1:-1, 1:-1] = False
  return float(pixels[outer].mean())


def _inside(paths: Iterable[str], root: str) -> set[str]:
  """The ids of the files that are below the run's folder."""
  top = os.path.join(os.path.realpath(root), "")
  ids = set()
  for path in paths:
    real = os.path.realpath(path)
    if real.startswith(top):
      below = os.path.join(root, real.removeprefix(top))
      ids.add(printable_path(os.fsencode(below)))
  return ids


def _has_more(root: str) -> bool:
  return any(
    True for _ in itertools.islice(images_below(os.fsencode(root)), _MOST, None)
  )
