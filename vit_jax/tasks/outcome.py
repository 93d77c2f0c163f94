"""Evaluation: the batches of a split, and the outcome."""

import codecs
import csv
import dataclasses
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from vit_jax.data.batch import Transform
from vit_jax.data.batching.loader import Loader
from vit_jax.data.example import Source
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.runtime.display import Display, Split, Track, untracked
from vit_jax.runtime.files import replacing
from vit_jax.training import sharding

_BATCHES_AHEAD = 2  # Batches sent to the device while one is evaluated.
_CHUNK = 64  # Examples read at a time, where only reading them gives their ids.

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""The names of the columns, and the rows."""


@dataclasses.dataclass(frozen=True)
class Curves:
  """A chart of metrics by step.

  `curves` has the name of each curve, by the metric's key, such as "eval/top1".
  `percent` shows fractions as percentages, and `logarithmic` gives the values a
  logarithmic axis.
  """

  title: str
  curves: Mapping[str, str]
  percent: bool = False
  logarithmic: bool = False


PROBES = Curves(
  "Top-1 accuracy of probes",
  {
    Split.FEW_SHOT.key("top1"): "few-shot",
    Split.NEIGHBOURS.key("top1"): "k-NN",
  },
  percent=True,
)
"""The chart of the probes of a run without labels."""

SINCE_START = Curves(
  "Share of nearest neighbours kept since the start",
  {Split.START.key("kept"): ""},
  percent=True,
)
"""The chart of a run without labels that goes on with published weights."""


R2_BELOW_ZERO = (
  "the answers are further off than if all images got one answer, the mean of "
  "their numbers"
)
"""What an R2 below 0 means, in words."""

OF_NUMBERS = (
  Curves(
    "Mean absolute error",
    {
      Split.TRAIN.key("mae"): "training",
      Split.EVAL.key("mae"): "evaluation",
    },
  ),
  Curves("R2", {Split.EVAL.key("r2"): "evaluation"}),
)
"""The charts of a run that learns numbers."""


@dataclasses.dataclass(frozen=True)
class Chart:
  """A chart of an evaluation, as arrays.

  Attributes:
    kind: `inspection.charts.<kind>_figure` draws it.
    arrays: The arguments of that function.
    alt: The chart in words, in place of the picture.
    caption: The line below the chart.
    while_training: Whether a run that asks for pictures draws it at each
      evaluation.
  """

  kind: str
  arrays: Mapping[str, Any]
  alt: str
  caption: str
  while_training: bool = False


@dataclasses.dataclass(frozen=True)
class Example:
  """A telling example: its place in the split, and what was answered."""

  index: int
  caption: str
  alt: str


@dataclasses.dataclass(frozen=True)
class Examples:
  """Telling examples of one kind, the most telling first.

  A report shows `text` even without examples, which the text should then say.
  """

  title: str
  text: str
  examples: Sequence[Example]


class Outcome:
  """The outcome of an evaluation of a split.

  `scores` are those of the task, with `loss`, `examples` and `skipped_images`.
  `unanswered` is the number of examples for which the outputs are not finite.
  """

  scores: Any
  unanswered: Any = 0

  @property
  def metrics(self) -> dict[str, Any]:
    """The scores by their keys, in a new dictionary."""
    return Split.EVAL.keyed(self.scores)

  @property
  def chance(self) -> float | None:
    """The task's score of answers that ignore the image; None if not known.

    Mostly they are one answer for all images, such as the commonest class.
    """
    return None

  @property
  def details(self) -> dict[str, float]:
    """Further metrics by key, if details were asked for."""
    return {}

  @property
  def remark(self) -> str:
    """Text to put after the metrics."""
    return ""

  @property
  def constant(self) -> bool:
    """Whether all of two or more examples have the same answer.

    A subclass may say False where one answer is right for all of them; this
    class always does.
    """
    return False

  @property
  def notes(self) -> list[str]:
    """Lines about what was odd."""
    return []

  @property
  def warnings(self) -> list[str]:
    """Lines about what goes wrong; a run shows them at each evaluation."""
    return []

  @property
  def broken(self) -> list[str]:
    """A line that counts the examples without an answer; [] if there are none.

    Outputs that are not finite are no answer.
    """
    if not self.unanswered:
      return []
    return [f"The model answers NaN to {self.unanswered:,} examples."]

  @property
  def remarks(self) -> list[str]:
    """All lines for the reader of one evaluation: what is broken or odd."""
    lines = self.broken
    if not lines and self.constant:
      count = f"all {self.scores['examples']:,} examples"
      lines = [f"The model gives {count} the same answer."]
    return [*lines, *self.notes]

  def by_class(self) -> dict[str, Any]:
    """Metrics of each class or target, as dictionaries by its name."""
    return {}

  def confusions(self) -> dict[str, Any]:
    """The confusion matrix (K, K), by its key, where an answer is one class.

    It is {} for other answers.
    """
    return {}

  def show(self, display: Display) -> None:
    """Prints the scores of each class or target."""

  def write(self, path: pathlib.Path, source: Source) -> None:
    """Writes the answer to every example as CSV, the highest loss first."""
    raise NotImplementedError

  def headline(self) -> str:
    """A phrase to add to the result in words; may be empty."""
    return ""

  def tables(self, counts: Any = None) -> list[tuple[str, Table]]:
    """Captioned tables of a report.

    `counts` has the number of training examples of each class, if known.
    """
    return []

  def charts(self) -> list[Chart]:
    """Charts of a report."""
    return []

  def telling(self) -> list[Examples]:
    """The telling examples of a report, by their kind."""
    return []


@dataclasses.dataclass(eq=False)
class Stream:
  """Yields batches with every example of a split once in each pass.

  `transform` makes the arrays of an example; by default that of
  `preprocessing`. `close` ends the worker processes.
  """

  source: Source
  mesh: Mesh
  preprocessing: Preprocessing  # The one that the model expects.
  loader: Loader
  batch_size: int  # The most examples of a batch, unless the mesh needs more.
  transform: Transform | None = None

  def __post_init__(self):
    # Batches of equal size: 48 images with batch_size=32 become two of 24. If
    # there are several, their size is rounded up to a multiple of 8, but not
    # above batch_size, as accelerators tile rows by 8.
    count = max(1, len(self.source))
    batches = -(-count // self.batch_size)
    even = -(-count // batches)
    if batches > 1:
      even = min(self.batch_size, -(-even // 8) * 8)
    rows = sharding.padded_batch_size(even, self.mesh)
    transform = self.transform or self.preprocessing.transform()
    self._batches = self.loader.evaluate(self.source, transform, rows)

  @property
  def unreadable(self) -> dict[str, None]:
    """The unreadable images that were skipped and what is wrong with them.

    Each key is a line on one of them, in the order in which they were read.
    """
    return self._batches.unreadable

  def start(self) -> None:
    """Starts the worker processes, so that the first pass need not wait."""
    self._batches.start()

  def __call__(
    self, track: Track = untracked, what: str = "evaluating"
  ) -> Iterator[dict[str, jax.Array]]:
    """The batches of one pass, on the devices; a progress line shows `what`."""
    on_device = sharding.to_device(
      self._batches, sharding.batch_sharding(self.mesh), _BATCHES_AHEAD
    )
    return iter(track(on_device, what, len(self._batches)))

  def close(self) -> None:
    """Ends the worker processes."""
    self._batches.close()


def check_readable(examples: int) -> None:
  """Raises ValueError if a split had no readable image."""
  if not examples:
    raise ValueError(
      "the evaluation split has no readable image: evaluate on other images."
    )


def write_rows(
  path: pathlib.Path,
  source: Source,
  columns: Sequence[str],
  order: np.ndarray,
  rows: Iterable[Sequence[str]],
) -> None:
  """Writes a row for each example, which begins with the example's file.

  Args:
    source: The split, for the names of its examples.
    columns: Names of the columns after the first.
    order: The places in the split of the examples, in the order of the rows.
    rows: For each example, its cells without the first one, the file.
  """
  with replacing(path) as file:
    out: Any = csv.writer(codecs.getwriter("utf-8")(file))
    out.writerow(["file", *columns])
    for name, cells in zip(_ids(source, order), rows, strict=True):
      out.writerow([name, *cells])


def _ids(source: Source, indices: np.ndarray) -> Iterable[str]:
  """The examples' ids; only a source without `ids` has to read examples."""
  ids = getattr(source, "ids", None)
  if ids is not None:
    yield from ids(indices)
    return
  for first in range(0, len(indices), _CHUNK):
    for example in source.read(indices[first : first + _CHUNK].tolist()):
      yield example["id"]
