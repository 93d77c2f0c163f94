"""The padding's share of patches, where images keep their proportions.

It is computed from the sizes in the headers of some of the training images.
"""

import dataclasses
from typing import Any

from vit_jax.data.batching.packing import Packing
from vit_jax.data.reading.sources import open_source
from vit_jax.data.transforming.patches import padding, some_shapes
from vit_jax.data.transforming.sizes import AnySize, Shape
from vit_jax.run.settings import Settings

_IMAGES = 4  # Images of a row in the packing that `shares` compares with.


def shares(
  settings: Settings, size: AnySize, packing: Packing | None, tflop: float
) -> dict[str, Any]:
  """The padding's share of the patches, and of a chip's work.

  In the result, `share` is the padding's share of the patches with these
  settings, and None if they name no folder. Padding costs what patches do, so
  `tflop` is this share of the argument `tflop`, the work of a chip.

  If the settings pack several images into a row, `alone` is the share with a
  row for each image, and `crowded` that of the rows in which images have to
  shrink. Otherwise `packed` is the share if 4 images share a row, in the
  shortest rows in which no image has to shrink. `images_per_row` and
  `row_tokens` are those of the packing. Raises ValueError if the folder cannot
  be opened.
  """
  data = settings.data
  if not (data.root or data.dir):
    return {"share": None}
  shapes = some_shapes(open_source("train", data))
  if packing is not None:
    found = packing.padding(size, shapes, settings.rows, settings.seed)
    alternative: dict[str, Any] = {
      "alone": found.alone,
      "crowded": found.crowded,
      "images_per_row": packing.images,
      "row_tokens": packing.tokens,
    }
    share = found.share
    return {"share": share, "tflop": share * tflop, **alternative}
  share = padding(size, shapes)
  rows = max(1, settings.batch_size // _IMAGES)
  tight = tightest_packing(size, shapes, rows, settings.seed)
  return {
    "share": share,
    "tflop": share * tflop,
    "packed": tight.padding(size, shapes, rows, settings.seed).share,
    "images_per_row": tight.images,
    "row_tokens": tight.tokens,
  }


def describe(found: dict[str, Any]) -> str:
  """The text of a table's line for the result of `shares`."""
  if found["share"] is None:
    return (
      "unknown, as it follows from the sizes of the images: give their folder "
      "as --config.data.root"
    )
  text = f"{found['share']:.1%} of the patches, {found['tflop']:.2f} TFLOP/chip"
  keys = ("images_per_row", "row_tokens")
  names = ", ".join(f"data.{key}={found[key]}" for key in keys)
  if "packed" in found:
    return f"{text}; {found['packed']:.1%} with {names}"
  text += f" with {names}; {found['alone']:.1%} with a row for each image"
  if found["crowded"]:
    text += f"; {found['crowded']:.0%} of the rows are too full for all images"
  return text


def tightest_packing(
  size: AnySize,
  shapes: list[Shape],
  rows: int,
  seed: int,
  least: int | None = None,
) -> Packing:
  """The packing of 4 images a row with the shortest rows that shrink no image.

  `shapes` are the images' sizes, `rows` are the rows of a batch, and `least` is
  that of `Packing`.
  """
  roomy = Packing(_IMAGES, _IMAGES * size.tokens, least)
  short, most = size.tokens, roomy.tokens
  while most - short > 1:
    middle = (short + most) // 2
    packing = dataclasses.replace(roomy, tokens=middle)
    if packing.padding(size, shapes, rows, seed).crowded:
      short = middle
    else:
      most = middle
  return dataclasses.replace(roomy, tokens=most)
