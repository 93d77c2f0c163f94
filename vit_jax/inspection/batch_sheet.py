"""A batch as a picture: its images, each below its label, and masks on them."""

import textwrap
from collections.abc import Sequence

import numpy as np

from vit_jax.data.reading.labels import SINGLE, Labels
from vit_jax.data.reading.letters import Letters
from vit_jax.data.reading.mask_folder import IGNORED, MASKS, resize_mask
from vit_jax.data.reading.number_folder import PIXEL_NUMBERS, PixelNumbers
from vit_jax.data.reading.several import SEVERAL
from vit_jax.data.reading.targets import NUMBERS
from vit_jax.inspection.panels import Drawing, Panel, put_together, text_height
from vit_jax.inspection.photograph import Photograph, in_colours
from vit_jax.tasks.dense_regression.pictures import heat, span
from vit_jax.tasks.segmentation.pictures import overlay
from vit_jax.tasks.task import class_name

_TILE = 128  # Longer side to which small images are enlarged, in pixels.
_COLUMNS = 8  # The most images side by side.
_LINES = 4  # The most lines of a caption.
_LETTER = 0.62  # Width of a letter, in heights of the text.


def batch_sheet(
  images: np.ndarray,
  labels: np.ndarray | None,
  names: Sequence[str] = (),
  kind: Labels | None = None,
) -> Drawing:
  """Images (B, H, W, C) side by side, each below its label.

  Small images are enlarged. `kind` is that of the labels, where it is known;
  otherwise their shape and values tell it.
  """
  pictures = [*in_colours(images)]
  texts = [""] * len(pictures)
  if labels is not None:
    kind = kind or _kind_of(labels)
    if labels.ndim == 3 and not isinstance(kind, PixelNumbers):
      labels = labels.astype(np.int32)
    texts = [_text(kind, label, names) for label in labels]
    if labels.ndim == 3 and isinstance(kind, type(MASKS)):
      pictures = [
        _draw_mask(image, mask, len(names))
        for image, mask in zip(pictures, labels, strict=True)
      ]
    if isinstance(kind, PixelNumbers):
      pictures = [*map(_draw_numbers, pictures, labels)]
  times = max(1, _TILE // max(images.shape[1:3]))
  columns = min(_COLUMNS, len(pictures))
  width = times * images.shape[2]
  letters = int(width / (_LETTER * text_height(columns * width)))
  panels = [
    Panel(
      picture.repeat(times, axis=0).repeat(times, axis=1),
      textwrap.fill(text, letters, max_lines=_LINES, placeholder=" …"),
    )
    for picture, text in zip(pictures, texts, strict=True)
  ]
  return put_together(panels, columns=columns)


def _kind_of(labels: np.ndarray) -> Labels:
  """The kind of labels (B, ...), by their shape and values."""
  if labels.ndim == 1 and not np.issubdtype(labels.dtype, np.floating):
    return SINGLE
  if labels.ndim == 1 or labels.ndim == 2:
    return SEVERAL if np.isin(labels, (0, 1)).all() else NUMBERS
  if labels.shape[1] == 1:
    return Letters()
  return PIXEL_NUMBERS if labels.dtype.kind == "f" else MASKS


def _text(kind: Labels, label: np.ndarray, names: Sequence[str]) -> str:
  """A label in words; classes and targets without names have numbers."""
  label = np.asarray(label)
  if not kind.are_used:
    return ""
  if kind.are_classes and not label.ndim:
    return class_name(names, int(label)) if names else f"{int(label)}"
  if isinstance(kind, type(NUMBERS)):
    label = np.atleast_1d(label)
    if len(label) == len(names) > 1:
      pairs = zip(names, label, strict=True)
      return ", ".join(f"{name} {value:.6g}" for name, value in pairs)
  count = label.size
  if isinstance(kind, PixelNumbers):
    return kind.label_text(label, tuple(names))
  # The number of classes of a mask; without names, its numbers tell that.
  if label.ndim == 2:
    count = int(label.max(initial=0, where=label != IGNORED)) + 1
  every = [class_name(names, k) for k in range(max(count, len(names)))]
  return kind.label_text(label, tuple(every))


def _draw_mask(image: Photograph, mask: np.ndarray, count: int) -> Photograph:
  """An image in the colours of its mask of `count` classes."""
  if mask.shape != image.shape[:2]:
    mask = resize_mask(mask, (image.shape[0], image.shape[1]))
  return overlay(image, mask, count)


def _draw_numbers(image: Photograph, numbers: np.ndarray) -> Photograph:
  """An image above the colours of its numbers."""
  if numbers.shape != image.shape[:2]:
    numbers = resize_mask(numbers, (image.shape[0], image.shape[1]))
  return np.concatenate([image, heat(numbers, *span(numbers))])
