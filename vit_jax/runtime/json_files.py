"""Reads small texts and JSON objects from files that come from anywhere."""

import json
import pathlib
import re
from typing import Any

from vit_jax.runtime.files import read_regular
from vit_jax.runtime.printable import quoted

_MOST_TEXT_BYTES = 16 << 20


def read_text(path: pathlib.Path) -> str:
  """The text of a file, of at most 16 MiB.

  Raises ValueError if it is not UTF-8 or larger, and OSError if it cannot be
  read.
  """
  try:
    return read_regular(path, _MOST_TEXT_BYTES).decode("utf-8")
  except UnicodeDecodeError as error:
    raise ValueError(f"{path} is not UTF-8 text: {error}.") from error


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """The JSON object in a file; {} if there is no such file.

  Raises ValueError if the file holds something else, and OSError if it cannot
  be read.
  """
  if not path.exists():
    return {}
  text = read_text(path)
  try:
    content = json.loads(text, object_pairs_hook=_refuse_repeated_numbers)
  except (ValueError, RecursionError) as error:
    raise ValueError(f"{path} is not JSON: {error}.") from error
  if not isinstance(content, dict):
    raise ValueError(f"{path} does not hold a JSON object.")
  return content


def _refuse_repeated_numbers(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  """The pairs as an object; ValueError if a number occurs twice as a key."""
  result: dict[str, Any] = {}
  for key, value in pairs:
    if key in result and re.fullmatch(r"[0-9]+", key):
      raise ValueError(f"it has two values for the key {quoted(key)}")
    result[key] = value
  return result
