"""The pictures of a report, each with an alternative text."""

import base64
import dataclasses
import io
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from vit_jax.evaluation.targets import precision_recall
from vit_jax.inference.printing import label_text
from vit_jax.inspection import charts, figures, overlay
from vit_jax.inspection.photograph import LONGEST, in_colours
from vit_jax.report.measure import Example, Measured

_MOST_TARGETS = 12  # Most numbers whose predictions are drawn.
_SMALL_SIDE = 96  # Smaller photographs are shown with their pixels as squares.


@dataclasses.dataclass(frozen=True)
class Picture:
  """An image in the page.

  A `small` one is shown with pixels as squares, and the colours of a `chart`
  are inverted in dark mode.
  """

  uri: str
  alt: str
  caption: str = ""
  small: bool = False
  chart: bool = False


def confusion(measured: Measured) -> list[Picture]:
  """The confusion matrix, unless there are too many classes to draw."""
  names, tally = measured.class_names, measured.tally
  classes = tally.shown(len(names), charts.MOST_CLASSES)
  if not classes or not tally.pairs:
    return []
  worst = tally.most_confused(3)
  told = "; ".join(
    f"{names[label]} answered as {names[answer]}, {count:,} times"
    for label, answer, count in worst
  )
  alt = f"Confusion matrix of {len(classes)} classes. " + (
    f"Most frequent mistakes: {told}." if worst else "No mistakes."
  )
  figure = charts.confusion_figure(
    tally.confusion(classes), [names[k] for k in classes]
  )
  return [svg(figure, alt, "Confusion matrix")]


def calibration(measured: Measured) -> list[Picture]:
  """The calibration curve, unless there are no answers."""
  bins = measured.tally.calibration()
  if not len(bins):
    return []
  error = measured.tally.calibration_error()
  told = "; ".join(
    f"{right:.0%} of {count:,.0f} answers with a probability of about "
    f"{probability:.0%} are right"
    for count, right, probability in bins
  )
  caption = (
    "Calibration: on the dashed line, answers are right as often as their "
    f"probability says. The expected calibration error is {error:.2%}."
  )
  alt = f"Calibration curve: {told}."
  return [svg(charts.calibration_figure(bins), alt, caption)]


def example(
  shown: Example, names: Sequence[str], longest: int
) -> dict[str, Any]:
  """An example's `images`, `name` and `caption`, for the template."""
  said = shown.answered
  if isinstance(said, str):
    caption, alt = said, f"Photograph of {said}"
  else:
    label, answer = names[said.label], names[said.answer]
    caption = (
      f"{answer}, {said.probability:.1%}"
      if said.label == said.answer
      else f"{label}, answered as {answer}, {said.probability:.1%}"
    )
    alt = f"Photograph of class {label}"
  images = [_photograph(shown.photograph, alt, longest)]
  if shown.rollout is not None:
    drawn = overlay.overlaid(shown.photograph, shown.rollout)
    where = _where(shown.rollout)
    alt = f"Attention rollout on this photograph, highest {where}"
    images.append(_photograph(drawn, alt, longest))
  return {"images": images, "name": shown.name, "caption": caption}


def masked(measured: Measured) -> list[Picture]:
  """Examples with their patches masked, as predicted, and as they are."""
  alt = "Three panels: the corrupted image, the predictions, the truth"
  return [_photograph(sheet, alt) for sheet in measured.masked]


def augmented(measured: Measured) -> list[Picture]:
  """The first training examples, as the model was trained on them."""
  found = []
  for image, label in measured.dataset.augmented if measured.dataset else ():
    told = label_text(measured.class_names, label, measured.loss)
    found.append(
      _photograph(image, f"Augmented example of {told}", caption=told)
    )
  return found


def targets(measured: Measured) -> list[Picture]:
  """Predictions by true numbers, or precision by recall of several labels."""
  found = measured.outputs
  if found is None:
    return []
  if measured.loss == "mse":
    columns = zip(
      measured.class_names, found.label.T, found.output.T, strict=True
    )
    return [
      svg(
        charts.numbers_figure(name, label, output),
        f"Predictions of {name} by its true values.",
        f"{name}: on the dashed line, predictions are true",
      )
      for name, label, output in itertools.islice(columns, _MOST_TARGETS)
    ]
  curve = precision_recall(found.label.ravel(), found.output.ravel())
  figure = charts.precision_figure(*curve)
  alt = "Precision by recall, over all labels and thresholds."
  return [svg(figure, alt, "Precision by recall of all labels together")]


def _where(map_: np.ndarray) -> str:
  """Describes in words where on an image a map is highest."""
  place = np.unravel_index(map_.argmax(), map_.shape)
  row, column = (
    int(3 * (p + 0.5) / size) for p, size in zip(place, map_.shape, strict=True)
  )
  if (row, column) == (1, 1):
    return "at the centre"
  vertical, horizontal = (
    ("top", "", "bottom")[row],
    ("left", "", "right")[column],
  )
  return f"at the {f'{vertical} {horizontal}'.strip()}"


def embeddings(measured: Measured) -> list[Picture]:
  """The embedding filters and position similarities that the model has."""
  pictures = []
  if measured.filters is not None and len(measured.filters):
    pictures.append(
      _png(
        figures.filters_figure(measured.filters),
        f"The first {len(measured.filters)} principal components of the "
        "embedding filters, shown as colours.",
        "Embedding filters: principal components (Fig. 7, left)",
      )
    )
  if measured.positions is not None:
    h, w = measured.positions.shape[:2]
    pictures.append(
      _png(
        figures.positions_figure(measured.positions),
        f"A grid of {h} x {w} grids, each with the cosine similarity of a "
        "position embedding to all others.",
        "Position embeddings: similarity of each to all (Fig. 7, centre)",
      )
    )
  return pictures


def svg(figure: Figure, alt: str, caption: str = "") -> Picture:
  """Embeds a chart as SVG, which stays sharp at any size."""
  uri = _uri(
    "svg+xml", lambda f: figure.savefig(f, format="svg", transparent=True)
  )
  return Picture(uri, alt, caption, chart=True)


def _png(figure: Figure, alt: str, caption: str) -> Picture:
  uri = _uri("png", lambda f: figure.savefig(f, format="png", dpi=100))
  return Picture(uri, alt, caption)


def _photograph(
  image: np.ndarray, alt: str, longest: int = LONGEST, caption: str = ""
) -> Picture:
  """Embeds a photograph as JPEG, or as PNG if its pixels should be visible."""
  photo = Image.fromarray(in_colours(image))
  if max(photo.size) < _SMALL_SIDE:
    uri = _uri("png", lambda f: photo.save(f, "png"))
    return Picture(uri, alt, caption, small=True)
  photo.thumbnail((longest, longest))
  uri = _uri("jpeg", lambda f: photo.save(f, "jpeg", quality=85))
  return Picture(uri, alt, caption)


def _uri(kind: str, write: Callable[[io.BytesIO], Any]) -> str:
  file = io.BytesIO()
  write(file)
  data = base64.b64encode(file.getvalue()).decode()
  return f"data:image/{kind};base64,{data}"
