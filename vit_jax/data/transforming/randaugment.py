"""RandAugment (arXiv 1909.13719): a few random operations of equal strength.

The operations and their scales are those of the reference implementation for
ImageNet, which the recipes of "How to train your ViT" (arXiv 2106.10270) used.
Magnitude 10 is the top of the scale, and those recipes go beyond it (15, 20).
As in the reference, posterize and solarize get weaker as the magnitude grows.
The reference gives lengths in pixels of a 224 x 224 image; here they are
fractions of the side, so that small images keep their content.

Three more differences can be undone, for the published recipes (`PUBLISHED`).
The reference's contrast blends with the grey level (number of pixels) / 256, at
most 255, where it means to take the mean grey; its posterize keeps no bit below
magnitude 2.5, which leaves a black image, where ours keeps one; and it moves
images by nearest neighbour, where ours is bilinear.
"""

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

GREY = 128
"""The value of pixels that come from outside the image, or are cut out."""

_FILL = (GREY, GREY, GREY)
_TRANSLATE, _CUTOUT = 100 / 224, 40 / 224
_Op = Callable[[Image.Image, float, np.random.Generator], Image.Image]


def rand_augment(
  image: np.ndarray,
  rng: np.random.Generator,
  num_layers: int = 2,
  magnitude: float = 10,
  as_published: bool = False,
) -> np.ndarray:
  """Applies `num_layers` operations, drawn from `OPS` with replacement.

  Args:
    image: uint8 of shape (H, W, 3), as the result is.
    magnitude: strength of every operation, 0 to `settings.MAX_MAGNITUDE`.
    as_published: whether to draw from `PUBLISHED` instead.
  """
  if num_layers == 0:
    return image
  ops = tuple((PUBLISHED if as_published else OPS).values())
  pixels = Image.fromarray(image)
  for choice in rng.integers(len(ops), size=num_layers):
    pixels = ops[choice](pixels, magnitude / 10, rng)
  return np.asarray(pixels)


def _sign(rng: np.random.Generator) -> int:
  return 1 if rng.random() < 0.5 else -1


def _enhance(kind: type) -> _Op:
  """Blends towards a degenerate image (factor < 1) or away from it."""
  return lambda image, strength, _: kind(image).enhance(0.1 + 1.8 * strength)


def _published_contrast(image, strength, _):
  level = min(image.width * image.height // 256, 255)
  degenerate = Image.new("RGB", image.size, (level,) * 3)
  return Image.blend(degenerate, image, 0.1 + 1.8 * strength)


def _posterize(least_bits: int) -> _Op:
  def op(image, strength, _):
    bits = min(max(int(4 * strength), least_bits), 8)
    mask = 256 - 2 ** (8 - bits)
    return image.point([v & mask for v in range(256)] * 3)

  return op


def _solarize_add(image, strength, _):
  added = int(110 * strength)
  table = [min(v + added, 255) if v < 128 else v for v in range(256)]
  return image.point(table * 3)


def _moves(resampling: Image.Resampling) -> dict[str, _Op]:
  """The operations that move pixels, which take one resampling."""

  def affine(change: Callable[[Image.Image, float], tuple]) -> _Op:
    """Maps out(x, y) = in(a x + b y + c, d x + e y + f), given (a, ..., f)."""

    def op(image, strength, rng):
      kind, by = Image.Transform.AFFINE, change(image, strength * _sign(rng))
      return image.transform(image.size, kind, by, resampling, fillcolor=_FILL)

    return op

  def rotate(image, strength, rng):
    angle = 30 * strength * _sign(rng)
    return image.rotate(angle, resampling, fillcolor=_FILL)

  return {
    "rotate": rotate,
    "shear_x": affine(lambda _, by: (1, 0.3 * by, 0, 0, 1, 0)),
    "shear_y": affine(lambda _, by: (1, 0, 0, 0.3 * by, 1, 0)),
    "translate_x": affine(
      lambda image, by: (1, 0, _TRANSLATE * by * image.width, 0, 1, 0)
    ),
    "translate_y": affine(
      lambda image, by: (1, 0, 0, 0, 1, _TRANSLATE * by * image.height)
    ),
  }


def _cutout(image, strength, rng):
  """Greys a square centred anywhere in the image, clipped at the edges."""
  half = int(_CUTOUT * strength * min(image.size))
  x, y = rng.integers(image.width), rng.integers(image.height)
  image = image.copy()
  box = (max(x - half, 0), max(y - half, 0), x + half, y + half)
  image.paste(_FILL, tuple(int(edge) for edge in box))
  return image


_MOVES = _moves(Image.Resampling.BILINEAR)
OPS: dict[str, _Op] = {
  "autocontrast": lambda image, *_: ImageOps.autocontrast(image),
  "equalize": lambda image, *_: ImageOps.equalize(image),
  "invert": lambda image, *_: ImageOps.invert(image),
  "rotate": _MOVES["rotate"],
  "posterize": _posterize(1),
  "solarize": lambda x, strength, _: ImageOps.solarize(x, int(256 * strength)),
  "color": _enhance(ImageEnhance.Color),
  "contrast": _enhance(ImageEnhance.Contrast),
  "brightness": _enhance(ImageEnhance.Brightness),
  "sharpness": _enhance(ImageEnhance.Sharpness),
  **_MOVES,  # Where they are not above: "rotate" keeps its place.
  "cutout": _cutout,
  "solarize_add": _solarize_add,
}
"""Operations by name: (image, magnitude / 10, rng) -> image of equal size."""

PUBLISHED: dict[str, _Op] = {
  **OPS,
  **_moves(Image.Resampling.NEAREST),
  "contrast": _published_contrast,
  "posterize": _posterize(0),
}
"""The operations as in the reference, in the same order."""
