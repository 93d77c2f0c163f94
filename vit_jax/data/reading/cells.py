"""A row of labels: parts what its cells hold, or tells where they may be."""

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

AS_BEFORE = ";|"
"""The separators of earlier versions, under which no text is a list."""
_LIST = re.compile(r"\s*(\[|[({]\s*['\"])")
_LIST_OF_TEXTS = re.compile(r"\[\s*['\"]")
_NEIGHBOURS = re.compile(r"['\"]\s*['\"]")
_LONGEST = 1 << 16  # Letters of a list in Python's notation.
# Marks that may part labels; _IN_NAMES may also be part of a name.
_MARKS = (",", ";", "|", "/", "+", "&", ":")
_BRACKETS = ("[]", "{}", "()")
_IN_NAMES = (" ", "_", "-")
MARKS = (*_MARKS, *_IN_NAMES)
"""Characters that may separate labels in a text."""
_AT_MARKS = re.compile(f"[{re.escape(''.join(_MARKS))}]")
_WORDS = 3  # A sentence has as many at least.


@dataclasses.dataclass(frozen=True)
class Row:
  """A row of a file of labels."""

  place: str  # The file of labels and the line, for messages.
  file: str  # The image, from the root on, as the file of labels names it.
  # "train", "val" or "test"; None if there is no such column.
  split: str | None
  values: Sequence[Any]  # The value of each column of labels.
  decimal_comma: bool = False  # Whether a comma stands for a decimal point.
  group: str = ""  # A patient, a scene or the like, if there is a column of it.


Encode = Callable[[Sequence[Row]], np.ndarray]
"""Rows to labels, one for each: an array (N, ...)."""


def values_of(value: Any, separator: str | None) -> Any:
  """The value of a cell, or a list of those that it holds.

  Args:
    value: A text may hold several values, or be a list in the notation of JSON
      or Python. Others stay as they are.
    separator: The characters that part values; None leaves this to the kind of
      labels.

  Raises:
    ValueError: if a text begins as such a list, but is damaged.
  """
  if not isinstance(value, str) or separator == AS_BEFORE:
    return value
  if separator is None:
    return _literal(value) if _LIST.match(value) else value
  return parts_of(value, separator)


def parts_of(text: str, separator: str) -> list[str]:
  """The parts between any of the characters; spaces count if alone."""
  marks = separator.strip()
  parts = re.split(f"[{re.escape(marks)}]", text) if marks else text.split()
  return [part.strip() for part in parts if part.strip()]


def put_together(
  names: Iterable[str], of_one: bool = False
) -> tuple[str, list[str]]:
  """The separators that seem to part labels in names, and such names.

  Of such a name, all parts occur in others. Where each image has `of_one`
  label, or commas part what is combined anew, it suffices that one does. Both
  are empty if there are none.
  """
  names = [*names]
  for brackets in _BRACKETS:
    if names and all(name[:1] + name[-1:] == brackets for name in names):
      mark, found = put_together([name[1:-1] for name in names], of_one)
      inside = [brackets[0] + name + brackets[1] for name in found]
      return (brackets + mark, inside) if mark.strip() else ("", [])
  there = {*names}
  for mark in MARKS:
    parts = {name: parts_of(name, mark) for name in names if mark in name}
    several = {name: each for name, each in parts.items() if len(each) > 1}
    whole = (name for name in names if name not in several)
    counts = collections.Counter(whole)
    counts.update(part for each in several.values() for part in {*each})
    likely = mark in _MARKS or (of_one and mark == " ")
    some = any if of_one and mark in (",", " ") else all
    if mark == "," and _are_combined(several.values(), counts, there):
      some = any
    found = [
      name
      for name, each in several.items()
      if some(counts[part] > 1 for part in each)
      and (likely or not there.isdisjoint(each))
    ]
    if found and 2 * len(found) >= len(several):
      return mark, found
  return "", []


def are_sentences(texts: Sequence[Any], of: int) -> bool:
  """Whether the different texts of so many cells are captions, it seems.

  Most cells are different, and have three words or more without a mark that
  parts labels.
  """
  parts = [_AT_MARKS.split(str(text)) for text in texts]
  long = sum(any(len(p.split()) >= _WORDS for p in each) for each in parts)
  return 2 * long > len(texts) and 2 * len(texts) > of


def _are_combined(
  lists: Iterable[Sequence[str]], counts: Mapping[str, int], there: set[str]
) -> bool:
  """Whether parts of names are labels that images have together.

  Either two parts of a name recur, or one of them is a name by itself. That
  only one recurs says nothing: places have their country behind a comma.
  """
  recur = [{part for part in each if counts[part] > 1} for each in lists]
  return any(len(parts) > 1 or parts & there for parts in recur)


def _literal(text: str) -> Any:
  """A list that is written as a text, or the text if it is none."""
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
  """The value in the notation of JSON or else of Python; None if it is none."""
  try:
    return json.loads(text)
  except (ValueError, RecursionError):
    if len(text) > _LONGEST or _joins_texts(text):
      return None
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Those about odd escapes.
    try:
      return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
      return None


def _joins_texts(text: str) -> bool:
  """Whether Python would make one text of two without a comma between them.

  NumPy writes such lists, and files whose quotes are doubled have them.
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
  """Whether the comma in a value such as "1,5" is that of a decimal."""
  return row.decimal_comma and isinstance(value, str) and value.count(",") == 1
