"""Draws the few examples per class that few-shot evaluation learns from."""

from collections.abc import Collection, Sequence

import numpy as np

from vit_jax.data.example import Source
from vit_jax.runtime.printable import counted, first_of, say_once

_CHUNK = 256  # Labels read at a time; some sources read the images as well.
_MOST_NAMED = 5  # Classes that an error message names.


def draw_shots(
  source: Source, shots: int, seed: int, without: Collection[int] = ()
) -> np.ndarray:
  """Draws examples of every class at random, determined by the seed.

  Labels are read in a random order and only until every class has its shots, so
  a large data set is not read to its end. The order takes 4 bytes per example.
  The indices `without` are not drawn. If the source has `groups`, such as
  patients, the shots of a class are of different groups. If a class has fewer
  groups than shots, some of its shots share a group, and a printed line says
  so. Returns the examples' indices, int64 of shape (number of classes, shots).
  Raises ValueError if a class has too few examples.
  """
  order = np.arange(len(source), dtype=np.int32)
  np.random.default_rng(seed).shuffle(order)
  by_class: list[list[int]] = [[] for _ in source.class_names]
  others: list[list[int]] = [[] for _ in source.class_names]
  groups = getattr(source, "groups", None)
  seen: set[tuple[int, int]] = set()
  unfilled = len(by_class)
  for first in range(0, len(order), _CHUNK):
    chunk = order[first : first + _CHUNK].tolist()
    for index, label in zip(chunk, _labels(source, chunk), strict=True):
      if len(by_class[label]) < shots and index not in without:
        if groups is not None:
          group = label, int(groups[index])
          if group in seen:
            others[label].append(index)
            continue
          seen.add(group)
        by_class[label].append(index)
        if len(by_class[label]) == shots:
          unfilled -= 1
    if not unfilled:
      return np.array(by_class, np.int64)
  few = [k for k, indices in enumerate(by_class) if len(indices) < shots]
  filled = [
    [*first, *more][:shots]
    for first, more in zip(by_class, others, strict=True)
  ]
  if all(len(indices) == shots for indices in filled):
    say_once(_too_few_groups(source, by_class, few, shots))
    return np.array(filled, np.int64)
  by_class = filled
  raise ValueError(_too_few(source, by_class, shots, bool(without)))


def _labels(source: Source, indices: Sequence[int]) -> Sequence[int]:
  """Labels of examples, read without the images if the source can do that."""
  read_labels = getattr(source, "labels", None)
  if read_labels is not None:
    return read_labels(indices)
  return [example["label"] for example in source.read(indices)]


def _too_few_groups(
  source: Source, by_class: list[list[int]], few: list[int], shots: int
) -> str:
  """The line on classes that have images of fewer groups than `shots`."""
  classes = first_of(
    [
      f"{source.class_names[k]!r} has {counted(len(by_class[k]), 'group')}"
      for k in few
    ],
    _MOST_NAMED,
  )
  return (
    f"few-shot: the {shots} shots of a class are of different groups "
    f"(data.group_column) if it has {shots} groups or more; {classes}, so some "
    "shots share a group."
  )


def _too_few(
  source: Source, by_class: list[list[int]], shots: int, any_unreadable: bool
) -> str:
  """The message on classes that have fewer images than `shots`."""
  short = [
    f"{name!r} has only {len(indices)}"
    for name, indices in zip(source.class_names, by_class, strict=True)
    if len(indices) < shots
  ]
  classes = ", ".join(short[:_MOST_NAMED])
  more = len(short) - _MOST_NAMED
  others = f", and {more} more classes have too few" if more > 0 else ""
  readable = "readable " if any_unreadable else ""
  return (
    f"{shots} shots per class need {shots} {readable}training images of every "
    f"class, but in {source.name} {classes}{others}: choose fewer shots."
  )
