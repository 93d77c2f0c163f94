"""Tells by their names which folders hold images and masks, or boxes."""

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
from vit_jax.data.reading.masks.beside import MASKS, NUMBERS, Beside
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
_LOOKED_AT = 1_000  # Files in a folder of masks.
_IMAGES_LOOKED_AT = 16  # Whose masks are looked for.
_IMAGES = frozenset(
  (
    "images image img imgs jpegimages leftimgbit input inputs rgb "
    "photos photo photographs pictures picture pics frames scans"
  ).split()
)


class Folders(NamedTuple):
  """The names of a folder of images, and of that of what is marked in them."""

  images: bytes
  masks: bytes


def folders_of(
  root: bytes, names: Sequence[bytes], of: Beside = MASKS
) -> Folders | None:
  """The folder of images and that of their masks or boxes, by their names.

  None if no two of the folders `names` in `root` are called so. Beside class
  folders of images, a folder without pictures is no such one.

  Args:
    of: The kind of what lies beside the images, where it is no masks.
  """
  kinds = {name: _kind(name) for name in names}
  masks = [n for n, (_, kind) in kinds.items() if kind in of.words]
  for name, (split, kind) in kinds.items():
    # A folder of images may say no more than their split, as train.
    if kind not in _IMAGES and not (split and not kind):
      continue
    of_split = [other for other in masks if kinds[other][0] == split]
    if not of_split or not holds_images(os.path.join(root, name)):
      continue
    with_pictures = [n for n in of_split if of.are_in(os.path.join(root, n))]
    inside = subfolders(os.path.join(root, name))
    if (
      not with_pictures and len(inside) > 1 and not any(map(parse_name, inside))
    ):
      return None
    usual = [n for n in with_pictures or of_split if n.lower() in of.names]
    return Folders(name, min(usual or with_pictures or of_split))
  return None


class Places(NamedTuple):
  """The folders of images and of masks, by their paths."""

  images: bytes
  masks: bytes


def places(
  root: bytes, earlier: bool = False, of: Beside = MASKS
) -> tuple[dict[str, Places], list[str]]:
  """The folders of each split, by "train", "val" and "test", or "" for all.

  `root` holds a folder of images and one of masks, which may hold the splits;
  or the splits, which hold these two; or both of each split, as train and
  train_masks. Also returns a line on each split that is left out. Raises
  ValueError if there are no such folders, or masks of a split are missing.

  Args:
    earlier: Reads what earlier versions did alone: images and masks by their
      plain names, which may hold splits by theirs.
    of: The kind of what lies beside the images.
  """
  names = subfolders(root) if os.path.isdir(root) else []
  found = _plain_folders(root, names, earlier, of)
  if found is not None:
    images, masks = (os.path.join(root, name) for name in found)
    return _places_by_split(images, masks, earlier, of)
  by_split = {} if earlier else _splits(root, names)
  within: dict[str, Places] = {}
  for split, name in by_split.items():
    folder = os.path.join(root, name)
    one = folders_of(folder, subfolders(folder), of)
    one = one or _pair_of_split(root, names, split, of)
    if one is None:
      continue
    above = folder if one.images in subfolders(folder) else root
    images, masks = (os.path.join(above, name) for name in one)
    within[split] = Places(images, masks)
  if "train" in within:
    lost = [name for split, name in by_split.items() if split not in within]
    if [*within] == ["train"]:  # A part of it is held out.
      within = {"": within["train"]}
    return within, [
      _left_out_line(os.path.join(root, name), of) for name in lost
    ]
  # Names may say a split though there is one.
  if not earlier and (found := folders_of(root, names, of)):
    images, masks = (os.path.join(root, name) for name in found)
    return {"": Places(images, masks)}, []
  lacking = IMAGES if not {n.lower() for n in names} & {*IMAGES} else of.names
  raise ValueError(
    f"{text(root)!r} has 0 folders named {_join_names(lacking)}, and {of.task} "
    f"needs one: images, and {of.plural} of the same file names, which may lie "
    "in the folders of the splits."
  )


def _plain_folders(
  root: bytes, names: Sequence[bytes], earlier: bool, of: Beside
) -> Folders | None:
  """The two folders in `root`; raises ValueError if several are called so."""
  chosen = []
  for kinds in (IMAGES, of.names):
    matches = [name for name in names if name.lower() in kinds]
    if len(matches) > 1 and not earlier:
      here = [n for n in matches if of.are_in(os.path.join(root, n))]
      matches = here if len(here) == 1 else matches
    if len(matches) > 1:
      raise ValueError(
        f"{text(root)!r} has {len(matches)} folders named "
        f"{_join_names(kinds)}, and {of.task} needs one: images, and "
        f"{of.plural} of the same file names."
      )
    chosen += matches
  if len(chosen) == 2:
    return Folders(*chosen)
  found = None if earlier else folders_of(root, names, of)
  return found if found and not parse_name(found.images) else None


def _places_by_split(
  images: bytes, masks: bytes, earlier: bool, of: Beside
) -> tuple[dict[str, Places], list[str]]:
  """The splits in a folder of images and one of masks, if they have any."""
  of_images, of_masks = (
    _splits(folder, subfolders(folder), earlier) for folder in (images, masks)
  )
  if "train" not in of_images:
    masks = masks if earlier else _only_with_pictures(images, masks, of)
    return {"": Places(images, masks)}, []
  found, lines = {}, []
  for split, name in of_images.items():
    folder = os.path.join(images, name)
    if split in of_masks:
      beside = os.path.join(masks, of_masks[split])
      found[split] = Places(folder, beside)
    elif split == "test" and not earlier:
      lines.append(_left_out_line(folder, of))
    else:
      raise ValueError(f"{text(masks)!r} has no folder {text(name)!r}.")
  if [*found] == ["train"] and not earlier:  # A part of it is held out.
    found = {"": found["train"]}
  return found, lines


def _only_with_pictures(images: bytes, masks: bytes, of: Beside) -> bytes:
  """The only folder of pictures among the masks, such as trimaps.

  It is `masks` itself if that has pictures, or the images have such a folder.
  """
  if not {*_endings(masks)}.isdisjoint((*of.also_seen, *of.endings)):
    return masks
  folders = subfolders(masks)
  inside = [n for n in folders if of.are_in(os.path.join(masks, n))]
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
  """The folder of each split among folders beside each other."""
  splits: dict[str, bytes] = {}
  for one in likely_splits(names, lambda n: subfolders(os.path.join(root, n))):
    if one.sure == EXACT or not earlier:
      splits.setdefault(one.split, one.name)
  return splits


def _pair_of_split(
  root: bytes, names: Sequence[bytes], split: str, of: Beside
) -> Folders | None:
  """The folders of one split that lie beside each other, if there are two."""
  of_split = [name for name in names if _kind(name)[0] == split]
  return folders_of(root, of_split, of)


def _left_out_line(folder: bytes, of: Beside) -> str:
  return f"{text(folder)} has no {of.plural}, and is left out."


def _join_names(names: Sequence[bytes]) -> str:
  return text(b", ".join(names))


def refuse(root: bytes, names: Sequence[bytes]) -> None:
  """Raises ValueError if two of the folders in `root` are images and masks."""
  found = folders_of(root, names)
  numbers = folders_of(root, names, NUMBERS) if found is None else None
  if numbers is not None and are_read(root, numbers, NUMBERS):
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


def are_beside(root: bytes, names: Sequence[bytes]) -> bool:
  """Whether a class folder holds its images in one of these folders.

  Raises ValueError if masks in another one would be images of the class.
  """
  found = folders_of(root, names) if len(names) > 1 else None
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
    kind = next((boxes[end] for end in boxes if end in endings), None)
    of = f" as {kind} writes them" if kind else ""
    return (
      f"{text(found.masks)} likely has boxes{of}, which no task learns "
      "(detection); to learn classes, sort the images into a folder for each, "
      "or give a file of labels, --config.data.labels_file=FILE.csv"
    )
  if are_read(root, found):
    return "--config segmentation reads this folder as images and their masks"
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


def are_read(root: bytes, found: Folders, of: Beside = MASKS) -> bool:
  """Whether the task of masks reads the folder, since each image has a mask.

  Only some of the images are looked up.
  """
  if not of.are_in(os.path.join(root, found.masks)):
    return False
  return _first_error(root, of) == ""


def _first_error(root: bytes, of: Beside = MASKS) -> str | None:
  """Looks up the masks of some images, and says what is wrong with the first.

  Returns "" if each has a mask, and None if `places` finds no folders of images
  and masks.
  """
  try:
    found, _ = places(root, of=of)
  except ValueError:
    return None
  for images, masks in found.values():
    files = [*images_below(images)]
    lookup = MaskLookup(masks, of=of)
    for file in files[:: max(1, len(files) // _IMAGES_LOOKED_AT)]:
      try:
        lookup.find(file)
      except ValueError as error:
        return str(error).rstrip(".")
  return ""


def _kind(name: bytes) -> tuple[str, str]:
  """The split that is in a name, or "", and its other words as one."""
  one = parse_name(name)
  found = words(name)
  if one is None:
    return "", "".join(found)
  plain = [w for w in found if w in _IMAGES]
  return one.split, one.rest.replace(" ", "") or "".join(plain[:1])
