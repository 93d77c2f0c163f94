"""The types that all readers share, the facts of an image, and its limits."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

import numpy as np

from vit_jax.runtime import hints
from vit_jax.runtime.checks import MAX_PIXELS
from vit_jax.runtime.printable import counted

MAX_BYTES = 8 * MAX_PIXELS
"""The most bytes of a file, and of its decoded samples.

It is the size of an image of `MAX_PIXELS` with four samples of 16 bits a pixel.
"""
_MAX_SCANS = 100
"""The most scans of a JPEG; decoding each takes as long as a whole image."""
_SCAN = b"\xff\xda"  # The marker at which a scan of a JPEG begins.
_SHOWN = 5  # Names of classes in the text of a source.

Window = tuple[float, float]
"""The values of samples of more than 8 bits that become black and white."""


class Example(TypedDict):
  """One labelled image file."""

  image: bytes
  """The encoded file, as stored."""
  label: Any
  """Index into the source's `class_names`, or an array of the shape and type of
  the source's `label_spec`, such as a 0 or 1, or a number, for each name."""
  id: str
  """The example's name in messages; unique within its source."""


class NoTestSplitError(ValueError):
  """A folder or a file of labels has no test images of its own."""

  def __init__(self, lacks: str, instead: str = ""):
    """`lacks` says what is missing, and `instead` how to make it."""
    self._lacks, self._instead = lacks, instead
    super().__init__(self.text('take split="eval", the images for evaluation'))

  def text(self, otherwise: str) -> str:
    """The message, with another way out than the split for evaluation."""
    return f"{self._lacks}: {self._instead}{otherwise}."


class Source(Protocol):
  """Random access to the examples of one split of a data set.

  A source can be pickled, since each worker process gets a copy, and can be
  read from several threads at once. It may also have a method
  `labels(indices)` that returns the labels of some examples as an array, and a
  method `ids(indices)` that returns their ids as a list, if that costs less
  than reading them. It has an attribute `label_spec`, a `data.batch.ArraySpec`,
  if a label is not the index of a class.
  """

  name: str
  class_names: tuple[str, ...]

  def __len__(self) -> int:
    """Returns the number of examples."""
    ...

  def __getitem__(self, index: int) -> Example:
    """Returns the example at `index`, 0 <= index < len."""
    ...

  def read(self, indices: Sequence[int]) -> list[Example]:
    """Returns several examples; some sources read them faster together."""
    return [self[index] for index in indices]

  def __repr__(self) -> str:
    """The number of examples, and the names of the first classes."""
    names = self.class_names
    text = f"{self.name}: {counted(len(self), 'example')}"
    if names:
      some = [*names[:_SHOWN], *(["..."] if len(names) > _SHOWN else [])]
      text += f", {counted(len(names), 'class name')} ({', '.join(some)})"
    return text

  if not TYPE_CHECKING:  # Otherwise type checkers would accept any attribute.

    def __getattr__(self, name: str) -> Any:
      """Raises AttributeError, with a hint at the name that may be meant."""
      who = f"{type(self).__name__!r} object has"
      raise hints.attribute_error(self, name, "source", who)


def evenly_spread(count: int, length: int) -> list[int]:
  """The indices of at most `count` of `length` items, evenly spread.

  They are in order and each occurs once, the first and the last item among them
  if `count` is at least 2.
  """
  spread = np.linspace(0, length - 1, min(count, length))
  return spread.round().astype(int).tolist()


def refuse_text(index: object) -> None:
  """Raises TypeError if a split is indexed by a text instead of a number."""
  if isinstance(index, str):
    raise TypeError(
      f"a split is indexed by the number of an example, and not by {index!r}: "
      'next(batches)["image"] has the images of a batch, where split, batches '
      '= vit_jax.open_data("train", folder); "eval" and "test" in the place of '
      '"train" open the other splits.'
    )


class Subset(Source):
  """Selected examples of a source, in a given order, as a source again."""

  def __init__(self, source: Source, indices: Iterable[int]):
    self.name = source.name
    self.class_names = source.class_names
    self._source = source
    self._indices = [int(index) for index in indices]

  def __len__(self) -> int:
    return len(self._indices)

  def __getitem__(self, index: int) -> Example:
    refuse_text(index)
    return self._source[self._indices[index]]

  def __getattr__(self, name: str) -> Any:
    """Passes on `label_spec` and `ids`, which only some sources have.

    Raises AttributeError for other names, and where the source has none.
    """
    if name == "label_spec":
      return getattr(self._source, name)
    if name == "ids":
      ids = getattr(self._source, name)
      return lambda indices: ids([self._indices[index] for index in indices])
    return super().__getattr__(name)  # pyright: ignore[reportAttributeAccessIssue]

  def read(self, indices: Sequence[int]) -> list[Example]:
    """The examples at `indices`, which count within the subset."""
    return self._source.read([self._indices[index] for index in indices])


def read_labels(source: Source, key: str, instead: str) -> np.ndarray:
  """Reads all labels of a source, for a key of the configuration.

  Returns them as an array (N, ...). Raises ValueError if the source gives
  labels only together with the images; the message begins with the key and ends
  with `instead`, what to do.
  """
  read = getattr(source, "labels", None)
  if read is None:
    raise ValueError(
      f"{key} has to know the labels of all images, and {source.name} gives a "
      f"label only together with its image: {instead}."
    )
  return np.asarray(read(range(len(source))))


def sides(train: Source) -> dict[str, Any]:
  """The settings of `data` that tell which images were held out from `train`.

  They are empty if no images were held out.
  """
  rule = getattr(train, "held_out", None)
  return rule.as_settings() if rule else {}


class BalancedClasses(Subset):
  """A source with as many examples of every class as of the largest one.

  The examples of a smaller class are repeated in turn, so that any two of them
  come equally often, or one of them once more.

  Attributes:
    rarest: The name of the class with the fewest examples.
    repeats_of_rarest: How often an example of that class comes, on average.

  Raises:
    ValueError: if labels cannot be read without the images, are not single
      classes, or are all of one class.
  """

  def __init__(self, source: Source):
    instead = "set loss.class_weights to a list instead"
    labels = read_labels(source, "data.sampling='classes'", instead)
    key = "data.sampling"
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
      raise ValueError(
        f"{key}='classes' is for single classes: leave it out, and for several "
        "labels set loss.class_weights=balanced."
      )
    classes, counts = np.unique(labels, return_counts=True)
    if len(counts) < 2:
      raise ValueError(
        f"{key}='classes' needs two classes, and {source.name} has one: leave "
        "it out."
      )
    self.rarest = source.class_names[classes[counts.argmin()]]
    self.repeats_of_rarest = float(counts.max() / counts.min())
    order = np.argsort(labels, kind="stable")
    starts = np.cumsum(counts) - counts
    # Turn t has example t of each class, counted modulo the class's size.
    turns = np.arange(counts.max())[:, None] % counts + starts
    super().__init__(source, order[turns].ravel())


class UnreadableImageError(ValueError):
  """Raised for an image that cannot be decoded; says why.

  Where the image is that of an example, the message begins with its id or path.
  """


@dataclasses.dataclass(frozen=True)
class ImageSpec:
  """How the samples of an image file become the pixels that a model sees.

  Attributes:
    channels: 1 for grey, 2 for grey and alpha, 3 for RGB, 4 for RGBA; or the
      number of a TIFF file's bands, which are then taken as they are stored.
      Colours become grey by their luminance (ITU-R BT.601).
    window: The values of images of more than 8 bits that become black and
      white; None for 0 and 65535.
    fast_dct: Whether JPEG files are decoded by the fast and less exact integer
      transform, which is TensorFlow's default. Its pixels differ from those of
      the exact one by one level of 255 on average.
    stored: Whether the bands of a TIFF file are taken as they are stored, even
      if they are 1 or 3.
    adds_alpha: Whether 2 or 4 channels get an alpha of 255 from a picture that
      has none; otherwise such a picture is refused.
    some_bands: Whether a file may have more or fewer bands than `channels`;
      then all bands of the file are taken.
  """

  channels: int = 3
  window: Window | None = None
  fast_dct: bool = False
  stored: bool = False
  adds_alpha: bool = True
  some_bands: bool = False

  @property
  def grey(self) -> bool:
    """Whether the first channel is the luminance."""
    return self.channels in (1, 2)


RGB = ImageSpec()


def check_classes(count: int, num_examples: int, counter: str) -> None:
  """Raises ValueError for an absurd number of classes.

  Each class gets a name in memory. `counter` is the file or the feature that
  states the number `count`.
  """
  if count > max(1 << 20, num_examples):
    raise ValueError(
      f"{counter} counts {count:,} classes, and there are {num_examples:,} "
      "images: number the classes from 0 on, without gaps."
    )


def check_size(height: int, width: int, times: int = 1) -> None:
  """Raises UnreadableImageError for more than `times * MAX_PIXELS` pixels."""
  most = times * MAX_PIXELS
  if height * width > most:
    raise UnreadableImageError(
      f"the image has {width} x {height} pixels, more than {most}; shrink it "
      "first."
    )


def check_samples(shape: Sequence[int], itemsize: int) -> None:
  """Raises UnreadableImageError for more than `MAX_BYTES` bytes of samples."""
  size = math.prod(shape) * itemsize
  if size > MAX_BYTES:
    sides = " x ".join(map(str, shape))
    raise UnreadableImageError(
      f"its {sides} samples take {size:,} bytes, more than {MAX_BYTES:,}; cut "
      "it into smaller images first."
    )


def check_scans(encoded: bytes) -> None:
  """Raises UnreadableImageError for a JPEG of too many scans.

  Decoding it could take minutes. Cameras write ten scans.
  """
  scans = encoded.count(_SCAN)
  if scans > _MAX_SCANS:
    raise UnreadableImageError(
      f"the image is stored in {scans} scans, more than {_MAX_SCANS}; save it "
      "again with fewer."
    )


def adds_alpha(bands: Sequence[str]) -> bool:
  """Whether a run with bands of these names, if any, takes opaque pictures.

  It is the value for `ImageSpec.adds_alpha`. An opaque picture can be given a
  last band only if that is alpha.
  """
  return not bands or bands[-1].lower() == "alpha"


def check_channels(
  image_spec: ImageSpec, bands: int | None = None, *, has_alpha: bool = False
) -> None:
  """Raises UnreadableImageError if a file cannot give the channels of a spec.

  Call it only for a file whose bands are not taken as they are stored. Grey and
  colours, with or without alpha, can be converted to 1 to 4 channels.

  Args:
    bands: The number of a TIFF file's bands, if they are no picture and are
      more or fewer than the channels; None for a picture.
    has_alpha: Whether a picture has alpha or a transparent colour.
  """
  channels = image_spec.channels
  opaque = channels in (2, 4) and not has_alpha
  if bands is not None:
    reason = f"it has {counted(bands, 'band')}"
  elif channels > 4:
    reason = "it is not a TIFF file with bands"
  elif opaque and not image_spec.adds_alpha:
    reason = "it is a picture without alpha"
  else:
    return
  raise UnreadableImageError(
    f"{channels} bands are needed, and {reason}: set channels to the number of "
    "bands in the files, and leave out files of other bands."
  )
