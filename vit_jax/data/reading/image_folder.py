"""Lists the images of folders, one folder for each class."""

import collections
import copy
import itertools
import os
import shlex
from array import array
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool

from vit_jax.data.example import NoTestSplitError, evenly_spread
from vit_jax.data.reading import folders, layouts
from vit_jax.data.reading.folders import EXTENSIONS
from vit_jax.data.reading.holdout import Holdout
from vit_jax.data.reading.image_files import ImageFiles, counts_of
from vit_jax.data.reading.labels import SINGLE, Labels
from vit_jax.data.reading.layouts import Layout
from vit_jax.data.reading.masks.lookup import files_named_as_masks
from vit_jax.data.reading.places import refuse_run
from vit_jax.data.settings import LABEL_FILES, DataSettings
from vit_jax.runtime import hints
from vit_jax.runtime.printable import composed, counted
from vit_jax.runtime.printable import printable_path as text

_LOOKED_AT = 200  # Files whose names may be those of masks.


class UnlabelledError(ValueError):
  """A folder holds images and no class folders."""

  def __init__(self, reason: str, root: str, weights: str = hints.WEIGHTS):
    super().__init__(f"{reason} {hints.without_labels(root, weights)}.")
    self._reason, self._root = reason, root

  def with_run(self, run: str) -> ValueError:
    """The error to raise if a run was to be evaluated on the folder."""
    command = shlex.join(["vit_jax", "predict", run, self._root])
    return ValueError(
      f"{self._reason} Without labels there is {command}, which gives the "
      "run's answers. A table (file,label) may have images of one class alone."
    )

  def with_weights(self, weights: str) -> "UnlabelledError":
    """The same error, whose commands name these weights."""
    return UnlabelledError(self._reason, self._root, weights)


class ImageFolder(ImageFiles):
  """One split of a folder of images.

  Example i has the bytes of a file, as they are, the index of its class among
  `class_names`, and its path; the examples are sorted by class, then by path.
  This class lists the files, and its base, `ImageFiles`, reads their bytes.

  The folder holds `root/train/<class>/...`, with `root/val/<class>/...` or
  `root/test/<class>/...` or both, or `root/<class>/...` alone, where a part of
  each class is kept for evaluation. `layouts.find_layout` says which other
  names these folders may have, and what is read if `root` holds only another
  folder that holds them.

  The classes are the folders to train on, sorted by name. A file is an image if
  it has one of `EXTENSIONS`, in upper or lower case, at any depth below its
  class folder; hidden files are ignored. `holdout` chooses the part kept for
  evaluation by the names of the files alone, so every run on the same files has
  the same part, on every machine. Paths are kept in one block of bytes, so that
  14 million fit in memory.

  Attributes:
    split: "train", "val", "test" or "held out".
    ignored: Files of the classes that are no images, by kind.
  """

  def __init__(
    self,
    root: str,
    split: str,
    eval_fraction: float = 0.2,
    eval_split: str | None = None,
    labels: bool = True,
    held_out_by: str | None = None,
    held_out_below: tuple[float, ...] | None = None,
    *,
    whole: bool = False,
    known: Sequence[str] = (),
  ):
    """Lists the files of a split.

    Raises ValueError if there is no such folder or split, it holds fewer than
    two classes, a class to evaluate is not among those to train on, or a
    training class or the split has no images.

    Args:
      root: The folder, as `data.root`.
      split: "train", "eval" or "test".
      eval_fraction: Share of each class that is kept for evaluation if there is
        no folder for it.
      eval_split: The split that "eval" stands for; None takes val, else test.
      labels: False takes all images of the split, as of a single class.
      held_out_by, held_out_below: The rule that chooses the part kept for
        evaluation, as the fields of `DataSettings` of these names.
      whole: Whether "train" has all images of a folder without splits, of which
        `split_by` then holds some out.
      known: The names of a run's classes, of which the folder may lack some: a
        label is then the place of its class among these.
    """
    base = os.fsencode(root)
    self.name = text(os.path.basename(os.path.abspath(base)))
    if not os.path.isdir(base):
      raise ValueError(f"data.root={root!r} is not a folder; {_advice(root)}")
    refuse_run(root)
    find = layouts.find_layout if labels else layouts.find_unlabelled_layout
    layout = find(base)
    evaluation = layout.evaluation(eval_split)
    # None for a part of the training images, which is held out below.
    chosen = evaluation if split == "eval" else split
    self.split = chosen or "held out"
    if self.split != "train":
      self.name += f", {self.split}"
    self._folder = getattr(layout, chosen or "train")
    if self._folder is None:
      raise NoTestSplitError(
        f"{text(layout.root)!r} has no test folder",
        "put class folders into "
        f"{text(os.path.join(layout.root, b'test'))}, or ",
      )
    self.root = text(layout.root)
    self.layout = layout
    self.ignored = collections.Counter()
    classes = _classes(layout) if labels else [b""]
    self._absent = [] if not labels else _add_absent(classes, known)
    self._list(classes, layout.train)
    if not labels:
      self.class_names = ("unlabelled",)
    if evaluation is None and not whole:
      rule = Holdout.of(
        len(self), eval_fraction, by=held_out_by, below=held_out_below
      )
      self._keep_side(rule, self._held_out_files(rule))
    self._check_not_empty()

  def split_by(self, rule: Holdout) -> tuple["ImageFolder", "ImageFolder"]:
    """Splits a folder that was listed with `whole`.

    Returns the images to train on, and those that the rule holds out. Raises
    ValueError if either has no images.
    """
    chosen = self._held_out_files(rule)
    train = copy.copy(self)
    held_out = copy.copy(self)
    held_out.split = "held out"
    held_out.name += f", {held_out.split}"
    for side in (train, held_out):
      side._keep_side(rule, chosen)
      side._check_not_empty()
    return train, held_out

  def _list(self, classes: list[bytes], train: bytes) -> None:
    """Lists the files of all classes; `train` is the folder to train on.

    Raises ValueError if a training class has no images.
    """
    if self._folder != train and classes != [b""]:
      _check_classes(self.layout, self._folder, classes)
    # Without labels, the only class is the split's folder itself.
    spellings, trained = {"": [b""]}, {}
    if classes != [b""]:
      spellings = _spellings(self.layout, self._folder)
      trained = _spellings(self.layout, train)
    self.class_names = tuple(_class_name(name, trained) for name in classes)
    ends = array("q")
    labels = array("i")
    paths = bytearray()
    for label, name in enumerate(classes):
      same = spellings.get(composed(text(name)), [])
      files = [file for spelling in same for file in self._files(spelling)]
      if not files and self._folder == train and name not in self._absent:
        ignored = folders.ignored_text(self.ignored)
        more = f" (ignored: {ignored})" if ignored else ""
        kind = "class folder" if name else "folder"
        raise ValueError(
          f"{kind} {text(os.path.join(train, name))!r} has no images "
          f"({text(b', '.join(EXTENSIONS))}); fill or remove it{more}."
        )
      for file in files:
        paths += file
        ends.append(len(paths))
        labels.append(label)
    self._paths = bytes(paths)
    self._ends = np.array(ends, np.int64)
    self._labels = np.array(labels, np.int32)

  def _held_out_files(self, rule: Holdout) -> Bool[np.ndarray, " N"]:
    """Whether the rule holds out each file; the files are sorted by class.

    Only the files of one class at a time are in memory as a list.
    """
    starts = np.searchsorted(self._labels, np.arange(len(self.class_names) + 1))
    chosen = np.zeros(len(self), bool)
    for label, (first, end) in enumerate(itertools.pairwise(starts.tolist())):
      files = [self._file(index) for index in range(first, end)]
      evaluated = rule.of_class(label, files)
      chosen[first:end] = [file in evaluated for file in files]
    return chosen

  def _keep_side(self, rule: Holdout, chosen: Bool[np.ndarray, " N"]) -> None:
    """Keeps the chosen files if this split is held out, else the others.

    `chosen` is the result of `_held_out_files`.
    """
    self.held_out = rule
    self._keep(np.flatnonzero(chosen != (self.split == "train")))

  def _check_not_empty(self) -> None:
    """Raises ValueError if the split has no images."""
    if not len(self):
      raise ValueError(
        f"{text(self._folder)!r} has no images for split={self.split!r}; add "
        "some."
      )

  def _files(self, name: bytes) -> list[bytes]:
    """The paths of a class's images, relative to the split's folder."""
    folder = os.path.join(self._folder, name)
    if not os.path.isdir(folder):
      return []
    left_out = () if name else self.layout.copies.get(self._folder, ())
    below = folders.images_below(folder, self.ignored, left_out=left_out)
    return [os.path.join(name, path) for path in below]

  def warnings(self) -> list[str]:
    """The warnings of `ImageFiles`, and those about folders' names."""
    lines = [*super().warnings(), *self.layout.notes]
    places = evenly_spread(_LOOKED_AT, len(self))
    some = [self._file(place) for place in places]
    if masks := files_named_as_masks(self._folder, some):
      lines.append(
        f"{len(masks):,} of {len(some):,} images looked at are named like "
        f"masks of those beside them, such as {text(masks[0])}, and are taken "
        "for images: move the masks away."
      )
    if self.class_names[1:]:
      lines += [
        f"{composed(text(same[0]))!r} names {len(same)} folders whose accents "
        "are encoded differently, as by macOS; they are one class."
        for same in _spellings(self.layout, self._folder).values()
        if same[1:]
      ]
      if hidden := folders.hidden_with_images(self._folder):
        lines.append(
          f"{len(hidden):,} folders with images have names that begin with a "
          f"dot, such as {text(hidden[0])!r}, and are left out; rename those "
          "that are classes."
        )
    return lines


def lies_among_classes(settings: DataSettings, path: str) -> bool:
  """Whether a path lies among class folders, and would be taken for a class.

  It is False for a path beside the folders of splits, unless the labels are
  read from files of their own, such as masks: then any path in the root counts.
  Raises ValueError as `layouts.find_layout` does.
  """
  root = os.fsencode(settings.root or "")
  has_classes = settings.labels and not settings.labels_file
  if "://" in path or not has_classes or not os.path.isdir(root):
    return False
  kind = settings.label_kind
  if kind is None or not kind.reader:
    layout = layouts.find_layout(root)
    if layout.root == root and layout.train != root:
      first = os.path.relpath(layout.train, root).split(os.fsencode(os.sep))[0]
      root = os.path.join(root, first)
  classes = os.path.realpath(root)
  inside = os.fsencode(os.path.realpath(os.path.expanduser(path)))
  return os.path.join(inside, b"").startswith(os.path.join(classes, b""))


def open_split(
  settings: DataSettings, split: str, labels: Labels = SINGLE
) -> ImageFolder:
  """Opens the split "train", "eval" or "test" of the folder `settings.root`.

  A run opens all of its splits at once, by `open_folder`. Raises ValueError as
  `ImageFolder` does.
  """
  del labels  # Class folders give the index of a class for any kind of labels.
  return _open_images(settings, split)


def _open_images(
  settings: DataSettings,
  split: str,
  whole: bool = False,
  known: Sequence[str] = (),
) -> ImageFolder:
  """Opens an `ImageFolder` by the settings; raises ValueError as it does."""
  assert settings.root
  return ImageFolder(
    settings.root,
    split,
    eval_fraction=settings.eval_fraction,
    eval_split=settings.eval_split,
    labels=settings.labels,
    held_out_by=settings.held_out_by,
    held_out_below=settings.held_out_below,
    whole=whole,
    known=known,
  )


def open_whole(
  settings: DataSettings, names: Sequence[str] = ()
) -> ImageFolder:
  """All images of a folder without splits, or else its split "eval".

  It is for a folder that is new to a run, which holds nothing out of it. If all
  of its classes are among `names`, those of the run's classes, it may lack
  other classes of the run. Raises ValueError as `ImageFolder` does.
  """
  whole = _open_images(settings, "train", whole=True, known=names)
  has_splits = whole.layout.evaluation(settings.eval_split) is not None
  if has_splits:
    return _open_images(settings, "eval", known=names)
  return whole


def open_folder(
  settings: DataSettings, labels: Labels = SINGLE
) -> dict[str, ImageFolder]:
  """Opens the splits of a run: "train", "eval" and, if there is one, "test".

  A folder without splits is listed once. Raises ValueError as `ImageFolder`
  does.
  """
  del labels  # As in `open_split`.
  train = _open_images(settings, "train", whole=True)
  if train.layout.evaluation(settings.eval_split) is None:
    rule = Holdout.of(
      len(train),
      settings.eval_fraction,
      by=settings.held_out_by,
      below=settings.held_out_below,
    )
    train, evaluation = train.split_by(rule)
  else:
    evaluation = _open_images(settings, "eval")
  opened = {"train": train, "eval": evaluation}
  if train.layout.test is not None:
    opened["test"] = _open_images(settings, "test")
  return opened


def summary(splits: Sequence[ImageFolder]) -> str:
  """A line on what was found: "birds: train 8, test 2 images of 5 classes"."""
  counts = counts_of(splits)
  ignored = collections.Counter(splits[0].layout.ignored)
  by_folder = {split._folder: split.ignored for split in splits}
  for of_folder in by_folder.values():
    ignored += of_folder
  names = splits[0].class_names
  classes = "without labels"
  if names[1:]:
    classes = f"of {counted(len(names), 'class', 'classes')}"
  line = f"{splits[0].name}: {counts} {classes}"
  if ignored_files := folders.ignored_text(ignored):
    line += f"; ignored: {ignored_files}"
  return line


def _advice(path: str) -> str:
  """The advice that a message gives on a path that is no folder."""
  if os.path.isfile(path):
    return (
      "a file of labels goes to --config.data.labels_file, and ends in "
      f"{', '.join(LABEL_FILES)}."
    )
  if path == "digits":
    return 'the digits that come with vit_jax are DataSettings(name="digits").'
  return hints.hint_for_path(path) or "give one."


def _spellings(layout: Layout, folder: bytes) -> dict[str, list[bytes]]:
  """The class folders by their composed names; most have one spelling."""
  groups: dict[str, list[bytes]] = collections.defaultdict(list)
  for name in layout.classes(folder):
    groups[composed(text(name))].append(name)
  return groups


def _class_name(name: bytes, spellings: dict[str, list[bytes]]) -> str:
  """The name of a class, as runs record it.

  It is the name on the disk, or with composed accents if there are several
  spellings.
  """
  key = composed(text(name))
  return key if len(spellings.get(key, ())) > 1 else text(name)


def _classes(layout: Layout) -> list[bytes]:
  """A folder of each class, in the order of their names on the disk.

  Raises ValueError if there are fewer than two classes, as an UnlabelledError
  if there are images.
  """
  folder = layout.train
  classes = [same[0] for same in _spellings(layout, folder).values()]
  if len(classes) < 2:
    only = f"only one folder, {text(classes[0])!r}" if classes else "no folders"
    reason = (
      f"{text(folder)!r} has {only}; put the images of each class into a "
      "folder of its own, for two classes or more."
    )
    if folders.holds_images(folder):
      raise UnlabelledError(reason, text(layout.root))
    raise ValueError(reason)
  return classes


def _add_absent(classes: list[bytes], known: Sequence[str]) -> list[bytes]:
  """Adds the known classes that are absent, and puts all in the known order.

  Returns those that were absent. Nothing changes if none is absent, or if one
  of the classes is not known.
  """
  there = {composed(text(name)): name for name in classes}
  order = {composed(name): os.fsencode(name) for name in known}
  if not {*there} < {*order}:
    return []
  classes[:] = [there.get(key, name) for key, name in order.items()]
  return [name for key, name in order.items() if key not in there]


def _check_classes(layout: Layout, folder: bytes, classes: list[bytes]) -> None:
  """Raises ValueError if a folder has a class that is not one of these."""
  names = {composed(text(name)) for name in classes}
  strange = sorted({*_spellings(layout, folder)} - names)
  if strange:
    raise ValueError(
      f"{text(folder)!r} has the class {strange[0]!r}, which the train folder "
      "lacks; add it there or remove it here."
    )
