"""Settings of the data: which images, how they are read, what is done to them.

This module and those of `runtime` that it imports need only the standard
library.
"""

import dataclasses
import importlib.util
import os
from collections.abc import Mapping
from typing import Any, ClassVar

from vit_jax.runtime import checks
from vit_jax.runtime.checks import COUNT, Rule
from vit_jax.runtime.settings import Section, from_dict, setting, types_of

TRAIN_CROPS = ("inception", "pad", "resize")
EVAL_CROPS = ("resize", "center", "squash")
PILLOW_FILTERS = ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")
FILTERS = ("area", *PILLOW_FILTERS)
TENSORFLOW = ("vision_transformer", "big_vision")
RESIZERS = ("pillow", "torchvision", "torchvision_float", *TENSORFLOW)
# Endings of files of labels that commands know.
TABLES = (".csv", ".tsv", ".jsonl")
LABEL_FILES = (*TABLES, ".json", ".txt")  # .json and .txt may be other files.
SAMPLING = ("images", "classes")
HELD_OUT_BY = ("name", "count", "rank")
MASK_VALUES = ("meant", "index")
EMPTY_CELLS = ("unknown", "absent")
UNCERTAIN = ("ignore", "positive", "negative")
ON_UNREADABLE = ("stop", "skip")
# The strongest magnitude of RandAugment; the scale of its paper ends at 10.
MAX_MAGNITUDE = 30
# The fields of `DataSettings` that choose the images of an evaluation and their
# labels: scores are comparable if all of them are equal. With a part of the
# training images that is held out, those of `HELD_OUT_FIELDS` are as well.
EVALUATED_FIELDS = (
  "name",
  "root",
  "dir",
  "labels_file",
  "eval_labels_file",
  "file_column",
  "label_columns",
  "group_column",
  "unknown",
  "uncertain",
  "tfds_label",
  "eval_split",
  "eval_fraction",
  "target_scale",
)
HELD_OUT_FIELDS = ("held_out_by", "held_out_below")
# The schemes of addresses that epath reads, with the library that each needs.
_BUCKETS = {"gs": None, "s3": "s3fs", "az": "adlfs", "hf": "huggingface_hub"}
_PAD = checks.up_to(4_096, "there would be little else", 0)
_OPERATIONS = checks.up_to(100, "nothing of an image would be left to see", 0)
_SHARE = Rule("lie in [0, 1]", lambda x: 0 <= x <= 1)


def check_address(name: str, value: str | None) -> None:
  """Raises ValueError, naming the key, for an address that cannot be read."""
  scheme, separator, place = (value or "").partition("://")
  if not separator:
    return
  if scheme not in _BUCKETS or not place.strip("/"):
    raise ValueError(
      f"{name}={value!r}: {scheme}:// cannot be read; give a local folder, or "
      "one in a bucket, as gs://bucket/folder."
    )
  library = _BUCKETS[scheme]
  if library is not None and importlib.util.find_spec(library) is None:
    raise ValueError(
      f"{name}={value!r}: {scheme}:// is read by {library}, which is not "
      f"installed: pip install {library}"
    )


@dataclasses.dataclass(frozen=True)
class DataSettings(Section):
  """Where the images come from: a folder, packed images, or a TFDS data set.

  `root` takes precedence over `name`; `root` and `dir` exclude each other. A
  configuration's `data` has a task as well, see `tasks.settings`.
  """

  # The fields that have no effect without a file of labels.
  _of_labels_file: ClassVar[tuple[str, ...]] = (
    "eval_labels_file",
    "file_column",
    "label_columns",
  )

  name: str | None = setting(
    None, 'Name of a TFDS data set, or "digits" for the digits of scikit-learn.'
  )
  root: str | None = setting(
    None, "A folder of class folders, instead of a data set's name."
  )
  dir: str | None = setting(
    None, "A folder that vit_jax.pack wrote; it may be in a bucket."
  )
  labels: bool = setting(
    True,
    "False takes all images below `root`, at any depth and without classes; it "
    "changes nothing for packed images and TFDS data sets.",
    needs="root or dir or name",
  )
  labels_file: str | None = setting(
    None,
    "CSV or JSONL file with the columns file and label, and a column split if "
    "it lists the images of all splits. Its folder stands for `root` unless "
    "that is set.",
  )
  eval_labels_file: str | None = setting(
    None,
    "CSV or JSONL file of the images to evaluate on, with columns as in "
    "labels_file.",
  )
  outside: bool = setting(
    False,
    "Let the file of labels name images outside of `root`.",
    needs="labels_file",
    legacy_default=True,
  )
  file_column: str | None = setting(
    None,
    "Column of the images' names, which may lack an ending such as .jpg. None "
    "takes the column whose cells name images; if several do, the one called "
    "file, path, image, image_id, id or the like.",
  )
  label_columns: str | None = setting(
    None,
    "Columns of the labels, separated by commas; None takes the column label, "
    "or else the only column beside file and split. For numbers, None takes "
    "all columns beside file and split.",
  )
  label_separator: str | None = setting(
    None,
    "Characters that separate several labels or captions in a cell, such as ' "
    "' or ','. By default ; and | separate labels, nothing separates captions, "
    'and a text such as ["cat", "dog"] is a list. If set to ";|", such a text '
    "is not read as a list, as in earlier versions.",
    must=Rule(
      "be spaces or punctuation, without letters and digits",
      lambda text: text and not any(map(str.isalnum, text)),
    ),
    needs="labels_file",
    legacy_default=";|",
  )
  group_column: str | None = setting(
    None,
    "Column of what images have in common, such as a patient, a scene or a "
    "video: all images of a group are trained on, or none.",
    needs="labels_file",
  )
  unknown: str | None = setting(
    None,
    'Values that mean "unknown", separated by commas: cells in columns of 0 '
    'and 1, such as "?" or "9,99", or numbers of pixels in targets, such as '
    '"0,65535". The loss and the metrics leave them out. By default, 0 is '
    'unknown in targets of depth; "none" takes no value for unknown.',
    needs="labels_file or root",
  )
  uncertain: str | None = setting(
    None,
    "What -1 says in columns of 0 and 1, where a label is uncertain: leave it "
    "out of the loss and the metrics, or take it for 1 or 0. None refuses it.",
    choices=UNCERTAIN,
    needs="labels_file",
  )
  empty_cells: str | None = setting(
    None,
    'What an empty cell says in columns of 0 and 1: that it is "unknown" '
    'whether an image has the label, or that it is "absent". None takes '
    "absent in columns whose training rows have a 1 and no 0, and unknown in "
    "all others.",
    choices=EMPTY_CELLS,
    needs="labels_file",
    legacy_default="absent",
  )
  data_dir: str | None = setting(None, "Folder where TFDS keeps its data sets.")
  tfds_label: str | None = setting(
    None,
    "Feature of a TFDS data set that replaces its usual label: "
    '"label_azimuth", "label_orientation/16" for 16 groups of its values, or '
    'texts that are captions, such as "captions/text"; or a label that VTAB '
    "computes (count_all, closest_object_distance, closest_vehicle_distance).",
  )
  train_split: str = setting(
    "train",
    'TFDS split to train on, such as "train[:90%]".',
    needs="name or dir",
  )
  eval_split: str | None = setting(
    None,
    'Split to evaluate on. The default is "test" for a TFDS data set; '
    '"validation" for a packed one, or "test" if it has none; and for a folder '
    "val, or test if there is no val, or a held-out part of train if there is "
    "neither.",
    legacy_default="test",
  )
  eval_fraction: float = setting(
    0.2,
    "Share of the images held out to evaluate on, if a folder has neither val "
    "nor test.",
    needs="root",
    must=checks.BETWEEN_0_AND_1,
  )
  held_out_by: str | None = setting(
    None,
    'How the images to hold out are chosen: by their own "name", whatever '
    'images are added; by the "count" of their class, which gives an exact '
    'share and at least two; or by their "rank" among all of their class, as '
    "in earlier versions. None takes count for fewer than 1,000 images, or "
    "else name.",
    choices=HELD_OUT_BY,
    needs="root",
    legacy_default="rank",
  )
  held_out_below: tuple[float, ...] | None = setting(
    None,
    "With held_out_by=count, a number for each class: images whose names have "
    "a lower hash are held out. None chooses the numbers, and a run keeps its "
    "own, so that no image changes sides as the folder grows.",
    must=Rule(
      "be numbers between 0 and 1, one for each class",
      lambda hashes: all(0 <= share <= 1 for share in hashes),
    ),
    needs="held_out_by=count",
  )

  sampling: str = setting(
    "images",
    'What training shows equally often: all "images", or all "classes", so '
    "that images of a rare class come more often. An epoch keeps its length.",
    choices=SAMPLING,
  )
  mask_values: str = setting(
    "meant",
    'How masks are read: "meant" reads the colours that classes.txt lists, and '
    "takes white for class 1 in masks of two classes that are black and white "
    'alone; "index" reads numbers, of which 255 is never a class, as in '
    "earlier versions.",
    choices=MASK_VALUES,
    needs="root",
    legacy_default="index",
  )

  target_scale: float | None = setting(
    None,
    "Factor that multiplies the values of target files, such as 0.001 to learn "
    "depth in metres from files in millimetres; None is 1.",
    must=Rule("be above 0", lambda scale: 0 < scale < float("inf")),
    needs="data.task=dense_regression",
  )
  bands: str | None = setting(
    None,
    "Names of the bands of the files in their order, separated by commas, such "
    "as 'blue,green,red,nir': the images have a channel for each, and red, "
    "green and blue keep the weights of a checkpoint of RGB.",
  )

  @property
  def band_names(self) -> tuple[str, ...]:
    """The names of the bands; () if they have none."""
    if self.bands is None:
      return ()
    return tuple(name.strip() for name in self.bands.split(","))

  @property
  def label_kind(self) -> Any:
    """The kind of labels, a `reading.labels.Labels`; None for single classes.

    The settings of `tasks.settings` give the kind that their task reads.
    """
    return None

  @property
  def photographs(self) -> bool:
    """Whether the images are likely large, so that processes decode them."""
    return bool(self.root or self.dir)

  def __post_init__(self):
    """Checks fields that depend on each other; raises ValueError.

    If there is a file of labels and no `root`, `root` becomes its folder.
    """
    super().__post_init__()
    names = self.band_names
    if not all(names) or len(names) > len({*names}):
      raise ValueError(
        f"bands={self.bands!r} must name each band once, with commas between "
        "them, as in 'blue,green,red,nir'."
      )
    self._check_addresses()
    if (self.name or "").startswith((".", "~", "/")):
      raise ValueError(
        f"name={self.name!r} is a path, and the name of a TFDS data set was "
        f"needed: give root={self.name!r}."
      )
    self._check_folders()
    is_tfds = self.dir or self.name not in (None, "digits")
    if self.tfds_label and (self.root or self.labels_file or not is_tfds):
      raise ValueError(
        f"tfds_label={self.tfds_label!r} is for a TFDS data set: leave it out."
      )
    if self.labels_file:
      folder = os.path.dirname(self.labels_file) or "."
      object.__setattr__(self, "root", self.root or folder)
      return
    for name in self._of_labels_file:
      value = getattr(self, name)
      if value != getattr(type(self), name) and self._needs_labels_file(name):
        raise ValueError(
          f"{name}={value!r} needs labels_file, the CSV or JSONL file with "
          f"labels{self._alternatives(name)}."
        )

  def _needs_labels_file(self, name: str) -> bool:
    """Whether a field of `_of_labels_file`, as set, needs a file of labels."""
    del name
    return True

  def _alternatives(self, name: str) -> str:
    """The end of a message: what a field may need in place of a file of labels.

    `name` is that of the field, one of `_of_labels_file`.
    """
    del name
    return ""

  def _check_addresses(self) -> None:
    """Raises ValueError for an address that cannot be read, naming its key."""
    for name in ("dir", "data_dir", "root", "labels_file", "eval_labels_file"):
      if "://" not in (value := getattr(self, name) or ""):
        continue
      check_address(name, value)
      if name not in ("dir", "data_dir"):
        raise ValueError(
          f"{name}={value!r} lies in a bucket, and images are read one by one "
          "from folders of this machine alone: pack them (vit_jax pack) and "
          "give the packed folder as dir, which may be in a bucket, or mount "
          "the bucket."
        )

  def _check_folders(self) -> None:
    """Raises ValueError for settings of folders or files that exclude others.

    These are `dir` beside `root` or `labels_file`, and `labels_file` beside
    `labels=False`.
    """
    if self.dir and (self.root or self.labels_file):
      other = "root" if self.root else "labels_file"
      raise ValueError(
        f"dir={self.dir!r} and {other}={getattr(self, other)!r} both name "
        "images: give one."
      )
    if self.labels_file and not self.labels:
      raise ValueError(
        f"labels=False and labels_file={self.labels_file!r}: drop one."
      )


def settings_of_saved(data: Mapping[str, Any]) -> DataSettings:
  """The settings in the section `data` of a run's configuration.

  That section has a task as well, which is left out. Raises ValueError as
  `from_dict` does.
  """
  ours = {name: data[name] for name in types_of(DataSettings) if name in data}
  return from_dict(DataSettings, ours, saved=True)


@dataclasses.dataclass(frozen=True)
class LoaderSettings(Section):
  """How the images are read."""

  num_workers: int = setting(
    -1,
    "Number of worker processes that decode images; 0 decodes in a thread, -1 "
    "chooses the number.",
    must=checks.up_to(1_024, "each is a process", -1),
  )
  on_unreadable: str = setting(
    "stop",
    '"stop" ends the run at an unreadable image, "skip" passes over it.',
    choices=ON_UNREADABLE,
  )


@dataclasses.dataclass(frozen=True)
class TrainTransformSettings(Section):
  """The random changes of a training image."""

  crop: str = setting(
    "inception",
    'What is cut out of a training image: a random box ("inception"), a '
    'randomly shifted part ("pad"), or nothing, as the whole image is resized '
    '("resize").',
    choices=TRAIN_CROPS,
  )
  min_area: float = setting(
    0.05,
    "Smallest area of the inception crop, as a fraction of the image's.",
    must=Rule("lie in (0, 1]", lambda x: 0 < x <= 1),
    tunes="crop=inception",
  )
  as_published: bool = setting(
    False,
    "Draw the inception crop and RandAugment as the published models' code "
    "does, with smaller boxes and its errors in contrast and posterize.",
    tunes="crop=inception or randaugment_layers",
  )
  resizer: str = setting(
    "fast",
    'How a crop is resized. "fast" shrinks by averages and enlarges '
    'bilinearly, and may decode a JPEG at a reduced size; "bicubic" is the '
    'filter of Pillow; "vision_transformer" and "big_vision" are as in '
    "eval_transform.resizer.",
    choices=("fast", "bicubic", *TENSORFLOW),
  )
  pad: int = setting(
    4,
    'Number of black pixels that the crop "pad" adds at each edge.',
    must=_PAD,
    tunes="crop=pad",
  )
  flip: bool = setting(
    True, "Mirror images left to right, each with probability 1/2."
  )
  randaugment_layers: int = setting(
    0,
    "Number of RandAugment operations for each image; 0 is off.",
    must=_OPERATIONS,
  )
  randaugment_magnitude: float = setting(
    10,
    f"Strength of RandAugment's operations, 0 to {MAX_MAGNITUDE}.",
    must=Rule(
      f"lie between 0 and {MAX_MAGNITUDE}", lambda x: 0 <= x <= MAX_MAGNITUDE
    ),
    tunes="randaugment_layers",
  )
  randaugment_timm: bool = setting(
    False,
    "Use timm's rand-mstd0.5-inc1, as DeiT does, whatever as_published says: "
    "each operation is applied with probability 1/2, and its magnitude is "
    "drawn with a standard deviation of 0.5, up to 10.",
    needs="randaugment_layers",
  )
  three_augment: bool = setting(
    False, "Make each image grey, solarize it or blur it, at random (DeiT III)."
  )
  colour_jitter: float = setting(
    0.0,
    "Largest change of brightness, contrast and saturation, as a share of "
    "each; 0 is off.",
    must=_SHARE,
  )
  erase: float = setting(
    0.0,
    "Probability that a random box is filled with noise (random erasing).",
    must=_SHARE,
  )
  repeats: int = setting(
    1,
    "How often a batch shows each of its images, augmented anew each time "
    "(repeated augmentation). An epoch keeps its length, and so shows fewer "
    "images.",
    must=COUNT,
  )

  @property
  def colour_changes(self) -> dict[str, float]:
    """The augmentations of colours that are on, by name, and their strength."""
    names = ("randaugment_layers", "three_augment", "colour_jitter")
    return {name: getattr(self, name) for name in names if getattr(self, name)}


def _check_resizer(transform: "EvalTransformSettings") -> None:
  """Raises ValueError if the resizer does not have the interpolation."""
  name = transform.interpolation
  if transform.resizer in TENSORFLOW and name not in ("area", "bilinear"):
    raise ValueError(
      f"resizer={transform.resizer!r} has no interpolation={name!r}: set it to "
      "area or bilinear."
    )


@dataclasses.dataclass(frozen=True)
class EvalTransformSettings(Section):
  """The crop of an image that is evaluated, and how it is resized."""

  crop: str = setting(
    "resize",
    '"resize" resizes the whole image to the size of the model; "center" '
    'resizes it in proportion and cuts out its centre; "squash" resizes it '
    "without keeping its proportions, and cuts out its centre.",
    choices=EVAL_CROPS,
  )
  resize_ratio: float = setting(
    256 / 224,
    'For the crops "center" and "squash", the side that the image is resized '
    "to, divided by the side of the crop.",
    must=checks.RATIO,
    tunes="crop=center or crop=squash",
  )
  interpolation: str = setting(
    "bilinear",
    'Filter that resizes the image: one of those of Pillow, or "area", which '
    "averages areas to shrink it and is bilinear to enlarge it.",
    choices=FILTERS,
    legacy_default="area",
  )
  antialias: bool = setting(
    True,
    'False turns off antialiasing where "bilinear" or "bicubic" shrinks.',
    tunes="interpolation=bilinear or interpolation=bicubic",
  )
  resizer: str = setting(
    "pillow",
    'Library whose pixels the filters reproduce: "pillow"; torchvision on '
    '8-bit tensors ("torchvision") or on floats, rounded at the end '
    '("torchvision_float"); or TensorFlow without antialiasing, as the code of '
    '"vision_transformer" or of "big_vision" uses it.',
    choices=RESIZERS,
    fits=_check_resizer,
  )
  corner: str = setting(
    "floor",
    "How an offset of the crop that ends in half a pixel is rounded: down "
    '("floor"), or to an even number ("even"), as in torchvision.',
    choices=("floor", "even"),
    tunes="crop=center or crop=squash",
  )

  longest_ratio: float | None = setting(
    None,
    'With the crop "center", the largest size of the long side after '
    "resizing, divided by the side of the crop; what the crop then lacks is "
    "black.",
    must=checks.RATIO,
    tunes="crop=center",
  )


@dataclasses.dataclass(frozen=True)
class NormalizationSettings(Section):
  """Mean and standard deviation of the channels, in units of full scale.

  None takes those of the checkpoint that `pretrained` names, or 0.5 for RGB,
  which gives [-1, 1].
  """

  window: tuple[float, float] | None = setting(
    None,
    "Darkest and brightest value of images of more than 8 bits, such as (0, "
    "4095) for 12 bits; None takes (0, 65535).",
    must=Rule("be a lower and a higher number", lambda w: w[0] < w[1]),
  )
  mean: tuple[float, ...] | None = setting(
    None,
    "Value to subtract from each channel, as a share of full scale; None takes "
    "the checkpoint's, or 0.5 for RGB.",
    must=checks.CHANNELS,
  )
  std: tuple[float, ...] | None = setting(
    None,
    "Value to divide each channel by afterwards, as a share of full scale; "
    "None takes the checkpoint's, or 0.5 for RGB.",
    must=checks.POSITIVE_CHANNELS,
  )
