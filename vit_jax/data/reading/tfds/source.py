"""Reads data sets that TensorFlow Datasets prepared, without TensorFlow."""

import contextlib
import difflib
import importlib
import itertools
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow_datasets as tfds
from etils import epath
from tensorflow_datasets.core import dataset_builder, read_only_builder

from vit_jax.data.example import (
  Example,
  UnreadableImageError,
  check_classes,
  evenly_spread,
  refuse_text,
)
from vit_jax.data.reading.class_lists import check_class_lists
from vit_jax.data.reading.labels import SINGLE, Labels
from vit_jax.data.reading.tfds import files as tfds_files
from vit_jax.data.reading.tfds import labels as tfds_labels
from vit_jax.runtime.printable import printable

_RANDOM_ACCESS = ("array_record", "parquet")
# With other names, TFDS would download a community's code, or give a builder
# any argument.
_NAME = re.compile(r"\w+(/[\w+-][\w.+-]*)?(:[\d.*]+)?")
_LOOKED_AT = 32  # Examples whose labels are looked at for warnings.
SLOW_READ = 1e-3  # Seconds; a record of 256 kB in memory takes an eighth of it.
_INSTALL = 'pip install "vit_jax[tfds-prepare]"'  # Installs TensorFlow.


class TfdsSource:
  """One split of a prepared TFDS dataset.

  The features read are the builder's supervised keys, or "image" and "label" if
  it names none; labels of another kind choose their own features.

  Attributes:
    label_spec: The shape and type of a label.
    most_captions: The most captions of an image; None if labels are no
      captions.
  """

  def __init__(
    self,
    builder: tfds.core.DatasetBuilder,
    split: str,
    label: str | None = None,
    kind: Labels = SINGLE,
  ):
    """Opens a split, or a part of one as TFDS writes it, with labels of a kind.

    `label` chooses them, as `open_labels` of the kind's module explains. Raises
    ValueError if the data set is not prepared, has no such split, allows no
    random access, or its examples do not have one image and such a label each.
    """
    _check_prepared(builder)
    features: Any = builder.info.features
    self.name = builder.info.full_name
    num_examples = builder.info.splits.total_num_examples
    counts = {k: getattr(features[k], "num_classes", 0) or 0 for k in features}
    for key, count in counts.items():
      check_classes(count, num_examples, key)
    listed = {key: count for key, count in counts.items() if count}
    check_class_lists(epath.Path(builder.data_dir), listed)
    module = importlib.import_module(f"vit_jax.data.reading.{kind.records}")
    self._labels = module.open_labels(builder.info, kind, label)
    self._image = self._labels.image
    self._binary = builder.name == "dsprites"
    self._split = split
    self._id = next((key for key in tfds_labels.IDS if key in features), None)
    self.class_names = self._labels.class_names
    self.label_spec = self._labels.spec
    self.most_captions = self._labels.most
    as_data_source: Any = builder.as_data_source
    decoders = {self._image: tfds.decode.SkipDecoding()}
    try:
      self._examples = as_data_source(split, decoders=decoders)
    except (ValueError, AssertionError) as error:
      splits = ", ".join(builder.info.splits)
      raise ValueError(
        f"data.train_split and data.eval_split take {splits} of {self.name}, "
        f'and parts of them such as "{splits.split(",")[0]}[:90%]"; {split!r} '
        "is not one of them, or is empty."
      ) from error

  def __len__(self) -> int:
    return len(self._examples)

  def __getitem__(self, index: int) -> Example:
    refuse_text(index)
    return self._example(index, self._record(index))

  def read(self, indices: Sequence[int]) -> list[Example]:
    """Reads several examples, in parallel if the first one takes long.

    Examples that are in memory already are read faster one by one, in two
    thirds of the time.
    """
    start = time.perf_counter()
    read = [self[index] for index in indices[:1]]
    left = indices[1:]
    if time.perf_counter() - start > SLOW_READ:
      # If a record is damaged, reading it again below names it in the error.
      with contextlib.suppress(Exception):
        records = self._examples.__getitems__(list(left))
        return read + list(map(self._example, left, records))
    return read + [self[index] for index in left]

  def warnings(self) -> list[str]:
    """Lines on the labels that are read, and on oddities in a few of them."""
    few = evenly_spread(_LOOKED_AT, len(self))
    lines = self._labels.look(self._readable_records(few))
    among = f"among {len(few):,} examples that were looked at, "
    return [*self._labels.lines, *(among + line for line in lines)]

  def _readable_records(
    self, indices: Sequence[int]
  ) -> Iterator[dict[str, Any]]:
    """Yields the records at these indices, without unreadable ones."""
    for index in indices:
      with contextlib.suppress(UnreadableImageError):
        yield self._record(index)

  def column(self, name: str) -> list[Any]:
    """A feature of every example; reads the whole split."""
    return [self._record(index)[name] for index in range(len(self))]

  def _record(self, index: int) -> dict[str, Any]:
    """Reads a record.

    Raises UnreadableImageError, which names the file and the record, if the
    record is damaged or missing.
    """
    try:
      return self._examples[index]
    except Exception as error:  # Riegeli, protobuf and others raise any error.
      splits = self._examples.dataset_info.splits
      parts = splits[self._split].file_instructions
      places = ((p.filename, p.skip + k) for p in parts for k in range(p.take))
      file, record = next(itertools.islice(places, index, None))
      place = f"{file}, record {record},"
      raise UnreadableImageError(_damage_message(place, error)) from error

  def _example(self, index: int, record: dict) -> Example:
    """The example in a record.

    Raises UnreadableImageError if it has no label, or as `black_and_white` does
    for an image of dSprites.
    """
    name = f"{self.name}/{self._split}#{index}"
    if self._id is not None:
      stored = record[self._id]
      if isinstance(stored, bytes):
        stored = stored.decode("utf-8", "backslashreplace")
      name = f"{name} ({printable(str(stored))})"
    image = record[self._image]
    if self._binary:
      image = tfds_labels.black_and_white(image)
    try:
      label = self._labels.label(record)
    except UnreadableImageError as error:
      raise UnreadableImageError(f"{name}: {error}") from error
    return {"image": image, "label": label, "id": name}


class _CheckedBuilder(
  read_only_builder.ReadOnlyBuilder, skip_registration=True
):
  """The builder of a folder whose files are checked, in every process anew."""

  def __init__(self, builder_dir: Any):
    """Raises as `tfds_files.read_description` does."""
    info = tfds_files.read_description(epath.Path(builder_dir))
    super().__init__(builder_dir, info_proto=info)


def open_prepared(
  folder: str,
  split: str | None,
  label: str | None = None,
  kind: Labels = SINGLE,
) -> TfdsSource:
  """Opens a split of the data set in a folder or a bucket, as `pack` writes it.

  A split of None is "validation" if there is one, else "test". `label` and
  `kind` are those of `TfdsSource`. Raises ValueError if the folder holds no
  data set, OSError if its bucket cannot be asked, or as `TfdsSource` does.
  """
  path = epath.Path(folder).expanduser()
  try:
    is_there = (path / "dataset_info.json").exists()
  except Exception as error:  # Libraries of buckets raise errors of all kinds.
    why = f"data.dir={folder!r} cannot be read: {_first_line(error)}."
    raise OSError(why) from error
  if not is_there:
    raise ValueError(
      f"data.dir={folder!r} holds no data set that TFDS prepared (it has no "
      "dataset_info.json): pack images with vit_jax pack."
    )
  builder = _open_builder(path)
  if split is None:
    split = "validation" if "validation" in builder.info.splits else "test"
  return TfdsSource(builder, split, label, kind)


def _open_builder(folder: epath.Path) -> tfds.core.DatasetBuilder:
  """The builder of a folder; raises ValueError, which names a damaged file."""
  file = folder / "dataset_info.json"
  try:
    tfds.core.Version(tfds_files.read_info(folder).version)
    file = folder / "features.json"
    return _CheckedBuilder(folder)
  except tfds_files.RefusedError:
    raise
  except Exception as error:  # Three libraries parse it.
    raise ValueError(_damage_message(file, error)) from error


def _damage_message(place: Any, error: Exception) -> str:
  """The message for a file, or a record of it, that cannot be read."""
  why = f"is damaged or missing ({_first_line(error)})"
  return f"{place} {why}: copy it again, or remove it and pack again."


def open_all(name: str, data_dir: str | None = None) -> dict[str, TfdsSource]:
  """Opens every split of a data set; raises ValueError as `TfdsSource` does."""
  builder = find_builder(name, data_dir)
  _check_prepared(builder)
  return {split: TfdsSource(builder, split) for split in builder.info.splits}


def find_builder(name: str, data_dir: str | None) -> tfds.core.DatasetBuilder:
  """The builder of a data set such as "cifar10" or "beans:0.1.0".

  Raises ValueError if there is no such data set, or its files are damaged.
  """
  if not _NAME.fullmatch(name):
    raise ValueError(
      f"data.name={name!r} is not the name of a TFDS data set: give "
      '"dataset", "dataset/config" or "dataset:version".'
    )
  try:
    with _no_temporary_folder(), _checked_files():
      return tfds.builder(name, data_dir=data_dir)
  except tfds_files.RefusedError:
    raise
  except tfds.core.DatasetNotFoundError as error:
    names = [*tfds.list_builders(with_community_datasets=False), "digits"]
    close = ", ".join(difflib.get_close_matches(name, names)) or "none is close"
    raise ValueError(
      f"data.name={name!r} is not a TFDS data set (did you mean: {close}?); a "
      "data set of your own has to be prepared in data.data_dir, and a folder "
      "of images is given as data.root."
    ) from error
  except Exception as error:  # Damaged files raise any error.
    raise ValueError(
      f"data.name={name!r}: TFDS says: {_first_line(error)}; give the name as "
      '"dataset", "dataset/config" or "dataset:version".'
    ) from error


@contextlib.contextmanager
def _no_temporary_folder() -> Iterator[None]:
  """Keeps TFDS from making a temporary folder that it never removes.

  TFDS makes one for every data set that is not prepared, to hold what TFDS's
  bucket has on it. Within this block, TFDS does not ask that bucket.
  """
  info = tfds.core.DatasetInfo
  original = info.initialize_from_bucket
  info.initialize_from_bucket = lambda self: None
  try:
    yield
  finally:
    info.initialize_from_bucket = original


@contextlib.contextmanager
def _checked_files() -> Iterator[None]:
  """Has TFDS read descriptions through `tfds_files`, which checks them."""
  open_original = read_only_builder.builder_from_directory
  name_original = dataset_builder.load_default_config_name

  def open_checked(folder: Any, file_format: None = None) -> Any:
    return _open_builder(epath.Path(folder).expanduser())

  def name_checked(folder: epath.Path) -> str | None:
    name = name_original(folder)
    tfds_files.check_config_name(name, folder)
    return name

  read_only_builder.builder_from_directory = open_checked
  dataset_builder.load_default_config_name = name_checked
  try:
    yield
  finally:
    read_only_builder.builder_from_directory = open_original
    dataset_builder.load_default_config_name = name_original


def _check_prepared(builder: tfds.core.DatasetBuilder) -> None:
  """Raises ValueError unless a data set is prepared for random access.

  It also does so as `check_places` does.
  """
  name = builder.name
  root = builder.data_dir_root
  if not builder.info.splits:
    raise ValueError(
      f"{name} is not prepared in {root}; prepare it once with: "
      f"{_INSTALL} && tfds build {name} "
      f"--file_format=array_record --data_dir={root}"
    )
  tfds_files.check_places(builder.info.splits.values(), builder.data_dir)
  formats = {f.value for f in builder.info.available_file_formats()}
  if not formats & set(_RANDOM_ACCESS):
    raise ValueError(
      f"{builder.data_dir} holds {', '.join(sorted(formats))} files, which "
      f"allow no random access; convert them with: {_INSTALL} && "
      "python -m tensorflow_datasets.scripts.convert_format --dataset_dir="
      f"{builder.data_dir} --out_file_format=array_record"
    )


def _first_line(error: Exception) -> str:
  """The first line of an error's message, or else the name of its class."""
  line = (str(error).strip() or type(error).__name__).splitlines()[0]
  return printable(line.strip("."))
