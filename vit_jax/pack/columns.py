"""Finds the columns of a Parquet file that hold images and their classes."""

import json
from typing import Any

import pyarrow as pa

_LABELS = ("label", "labels", "cls", "class")


def columns_of(
  schema: pa.Schema, source: str, chosen: str | None, older: bool
) -> tuple[str, str]:
  """The names of the image column and of the class-number column.

  Classes are in the column `chosen`; without it, in one with a name of
  `_LABELS`; and otherwise in the only one that the Hub declares as a
  ClassLabel. Any other column of numbers may hold ids; it is taken only to
  finish an `older` packing, and if it is the only one. Raises ValueError if
  there is no such column, or more than one.
  """
  there = f"{source} has the columns {', '.join(schema.names)}"
  images = [field.name for field in schema if _is_image(field.type)]
  if len(images) != 1:
    which = f"{', '.join(images)} hold image bytes"
    if not images:
      which = "none of them holds image bytes (paths alone cannot be packed)"
    raise ValueError(
      f"{there}; there must be one of image bytes and one of class numbers, "
      f"and {which}."
    )
  numbers = [f.name for f in schema if pa.types.is_integer(f.type)]
  if chosen is not None:
    if chosen not in numbers:
      holds = "is none of them"
      if chosen in schema.names:
        holds = f"holds {schema.field(chosen).type}, not class numbers"
      raise ValueError(f"{there}; --label_column={chosen} {holds}.")
    return images[0], chosen
  declared = [name for name in numbers if class_names(schema, name)]
  for labels in (
    [name for name in numbers if name.lower() in _LABELS],
    declared,
    numbers if older else [],
  ):
    if len(labels) == 1:
      return images[0], labels[0]
    if labels:
      break
  raise ValueError(f"{there}; {_no_labels_message(schema, numbers)}")


def class_names(schema: pa.Schema, label: str) -> list[str]:
  """The names of a column's classes; [] unless the Hub wrote them down."""
  text = (schema.metadata or {}).get(b"huggingface", b"{}")
  try:
    features: Any = json.loads(text)["info"]["features"]
    return [str(name) for name in features[label]["names"]]
  except (ValueError, KeyError, TypeError):
    return []


def _is_image(kind: pa.DataType) -> bool:
  """Whether a column's type is bytes, or has them in a field "bytes"."""
  if pa.types.is_struct(kind):
    return kind.get_field_index("bytes") >= 0
  return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _no_labels_message(schema: pa.Schema, numbers: list[str]) -> str:
  """Why no column is taken for the classes, and what to do."""
  named = [field for field in schema if field.name.lower() in _LABELS]
  others = [f for f in named if not pa.types.is_integer(f.type)]
  if others:
    return (
      f"{others[0].name!r} holds {others[0].type}: there must be one of image "
      "bytes and one of class numbers, which are whole and count from 0."
    )
  if not numbers:
    return "there must be one of image bytes and one of class numbers."
  candidates = [field.name for field in named]
  if not candidates:
    candidates = [name for name in numbers if class_names(schema, name)]
  have = "several of these columns have" if candidates else "none of them has"
  *most, last = [f"--label_column={name}" for name in candidates or ["NAME"]]
  several = f"{', '.join(most)} or " if most else ""
  return (
    f"{have} one of the names {', '.join(_LABELS[:-1])} and {_LABELS[-1]} or "
    "the type ClassLabel, which would tell the column of the classes: choose "
    f"it by {several}{last}."
  )
