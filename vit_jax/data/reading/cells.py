"""A row of a file of labels, and how the text of a cell is read."""

import ast
import collections
import dataclasses
import io
import json
import re
import tokenize
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

BETWEEN = ";|"
"""The characters that separate several labels in a cell."""
AS_BEFORE = ";|"
"""The `label_separator` that reads cells as earlier versions did.

Under it, a text in the notation of a list is no list.
"""
_LIST = re.compile(r"\s*(\[|[({]\s*['\"])")
_LIST_OF_TEXTS = re.compile(r"\[\s*['\"]")
_NEIGHBOURS = re.compile(r"['\"]\s*['\"]")
_LONGEST = 1 << 16  # The most letters of a list in Python's notation.
# Marks that seldom are part of a label, and so likely separate labels.
_SURE_MARKS = (",", ";", "|", "/", "+", "&", ":")
_BRACKETS = ("[]", "{}", "()")
_IN_NAMES = (" ", "_", "-")  # Marks that may be part of a label as well.
MARKS = (*_SURE_MARKS, *_IN_NAMES)
"""Characters that may separate labels in a text."""
_AT_MARKS = re.compile(f"[{re.escape(''.join(_SURE_MARKS))}]")
_WORDS = 3  # The fewest words of a sentence.
_REPEATS = 5  # A caption is in fewer cells than this, on average.


@dataclasses.dataclass(frozen=True)
class Row:
  """A row of a file of labels."""

  place: str  # The file of labels and the line, for messages.
  file: str  # The image's path, relative to the root.
  # "train", "val" or "test"; None if there is no such column.
  split: str | None
  values: Sequence[Any]  # The value of each column of labels.
  decimal_comma: bool = False  # Whether a comma stands for a decimal point.
  group: str = ""  # A patient, a scene or the like, if there is a column of it.


Encode = Callable[[Sequence[Row]], np.ndarray]
"""A function from N rows to their labels, an array (N, ...)."""


def values_of(value: Any, separator: str | None) -> Any:
  """The value of a cell, or a list of the values that it holds.

  Args:
    value: A text may hold several values, or be a list in the notation of JSON
      or Python. Other values stay as they are.
    separator: The characters that separate values; None leaves it to the kind
      of labels to separate them, and so does `AS_BEFORE`, which also leaves
      lists as text.

  Raises:
    ValueError: if, without a separator, a text begins like a list of texts in
      these notations, and is none.
  """
  if not isinstance(value, str) or separator == AS_BEFORE:
    return value
  if separator is None:
    return _literal(value) if _LIST.match(value) else value
  return parts_of(value, separator)


def parts_of(text: str, separator: str) -> list[str]:
  """The parts of a text between separators, which are single characters.

  Spaces separate parts only if there is no other separator.
  """
  marks = separator.strip()
  parts = re.split(f"[{re.escape(marks)}]", text) if marks else text.split()
  return [part.strip() for part in parts if part.strip()]


def find_separator(
  names: Iterable[str], of_one: bool = False
) -> tuple[str, list[str]]:
  """The separator that seems to divide names into labels, and these names.

  A name seems to be several labels if all of its parts occur in other names.
  One such part is enough for commas if these seem to separate labels, and for
  commas and spaces if each image has a single label (`of_one`). If there are no
  such names, the separator is "", and the list of names is empty. If all names
  are in brackets, the separator begins with these.
  """
  names = [*names]
  for brackets in _BRACKETS:
    if names and all(name[:1] + name[-1:] == brackets for name in names):
      mark, found = find_separator([name[1:-1] for name in names], of_one)
      inside = [brackets[0] + name + brackets[1] for name in found]
      return (brackets + mark, inside) if mark.strip() else ("", [])
  for mark in MARKS:
    parts = {name: parts_of(name, mark) for name in names if mark in name}
    several = {name: each for name, each in parts.items() if len(each) > 1}
    found = _combined_names(mark, names, several, of_one)
    # In some names the mark may be part of a label, but not in most of them.
    if found and 2 * len(found) >= len(several):
      return mark, found
  return "", []


def _combined_names(
  mark: str,
  names: Sequence[str],
  several: Mapping[str, Sequence[str]],
  of_one: bool,
) -> list[str]:
  """The names that seem to be several labels, separated by a mark.

  `several` has the parts of each name that the mark divides, and `of_one` is as
  in `find_separator`. Unless the mark likely separates labels, a part of such a
  name has to be a name by itself.
  """
  all_names = {*names}
  counts = collections.Counter(name for name in names if name not in several)
  counts.update(part for each in several.values() for part in {*each})
  likely = mark in _SURE_MARKS or (of_one and mark == " ")
  one_suffices = of_one and mark in (",", " ")
  if mark == "," and _are_combined(several.values(), counts, all_names):
    one_suffices = True
  found = []
  for name, parts in several.items():
    recur = [counts[part] > 1 for part in parts]
    are_labels = any(recur) if one_suffices else all(recur)
    if are_labels and (likely or not all_names.isdisjoint(parts)):
      found.append(name)
  return found


def several_labels_hint(names: Sequence[str]) -> str:
  """How to read names of classes that look like several labels.

  It is "" if no name looks like that.
  """
  by = "--config.data.task=multilabel"
  odd = [name for name in names if {*BETWEEN} & {*name}]
  if not odd:
    mark, odd = find_separator(names)
    by += f" --config.data.label_separator={mark!r}"
  if not odd:
    return ""
  like = f"classes, such as {odd[0]!r}, look like several labels"
  return f"{len(odd):,} of {len(names):,} {like}; {by} reads them so"


def are_sentences(texts: Sequence[Any], num_cells: int) -> bool:
  """Whether the different texts in `num_cells` cells seem to be captions.

  Then a text is in fewer than five cells on average, and most texts have three
  words or more in a row without a mark that may separate labels.
  """
  parts = [_AT_MARKS.split(str(text)) for text in texts]
  long = sum(any(len(p.split()) >= _WORDS for p in each) for each in parts)
  return 2 * long > len(texts) and _REPEATS * len(texts) > num_cells


def _are_combined(
  lists: Iterable[Sequence[str]], counts: Mapping[str, int], names: set[str]
) -> bool:
  """Whether the parts of names seem to be labels that images have together.

  They are if two parts of one name recur, or if a part that recurs is a name by
  itself. A single part that recurs proves nothing: the name of a city may be
  followed by a comma and its country.
  """
  recur = [{part for part in each if counts[part] > 1} for each in lists]
  return any(len(parts) > 1 or parts & names for parts in recur)


def _literal(text: str) -> Any:
  """The list that a text holds, or the text itself if it holds no list.

  Raises ValueError if it begins like a list of texts and is none.
  """
  values = _evaluated(text.strip())
  if isinstance(values, list | tuple | set) and all(
    isinstance(value, str | int | float) for value in values
  ):
    return sorted(values, key=str) if isinstance(values, set) else [*values]
  if _LIST_OF_TEXTS.match(text.lstrip()):
    raise ValueError(
      'begins like a list and is not one: write it as ["cat", "dog"], '
      "or the text without the bracket"
    )
  return text


def _evaluated(text: str) -> Any:
  """The value of a text in the notation of JSON or Python, else None."""
  try:
    return json.loads(text)
  except (ValueError, RecursionError):
    if len(text) > _LONGEST or _joins_texts(text):
      return None
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Python warns about odd escapes.
    try:
      return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
      return None


def _joins_texts(text: str) -> bool:
  """Whether Python would make one text of two without a comma between them.

  Such lists are written by NumPy, and stand in files whose quotes are doubled.
  """
  if not _NEIGHBOURS.search(text):
    return False
  before = 0
  try:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
      if token.type == before == tokenize.STRING:
        return True
      if token.type != tokenize.NL:
        before = token.type
  except (tokenize.TokenError, SyntaxError):
    return False
  return False


def has_decimal_comma(row: Row, value: Any) -> bool:
  """Whether the comma in a value such as "1,5" is a decimal comma."""
  return row.decimal_comma and isinstance(value, str) and value.count(",") == 1
