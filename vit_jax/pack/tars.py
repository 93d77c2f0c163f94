"""Lists the images in .tar files: WebDataset's, and ImageNet's own.

The files are read once from start to end, to list the places of their images;
images are then read one by one.
"""

import collections
import dataclasses
import itertools
import json
import operator
import os
import pathlib
import tarfile
from array import array
from collections.abc import Collection, Iterator, Mapping
from typing import IO, Any, NamedTuple

from etils import epath

from vit_jax.data.example import Source
from vit_jax.data.reading.folders import is_byproduct
from vit_jax.pack import archives
from vit_jax.pack.archives import IMAGES, MOST_TEXT, HiddenImages
from vit_jax.pack.captioned import captions_in
from vit_jax.pack.records import (
  CaptionPlace,
  Listing,
  Records,
  Splits,
  number_names,
  split_of,
)
from vit_jax.runtime.files import open_anywhere, read_regular
from vit_jax.runtime.printable import say

_TRAIN, _VAL = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
_CAPTIONS = ("txt", "json")
_LABEL = ': a .cls file beside it, or a .json file with "label"'
_TEXTS = ': a .txt file beside it, or a .json file with "caption"'
_name = operator.attrgetter("name")


def open_tars(folder: epath.Path, labels: str | None) -> Splits:
  """Opens the splits of a folder of .tar files.

  `labels` is a file: for ImageNet, of the validation images' WordNet ids; for
  WebDataset, of the classes' names, one in each line. Raises ValueError if a
  file is not such an archive, or an image has neither a label nor a caption, or
  some have a label and others none.
  """
  if (folder / _TRAIN).exists():
    return _open_imagenet(folder, labels)
  paths = (p for p in folder.iterdir() if p.suffix == ".tar")
  files = sorted(p for p in paths if not is_byproduct(os.fsencode(p.name)))
  listings: dict[str, Listing] = {}
  lacks = _Lacks()
  hidden = HiddenImages()
  for path in files:
    listing = listings.setdefault(split_of(path.name), Listing())
    listing.files.append(str(path))
    for sample in _read_samples(path, lacks, hidden):
      listing.add(
        start=sample.start,
        size=sample.size,
        label=-1 if sample.label is None else sample.label,
        name=sample.name,
        captions=sample.captions,
      )
  hidden.say()
  for split, listing in listings.items():
    if not listing.label:
      raise ValueError(
        f"{folder}: split {split!r} holds no images: move its files away."
      )
  counts = set().union(*(listing.captions for listing in listings.values()))
  seen = sum(len(listing.label) for listing in listings.values())
  most = max(max(listing.label) for listing in listings.values())
  has_captions = lacks.check_captions(
    has_labels=most >= 0, has_captions=any(counts)
  )
  if most < 0:
    names = []
    for listing in listings.values():
      zeros = bytes(4 * len(listing.label))  # An "i" has 4 bytes.
      listing.label = array("i", zeros)
  else:
    names = _lines(labels) if labels else number_names(most, seen, str(folder))
  if len(names) <= most:
    raise ValueError(
      f"{labels} has {len(names)} names, and there is an image of class "
      f"{most}: give a name for each class from 0 on."
    )
  captions = (min(counts), max(counts)) if has_captions else None
  return {
    split: Records(f"{folder.name}, {split}", names, listing, captions)
    for split, listing in listings.items()
  }


@dataclasses.dataclass
class _Lacks:
  """Messages that name the first image without a label, or without captions."""

  label: str = ""
  caption: str = ""

  def check_captions(self, *, has_labels: bool, has_captions: bool) -> bool:
    """Returns whether captions are packed, which is so if all images have one.

    If only some of the labelled images have captions, all captions are left
    out, and a line says so. Raises ValueError if some images have a label and
    others have none, or if one has neither a label nor a caption.
    """
    if has_labels and self.label:
      raise ValueError(self.label)
    if not self.caption:
      return True
    if not has_labels:
      raise ValueError(self.caption)
    if has_captions:
      say(f"{self.caption} The captions of the others are left out.")
    return False


class _Sample(NamedTuple):
  """An image of a WebDataset file.

  Attributes:
    start: The offset of the image in the file, in bytes.
    size: The size of the image, in bytes.
    label: Its class; None without a label.
    name: The name of the image's file.
    captions: The place of its captions, of size 0 if there are none.
  """

  start: int
  size: int
  label: int | None
  name: str
  captions: CaptionPlace


def _read_samples(
  path: epath.Path, lacks: _Lacks, hidden: HiddenImages
) -> Iterator[_Sample]:
  """Yields the images of a WebDataset file, with their labels and captions.

  The members of a sample stand next to each other. As in WebDataset, their
  names are equal up to the first dot of the last part, if a label has just that
  name: `x.jpg`, `x.seg.png` and `x.cls` are one sample. Otherwise dots are part
  of the names. An image then belongs to the label whose name, without its
  ending, is the longest beginning of the image's name: `0.1.png` to `0.1.cls`.
  Of the images of a sample the one with the fewest dots is taken, `x.jpg`
  before `x.seg.png`. If there is no label, the names of captions decide in the
  same way.

  `lacks` is given a message on the first image without a label, and on the
  first without captions; `hidden` counts the hidden images, which are skipped.
  Raises ValueError for an image that has neither a label nor captions, for an
  image to which both readings of its name give a label, and for two images of a
  sample with equally many dots.
  """
  with open_anywhere(path) as file, archives.open_archive(file, path) as tar:
    visible = archives.members(tar, path, hidden)
    for key, group in itertools.groupby(visible, _key):
      members = {member.name: member for member in group if member.isfile()}
      images = [name for name in members if name.lower().endswith(IMAGES)]
      if not images:
        continue
      labels = _labels(tar, members, key, path)
      stems = labels or _stems_of_captions(members, key)
      chosen = _choose_images(images, stems, path)
      stem_of = {name: stem for stem, name in chosen.items()}
      for name in filter(stem_of.__contains__, images):
        stem = stem_of[name]
        captions, why = _find_captions(tar, members, stem)
        if why:
          lacks.caption = lacks.caption or f"{path}: {name} {why}."
        label = labels.get(stem)
        if label is None:
          lacks.label = lacks.label or f"{path}: {name} has no label{_LABEL}."
        yield _Sample(
          start=members[name].offset_data,
          size=members[name].size,
          label=label,
          name=name,
          captions=captions,
        )


def _choose_images(
  images: list[str], stems: Collection[str], path: epath.Path
) -> dict[str, str]:
  """The image of each sample, by the stem that names the sample.

  `stems` are the names of labels or captions without their endings. Raises
  ValueError as `_read_samples` does.
  """
  chosen: dict[str, str] = {}
  for name in sorted(images, key=lambda name: name.count(".")):
    begins = [stem for stem in stems if name.startswith(f"{stem}.")]
    if not begins:
      raise ValueError(
        f"{path}: {name} has no label and no caption: add a .cls or .txt file "
        'beside it, or a .json file with "label" or "caption".'
      )
    first = chosen.setdefault(max(begins, key=len), name)
    if first != name and first.count(".") == name.count("."):
      raise ValueError(
        f"{path}: {first} and {name} are images of one sample; keep one of "
        "them."
      )
  return chosen


def _stems_of_captions(
  members: Mapping[str, tarfile.TarInfo], key: str
) -> list[str]:
  """The names, without endings, of files that may have captions.

  If a file has the name of the key itself, the result is that name alone.
  """
  split = (name.rpartition(".") for name in members)
  stems = [stem for stem, _, ending in split if ending in _CAPTIONS]
  return [key] if key in stems else stems


def _find_captions(
  tar: tarfile.TarFile, members: Mapping[str, tarfile.TarInfo], stem: str
) -> tuple[CaptionPlace, str]:
  """The place of a sample's captions, and "" or the reason why it has none.

  Of two files, the one with more captions is taken.
  """
  place = CaptionPlace(start=0, size=0, is_json=False, num_captions=0)
  why = f"has no caption{_TEXTS}"
  for ending in _CAPTIONS:
    member = members.get(f"{stem}.{ending}")
    if member is None or member.size > MOST_TEXT:
      continue
    content: Any = tar.extractfile(member)
    try:
      count = len(captions_in(content.read(), ending))
    except ValueError as error:
      why = f"has no caption: {stem}.{ending} {error}"
      continue
    if count > place.num_captions:
      place = CaptionPlace(
        start=member.offset_data,
        size=member.size,
        is_json=ending == "json",
        num_captions=count,
      )
  return place, "" if place.num_captions else why


def _key(member: tarfile.TarInfo) -> str:
  """The name of a member up to the first dot of its last part."""
  folder, slash, last = member.name.rpartition("/")
  return folder + slash + last.partition(".")[0]


def _labels(
  tar: tarfile.TarFile,
  members: Mapping[str, tarfile.TarInfo],
  key: str,
  path: epath.Path,
) -> dict[str, int]:
  """The labels of members with equal keys, by the name without its ending.

  If the key itself has a label, the result has that label alone. Raises
  ValueError for an image that may belong to that label or to another, and as
  `_label` does.
  """
  files: dict[str, list[str]] = collections.defaultdict(list)
  for name in members:
    stem, _, ending = name.rpartition(".")
    if ending in ("cls", "json"):
      files[stem].append(name)
  labels: dict[str, int] = {}
  for stem in sorted(files, key=len):  # The key is the shortest.
    for name in files[stem]:
      content: Any = tar.extractfile(members[name])
      ending = name.rpartition(".")[2]
      label = _label(content, ending, f"{path}: {name}")
      if label is not None:
        labels[stem] = label
    if key in labels:
      break
  if key in labels:
    for name in members:
      stem = name.rpartition(".")[0]
      second = f"{stem}.cls"
      if stem != key and second in members and name.lower().endswith(IMAGES):
        raise ValueError(
          f"{path}: {name} may belong to {second} or to the label of {key}, "
          "which is its name up to the first dot: rename one of them."
        )
  return labels


def _label(file: IO[bytes], ending: str, source: str) -> int | None:
  """The label in a .cls file, or in a .json file under "label" or "cls".

  It is None if a .json file has no label. Raises ValueError if the label is not
  the number of a class.
  """
  try:
    value: Any = json.loads(file.read(MOST_TEXT))
    if ending == "json":
      value = value.get("label", value.get("cls"))
      if value is None:
        return None
    is_number = 0 <= value < 2**31 and int(value) == value
    if isinstance(value, bool) or not is_number:
      raise ValueError
    return int(value)
  except (ValueError, TypeError, AttributeError, RecursionError) as error:
    raise ValueError(
      f"{source} must hold the number of a class, from 0 to 2**31 - 1."
    ) from error


def _open_imagenet(folder: epath.Path, labels: str | None) -> Splits:
  """Opens the splits of ImageNet's own archives; raises as `open_tars` does."""
  train = Listing(files=[str(folder / _TRAIN)])
  names: list[str] = []
  hidden = HiddenImages()
  path = folder / _TRAIN
  with open_anywhere(path) as file, archives.open_archive(file, path) as tar:
    # The outer file lists the classes in any order.
    members = archives.members(tar, path, hidden)
    classes = [member for member in members if member.name.endswith(".tar")]
    for label, of_class in enumerate(sorted(classes, key=_name)):
      names.append(pathlib.PurePosixPath(of_class.name).stem)
      inner_file: Any = tar.extractfile(of_class)
      with archives.open_archive(inner_file, path / of_class.name) as inner:
        members = archives.members(inner, path / of_class.name, hidden)
        for member in filter(tarfile.TarInfo.isfile, members):
          start = of_class.offset_data + member.offset_data
          train.add(start, member.size, label, member.name)
  hidden.say()
  if len(names) < 2:
    raise ValueError(
      f"{path} holds no archives of classes: give ImageNet's own, as it is."
    )
  splits: dict[str, Source] = {}
  splits["train"] = Records(f"{folder.name}, train", names, train)
  if not (folder / _VAL).exists():
    return splits
  if not labels:
    raise ValueError(
      f"{folder / _VAL} has no labels in it: give --labels=FILE, with the "
      "WordNet id of each image, one per line, in the order of their names; "
      "or move it elsewhere."
    )
  splits["validation"] = _open_validation(folder, names, labels)
  return splits


def _open_validation(
  folder: epath.Path, names: list[str], labels: str
) -> Records:
  """Opens ImageNet's validation images, with labels from a file.

  Raises ValueError if the file does not fit the images.
  """
  listing = Listing(files=[str(folder / _VAL)])
  path = folder / _VAL
  with open_anywhere(path) as file, archives.open_archive(file, path) as tar:
    hidden = HiddenImages()
    files = filter(tarfile.TarInfo.isfile, archives.members(tar, path, hidden))
    members = sorted(files, key=_name)
  hidden.say()
  numbers = {name: i for i, name in enumerate(names)}
  wordnet_ids = _lines(labels)
  if len(wordnet_ids) != len(members):
    raise ValueError(
      f"{labels} has {len(wordnet_ids)} lines, and {_VAL} {len(members)} "
      "images: give a line for each image."
    )
  for member, wordnet in zip(members, wordnet_ids, strict=True):
    if wordnet not in numbers:
      raise ValueError(
        f"{labels} names the class {wordnet!r}; a line must be a WordNet id of "
        f"the training images, such as {names[0]}. (Numbers from ImageNet's "
        "development kit count the classes in another order.)"
      )
    listing.add(member.offset_data, member.size, numbers[wordnet], member.name)
  return Records(f"{folder.name}, validation", names, listing)


def _lines(path: str) -> list[str]:
  """The lines of a file, without spaces around them."""
  content = read_regular(epath.Path(path).expanduser())
  lines = content.decode().splitlines()
  return [line.strip() for line in lines]
