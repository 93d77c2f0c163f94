"""The page of `vit_jax similar`: contact sheets in one HTML file.

It needs no other file or network. `similar.html.jinja` is its layout.
"""

import dataclasses
import datetime
import itertools
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np

from vit_jax.data.decoding.decode import decode_image
from vit_jax.data.example import MAX_BYTES, ImageSpec
from vit_jax.inference.reading import is_text
from vit_jax.pretrained.loaded import Loaded
from vit_jax.report.page import template_of
from vit_jax.report.pictures import Picture, photograph
from vit_jax.report.similar_results import TABLE, Answers, Similar
from vit_jax.runtime.files import read_regular
from vit_jax.runtime.printable import counted

_SIDE = 192  # Pixels of the longer side of an image.
_IN_SHEET = 12  # The most images shown of a group, of a cluster or of a query.
_SHEETS = 30  # The most groups, or queries, that are shown.
_LONE = 24  # The most images shown that are like no other.


@dataclasses.dataclass(frozen=True)
class Sheet:
  """Images side by side, below a title; `more` says what is not shown."""

  title: str
  pictures: Sequence[Picture]
  more: str = ""


@dataclasses.dataclass(frozen=True)
class Section:
  """Some sheets, and a sentence on what they are.

  `more` says how many further groups or queries have no sheet.
  """

  title: str
  text: str
  sheets: Sequence[Sheet]
  more: str = ""


def page(
  result: Similar | Answers, about: str, duplicates: float, loaded: Loaded
) -> str:
  """Renders the HTML.

  Args:
    about: A sentence on the vectors.
    duplicates: The least cosine of near-duplicates.
    loaded: The model that computed the vectors, which says how images are read.
  """
  spec = loaded.preprocessing.spec
  now = datetime.datetime.now().astimezone()
  if isinstance(result, Answers):
    title = "Nearest images"
    headline = _query_headline(result)
    sections = [_nearest(result, spec)]
  else:
    title = "Similar images"
    headline = _headline(result)
    sections = [
      _duplicates(result, duplicates, spec),
      _lone(result, spec),
      _clusters(result, spec),
    ]
  return template_of("similar.html.jinja").render(
    title=title,
    headline=headline,
    about=about,
    date=f"{now:%Y-%m-%d %H:%M}",
    sections=sections,
  )


def _query_headline(result: Answers) -> str:
  """A sentence on the number of queries and images."""
  count = len(result.queries)
  queries = "one query" if count == 1 else f"{count:,} queries"
  return f"The nearest of {queries} among {len(result.files):,} images."


def _headline(result: Similar) -> str:
  """A sentence or two on the near-duplicates."""
  count = len(result.files)
  groups = len(result.groups)
  if not groups:
    return f"{count:,} images, and no near-duplicates among them."
  images = sum(map(len, result.groups))
  text = f"{images:,} of {count:,} images have near-duplicates."
  if across := sum(map(result.across, result.groups)):
    text += (
      f" {across:,} group{'s are' if across > 1 else ' is'} in several splits, "
      "which makes results look better than they are."
    )
  return text


def _duplicates(result: Similar, least: float, spec: ImageSpec) -> Section:
  """The groups of near-duplicates."""
  sheets = []
  for number, group in enumerate(result.groups[:_SHEETS], 1):
    title = f"Group {number}: {len(group):,} images"
    if result.across(group):
      title += ", across splits"
    captions = ((row, result.names[row]) for row in group)
    sheets.append(_sheet(title, result.files, captions, len(group), spec))
  text = (
    f"Images whose cosine is {least:g} or more and whose pixels agree: copies "
    "of another size, quality or brightness, mirrored, turned or cut a little. "
    "A chain of such images is one group. Groups across splits come first."
  )
  return Section(
    "Near-duplicates", text, sheets, _not_shown(len(result.groups), len(sheets))
  )


def _lone(result: Similar, spec: ImageSpec) -> Section:
  """The images that are like no other."""
  rows = result.loneliest_first[:_LONE]
  captions = (
    (row, f"{result.names[row]}, nearest {result.nearest.cosine[row, 0]:.3f}")
    for row in rows
  )
  text = (
    "The images farthest from any other: rare ones, and those that do not "
    "belong here."
  )
  sheet = _sheet("", result.files, captions, len(rows), spec, most=_LONE)
  return Section("Alone", text, [sheet])


def _clusters(result: Similar, spec: ImageSpec) -> Section:
  """The most typical images of each cluster."""
  label, typical = result.clusters
  sheets = []
  for number in range(int(label.max()) + 1):
    rows = [int(row) for row in (label == number).nonzero()[0]]
    rows.sort(key=lambda row: -typical[row])
    captions = (
      (row, f"{result.names[row]}, {typical[row]:.3f}") for row in rows
    )
    title = f"Cluster {number + 1}: {counted(len(rows), 'image')}"
    sheets.append(_sheet(title, result.files, captions, len(rows), spec))
  text = (
    "By k-means. The images nearest to a cluster's mean come first, with their "
    "cosine to it."
  )
  return Section("Clusters", text, sheets)


def _nearest(result: Answers, spec: ImageSpec) -> Section:
  """Each query and its nearest images."""
  sheets = []
  for number, name in enumerate(result.queries[:_SHEETS]):
    places, cosines = (part[number] for part in result.nearest)
    captions = (
      (int(row), f"{result.names[row]}, {cosine:.3f}")
      for row, cosine in zip(places, cosines, strict=True)
    )
    sheet = _sheet("", result.files, captions, len(places), spec)
    if is_text(name):
      sheets.append(dataclasses.replace(sheet, title=f"query: {name}"))
      continue
    query = _picture(name, f"query: {name}", spec)
    sheets.append(dataclasses.replace(sheet, pictures=[query, *sheet.pictures]))
  text = "Each query, and then its nearest images with their cosine."
  more = _not_shown(len(result.queries), len(sheets))
  return Section("Nearest", text, sheets, more)


def _sheet(
  title: str,
  files: Sequence[str],
  captions: Iterable[tuple[int, str]],
  count: int,
  spec: ImageSpec,
  *,
  most: int = _IN_SHEET,
) -> Sheet:
  """A sheet of the first `most` images, out of `count`.

  `captions` has the place of each in `files`, and its caption.
  """
  shown = [
    _picture(files[row], caption, spec)
    for row, caption in itertools.islice(captions, most)
  ]
  return Sheet(title, shown, _not_shown(count, len(shown)))


def _picture(file: str, caption: str, spec: ImageSpec) -> Picture:
  """An image, small; one that cannot be read any more is a grey square."""
  try:
    pixels = decode_image(read_regular(pathlib.Path(file), MAX_BYTES), spec)
  except (OSError, ValueError):
    caption += " (cannot be read any more)"
    pixels = np.full((_SIDE, _SIDE, spec.channels), 127, np.uint8)
  return photograph(pixels, f"Photograph {caption}", _SIDE, caption)


def _not_shown(count: int, shown: int) -> str:
  """A sentence on what is not shown; "" if all is."""
  return f"{count - shown:,} more are in {TABLE}." if count > shown else ""
