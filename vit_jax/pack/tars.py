"""Lists the images in .tar files: WebDataset's, and ImageNet's own.

The files are read through once for the places of their images, and then image
by image.
"""

import collections
import itertools
import json
import operator
import pathlib
import tarfile
from collections.abc import Iterator, Mapping
from typing import IO, Any

from etils import epath

from vit_jax.data.example import Source
from vit_jax.data.reading.folders import EXTENSIONS
from vit_jax.pack.records import Listing, Records, Splits, numbered, split_of
from vit_jax.runtime.files import open_anywhere, read_regular

_MOST_TEXT = 2**24  # Bytes; a sparse archive may claim any number.
_TRAIN, _VAL = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
_name = operator.attrgetter("name")
_IMAGES = tuple(ending.decode() for ending in EXTENSIONS)


def open_tars(folder: epath.Path, labels: str | None) -> Splits:
  """Opens the splits of a folder of .tar files.

  `labels` is a file: for ImageNet, of the validation images' WordNet ids; for
  WebDataset, of the classes' names, one in each line. Raises ValueError if a
  file is not such an archive, or an image has no label.
  """
  if (folder / _TRAIN).exists():
    return _imagenet(folder, labels)
  files = sorted(p for p in folder.iterdir() if p.suffix == ".tar")
  listings: dict[str, Listing] = {}
  for path in files:
    listing = listings.setdefault(split_of(path.name), Listing())
    listing.files.append(str(path))
    for place, label, name in _samples(path):
      listing.add(*place, label, name)
  for split, listing in listings.items():
    if not listing.label:
      raise ValueError(f"{folder}: split {split!r} holds no images.")
  most = max(max(listing.label) for listing in listings.values())
  seen = sum(len(listing.label) for listing in listings.values())
  names = _lines(labels) if labels else numbered(most, seen, str(folder))
  if len(names) <= most:
    raise ValueError(
      f"{labels} has {len(names)} names, and there is an image of class {most}."
    )
  return {
    split: Records(f"{folder.name}, {split}", names, listing)
    for split, listing in listings.items()
  }


def _samples(path: epath.Path) -> Iterator[tuple[tuple[int, int], int, str]]:
  """Yields ((start, size), label, name) of a WebDataset file's images.

  The members of a sample stand next to each other. As in WebDataset, their
  names are equal up to the first dot of the last part, if that is the name of
  a label: `x.jpg`, `x.seg.png` and `x.cls` are one sample. Else dots are part
  of the names, and an image belongs to the label whose name without its ending
  is the longest to begin its own: `0.1.png` to `0.1.cls`. Of the images of a
  sample the one with the fewest dots is taken, `x.jpg` before `x.seg.png`.

  Raises ValueError for an image that has no label, or one in either reading,
  and for two images of a sample with equally many dots.
  """
  with open_anywhere(path) as file, _opened(file, path) as tar:
    for key, group in itertools.groupby(_members(tar, path), _key):
      members = {member.name: member for member in group if member.isfile()}
      images = [name for name in members if name.lower().endswith(_IMAGES)]
      if not images:
        continue
      labels = _labels(tar, members, key, path)
      chosen: dict[str, str] = {}
      for name in sorted(images, key=lambda name: name.count(".")):
        begins = [stem for stem in labels if name.startswith(f"{stem}.")]
        if not begins:
          raise ValueError(
            f"{path}: {name} has no label: a .cls file beside it, or a .json "
            'file with "label".'
          )
        first = chosen.setdefault(max(begins, key=len), name)
        if first != name and first.count(".") == name.count("."):
          raise ValueError(
            f"{path}: {first} and {name} are images of one sample; keep one of "
            "them."
          )
      names = {name: stem for stem, name in chosen.items()}
      for name in filter(names.__contains__, images):
        place = members[name].offset_data, members[name].size
        yield place, labels[names[name]], name


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

  If the key itself has a label, the others are passed over.
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
      if stem != key and second in members and name.lower().endswith(_IMAGES):
        raise ValueError(
          f"{path}: {name} may belong to {second} or to the label of {key}, "
          "which is its name up to the first dot: rename one of them."
        )
  return labels


def _label(file: IO[bytes], ending: str, source: str) -> int | None:
  """The label in a .cls file, or in a .json file under "label" or "cls"."""
  try:
    value: Any = json.loads(file.read(_MOST_TEXT))
    if ending == "json":
      value = value.get("label", value.get("cls"))
      if value is None:
        return None
    whole = 0 <= value < 2**31 and int(value) == value
    if isinstance(value, bool) or not whole:
      raise ValueError
    return int(value)
  except (ValueError, TypeError, AttributeError, RecursionError) as error:
    raise ValueError(
      f"{source} must hold the number of a class, from 0 to 2**31 - 1."
    ) from error


def _imagenet(folder: epath.Path, labels: str | None) -> Splits:
  train = Listing(files=[str(folder / _TRAIN)])
  names: list[str] = []
  path = folder / _TRAIN
  with open_anywhere(path) as file, _opened(file, path) as tar:
    # The outer file lists the classes in any order.
    members = _members(tar, path)
    classes = [member for member in members if member.name.endswith(".tar")]
    for label, of_class in enumerate(sorted(classes, key=_name)):
      names.append(pathlib.PurePosixPath(of_class.name).stem)
      inner_file: Any = tar.extractfile(of_class)
      with _opened(inner_file, path / of_class.name) as inner:
        members = _members(inner, path / of_class.name)
        for member in filter(tarfile.TarInfo.isfile, members):
          start = of_class.offset_data + member.offset_data
          train.add(start, member.size, label, member.name)
  if len(names) < 2:
    raise ValueError(f"{path} holds no archives of classes.")
  splits: dict[str, Source] = {}
  splits["train"] = Records(f"{folder.name}, train", names, train)
  if not (folder / _VAL).exists():
    return splits
  if not labels:
    raise ValueError(
      f"{folder / _VAL} has no labels in it: give --labels=FILE, with the "
      "WordNet id of each image in a line, in the order of their names; or "
      "move it elsewhere."
    )
  splits["validation"] = _validation(folder, names, labels)
  return splits


def _validation(folder: epath.Path, names: list[str], labels: str) -> Records:
  listing = Listing(files=[str(folder / _VAL)])
  path = folder / _VAL
  with open_anywhere(path) as file, _opened(file, path) as tar:
    files = filter(tarfile.TarInfo.isfile, _members(tar, path))
    members = sorted(files, key=_name)
  numbers = {name: i for i, name in enumerate(names)}
  wordnet_ids = _lines(labels)
  if len(wordnet_ids) != len(members):
    raise ValueError(
      f"{labels} has {len(wordnet_ids)} lines, and {_VAL} {len(members)} "
      "images."
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


class _Bounded:
  """A file that refuses large reads, whatever size an archive claims.

  A header may say that gigabytes follow, such as a member's long name.
  """

  def __init__(self, file: IO[bytes], path: epath.Path):
    self._file = file
    self._path = path
    self.seek = file.seek
    self.tell = file.tell
    self.seekable = file.seekable

  def read(self, size: int) -> bytes:
    if not 0 <= size <= _MOST_TEXT:
      raise ValueError(
        f"{self._path} is damaged: a header takes {size:,} bytes, more than "
        f"{_MOST_TEXT:,}."
      )
    return self._file.read(size)


def _members(
  tar: tarfile.TarFile, path: epath.Path
) -> Iterator[tarfile.TarInfo]:
  """The members of an archive; raises ValueError for one with holes.

  Its bytes are not stored as they are, and it may claim any size.
  """
  for member in tar:
    if member.issparse():
      raise ValueError(
        f"{path}: {member.name} is stored without its zeros; write the archive "
        "again, without --sparse."
      )
    yield member


def _opened(file: IO[bytes], path: epath.Path) -> tarfile.TarFile:
  bounded: Any = _Bounded(file, path)
  try:
    return tarfile.open(fileobj=bounded, mode="r:")
  except tarfile.TarError as error:
    raise ValueError(
      f"{path} is no uncompressed .tar file ({error})."
    ) from error


def _lines(path: str) -> list[str]:
  content = read_regular(epath.Path(path).expanduser())
  lines = content.decode().splitlines()
  return [line.strip() for line in lines]
