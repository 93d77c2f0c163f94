"""Reads the description of a data set from the files that TFDS prepared.

TFDS imports the class that such a file names for a feature, reads any file that
an old form of a class label names, and finds records wherever their template
leads. All of that is checked here first, whoever wrote the files.
"""

import json
import pathlib
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from etils import epath
from google.protobuf import json_format
from tensorflow_datasets.core.proto import dataset_info_pb2, feature_pb2

from vit_jax.runtime.files import MOST_TEXT, open_regular, read_regular
from vit_jax.runtime.printable import printable

_PREFIX = "tensorflow_datasets.core.features."
# The kinds of features in TFDS 4, each by the name of its class, as files say.
FEATURES = frozenset(
  _PREFIX + name
  for name in (
    "audio_feature.Audio",
    "bounding_boxes.BBoxFeature",
    "class_label_feature.ClassLabel",
    "dataset_feature.Dataset",
    "feature.Tensor",  # Until TFDS 4.5.
    "features_dict.FeaturesDict",
    "image_feature.Image",
    "labeled_image.LabeledImage",
    "scalar.Scalar",
    "sequence_feature.Sequence",
    "tensor_feature.Tensor",
    "text_feature.Text",
    "translation_feature.Translation",
    "translation_feature.TranslationVariableLanguages",
    "video_feature.Video",
  )
)
_DICTS = _PREFIX + "features_dict.FeaturesDict"
_SEQUENCES = tuple(
  _PREFIX + name
  for name in ("sequence_feature.Sequence", "dataset_feature.Dataset")
)
# Keys of a feature in JSON, by the kind of value that they may have.
_NUMBERS = {"shape", "sample_rate", "lazy_decode", "use_colormap", "minimum"}
_NUMBERS |= {"maximum", "optional", "num_classes", "labels", "length"}
_LISTS = {"names", "languages", "ffmpeg_extra_args"}
_WORDS = {"dtype", "encoding", "encoding_format", "file_format", "bbox_format"}
_FIELDS = ("DATASET", "SPLIT", "FILEFORMAT", "SHARD_INDEX", "NUM_SHARDS")
_TEMPLATE = re.compile(
  rf"(?:[^{{}}]|\{{(?:{'|'.join((*_FIELDS, 'SHARD_X_OF_Y'))})\}})*"
)


# The classes of these modules are made at import, unseen by type checkers.
_INFO_PROTO: Any = dataset_info_pb2
_FEATURE_PROTO: Any = feature_pb2


class RefusedError(ValueError):
  """A file asks for something that no data set of images needs."""


def read_info(folder: epath.Path) -> Any:
  """Parses dataset_info.json alone, a `DatasetInfo` of protobuf.

  Raises OSError, or an error of decoding or parsing.
  """
  text = read_regular(folder / "dataset_info.json").decode()
  return json_format.Parse(text, _INFO_PROTO.DatasetInfo())


def read_description(folder: epath.Path) -> Any:
  """Reads dataset_info.json with the features of features.json in it.

  Returns a `DatasetInfo` of protobuf. No class is imported, and no other file
  is read.

  Raises:
    RefusedError: a feature is not one of TFDS's own, or names a file.
    Exception: a file is damaged or missing, as OSError or as the parsers do.
  """
  info = read_info(folder)
  info.module_name = ""  # Otherwise TFDS would look for the data set's code.
  if not info.HasField("features"):
    text = read_regular(folder / "features.json").decode()
    info.features.CopyFrom(_as_proto(json.loads(text)))
  _check_feature(info.features, folder / "features.json")
  if "://" not in str(folder):
    for names in folder.glob("*.labels.txt"):
      # This raises an error for a list that is too large or no regular file.
      open_regular(names, MOST_TEXT).close()
  return info


def check_places(splits: Iterable[Any], folder: Any) -> None:
  """Raises RefusedError if a split's records would lie outside the folder."""
  for split in splits:
    template = split.filename_template
    place = template.template
    if _TEMPLATE.fullmatch(place):
      place = template.relative_filepath(
        shard_index=0, num_shards=split.num_shards or 1
      )
      parts = pathlib.PurePosixPath(place).parts
      outside = place.startswith("/") or ".." in parts
      if not outside and "\\" not in place and "://" not in place:
        continue
    raise RefusedError(
      f"{_shorten(folder)}/dataset_info.json puts the records of a split at "
      f"{_shorten(place)}, outside its folder: pack the images again."
    )


def check_config_name(name: Any, folder: Any) -> None:
  """Raises RefusedError unless a file names a configuration by a plain name."""
  if name is not None and not re.fullmatch(r"[\w+-][\w.+-]*", str(name)):
    raise RefusedError(
      f"{_shorten(folder)}/.config/metadata.json names the configuration "
      f"{_shorten(name)}, which is not the name of a folder: remove that file."
    )


def _as_proto(value: dict[str, Any]) -> Any:
  """Parses a feature of features.json.

  Until TFDS 4.3, the feature's class was under "type".
  """
  if "type" not in value:
    return json_format.ParseDict(value, _FEATURE_PROTO.Feature())
  feature = _FEATURE_PROTO.Feature(python_class_name=value["type"])
  content = value["content"]
  if not (kind := value.get("proto_cls")):
    feature.json_feature.json = json.dumps(content)
    return feature
  fields = feature.DESCRIPTOR.oneofs_by_name["content"].fields
  names = {field.message_type.full_name: field.name for field in fields}
  message = getattr(feature, names[kind])
  message.SetInParent()
  if isinstance(content, str):
    json_format.Parse(content, message)
  else:
    json_format.ParseDict(content, message)
  return feature


def _check_feature(feature: Any, file: epath.Path) -> None:
  """Raises RefusedError unless TFDS builds a feature by its own code alone.

  Raises ValueError for a feature without a class.
  """
  name = feature.python_class_name
  if not name:
    raise ValueError("a feature has no class")
  if name not in FEATURES:
    raise RefusedError(
      f"{_shorten(file)} names the class {_shorten(name)}, which is not one of "
      "TFDS's own features, and a data set's own code is not run: pack its "
      "images with vit_jax pack."
    )
  kind = feature.WhichOneof("content")
  if kind == "json_feature":
    _check_json(name, json.loads(feature.json_feature.json), file)
  elif kind == "features_dict":
    for child in feature.features_dict.features.values():
      _check_feature(child, file)
  elif kind == "sequence":
    _check_feature(feature.sequence.feature, file)
  elif kind in ("tensor", "image", "video", "audio"):
    _check_dtype(getattr(feature, kind).dtype, file)


def _check_json(name: str, content: Any, file: epath.Path) -> None:
  """Checks a feature stored as JSON; raises as `_check_feature` does."""
  if name == _DICTS:
    for child in content.values():
      _check_feature(_as_proto(child), file)
    return
  content = dict(content)
  if name in _SEQUENCES:
    _check_feature(_as_proto(content.pop("feature")), file)
  for key, value in content.items():
    if not _is_harmless(key, value):
      raise RefusedError(
        f"{_shorten(file)} sets {_shorten(key)} of {name} to "
        f"{_shorten(value)}, which is not supported: pack the images with "
        "vit_jax pack."
      )
  if "dtype" in content:
    _check_dtype(content["dtype"], file)


def _is_harmless(key: str, value: Any) -> bool:
  """Whether a feature's argument is one that leads to no file and no code."""
  number = (bool, int, float, type(None))
  if isinstance(value, list):
    kinds = (*number, str) if key in _LISTS else number
    return key in _LISTS | _NUMBERS and all(isinstance(v, kinds) for v in value)
  kinds = (str, type(None)) if key in _WORDS else number
  return key in _LISTS | _NUMBERS | _WORDS and isinstance(value, kinds)


def _check_dtype(name: Any, file: epath.Path) -> None:
  """Raises RefusedError for a type that NumPy does not know.

  TFDS would import TensorFlow for it.
  """
  try:
    if not re.fullmatch(r"[a-z]+\d*_?", name):
      raise TypeError(name)
    if name != "string":  # A type of TFDS's own.
      np.dtype(name)
  except TypeError as error:
    raise RefusedError(
      f"{_shorten(file)} names the type {_shorten(name)}, which NumPy does not "
      "know: pack the images with vit_jax pack."
    ) from error


def _shorten(value: Any) -> str:
  """A value in words that can be printed, of at most 200 characters."""
  text = printable(str(value))
  return text if len(text) <= 200 else f"{text[:197]}..."
