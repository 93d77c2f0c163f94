"""Faults that are put into our pixels one at a time: each must be found."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
from PIL import Image

from scripts.parity import policy
from scripts.parity.pixels import recipes
from vit_jax.data.decoding import decode
from vit_jax.data.reading import image_folder
from vit_jax.data.transforming import augment, randaugment, transforms
from vit_jax.training import losses

Fault = Callable[[], contextlib.AbstractContextManager]


def patched(place: Any, name: str, make: Callable[[Any], Any]) -> Fault:
  """Another function or value in the place of one of ours."""
  return lambda: mock.patch.object(place, name, make(getattr(place, name)))


def _op(name: str, new: Any, ops: Any = randaugment.PUBLISHED) -> Fault:
  return lambda: mock.patch.dict(ops, {name: new})


def _stronger(ops: Any) -> Fault:
  """All operations, by 2 % more."""

  def more(op: Any) -> Any:
    return lambda image, strength, rng: op(image, 1.02 * strength, rng)

  return lambda: mock.patch.dict(ops, {k: more(op) for k, op in ops.items()})


def _settings(section: str, **fields: Any) -> Fault:
  """Another setting of a recipe."""

  def change(made: Any) -> Any:
    def own(name: str) -> Any:
      settings = made(name)
      new = dataclasses.replace(getattr(settings, section), **fields)
      return dataclasses.replace(settings, **{section: new})

    return own

  return patched(recipes, "recipe", change)


_SAME_MOVES = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")


def _by(moves: Any, ops: Any) -> Fault:
  return lambda: mock.patch.dict(ops, {k: moves[k] for k in _SAME_MOVES})


def _contrast(
  level: Callable[[Image.Image], float], more: float = 1.0
) -> Fault:
  """A contrast that blends with another level, or by another factor."""

  def op(image: Any, strength: float, _: Any) -> Any:
    flat = Image.new("RGB", image.size, (int(level(image)),) * 3)
    return Image.blend(flat, image, more * (0.1 + 1.8 * strength))

  return _op("contrast", op)


def _published_level(image: Image.Image) -> int:
  return min(image.width * image.height // 256, 255)


def _posterize_to_black(image: Any, strength: float, rng: Any) -> Any:
  if int(4 * strength) == 0:
    return Image.new("RGB", image.size)
  return randaugment._posterize(image, strength, rng)


def _box(change: Callable[..., Any]) -> Callable[[Any], Any]:
  return lambda draw: lambda *a, **k: change(*draw(*a, **k))


_RANDAUGMENT: dict[str, Fault] = {
  "solarize that keeps 256": _op("solarize", randaugment.OPS["solarize"]),
  "Pillow's grey": _op("color", randaugment.OPS["color"]),
  "Pillow's smoothing": _op("sharpness", randaugment.OPS["sharpness"]),
  "bilinear moves": _by(randaugment.OPS, randaugment.PUBLISHED),
  "rotation about the corner's centre": patched(
    randaugment,
    "_rotation",
    lambda rotation: (
      lambda size, angle: rotation((size[0] + 1, size[1]), angle)
    ),
  ),
  "halves rounded to even": patched(
    randaugment, "np", lambda np: _Numpy(trunc=lambda x: x, copysign=_half_even)
  ),
  "a cutout of 2 % less": patched(randaugment, "_CUTOUT", lambda x: 0.98 * x),
  "posterize to black": _op("posterize", _posterize_to_black),
  "magnitudes 2 % larger": _stronger(randaugment.PUBLISHED),
}


class _Numpy:
  """NumPy with other functions."""

  def __init__(self, **own: Any):
    vars(self).update(own)

  def __getattr__(self, name: str) -> Any:
    return getattr(np, name)


def _half_even(_: Any, x: np.ndarray) -> np.ndarray:
  """What rounds x to the nearest, with x added to it."""
  return np.rint(x) - x


def _solarize_add(image: Any, strength: float, _: Any) -> Any:
  x = np.asarray(image).astype(int)
  more = np.minimum(x + int(0.98 * 110 * strength), 255)
  return Image.fromarray(np.where(x < 128, more, x).astype(np.uint8))


def _rounded(image: Any, strength: float, _: Any) -> Any:
  x, factor = np.asarray(image).astype(float), 0.1 + 1.8 * strength
  level = _published_level(image)
  mixed = np.rint(level + factor * (x - level)).clip(0, 255)
  return Image.fromarray(mixed.astype(np.uint8))


def _mean_grey(image: Any) -> float:
  return float(np.asarray(image.convert("L")).mean())


_TIMM: dict[str, Fault] = {
  "solarize modulo 256": _op(
    "solarize", randaugment.PUBLISHED["solarize"], randaugment.OPS
  ),
  "moves by nearest neighbour": _by(randaugment.PUBLISHED, randaugment.OPS),
  "big_vision's grey": _op(
    "color", randaugment.PUBLISHED["color"], randaugment.OPS
  ),
  "solarize_add of 2 % less": _op(
    "solarize_add", _solarize_add, randaugment.OPS
  ),
  "magnitudes 2 % larger": _stronger(randaugment.OPS),
  "rotation the other way": patched(
    randaugment, "_rotation", lambda make: lambda size, by: make(size, -by)
  ),
}


def _policy(**fields: Any) -> Fault:
  return patched(policy, "SETTINGS", lambda x: dataclasses.replace(x, **fields))


def _original(*names: str) -> Fault:
  """Operations of timm's other set, which inc1 replaces."""
  ops = {k: randaugment.OPS[k] for k in names}
  return lambda: mock.patch.dict(randaugment.TIMM, ops)


def _moving(
  shift: float = 0.45,
  how: Image.Resampling = Image.Resampling.BICUBIC,
  fill: tuple[int, ...] = randaugment._IMAGENET,
) -> Fault:
  moves = randaugment._moves(randaugment._transform, 0, shift, how, fill)
  return _by(moves, randaugment.TIMM)


_DEIT: dict[str, Fault] = {
  "one magnitude": patched(randaugment, "_SPREAD", lambda _: 1e-9),
  "magnitudes spread by 0.51": patched(randaugment, "_SPREAD", lambda _: 0.51),
  "a magnitude of 9.18": _policy(randaugment_magnitude=9.18),
  "no limit of 10": lambda: mock.patch.object(
    randaugment, "min", lambda x, _: x, create=True
  ),
  "no operation left out": patched(randaugment, "_CHANCE", lambda _: 1.0),
  "half of those that are left out": patched(
    randaugment, "_CHANCE", lambda _: 0.75
  ),
  "one layer": _policy(randaugment_layers=1),
  "posterize of the original set": _original("posterize"),
  "solarize of the original set": _original("solarize"),
  "colours of the original set": _original(
    "color", "contrast", "brightness", "sharpness"
  ),
  "our own operations": _original(*_SAME_MOVES),
  "grey from outside": _moving(fill=(randaugment.GREY,) * 3),
  "bilinear moves": _moving(how=Image.Resampling.BILINEAR),
  "moves by 0.446 of the side": _moving(shift=100 / 224),
  "without `randaugment_timm`": _policy(randaugment_timm=False),
}
_CONTRAST: dict[str, Fault] = {
  "the mean grey": _contrast(_mean_grey),
  "no limit of 255": _contrast(lambda x: x.width * x.height // 256 % 256),
  "twice the pixels": _contrast(lambda x: min(x.width * x.height // 128, 255)),
  "2 % more contrast": _contrast(_published_level, 1.02),
  "rounding to the nearest": _op("contrast", _rounded),
}


def _simplejpeg(**options: Any) -> Fault:
  """Other options of the decoder."""

  def make(decoded: Any) -> Any:
    return lambda *a, **given: decoded(*a, **{**given, **options})

  return patched(decode.simplejpeg, "decode_jpeg", make)


def _changed(change: Callable[[np.ndarray], np.ndarray]) -> Fault:
  """A change of what is decoded."""
  return patched(
    decode.simplejpeg,
    "decode_jpeg",
    lambda decoded: (
      lambda *a, **k: np.ascontiguousarray(change(decoded(*a, **k)))
    ),
  )


_JPEG: dict[str, Fault] = {
  "the exact transform": _simplejpeg(fastdct=False),
  "the fast transform": _simplejpeg(fastdct=True),
  "chroma repeated": _simplejpeg(fastupsample=True),
  "red and blue swapped": _simplejpeg(colorspace="BGR"),
  "one level more": _changed(lambda x: x + (x < 255).astype(np.uint8)),
}
_FLIP = patched(transforms.cv2, "flip", lambda flip: lambda x, _: flip(x, 0))
_NO_FLIP = _settings("train_transform", flip=False)


def _train(*resizers: str) -> dict[str, Fault]:
  """Faults of a training image: other resizers, and those of its box."""
  found = {
    f"resized as {name!r}": _settings("train_transform", resizer=name)
    for name in resizers
  }
  return {
    **found,
    "no flip": _NO_FLIP,
    "upside down": _FLIP,
    "the exact transform of JPEG": _simplejpeg(fastdct=False),
  }


def _moved(draw: Any) -> Any:
  def own(*args: Any, **options: Any) -> Any:
    top, left, h, w = draw(*args, **options)
    return max(top - 1, 0), left, h, w

  return own


_TRAIN_BIG_VISION = {
  **_train("fast", "vision_transformer"),
  "a layer less": _settings("train_transform", randaugment_layers=1),
  "a magnitude of 9.8": _settings("train_transform", randaugment_magnitude=9.8),
  "our own RandAugment": lambda: mock.patch.dict(
    randaugment.PUBLISHED, randaugment.OPS
  ),
}
_TRAIN_DEIT = {
  "resized as 'fast'": _settings("train_transform", resizer="fast"),
  "resized as 'big_vision'": _settings("train_transform", resizer="big_vision"),
  "no flip": _NO_FLIP,
  "a least area of 5 %": _settings("train_transform", min_area=0.05),
  "jitter of 0.294": _settings("train_transform", colour_jitter=0.294),
  "a box one row up": patched(augment, "inception_box", _moved),
  "solarize from 130 on": patched(
    augment.ImageOps, "solarize", lambda op: lambda x: op(x, 130)
  ),
  "a blur of 2 % more": patched(
    augment.ImageFilter,
    "GaussianBlur",
    lambda blur: lambda radius: blur(1.02 * radius),
  ),
}


def _eval(**others: dict[str, Any]) -> dict[str, Fault]:
  return {
    name.replace("_", " "): _settings("eval_transform", **fields)
    for name, fields in others.items()
  }


_EVAL_BIG_VISION = {
  **_eval(
    our_own_areas=dict(resizer="pillow"),
    rounding_to_the_nearest=dict(resizer="vision_transformer"),
    bilinear_instead_of_areas=dict(interpolation="bilinear"),
    a_short_side_of_250=dict(resize_ratio=250 / 224),
    the_whole_image=dict(crop="resize"),
    half_a_pixel_to_even=dict(corner="even"),
  ),
  "the exact transform of JPEG": _simplejpeg(fastdct=False),
}
_EVAL_GOOGLE = {
  **_eval(
    antialiasing=dict(resizer="pillow", antialias=True),
    rounding_down=dict(resizer="big_vision"),
    areas_instead_of_bilinear=dict(interpolation="area"),
    the_centre=dict(crop="center"),
  ),
  "the exact transform of JPEG": _simplejpeg(fastdct=False),
}
_EVAL_DEIT = _eval(
  half_a_pixel_down=dict(corner="floor"),
  bilinear_instead_of_bicubic=dict(interpolation="bilinear"),
  no_antialiasing=dict(antialias=False),
  a_ratio_of_1_02=dict(resize_ratio=1.02),
  the_whole_image=dict(crop="resize"),
  rounding_as_of_tensors=dict(resizer="torchvision_float"),
)


def _erased(**values: Any) -> Fault:
  (name, value), *_ = values.items()
  return patched(augment, name, lambda _: value)


_CROP: dict[str, Fault] = {
  "a least area of 2 % more": patched(
    augment,
    "inception_box",
    lambda draw: lambda H, W, area, rng: draw(H, W, 1.02 * area, rng),
  ),
  "ratios of 0.735 to 1.36": patched(
    augment, "_LOG_RATIOS", lambda x: tuple(1.07 * y for y in x)
  ),
  "three attempts": patched(augment, "_ATTEMPTS", lambda _: 3),
  "a box one row up": patched(augment, "inception_box", _moved),
  "sides rounded down": lambda: mock.patch.object(
    augment, "round", int, create=True
  ),
}
_ERASING: dict[str, Fault] = {
  "a least area of 2 % more": _erased(_AREA=(0.0204, 1 / 3)),
  "a greatest area of 2 % more": _erased(_AREA=(0.02, 0.34)),
  "ratios of 0.294 to 3.4": _erased(_RATIO=(0.294, 1 / 0.294)),
  "sides rounded down": lambda: mock.patch.object(
    augment, "round", int, create=True
  ),
  "height and width swapped": _erased(_RATIO=(1 / 0.3, 0.3)),
  "a probability of 0.2": patched(
    augment, "erase", lambda erase: lambda image, rng, _: erase(image, rng, 0.2)
  ),
}


def _mixing(name: str, change: Callable[[Any, Any], Any]) -> Fault:
  """A change of the images and the targets of Mixup or CutMix."""
  return patched(
    losses,
    name,
    lambda mix: (
      lambda key, images, targets, alpha: change(
        mix(key, images, targets, alpha), (images, targets)
      )
    ),
  )


_MIXING: dict[str, Fault] = {
  "images that are not mixed": _mixing(
    "mixup", lambda new, old: (old[0], new[1])
  ),
  "targets that are not mixed": _mixing(
    "mixup", lambda new, old: (new[0], old[1])
  ),
  "the neighbour's share": _mixing(
    "mixup", lambda new, _: (new[0], new[1][::-1])
  ),
  "2 % less of an example": _mixing(
    "mixup", lambda new, old: (0.98 * new[0] + 0.02 * old[0][::-1], new[1])
  ),
  "sides without the root": patched(losses.jnp, "sqrt", lambda _: lambda x: x),
  "boxes of 2 % more": patched(
    losses.jnp, "sqrt", lambda root: lambda x: 1.09 * root(x)
  ),
  "targets of CutMix that are not mixed": _mixing(
    "cutmix", lambda new, old: (new[0], old[1])
  ),
}


def _order(key: Callable[[bytes], Any], **options: Any) -> Fault:
  return patched(
    image_folder,
    "_classes",
    lambda classes: lambda folder: sorted(classes(folder), key=key, **options),
  )


_LABELS: dict[str, Fault] = {
  "numbers by their size": _order(
    lambda k: (not k.isdigit(), int(k) if k.isdigit() else 0, k)
  ),
  "no regard to case": _order(lambda k: k.decode().lower()),
  "from the last to the first": _order(lambda k: k, reverse=True),
  "by length": _order(lambda k: (len(k), k)),
  "numbers at the end": _order(lambda k: (k.isdigit(), k)),
}
FAULTS: dict[str, dict[str, Fault]] = {
  "randaugment_big_vision": _RANDAUGMENT,
  "contrast": _CONTRAST,
  "randaugment_timm": _TIMM,
  "randaugment_deit": _DEIT,
  "jpeg": _JPEG,
  "train_big_vision": _TRAIN_BIG_VISION,
  "train_google": _train("fast", "big_vision"),
  "train_deit": _TRAIN_DEIT,
  "eval_big_vision": _EVAL_BIG_VISION,
  "eval_google": _EVAL_GOOGLE,
  "eval_deit": _EVAL_DEIT,
  "inception_crop_timm": _CROP,
  "random_erasing": _ERASING,
  "mixup_cutmix": _MIXING,
  "labels": _LABELS,
  "labels_google": _LABELS,
}
