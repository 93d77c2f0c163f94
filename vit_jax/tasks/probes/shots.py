"""Draws the few examples per class that few-shot evaluation learns from."""

from collections.abc import Collection, Sequence

import numpy as np

from vit_jax.data.example import Source

_CHUNK = 256  # Labels read at a time; some sources read the images as well.
_MOST_NAMED = 5  # Classes that an error message names.


def draw_shots(
  source: Source, shots: int, seed: int, without: Collection[int] = ()
) -> np.ndarray:
  """Draws examples of every class at random, determined by the seed.

  Labels are read in a random order and only until every class has its shots, so
  a large data set is not read to its end. The order takes 4 bytes per example.
  The indices `without` are not drawn. Returns the examples' indices, int64 of
  shape (number of classes, shots). Raises ValueError if a class has too few
  examples.
  """
  order = np.arange(len(source), dtype=np.int32)
  np.random.default_rng(seed).shuffle(order)
  by_class: list[list[int]] = [[] for _ in source.class_names]
  unfilled = len(by_class)
  for first in range(0, len(order), _CHUNK):
    chunk = order[first : first + _CHUNK].tolist()
    for index, label in zip(chunk, _labels(source, chunk), strict=True):
      if len(by_class[label]) < shots and index not in without:
        by_class[label].append(index)
        if len(by_class[label]) == shots:
          unfilled -= 1
    if not unfilled:
      return np.array(by_class, np.int64)
  raise ValueError(_too_few(source, by_class, shots, bool(without)))


def _labels(source: Source, indices: Sequence[int]) -> Sequence[int]:
  """Labels of examples, read without the images if the source can do that."""
  read_labels = getattr(source, "labels", None)
  if read_labels is not None:
    return read_labels(indices)
  return [example["label"] for example in source.read(indices)]


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
