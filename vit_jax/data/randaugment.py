"""RandAugment (arXiv 1909.13719): a few random operations of equal strength.

The operations and their scales are those of the reference implementation for
ImageNet, which the recipes of "How to train your ViT" (arXiv 2106.10270) used.
Magnitude 10 is the top of the scale, and those recipes go beyond it (15, 20).
As in the reference, posterize and solarize get weaker as the magnitude grows.
The reference gives lengths in pixels of a 224 x 224 image; here they are
fractions of the side, so that small images keep their content.
"""

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

GREY = 128
"""The value of pixels that come from outside the image, or are cut out."""

_TRANSLATE = 100 / 224
_CUTOUT = 40 / 224
_Op = Callable[[Image.Image, float, np.random.Generator], Image.Image]


def rand_augment(
  image: np.ndarray,
  rng: np.random.Generator,
  num_layers: int = 2,
  magnitude: float = 10,
) -> np.ndarray:
  """Applies `num_layers` operations, drawn from `OPS` with replacement.

  Args:
    image: uint8 of shape (H, W, 3).
    rng: draws the operations, and their signs and positions.
    num_layers: number of operations, applied one after the other.
    magnitude: strength of every operation, 0 to `settings.MAX_MAGNITUDE`.

  Returns:
    uint8 of shape (H, W, 3).
  """
  if num_layers == 0:
    return image
  names = tuple(OPS)
  pixels = Image.fromarray(image)
  for choice in rng.integers(len(names), size=num_layers):
    pixels = OPS[names[choice]](pixels, magnitude / 10, rng)
  return np.asarray(pixels)


def _sign(rng: np.random.Generator) -> int:
  return 1 if rng.random() < 0.5 else -1


def _enhance(kind: type) -> _Op:
  """Blends towards a degenerate image (factor < 1) or away from it."""

  def op(image, strength, rng):
    return kind(image).enhance(0.1 + 1.8 * strength)

  return op


def _affine(image: Image.Image, coefficients: tuple) -> Image.Image:
  """Maps out(x, y) = in(a x + b y + c, d x + e y + f), bilinear."""
  return image.transform(
    image.size,
    Image.Transform.AFFINE,
    coefficients,
    Image.Resampling.BILINEAR,
    fillcolor=(GREY, GREY, GREY),
  )


def _autocontrast(image, strength, rng):
  return ImageOps.autocontrast(image)


def _equalize(image, strength, rng):
  return ImageOps.equalize(image)


def _invert(image, strength, rng):
  return ImageOps.invert(image)


def _rotate(image, strength, rng):
  return image.rotate(
    30 * strength * _sign(rng),
    Image.Resampling.BILINEAR,
    fillcolor=(GREY, GREY, GREY),
  )


def _posterize(image, strength, rng):
  return ImageOps.posterize(image, min(max(int(4 * strength), 1), 8))


def _solarize(image, strength, rng):
  return ImageOps.solarize(image, int(256 * strength))


def _solarize_add(image, strength, rng):
  added = int(110 * strength)
  table = [min(v + added, 255) if v < 128 else v for v in range(256)]
  return image.point(table * 3)


def _shear_x(image, strength, rng):
  return _affine(image, (1, 0.3 * strength * _sign(rng), 0, 0, 1, 0))


def _shear_y(image, strength, rng):
  return _affine(image, (1, 0, 0, 0.3 * strength * _sign(rng), 1, 0))


def _translate_x(image, strength, rng):
  shift = _TRANSLATE * strength * image.width * _sign(rng)
  return _affine(image, (1, 0, shift, 0, 1, 0))


def _translate_y(image, strength, rng):
  shift = _TRANSLATE * strength * image.height * _sign(rng)
  return _affine(image, (1, 0, 0, 0, 1, shift))


def _cutout(image, strength, rng):
  """Greys a square centred anywhere in the image, clipped at the edges."""
  half = int(_CUTOUT * strength * min(image.size))
  x, y = rng.integers(image.width), rng.integers(image.height)
  image = image.copy()
  box = (max(x - half, 0), max(y - half, 0), x + half, y + half)
  image.paste((GREY, GREY, GREY), tuple(int(edge) for edge in box))
  return image


OPS: dict[str, _Op] = {
  "autocontrast": _autocontrast,
  "equalize": _equalize,
  "invert": _invert,
  "rotate": _rotate,
  "posterize": _posterize,
  "solarize": _solarize,
  "color": _enhance(ImageEnhance.Color),
  "contrast": _enhance(ImageEnhance.Contrast),
  "brightness": _enhance(ImageEnhance.Brightness),
  "sharpness": _enhance(ImageEnhance.Sharpness),
  "shear_x": _shear_x,
  "shear_y": _shear_y,
  "translate_x": _translate_x,
  "translate_y": _translate_y,
  "cutout": _cutout,
  "solarize_add": _solarize_add,
}
"""Operations by name: (image, magnitude / 10, rng) -> image of equal size."""
