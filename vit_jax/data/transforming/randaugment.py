"""RandAugment (arXiv 1909.13719): a few random operations of equal strength.

The operations and their scales are those of the reference implementation for
ImageNet, which the recipes of "How to train your ViT" (arXiv 2106.10270) used.
Magnitude 10 is the top of the scale, and those recipes go beyond it (15, 20).
As in the reference, posterize and solarize get weaker as the magnitude grows.
The reference gives lengths in pixels of a 224 x 224 image; here they are
fractions of the side, so that small images keep their content.

`PUBLISHED` are the reference's own operations, to the pixel
(docs/evidence/parity.md). Its contrast blends with the grey level (number of
pixels) / 256, at most 255, where it means to take the mean grey. Its solarize
inverts the whole image at magnitudes 10 and 20, since the threshold, 256 and
512, is taken modulo 256, and its posterize keeps one bit beyond 22.5. It moves
images by nearest neighbour, where ours is bilinear, and shears about a pixel's
centre instead of its corner.
"""

import math
from collections.abc import Callable

import cv2
import numpy as np
from PIL import Image, ImageEnhance, ImageOps

GREY = 128
"""The value of pixels that come from outside the image, or are cut out."""

_FILL = (GREY, GREY, GREY)
_IMAGENET = (124, 116, 104)  # The mean colour of ImageNet's images.
_TRANSLATE = 100 / 224  # The longest shift, as a fraction of the side.
_CUTOUT = 40 / 224  # Half a square's side over the image's shorter side.
_CHANCE = 0.5  # Probability with which timm's policy applies an operation.
_SPREAD = 0.5  # Standard deviation of the magnitudes of timm's policy.
_Op = Callable[[Image.Image, float, np.random.Generator], Image.Image]


def rand_augment(
  image: np.ndarray,
  rng: np.random.Generator,
  num_layers: int = 2,
  magnitude: float = 10,
  as_published: bool = False,
  timm: bool = False,
) -> np.ndarray:
  """Applies `num_layers` operations, drawn from `OPS` with replacement.

  Returns the changed image.

  Args:
    image: uint8 of shape (H, W, 3), which the result has as well.
    magnitude: strength of every operation, 0 to `settings.MAX_MAGNITUDE`.
    as_published: whether to draw from `PUBLISHED` instead.
    timm: whether to draw from `TIMM`, and to apply each operation half of the
      time, with a magnitude that is drawn around `magnitude`, 10 at most.
  """
  if num_layers == 0:
    return image
  table = OPS
  if timm:
    table = TIMM
  elif as_published:
    table = PUBLISHED
  ops = tuple(table.values())
  pixels = Image.fromarray(image)
  for choice in rng.integers(len(ops), size=num_layers):
    if timm and rng.random() >= _CHANCE:
      continue
    strength = magnitude
    if timm:
      strength = min(max(rng.normal(magnitude, _SPREAD), 0), 10)
    pixels = ops[choice](pixels, strength / 10, rng)
  return np.asarray(pixels)


def _sign(rng: np.random.Generator) -> int:
  """1 or -1, each with probability 1/2."""
  return 1 if rng.random() < 0.5 else -1


def _blend(other: Callable[[Image.Image], Image.Image]) -> _Op:
  """An operation that blends an image with `other`, an image made from it.

  The image's weight is 0.1 + 1.8 * strength. Beyond 1, the result is farther
  from the other image than the image itself.
  """
  return lambda image, strength, _: Image.blend(
    other(image), image, 0.1 + 1.8 * strength
  )


def _posterize(image, strength, _, least=1):
  """Keeps int(4 * strength) bits of each value, `least` or more."""
  mask = 256 - (256 >> min(max(int(4 * strength), least), 8))
  return image.point([v & mask for v in range(256)] * 3)


def _solarize_add(image, strength, _):
  """Adds up to 110 to each value below 128."""
  added = int(110 * strength)
  table = [min(v + added, 255) if v < 128 else v for v in range(256)]
  return image.point(table * 3)


def _transform(image, matrix, by=Image.Resampling.BILINEAR, fill=_FILL):
  """Maps out(x, y) = in(a x + b y + c, d x + e y + f), given (a, ..., f)."""
  kind = Image.Transform.AFFINE
  return image.transform(image.size, kind, matrix, by, fillcolor=fill)


def _nearest(image, matrix):
  """Maps as `_transform` does, from centre to centre, by nearest neighbour."""
  a, b, c, d, e, f = np.array(matrix, np.float32)
  x, y = (np.arange(side, dtype=np.float32) for side in image.size)
  columns = a * x + (b * y)[:, None] + c
  rows = d * x + (e * y)[:, None] + f
  moved = cv2.remap(
    np.asarray(image),
    _round_half_away(columns),
    _round_half_away(rows),
    interpolation=cv2.INTER_NEAREST,
    borderMode=cv2.BORDER_CONSTANT,
    borderValue=_FILL,
  )
  return Image.fromarray(moved)


def _round_half_away(x):
  """Rounds to the nearest whole number; x.5 is rounded away from 0."""
  return np.trunc(x + np.copysign(np.float32(0.5), x))


def _rotation(size, angle):
  """The matrix of a rotation by `angle` degrees about the centre of (W, H)."""
  x, y = (side / 2 for side in size)
  radians = math.radians(angle)
  c = round(math.cos(radians), 15)
  s = round(math.sin(radians), 15)
  return c, -s, c * -x - s * -y + x, s, c, s * -x + c * -y + y


def _moves(affine: Callable, edge: int, shift: float, *how) -> dict[str, _Op]:
  """The operations that move pixels.

  `affine` applies a matrix, with the arguments `how`. A rotation is about the
  centre of an image whose sides are shorter by `edge`, and `shift` is the
  longest translation, as a fraction of the side.
  """

  def op(matrix: Callable[[int, int, float], tuple]) -> _Op:
    return lambda image, strength, rng: affine(
      image, matrix(*image.size, strength * _sign(rng)), *how
    )

  return {
    "rotate": op(lambda W, H, by: _rotation((W - edge, H - edge), 30 * by)),
    "shear_x": op(lambda W, H, by: (1, 0.3 * by, 0, 0, 1, 0)),
    "shear_y": op(lambda W, H, by: (1, 0, 0, 0.3 * by, 1, 0)),
    "translate_x": op(lambda W, H, by: (1, 0, shift * by * W, 0, 1, 0)),
    "translate_y": op(lambda W, H, by: (1, 0, 0, 0, 1, shift * by * H)),
  }


def _cutout(image, strength, rng):
  """Greys a square centred anywhere in the image, clipped at the edges."""
  half = int(_CUTOUT * strength * min(image.size))
  x = rng.integers(image.width)
  y = rng.integers(image.height)
  image = image.copy()
  box = (max(x - half, 0), max(y - half, 0), x + half, y + half)
  image.paste(_FILL, tuple(int(edge) for edge in box))
  return image


_MOVES = _moves(_transform, 0, _TRANSLATE)
OPS: dict[str, _Op] = {
  "autocontrast": lambda image, *_: ImageOps.autocontrast(image),
  "equalize": lambda image, *_: ImageOps.equalize(image),
  "invert": lambda image, *_: ImageOps.invert(image),
  "rotate": _MOVES["rotate"],
  "posterize": _posterize,
  "solarize": lambda x, strength, _: ImageOps.solarize(x, int(256 * strength)),
  "color": _blend(lambda x: ImageEnhance.Color(x).degenerate),
  "contrast": _blend(lambda x: ImageEnhance.Contrast(x).degenerate),
  "brightness": _blend(lambda x: ImageEnhance.Brightness(x).degenerate),
  "sharpness": _blend(lambda x: ImageEnhance.Sharpness(x).degenerate),
  **_MOVES,  # "rotate" keeps its place above.
  "cutout": _cutout,
  "solarize_add": _solarize_add,
}
"""Operations by name: (image, magnitude / 10, rng) -> image of equal size."""


def _grey(image):
  """The grey image with which the reference blends colours."""
  x = np.asarray(image, np.float32) * np.float32(1 / 255)
  grey = x @ np.array([0.2989, 0.587, 0.114], np.float32) * 255.5
  return Image.fromarray(grey.astype(np.uint8)).convert("RGB")


def _smooth(image):
  """The smoothed image with which the reference blends for sharpness."""
  x = np.array(image)
  inside = np.s_[1:-1, 1:-1]
  kernel = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13
  x[inside] = cv2.filter2D(x.astype(np.float32), -1, kernel)[inside]
  return Image.fromarray(x)


PUBLISHED: dict[str, _Op] = {
  **OPS,
  **_moves(_nearest, 1, _TRANSLATE),
  "color": _blend(_grey),
  "contrast": _blend(
    lambda x: x.point([min(x.width * x.height // 256, 255)] * 768)
  ),
  "sharpness": _blend(_smooth),
  "posterize": lambda x, by, _: _posterize(x, by * (by < 2.25), _),
  "solarize": lambda x, by, _: ImageOps.solarize(x, int(256 * by) % 256),
}
"""The reference's own operations, in the same order."""

TIMM: dict[str, _Op] = {
  **OPS,
  **_moves(_transform, 0, 0.45, Image.Resampling.BICUBIC, _IMAGENET),
  **{
    k: lambda x, by, rng, op=OPS[k]: op(x, (1 + by * _sign(rng)) / 2, rng)
    for k in ("color", "contrast", "brightness", "sharpness")
  },
  "posterize": lambda x, by, rng: _posterize(x, 1 - int(4 * by) / 4, rng, 0),
  "solarize": lambda x, by, _: ImageOps.solarize(x, 256 - int(256 * by)),
}
"""timm's operations for rand-m9-mstd0.5-inc1, in the same form.

All of them get stronger as the magnitude grows.
"""
del TIMM["cutout"]
