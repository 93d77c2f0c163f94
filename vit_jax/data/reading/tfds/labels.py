"""Labels of TFDS data sets: the usual ones, and others as VTAB has them.

The rules for the others are those in the code of VTAB-1k (arXiv:1910.04867):
https://github.com/google-research/task_adaptation, task_adaptation/data.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np
import tensorflow_datasets as tfds

from vit_jax.data.batch import CLASS, ArraySpec
from vit_jax.data.decoding.decode import image_size
from vit_jax.data.example import UnreadableImageError
from vit_jax.data.reading import labels as kinds

Record = Mapping[str, Any]
IDS = ("id", "file_name")
"""Features that name an example."""
# The distances at which classes end, for CLEVR in the unit of its scenes, and
# for KITTI in metres; beyond the last of these there is no vehicle.
_DISTANCES = 8.0, 8.5, 9.0, 9.5, 10.0
_METRES = 8.0, 20.0, 999.0
_VEHICLES = 3  # The first types of KITTI are car, van and truck.


def _no_lines(records: Iterable[Record]) -> list[str]:
  """No lines, for labels of which no records are looked at."""
  del records
  return []


class Labels(NamedTuple):
  """The class names and the labels of the records of a data set.

  Attributes:
    class_names: The names of the source.
    label: The function from a record to its label, such as the index of a
      class. It raises UnreadableImageError for a record that has none.
    image: The feature of the images.
    spec: The shape and type of a label.
    most: The most captions of an image; None if labels are not captions.
    lines: Lines on which of several labels is taken.
    look: The function from some records to lines on what may be a mistake.
  """

  class_names: tuple[str, ...]
  label: Callable[[Record], Any]
  image: str = "image"
  spec: ArraySpec = CLASS
  most: int | None = None
  lines: Sequence[str] = ()
  look: Callable[[Iterable[Record]], list[str]] = _no_lines


def open_labels(info: Any, kind: kinds.Labels, name: str | None) -> Labels:
  """Finds the labels of a data set; `info` is its `tfds.core.DatasetInfo`.

  `name` is that of a label, as for `labels_of`; without it, the data set's
  usual label is taken. `kind` is the kind of labels that the task asks for: if
  the task ignores them (`are_used` is False) and there are none, all images are
  of one class. Raises ValueError if an example does not have one image and one
  class label.
  """
  features: Any = dict(info.features)
  if name:
    return labels_of(features, name)
  image, *labels = info.supervised_keys or ("image", "label")
  is_class = isinstance(features.get(labels[-1]), tfds.features.ClassLabel)
  if not kind.are_used and not is_class:
    return Labels(("unlabelled",), _no_class, image)
  image, label = _feature_keys(info)
  return labels_of(features, label)._replace(image=image)


def _feature_keys(info: Any) -> tuple[str, str]:
  """The keys of the image and of its class label.

  Raises ValueError if an example does not have one of each.
  """
  keys: Any = info.supervised_keys or ("image", "label")
  features: Any = info.features
  expected = (tfds.features.Image, tfds.features.ClassLabel)
  for key, kind in zip(keys, expected, strict=False):
    feature = features[key] if key in list(features) else None
    if len(keys) != 2 or not isinstance(feature, kind):
      raise ValueError(
        f"{info.name} is not an image classification dataset: its features "
        f"are {', '.join(features)}, and {key!r} is no {kind.__name__}; "
        "choose one with an image and a class label per example."
      )
  return keys


def _no_class(record: Record) -> int:
  """The only class of a data set without labels."""
  del record
  return 0


def labels_of(features: Mapping[str, Any], name: str) -> Labels:
  """Looks up labels by their name in the features of a data set.

  A name is that of a class label, such as "label_azimuth"; or of a label and a
  number, such as "label_orientation/16" for 16 groups of neighbouring classes;
  or of a rule: "count_all" and "closest_object_distance" of CLEVR,
  "closest_vehicle_distance" of KITTI. Raises ValueError if the data set does
  not have such labels.
  """
  if name in _RULES:
    count, rule, columns = _RULES[name]
    objects = getattr(features.get("objects"), "feature", {})
    if all(column in objects for column in columns):
      return Labels(tuple(map(str, range(count))), rule)
  feature, _, groups = name.partition("/")
  classes = getattr(features.get(feature), "num_classes", None)
  if not classes or (groups and not groups.isdecimal()):
    labels = [k for k in features if getattr(features[k], "num_classes", None)]
    raise ValueError(
      f"data.tfds_label={name!r}: the data set has no such label; it has "
      f"{', '.join(labels) or 'none'}, and the labels that are computed, each "
      f"for its own data set, are {', '.join(_RULES)}."
    )
  if not groups:
    names = tuple(features[feature].names)
    return Labels(names, functools.partial(_class_group, feature, 1.0))
  if not 1 < int(groups) <= classes:
    raise ValueError(
      f"data.tfds_label={name!r}: {feature} has {classes} classes, which make "
      f"2 to {classes} groups."
    )
  names = tuple(map(str, range(int(groups))))
  size = classes / int(groups)
  return Labels(names, functools.partial(_class_group, feature, size))


def black_and_white(encoded: bytes) -> bytes:
  """Rewrites a PNG file of zeros and ones, as dSprites has, to 0 and 255.

  Raises UnreadableImageError if the file cannot be decoded, or has too many
  pixels.
  """
  image_size(encoded)  # Raises UnreadableImageError for a too large image.
  pixels = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_UNCHANGED)
  if pixels is None:
    raise UnreadableImageError(
      "it is not a PNG file, as images of dSprites are."
    )
  return cv2.imencode(".png", pixels * np.uint8(255))[1].tobytes()


def _class_group(feature: str, size: float, record: Record) -> int:
  """The group of a record's class, where each group has `size` classes."""
  return int(record[feature] // size)


def _count_all(record: Record) -> int:
  """The class of the number of objects in a scene of CLEVR, 3 to 10."""
  return len(record["objects"]["size"]) - 3


def _closest_object(record: Record) -> int:
  """The class of the distance of the closest object in a scene of CLEVR."""
  coordinates = np.asarray(record["objects"]["pixel_coords"])
  return _count_below(_DISTANCES, coordinates[:, 2].min())


def _closest_vehicle(record: Record) -> int:
  """The class of the distance of the closest vehicle in an image of KITTI."""
  objects = record["objects"]
  vehicles = np.asarray(objects["type"]) < _VEHICLES
  forward = np.asarray(objects["location"])[vehicles, 2]
  return _count_below(_METRES, forward.min(initial=1000.0))


def _count_below(thresholds: tuple[float, ...], value: float) -> int:
  """The number of thresholds below a value."""
  return int(np.sum(np.array(thresholds, np.float32) < value))


# Name -> number of classes, the rule, and the columns of "objects" it reads.
_RULES = {
  "count_all": (8, _count_all, ("size",)),
  "closest_object_distance": (6, _closest_object, ("pixel_coords",)),
  "closest_vehicle_distance": (4, _closest_vehicle, ("location", "type")),
}
