"""Tells by the names of folders which of them hold images, masks or boxes."""

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from vit_jax.data.reading.folders import (
  EXTENSIONS,
  endings_in,
  holds_images,
  images_below,
  subfolders,
)
from vit_jax.data.reading.masks.beside import MASKS, NUMBERS, PairedFiles
from vit_jax.data.reading.masks.lookup import MaskLookup
from vit_jax.data.reading.split_names import (
  EXACT,
  likely_splits,
  parse_name,
  words,
)
from vit_jax.runtime.printable import printable_path as text

IMAGES = (b"images", b"image", b"img")
"""Names of a folder of images beside others, in lower case."""
_LOOKED_AT = 1_000  # Files in a folder of masks that are looked at.
_IMAGES_LOOKED_AT = 16  # Images whose masks are looked for.
_IMAGE_WORDS = frozenset(
  (
    "images image img imgs jpegimages leftimgbit input inputs rgb "
    "photos photo photographs pictures picture pics frames scans"
  ).split()
)


class Folders(NamedTuple):
  """The names of a folder of images, and of that of their masks or boxes."""

  images: bytes
  masks: bytes


def find_folders(
  root: bytes, names: Sequence[bytes], kind: PairedFiles = MASKS
) -> Folders | None:
  """The folder of images and that of their masks or boxes, by their names.

  It is None if no two of the folders `names` in `root` are named like these. A
  folder without pictures does not count beside class folders of images.

  Args:
    kind: The kind of files that are paired with the images.
  """
  parsed = {name: _split_and_rest(name) for name in names}
  masks = [n for n, (_, rest) in parsed.items() if rest in kind.words]
  for name, (split, rest) in parsed.items():
    # The name of a folder of images may be that of their split alone.
    is_split = split and not rest
    if rest not in _IMAGE_WORDS and not is_split:
      continue
    of_split = [other for other in masks if parsed[other][0] == split]
    if not of_split or not holds_images(os.path.join(root, name)):
      continue
    with_pictures = [n for n in of_split if kind.are_in(os.path.join(root, n))]
    inside = subfolders(os.path.join(root, name))
    if (
      not with_pictures and len(inside) > 1 and not any(map(parse_name, inside))
    ):
      return None
    usual = [n for n in with_pictures or of_split if n.lower() in kind.names]
    return Folders(name, min(usual or with_pictures or of_split))
  return None


class Places(NamedTuple):
  """The folders of images and of masks, by their paths."""

  images: bytes
  masks: bytes


def find_places(
  root: bytes, earlier: bool = False, kind: PairedFiles = MASKS
) -> tuple[dict[str, Places], list[str]]:
  """Finds the folders of each split: "train", "val" and "test", or "" for all.

  `root` holds a folder of images and one of masks, which may hold the splits;
  or the splits, which hold these two; or two folders of each split, as train
  and train_masks. Also returns a line on each split that is left out. Raises
  ValueError if there are no such folders, or masks of a split are missing.

  Args:
    earlier: Whether to find only what earlier versions found: folders named
      images and masks, which may hold splits of plain names.
    kind: The kind of files that are paired with the images.
  """
  names = subfolders(root) if os.path.isdir(root) else []
  found = _plain_folders(root, names, earlier, kind)
  if found is not None:
    images, masks = (os.path.join(root, name) for name in found)
    return _places_by_split(images, masks, earlier, kind)
  by_split = {} if earlier else _splits(root, names)
  within: dict[str, Places] = {}
  for split, name in by_split.items():
    folder = os.path.join(root, name)
    pair = find_folders(folder, subfolders(folder), kind)
    pair = pair or _pair_of_split(root, names, split, kind)
    if pair is None:
      continue
    above = folder if pair.images in subfolders(folder) else root
    images, masks = (os.path.join(above, name) for name in pair)
    within[split] = Places(images, masks)
  if "train" in within:
    lost = [name for split, name in by_split.items() if split not in within]
    if [*within] == ["train"]:  # A part of its images is held out.
      within = {"": within["train"]}
    return within, [
      _left_out_line(os.path.join(root, name), kind) for name in lost
    ]
  # Both folders may be named after a split, which then has all images.
  if not earlier and (found := find_folders(root, names, kind)):
    images, masks = (os.path.join(root, name) for name in found)
    return {"": Places(images, masks)}, []
  lacking = IMAGES if not {n.lower() for n in names} & {*IMAGES} else kind.names
  raise ValueError(
    f"{text(root)!r} has 0 folders named {_join_names(lacking)}, and "
    f"{kind.task} needs one: put the images into one folder and the "
    f"{kind.plural}, under the same file names, into another; both may lie in "
    f"the folders of the splits.{_hint_above(root, kind)}"
  )


def _hint_above(root: bytes, kind: PairedFiles) -> str:
  """A sentence on the folder above, if that holds images and masks; else ""."""
  above, name = os.path.split(os.path.abspath(root))
  usual = (IMAGES, kind.names)
  known = any(name.lower() in names for names in usual)
  if not known or not os.path.isdir(root):
    return ""
  beside = {other.lower() for other in subfolders(above)}
  if all(beside & {*names} for names in usual):
    return f" {text(above)!r} has both: give that folder."
  return ""


def _plain_folders(
  root: bytes, names: Sequence[bytes], earlier: bool, kind: PairedFiles
) -> Folders | None:
  """The folder of images in `root`, and that of the files beside them.

  None if one is missing; raises ValueError if several folders have such names.
  """
  chosen = []
  for usual in (IMAGES, kind.names):
    matches = [name for name in names if name.lower() in usual]
    if len(matches) > 1 and not earlier:
      here = [n for n in matches if kind.are_in(os.path.join(root, n))]
      matches = here if len(here) == 1 else matches
    if len(matches) > 1:
      raise ValueError(
        f"{text(root)!r} has {len(matches)} folders named "
        f"{_join_names(usual)}, and {kind.task} needs one: keep one folder of "
        f"images, and one of {kind.plural} with the same file names."
      )
    chosen += matches
  if len(chosen) == 2:
    return Folders(*chosen)
  found = None if earlier else find_folders(root, names, kind)
  return found if found and not parse_name(found.images) else None


def _places_by_split(
  images: bytes, masks: bytes, earlier: bool, kind: PairedFiles
) -> tuple[dict[str, Places], list[str]]:
  """The places of the splits in a folder of images and one of masks.

  Without splits, or with only one to train on, the only key is "". The lines
  are on splits that are left out. Raises ValueError if a split of images has no
  folder of masks.
  """
  of_images, of_masks = (
    _splits(folder, subfolders(folder), earlier) for folder in (images, masks)
  )
  if "train" not in of_images:
    masks = masks if earlier else _only_with_pictures(images, masks, kind)
    return {"": Places(images, masks)}, []
  found, lines = {}, []
  for split, name in of_images.items():
    folder = os.path.join(images, name)
    if split in of_masks:
      beside = os.path.join(masks, of_masks[split])
      found[split] = Places(folder, beside)
    elif split == "test" and not earlier:
      lines.append(_left_out_line(folder, kind))
    else:
      raise ValueError(
        f"{text(masks)!r} has no folder {text(name)!r}: add it, with the "
        f"{kind.plural} of the images of that split."
      )
  if [*found] == ["train"] and not earlier:  # A part of its images is held out.
    found = {"": found["train"]}
  return found, lines


def _only_with_pictures(
  images: bytes, masks: bytes, kind: PairedFiles
) -> bytes:
  """The only folder of pictures in the folder of masks, such as trimaps.

  It is `masks` itself if that has pictures, if there is no such folder or
  several, or if the folder of images has a folder of the same name.
  """
  if not {*_endings(masks)}.isdisjoint((*kind.also_seen, *kind.endings)):
    return masks
  folders = subfolders(masks)
  inside = [n for n in folders if kind.are_in(os.path.join(masks, n))]
  if len(inside) != 1 or inside[0] in subfolders(images):
    return masks
  return os.path.join(masks, inside[0])


def _endings(folder: bytes) -> Iterator[bytes]:
  """The endings of the first files in a folder itself, in lower case."""
  with os.scandir(folder) as entries:
    for entry in itertools.islice(entries, _LOOKED_AT):
      if not entry.name.startswith(b"."):
        yield os.path.splitext(entry.name.lower())[1]


def _splits(
  root: bytes, names: Sequence[bytes], earlier: bool = False
) -> dict[str, bytes]:
  """The name of each split's folder among folders beside each other."""
  splits: dict[str, bytes] = {}
  for one in likely_splits(names, lambda n: subfolders(os.path.join(root, n))):
    if one.sure == EXACT or not earlier:
      splits.setdefault(one.split, one.name)
  return splits


def _pair_of_split(
  root: bytes, names: Sequence[bytes], split: str, kind: PairedFiles
) -> Folders | None:
  """The two folders of one split beside each other; None if there are none."""
  of_split = [name for name in names if _split_and_rest(name)[0] == split]
  return find_folders(root, of_split, kind)


def _left_out_line(folder: bytes, kind: PairedFiles) -> str:
  return f"{text(folder)} has no {kind.plural}, and is left out."


def _join_names(names: Sequence[bytes]) -> str:
  return text(b", ".join(names))


def refuse_images_and_masks(root: bytes, names: Sequence[bytes]) -> None:
  """Raises ValueError if two folders in `root` are images and their masks.

  The same holds for images and the numbers of their pixels.
  """
  found = find_folders(root, names)
  numbers = find_folders(root, names, NUMBERS) if found is None else None
  if numbers is not None and can_be_read(root, numbers, NUMBERS):
    images, targets = map(text, numbers)
    raise ValueError(
      f"{text(root)!r} has {images} and {targets}, which are not classes: "
      "--config dense_regression reads this folder as images and numbers of "
      "their pixels."
    )
  if found is None:
    return
  images, masks = map(text, found)
  raise ValueError(
    f"{text(root)!r} has {images} and {masks}, which are not classes: "
    f"{_advice(root, found)}."
  )


def holds_images_and_masks(root: bytes, names: Sequence[bytes]) -> bool:
  """Whether two of the folders in a class folder are images and their masks.

  Raises ValueError if the masks are pictures, which would count as images of
  the class.
  """
  found = find_folders(root, names) if len(names) > 1 else None
  if found is None:
    return False
  images, masks = map(text, found)
  if holds_images(os.path.join(root, found.masks)):
    raise ValueError(
      f"{text(root)!r} has {images} and {masks}, as other class folders do, "
      f"and masks are not images of a class: move each folder {masks} away."
    )
  return True


def _advice(root: bytes, found: Folders) -> str:
  """The advice for a folder of images and masks, or boxes."""
  endings = endings_in(os.path.join(root, found.masks))
  if endings.isdisjoint(EXTENSIONS):
    boxes = {b".txt": "YOLO", b".xml": "VOC", b".json": "COCO"}
    form = next((boxes[end] for end in boxes if end in endings), None)
    written = f" as {form} writes them" if form else ""
    return (
      f"{text(found.masks)} likely has boxes{written}, which no task learns "
      "(detection); to learn classes, sort the images into a folder for each, "
      "or give a file of labels, --config.data.labels_file=FILE.csv"
    )
  if can_be_read(root, found):
    return (
      "--config segmentation reads this folder as images and their masks, and "
      "--probe=segment of `vit_jax fewshot` measures features by it"
    )
  if error := _first_error(root):
    return (
      "--config segmentation reads such a folder if each image has a mask, but "
      f"{error}"
    )
  return (
    "they look like images and masks, and --config segmentation reads a folder "
    "that has them as images and masks, under the same file names: rename or "
    f"link {text(found.images)} and {text(found.masks)}"
  )


def can_be_read(root: bytes, found: Folders, kind: PairedFiles = MASKS) -> bool:
  """Whether a task can read the folder, as each image has a paired file.

  Only some of the images are looked up.
  """
  if not kind.are_in(os.path.join(root, found.masks)):
    return False
  return _first_error(root, kind) == ""


def masks_beside_images(root: bytes) -> list[bytes]:
  """The folders of masks, or of numbers, if `root` holds images with these.

  The list is empty if it does not, or if an image lacks its mask, as far as
  `can_be_read` tells. The pictures in these folders do not count as images.
  """
  for kind in (MASKS, NUMBERS):
    if _first_error(root, kind) == "":
      places, _ = find_places(root, kind=kind)
      return [place.masks for place in places.values()]
  return []


def _first_error(root: bytes, kind: PairedFiles = MASKS) -> str | None:
  """Looks up the masks of some images, and returns the first error.

  Returns "" if each has a mask, and None if `find_places` finds no folders of
  images and masks.
  """
  try:
    found, _ = find_places(root, kind=kind)
  except ValueError:
    return None
  for images, masks in found.values():
    files = [*images_below(images)]
    lookup = MaskLookup(masks, kind=kind)
    for file in files[:: max(1, len(files) // _IMAGES_LOOKED_AT)]:
      try:
        lookup.find(file)
      except ValueError as error:
        return str(error).rstrip(".")
  return ""


def _split_and_rest(name: bytes) -> tuple[str, str]:
  """The split that a name tells, or "", and its other words joined.

  If the name of a split has no other words, the second result is its first word
  for images, or "".
  """
  one = parse_name(name)
  found = words(name)
  if one is None:
    return "", "".join(found)
  plain = [w for w in found if w in _IMAGE_WORDS]
  return one.split, one.rest.replace(" ", "") or "".join(plain[:1])
