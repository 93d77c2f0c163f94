"""Decides what masks mean, and says in lines what is in them."""

import collections
import dataclasses
from collections.abc import Sequence

import numpy as np

from vit_jax.data.reading.masks.census import Census
from vit_jax.data.reading.masks.classes import (
  CLASSES,
  IGNORED,
  NO_CLASS,
  Classes,
  ignored_label,
)
from vit_jax.data.reading.masks.files import (
  MOST_NUMBER,
  no_numbers_message,
  read_stored,
)
from vit_jax.data.reading.masks.meaning import (
  OF_PALETTES,
  STRANGE,
  WHITE,
  Meaning,
)
from vit_jax.runtime.printable import first_of
from vit_jax.runtime.printable import printable_path as text

# If there are more classes than this, without names, half must have pixels.
_MOST_SPARSE = 1000
_SHOWN = 8  # Values and classes in a line.
_INDEX = "--config.data.mask_values=index"


def decide_meaning(found: Census, classes: Classes | None) -> Meaning:
  """Decides the meaning of masks, of which some were looked at.

  Colours that a file names take precedence over numbers. If there are two
  classes, and no numbers but 0 and 255 (or 65535), white is class 1. Raises
  ValueError if masks fit neither colours nor numbers, or have fewer than two
  classes.
  """
  if classes is None:
    return _meaning_without_names(found)
  if len(classes.names) < 2:
    raise ValueError(
      f"{CLASSES} names one class, {''.join(classes.names)}: give two or "
      "more, such as background."
    )
  meaning = Meaning(classes)
  kinds = OF_PALETTES if classes.colours else ()
  meaning = dataclasses.replace(
    meaning,
    by_colour=frozenset(k for k in kinds if _are_colours(found, meaning, k)),
  )
  two = len(classes.names) == len(classes.numbers) == 2
  return dataclasses.replace(
    meaning,
    white=two and _is_white(found, meaning.by_colour),
    doubtful=two and _is_black(found, meaning.by_colour),
  )


def earlier_meaning(masks: Sequence[bytes], classes: Classes | None) -> Meaning:
  """The meaning by numbers alone, as in earlier versions.

  Without a file that names classes, all masks are read. Raises ValueError for a
  mask of colours, or for fewer than two classes.
  """
  if classes is not None:
    meaning = Meaning(classes, earlier=True)
  else:
    highest = -1
    for path in masks:
      kind, values, _ = read_stored(path, earlier=True)
      if kind == "colours":
        raise ValueError(no_numbers_message(path, "RGB"))
      has_class = (values != IGNORED) & (values != MOST_NUMBER)
      highest = max(highest, int(values.max(initial=0, where=has_class)))
    meaning = dataclasses.replace(Meaning.numbered(highest + 1), earlier=True)
  if meaning.count < 2:
    raise ValueError("the training masks have one class: give two or more.")
  return meaning


def _are_colours(found: Census, meaning: Meaning, kind: str) -> bool:
  """Whether masks of this kind, which hold numbers, are read by colours.

  They are if all of their colours are known. Otherwise they are read by
  numbers, if two things hold: in masks whose colours are all known, numbers
  mean the same classes; and all numbers are known, or numbers give more pixels
  a class than colours do. (Reading a mask with an unknown number reports it.)
  If either does not hold, raises ValueError, which names an unknown colour.
  """
  by_number = meaning.classes_of_numbers(kind)
  none = ignored_label(meaning.count)
  agree, all_numbers, strange = True, True, None
  # How many more pixels have a class by their numbers than by their colours,
  # below 0 if colours give more pixels a class.
  by_numbers_more = 0
  for (counted_kind, palette), counts in found.counts.items():
    if counted_kind != kind:
      continue
    used = np.flatnonzero(counts)
    table = meaning.classes_of_palette(np.frombuffer(palette, np.int32))
    colours = table[used]
    numbers = by_number[used]
    all_numbers &= not (numbers == STRANGE).any()
    for sign, found_classes in ((1, numbers), (-1, colours)):
      has_class = (found_classes != STRANGE) & (found_classes != none)
      by_numbers_more += sign * int(counts[used[has_class]].sum())
    if (colours == STRANGE).any():
      number = int(used[colours == STRANGE][0])
      strange = strange or found.first[(kind, palette), number]
    else:
      agree &= bool((numbers == colours).all())
  if strange is None:
    return True
  if agree and (all_numbers or by_numbers_more > 0):
    return False
  dataclasses.replace(meaning, by_colour=frozenset({kind})).read(strange)
  raise AssertionError("a colour of no class has one now")


def _is_white(found: Census, by_colour: frozenset[str]) -> bool:
  """Whether masks of numbers of more than 1 bit hold white, alone or with 0.

  Masks of the kinds `by_colour` do not count.
  """
  present = found.numbers(bits=False, leave_out=by_colour)
  return bool(present & {*WHITE}) and present <= {0, *WHITE}


def _is_black(found: Census, by_colour: frozenset[str]) -> bool:
  """Whether all masks of numbers hold only 0, those of 1 bit among them."""
  present = found.numbers(bits=False, leave_out=by_colour)
  return present == {0} and 1 not in found.numbers(bits=True)


def _meaning_without_names(found: Census) -> Meaning:
  """The meaning of masks whose classes no file names.

  Raises ValueError if they have fewer than two classes, or too many gaps.
  """
  present = found.numbers(bits=True) | found.numbers(bits=False)
  if _is_white(found, frozenset()) and present != {255}:
    return dataclasses.replace(Meaning.numbered(2), white=True)
  classes = present - {*WHITE}
  if max(classes, default=0) >= IGNORED:
    classes = present - {MOST_NUMBER}
  count = 1 + max(classes, default=-1)
  if count < 2:
    held = ", ".join(map(str, sorted(present))) or "nothing"
    raise ValueError(
      "the training masks have one class: give two or more, or name two or "
      f"more in {CLASSES}; all pixels are {held}, and {IGNORED} is no class."
    )
  if count > _MOST_SPARSE and 2 * len(classes) < count:
    raise ValueError(
      f"{text(found.first_with(count - 1))} has the class {count - 1:,}, and "
      f"the training masks have only {len(classes):,} different ones: number "
      f"them from 0 on, or name all in {CLASSES}."
    )
  return Meaning.numbered(count)


def lines(found: Census, meaning: Meaning) -> list[str]:
  """Lines on the contents of the masks, and on possible mistakes."""
  names = meaning.classes.names
  none = ignored_label(len(names))
  values: collections.Counter[str] = collections.Counter()
  labels = collections.Counter(found.colours)
  for k, pixels in found.colours.items():
    values[NO_CLASS if k == none else names[k]] += pixels
  for (kind, palette), counts in found.counts.items():
    by_colour = kind in meaning.by_colour
    table = meaning.classes_of_numbers(kind)
    if by_colour:
      table = meaning.classes_of_palette(np.frombuffer(palette, np.int32))
    for number in np.flatnonzero(counts).tolist():
      k = int(table[number])
      if k == STRANGE:  # Reading such a mask for the run reports the error.
        values[f"{number} (not in {CLASSES})"] += int(counts[number])
        continue
      name = NO_CLASS if k == none else names[k]
      plain = by_colour or name == str(number)
      values[name if plain else f"{number} ({name})"] += int(counts[number])
      labels[k] += int(counts[number])
  return [
    *_share_lines(found, values),
    *_grey_lines(found),
    *_white_lines(found, meaning),
    *_absent_lines(found, meaning, labels),
    *_palette_lines(found, meaning),
  ]


def _share_lines(found: Census, values: collections.Counter[str]) -> list[str]:
  """A line on the share of the pixels that each value has."""
  total = sum(values.values())
  if not total:
    return []
  shown = [
    f"{'class ' if v.isdecimal() else ''}{v} {n / total:.1%}"
    for v, n in values.most_common(_SHOWN)
  ]
  if len(values) > _SHOWN:
    shown.append(f"{len(values) - _SHOWN:,} more")
  return [f"pixels of {_count_of_masks(found)}: {', '.join(shown)}."]


def _grey_lines(found: Census) -> list[str]:
  """A line on masks of equal channels, if there are any."""
  if found.grey is None:
    return []
  line = (
    f"masks such as {text(found.grey)} are RGB, and no colour is named: their "
    "three channels are equal, and are read as one number."
  )
  return [line]


def _white_lines(found: Census, meaning: Meaning) -> list[str]:
  """A line on white, if it is taken for class 1."""
  if not meaning.white:
    return []
  name = meaning.classes.names[1]
  which = "class 1" if name == "1" else f"class 1 ({name})"
  present = found.numbers(bits=False, leave_out=meaning.by_colour)
  white = " or ".join(map(str, sorted(present - {0})))
  line = (
    f"masks hold 0 and {white} alone, which are taken for the two classes: "
    f"{white} is {which}, and no pixel is left out; {_INDEX} leaves out "
    f"{white}."
  )
  return [line]


def _absent_lines(
  found: Census, meaning: Meaning, labels: collections.Counter[int]
) -> list[str]:
  """A line on classes without a pixel, such as gaps between numbers."""
  names = meaning.classes.names
  absent = [names[k] for k in range(len(names)) if not labels[k]]
  if not absent:
    return []
  shown = first_of(absent, _SHOWN)
  classes = f"{len(absent):,} of {len(names):,} classes"
  line = f"{classes} have no pixel in {_count_of_masks(found)}: {shown}"
  numbered = Meaning.numbered(len(names)).classes.names
  if 2 * len(absent) > len(names) and names == numbered:
    line += "; number the classes from 0 on, without gaps"
  return [f"{line}."]


def _palette_lines(found: Census, meaning: Meaning) -> list[str]:
  """Lines on palettes whose colours are not read."""
  lines = []
  kinds = {kind for kind, palette in found.counts if palette}
  if others := kinds - meaning.by_colour:
    lines.append(
      f"the numbers of masks are read, and not the colours of {CLASSES}, which "
      f"do not fit these masks ({', '.join(sorted(others))})."
    )
  if found.palettes_differ and "palette" not in meaning.by_colour:
    one, other = map(text, found.palettes_differ)
    lines.append(
      f"the palettes of {one} and {other} differ, and their numbers are read: "
      f"if colours are the classes, name them in {CLASSES}."
    )
  return lines


def _count_of_masks(found: Census) -> str:
  """The number of masks that were looked at, in words."""
  if found.num_looked_at == found.num_masks:
    return f"{found.num_masks:,} training masks"
  return f"{found.num_looked_at:,} of {found.num_masks:,} training masks"
