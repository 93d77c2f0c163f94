"""Finds out which folders are splits, which are classes and which neither."""

import collections
import dataclasses
import functools
import os
from collections.abc import Collection, Mapping, Sequence

from vit_jax.data.reading import class_folders
from vit_jax.data.reading.folders import (
  Ignored,
  count_loose,
  holds_images,
  subfolders,
)
from vit_jax.data.reading.masks import names as mask_names
from vit_jax.data.reading.split_names import (
  EXACT,
  SplitName,
  is_plain,
  likely_splits,
  split_named,
  words,
)
from vit_jax.runtime.printable import printable_path as text

_DEEPEST = 8  # The most levels of folders, each alone in the one above.
_BESIDE_IMAGES = frozenset(
  "annotation annotations attribute attributes csv code doc docs features "
  "imagesets info json label labels list lists log logs meta metadata model "
  "models notebooks parts script scripts src tables txt xml".split()
)
"""Words in the names of folders that lie beside images and hold none."""


@dataclasses.dataclass(frozen=True)
class Layout:
  """The folders of the splits; those that are missing are None.

  Attributes:
    ignored: Files and folders left out, by kind; see `folders.ignored_text`.
    copies: Folder of a split -> the folders in it that are no classes, because
      they hold copies of all the others.
    notes: Lines on what may be a mistake.
  """

  root: bytes
  train: bytes
  val: bytes | None = None
  test: bytes | None = None
  ignored: Mapping[str, int] = dataclasses.field(default_factory=dict)
  copies: Mapping[bytes, Collection[bytes]] = dataclasses.field(
    default_factory=dict
  )
  notes: Sequence[str] = ()

  def evaluation(self, eval_split: str | None) -> str | None:
    """The split to evaluate on; None for a part of the training images.

    If `eval_split` is None, the result is val, else test, else None. For
    "test", once the default, it is test, else val, else None. For "val" and
    "train" it is that split. Raises ValueError if there is no such split.
    """
    orders = {"val": ("val",), "test": ("test", "val"), "train": ("train",)}
    order = ("val", "test")
    if eval_split is not None:
      order = orders.get(split_named(os.fsencode(eval_split)) or "")
    if order is None:
      raise ValueError(
        f"data.eval_split={eval_split!r} is no split of a folder; use val or "
        "test."
      )
    for name in order:
      if getattr(self, name) is not None:
        return name
    if order == ("val",):
      raise ValueError(
        f"data.eval_split={eval_split!r}: {text(self.root)!r} has no split "
        "val; add it or leave data.eval_split out."
      )
    return None

  def classes(self, folder: bytes) -> list[bytes]:
    """The names of the class folders in the folder of a split."""
    left_out = self.copies.get(folder, ())
    return [name for name in subfolders(folder) if name not in left_out]


def find_layout(root: bytes) -> Layout:
  """Finds the splits below `root`, or below the only folder in it.

  Raises ValueError if a split has two folders or no class folders, there is no
  split to train on, or the folders hold something else than classes.
  """
  ignored: Ignored = collections.Counter()
  root = _go_down(root, ignored)
  names = subfolders(root)
  splits = _paths_of_splits(root, names)
  places = {}
  for split, path in splits.items():
    for place in path:
      count_loose(place, ignored)
    places[split] = path[-1]
  if splits:
    taken = {os.path.relpath(path[0], root) for path in splits.values()}
    _ignore({*names} - taken, ignored)
    mask_names.refuse_images_and_masks(
      places["train"], subfolders(places["train"])
    )
  else:
    places = {"train": root}
  copies = {}
  notes = [] if splits else _lines_on_split_names(names)
  for place in places.values():
    found = class_folders.look(place, subfolders(place))
    copies[place] = found.copies
    notes += found.notes
    for name in found.copies:
      ignored[f"folder {text(name)} (a copy of its neighbours)"] += 1
  return Layout(
    root=root,
    train=places["train"],
    val=places.get("val"),
    test=places.get("test"),
    ignored=ignored,
    copies=copies,
    notes=notes,
  )


def find_unlabelled_layout(root: bytes) -> Layout:
  """Finds the splits below `root`; without splits, all of it is for training.

  Images may be in class folders or not. Masks beside images are left out, and
  so are copies of class folders. Raises ValueError if a split has two folders.
  """
  above, path = descend(root)
  names = subfolders(above)
  inside = functools.partial(folders_in, above)
  chosen = surest_splits(above, likely_splits(names, inside))
  ignored: Ignored = collections.Counter()
  if "train" in chosen:
    for place in path:
      count_loose(place, ignored)
    _ignore({*names} - {*chosen.values()}, ignored)
    places = {s: os.path.join(above, name) for s, name in chosen.items()}
    train, val, test = map(places.get, ("train", "val", "test"))
    assert train
    return Layout(root=above, train=train, val=val, test=test, ignored=ignored)
  if pair := mask_names.find_folders(above, names):
    _ignore({*names} - {pair.images}, ignored)
    images = find_unlabelled_layout(os.path.join(above, pair.images))
    return dataclasses.replace(
      images, root=above, ignored=ignored + collections.Counter(images.ignored)
    )
  names = names if above == root else subfolders(root)
  copies = class_folders.look(root, names, strict=False).copies
  for name in copies:
    ignored[f"folder {text(name)} (a copy of its neighbours)"] += 1
  return Layout(root, root, ignored=ignored, copies={root: copies})


def _ignore(names: Collection[bytes], ignored: Ignored) -> None:
  """Adds folders to the ignored files and folders."""
  for name in sorted(names):
    ignored[f"folder {text(name)}"] += 1


def descend(root: bytes) -> tuple[bytes, list[bytes]]:
  """Goes down as long as a folder holds a single folder of folders.

  Returns the last folder, and the path of folders from `root` to it.
  """
  path = [root]
  seen = {os.path.realpath(root)}
  while len(inside := subfolders(path[-1])) == 1:
    only = os.path.join(path[-1], inside[0])
    # A link may lead back to a folder above.
    if os.path.realpath(only) in seen or not subfolders(only):
      break
    seen.add(os.path.realpath(only))
    path.append(only)
  return path[-1], path


def _lines_on_split_names(names: Sequence[bytes]) -> list[str]:
  """Lines on class folders that may rather hold images to evaluate on.

  A folder named train has no line, as trains may be a class.
  """
  return [
    (
      f"the folder {text(name)} is taken for a class, as those beside it are: "
      "if it holds images to evaluate on, put the other class folders into a "
      f"folder train, and sort these images into class folders in {text(name)}."
    )
    for name in names
    if split_named(name) in ("val", "test")
  ]


def _go_down(root: bytes, ignored: Ignored) -> bytes:
  """Goes down to the folder of the splits or classes, and returns it.

  Each folder on the way holds only the next one, or beside it folders without
  images. Raises ValueError for a folder of images and masks.
  """
  while True:
    root, path = descend(root)
    for place in path:
      count_loose(place, ignored)
    names = subfolders(root)
    if not likely_splits(names, functools.partial(folders_in, root)):
      mask_names.refuse_images_and_masks(root, names)
      only = _only_folder_of_classes(root, names)
      if only is not None:
        _ignore({*names} - {only}, ignored)
        root = os.path.join(root, only)
        continue
    return root


def _only_folder_of_classes(
  root: bytes, names: Sequence[bytes]
) -> bytes | None:
  """The only folder that holds images, if it holds class folders; else None.

  The folders beside it must be named like those of annotations, or the folder
  itself must be named like one of images.
  """
  found = None
  for name in names:
    if holds_images(os.path.join(root, name)):
      if found is not None:
        return None
      found = name
  others = [name for name in names if name != found]
  if found is None or not others or len(folders_in(root, found)) < 2:
    return None
  beside = all(_BESIDE_IMAGES & {*words(name)} for name in others)
  return found if beside or is_plain(found) else None


def _paths_of_splits(
  root: bytes, names: Sequence[bytes]
) -> dict[str, list[bytes]]:
  """For each split, the folders from its own down to that of its classes.

  It is empty if there are no splits: a class may be called "test" too, and its
  folder holds images, not folders. Raises ValueError as `find_layout` does.
  """
  inside = functools.partial(folders_in, root)
  found = likely_splits(names, inside)
  paths = _paths_to_classes(root, found)
  # Folders of images alone.
  flat = [one for one in found if not subfolders(paths[one.name][-1])]
  chosen = surest_splits(root, [one for one in found if one not in flat])
  different = len({one.split for one in flat}) > 1
  several = different or sum(one.sure == EXACT for one in flat) > 1
  if "train" not in chosen and (chosen or several):
    mask_names.refuse_images_and_masks(root, names)
    listed = [*chosen.values(), *(one.name for one in flat)]
    raise ValueError(
      f"{text(root)!r} has {' and '.join(map(text, listed))}, but no train "
      "folder that holds a folder for each class; add one, or give the labels "
      "in a file: --config.data.labels_file=FILE.csv."
    )
  for one in flat:
    place = paths[one.name][-1]
    if one.split == "val" and chosen and "val" not in chosen:
      if holds_images(place):
        raise ValueError(
          f"{text(os.path.join(root, one.name))!r} holds images and no class "
          f"folders, which {text(chosen['train'])!r} has: sort them into class "
          "folders to evaluate on them, or move the folder away to evaluate on "
          "a part of the training images."
        )
  return {split: paths[name] for split, name in chosen.items()}


def surest_splits(root: bytes, found: Sequence[SplitName]) -> dict[str, bytes]:
  """The name of each split's folder; raises ValueError if it has two.

  A folder that is named after the split alone takes precedence.
  """
  chosen: dict[str, SplitName] = {}
  for one in found:  # The surest come first.
    other = chosen.setdefault(one.split, one)
    if other is not one and other.sure == one.sure:
      raise ValueError(
        f"{text(root)!r} has both {text(other.name)!r} and "
        f"{text(one.name)!r}, which are names of the {one.split} split; keep "
        "one."
      )
  return {split: one.name for split, one in chosen.items()}


def _paths_to_classes(
  root: bytes, found: Sequence[SplitName]
) -> dict[bytes, list[bytes]]:
  """The folders from that of each split down to that of its classes, by name.

  The name is that of the split's own folder. A single folder in a split is a
  class if another split has it among several.
  """
  classes: set[bytes] = set()
  for one in found:
    inside = subfolders(os.path.join(root, one.name))
    classes |= {*inside} if len(inside) > 1 else set()
  return {one.name: _path_inside(root, one.name, classes) for one in found}


def _path_inside(
  root: bytes, name: bytes, classes: Collection[bytes] = ()
) -> list[bytes]:
  """The path from the folder of this name to the last folder that it leads to.

  A folder that lies alone in another one is entered if its name is the same or
  says nothing, or if it holds several folders; but not if it is one of
  `classes`.
  """
  path = [os.path.join(root, name)]
  while len(inside := subfolders(path[-1])) == 1 and len(path) < _DEEPEST:
    (only,) = inside
    lower = only.lower()
    place = os.path.join(path[-1], only)
    says_nothing = (
      lower == name.lower() or is_plain(only) or split_named(lower) is not None
    )
    if only in classes or not (says_nothing or len(subfolders(place)) > 1):
      break
    path.append(place)
  return path


def folders_in(root: bytes, name: bytes) -> list[bytes]:
  """The folders in a folder, or in the last folder that it leads to."""
  return subfolders(_path_inside(root, name)[-1])
