"""RandAugment (arXiv 1909.13719): a few random operations of equal strength.

The operations and their scales are those of the reference implementation for
ImageNet, which the recipes of "How to train your ViT" (arXiv 2106.10270) used.
Magnitude 10 is the top of the scale, and those recipes go beyond it (15, 20).
As in the reference, posterize and solarize get weaker as the magnitude grows.
The reference gives lengths in pixels of a 224 x 224 image; here they are
fractions of the side, so that small images keep their content.

`PUBLISHED` are the reference's own operations, to the pixel (docs/parity.md).
Its contrast blends with the grey level (number of pixels) / 256, at most 255,
where it means to take the mean grey. Its solarize inverts the whole image at
magnitudes 10 and 20, since the threshold, 256 and 512, is taken modulo 256, and
its posterize keeps one bit beyond 22.5. It moves images by nearest neighbour,
where ours is bilinear, and shears about a pixel's centre instead of its corner.
"""

import math
from collections.abc import Callable

import cv2
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


def _posterize(image, strength, _):
  bits = min(max(int(4 * strength), 1), 8)
  mask = 256 - 2 ** (8 - bits)
  return image.point([v & mask for v in range(256)] * 3)


def _solarize_add(image, strength, _):
  added = int(110 * strength)
  table = [min(v + added, 255) if v < 128 else v for v in range(256)]
  return image.point(table * 3)


def _affine(image, matrix):
  """Maps out(x, y) = in(a x + b y + c, d x + e y + f), given (a, ..., f)."""
  kind, by = Image.Transform.AFFINE, Image.Resampling.BILINEAR
  return image.transform(image.size, kind, matrix, by, fillcolor=_FILL)


def _nearest(image, matrix):
  """The same for the nearest pixel, whose centre is (x, y), in float32."""
  a, b, c, d, e, f = np.float32(matrix)
  x, y = (np.arange(side, dtype=np.float32) for side in image.size)
  places = a * x + (b * y)[:, None] + c, d * x + (e * y)[:, None] + f
  # Halves are rounded away from 0.
  maps = (np.trunc(p + np.copysign(np.float32(0.5), p)) for p in places)
  outside = dict(borderMode=cv2.BORDER_CONSTANT, borderValue=_FILL)
  moved = cv2.remap(np.asarray(image), *maps, cv2.INTER_NEAREST, **outside)
  return Image.fromarray(moved)


def _moves(affine: Callable, rotate: Callable) -> dict[str, _Op]:
  """The operations that move pixels, by a function that does."""

  def op(matrix: Callable[[Image.Image, float], tuple]) -> _Op:
    def move(image, strength, rng):
      return affine(image, matrix(image, strength * _sign(rng)))

    return move

  return {
    "rotate": lambda x, strength, rng: rotate(x, 30 * strength * _sign(rng)),
    "shear_x": op(lambda _, by: (1, 0.3 * by, 0, 0, 1, 0)),
    "shear_y": op(lambda _, by: (1, 0, 0, 0.3 * by, 1, 0)),
    "translate_x": op(
      lambda image, by: (1, 0, _TRANSLATE * by * image.width, 0, 1, 0)
    ),
    "translate_y": op(
      lambda image, by: (1, 0, 0, 0, 1, _TRANSLATE * by * image.height)
    ),
  }


def _rotate(image, angle):
  return image.rotate(angle, Image.Resampling.BILINEAR, fillcolor=_FILL)


def _rotate_nearest(image, angle):
  """About the image's centre, in float32."""
  radians = np.float32(math.radians(angle))
  c, s = np.cos(radians), np.sin(radians)
  w, h = np.float32(image.width - 1), np.float32(image.height - 1)
  x, y = (w - (c * w - s * h)) / 2, (h - (s * w + c * h)) / 2
  return _nearest(image, (c, -s, x, s, c, y))


def _cutout(image, strength, rng):
  """Greys a square centred anywhere in the image, clipped at the edges."""
  half = int(_CUTOUT * strength * min(image.size))
  x, y = rng.integers(image.width), rng.integers(image.height)
  image = image.copy()
  box = (max(x - half, 0), max(y - half, 0), x + half, y + half)
  image.paste(_FILL, tuple(int(edge) for edge in box))
  return image


_MOVES = _moves(_affine, _rotate)
OPS: dict[str, _Op] = {
  "autocontrast": lambda image, *_: ImageOps.autocontrast(image),
  "equalize": lambda image, *_: ImageOps.equalize(image),
  "invert": lambda image, *_: ImageOps.invert(image),
  "rotate": _MOVES["rotate"],
  "posterize": _posterize,
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


def _published_blend(degenerate: Callable[[np.ndarray], np.ndarray]) -> _Op:
  """Blends with what a function makes of the pixels, float32 (H, W, 3)."""

  def op(image, strength, _):
    pixels = np.asarray(image).astype(np.float32)
    other = degenerate(pixels).astype(np.uint8)
    shape = Image.fromarray(np.broadcast_to(other, pixels.shape))
    return Image.blend(shape, image, 0.1 + 1.8 * strength)

  return op


def _published_grey(x: np.ndarray) -> np.ndarray:
  weights = np.float32([0.2989, 0.587, 0.114])
  return (x * np.float32(1 / 255) @ weights * np.float32(255.5))[..., None]


def _published_smooth(x: np.ndarray) -> np.ndarray:
  """Of each pixel and its neighbours; the image's edge stays."""
  kernel = np.float32([[1, 1, 1], [1, 5, 1], [1, 1, 1]]) / np.float32(13)
  smooth = x.copy()
  smooth[1:-1, 1:-1] = cv2.filter2D(x, -1, kernel)[1:-1, 1:-1]
  return smooth


PUBLISHED: dict[str, _Op] = {
  **OPS,
  **_moves(_nearest, _rotate_nearest),
  "color": _published_blend(_published_grey),
  "contrast": _published_blend(
    lambda x: np.float32(min(x.shape[0] * x.shape[1] // 256, 255))
  ),
  "sharpness": _published_blend(_published_smooth),
  "posterize": lambda x, strength, rng: _posterize(
    x, strength * (strength < 2.25), rng
  ),
  "solarize": lambda x, strength, _: ImageOps.solarize(
    x, int(256 * strength) % 256
  ),
}
"""The reference's own operations, in the same order."""
