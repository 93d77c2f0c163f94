"""Tells by their names which folders hold images and masks, or boxes."""

import os
from collections.abc import Sequence
from typing import NamedTuple

from vit_jax.data.reading.folders import (
  EXTENSIONS,
  endings_in,
  holds_images,
  subfolders,
)
from vit_jax.data.reading.split_names import named, words
from vit_jax.runtime.printable import printable_path as text

IMAGES = (b"images", b"image", b"img")
MASKS = (b"masks", b"mask", b"annotations", b"labels")
"""Names of the folders that segmentation reads, in lower case."""
_IMAGES = frozenset(
  "images image img imgs jpegimages leftimgbit input inputs rgb".split()
)
_MASKS = frozenset(
  "annotation annotations groundtruth gt gtcoarse gtfine gts label labels mask "
  "masks segmentation segmentationclass segmentationclassaug "
  "segmentationobject segmentations trimaps".split()
)


class Pair(NamedTuple):
  """The folder of images, and that of what is marked in them."""

  images: bytes
  masks: bytes


def pair(root: bytes, names: Sequence[bytes]) -> Pair | None:
  """The folders of images and of their masks or boxes, if two are called so.

  Beside class folders of images, a folder without pictures is no such one.
  """
  kinds = {name: _kind(name) for name in names}
  masks = [n for n, (_, kind) in kinds.items() if kind in _MASKS]
  for name, (split, kind) in kinds.items():
    # Of images a folder may say no more than their split, as train.
    if kind not in _IMAGES and not (split and not kind):
      continue
    of_split = [other for other in masks if kinds[other][0] == split]
    if not of_split or not holds_images(os.path.join(root, name)):
      continue
    with_pictures = [n for n in of_split if holds_images(os.path.join(root, n))]
    inside = subfolders(os.path.join(root, name))
    if not with_pictures and len(inside) > 1 and not any(map(named, inside)):
      return None
    return Pair(name, min(with_pictures or of_split, key=_preferred))
  return None


def refuse(root: bytes, names: Sequence[bytes]) -> None:
  """Raises ValueError if two of the folders in `root` are such a pair."""
  found = pair(root, names)
  if found is None:
    return
  images, masks = map(text, found)
  raise ValueError(
    f"{text(root)!r} has {images} and {masks}, which are no classes: "
    f"{_advice(root, names, found)}."
  )


def _advice(root: bytes, names: Sequence[bytes], found: Pair) -> str:
  """What to do with a folder of images and masks, or boxes."""
  endings = endings_in(os.path.join(root, found.masks))
  if endings.isdisjoint(EXTENSIONS):
    boxes = {b".txt": "YOLO", b".xml": "VOC", b".json": "COCO"}
    kind = next((boxes[end] for end in boxes if end in endings), None)
    of = f" as {kind} writes them" if kind else ""
    return (
      f"{text(found.masks)} likely has boxes{of}, which no task learns "
      "(detection); to learn classes, sort the images into a folder for each, "
      "or give a file of labels, --config.data.labels_file=FILE.csv"
    )
  if are_read(root, names, found):
    return "--config segmentation reads this folder as images and their masks"
  return (
    "they look like images and masks, and --config segmentation reads a folder "
    "that has them as images and masks, under the same file names: rename or "
    f"link {text(found.images)} and {text(found.masks)}"
  )


def are_read(root: bytes, names: Sequence[bytes], found: Pair) -> bool:
  """Whether segmentation reads the folder: both are called as it knows them.

  The masks are pictures, and no other folder has such a name.
  """
  if endings_in(os.path.join(root, found.masks)).isdisjoint(EXTENSIONS):
    return False
  lower = [name.lower() for name in names]
  counts = [sum(n in one for n in lower) for one in (IMAGES, MASKS)]
  return counts == [1, 1]


def _kind(name: bytes) -> tuple[str, str]:
  """The split that is in a name, or "", and its other words as one."""
  one = named(name)
  found = words(name)
  if one is None:
    return "", "".join(found)
  plain = [w for w in found if w in _IMAGES]
  return one.split, one.rest.replace(" ", "") or "".join(plain[:1])


def _preferred(name: bytes) -> tuple[bool, bytes]:
  return name.lower() not in MASKS, name
