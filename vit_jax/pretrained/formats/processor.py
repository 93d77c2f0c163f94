"""Hugging Face's `preprocessor_config.json`, read and written.

The class that it names decides the defaults of missing keys. `convert` writes
the same file for formats that have none of their own. If a model has a
tokenizer as well, release 5 of transformers writes a section of
`processor_config.json` instead.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.data.preprocessing import HALF, Preprocessing
from vit_jax.data.settings import FILTERS, TENSORFLOW, EvalTransformSettings
from vit_jax.data.transforming.sizes import AnySize, OwnSize
from vit_jax.families.family import (
  CLIP_MEAN,
  CLIP_STD,
  IMAGENET_MEAN,
  IMAGENET_STD,
)
from vit_jax.runtime import checks
from vit_jax.runtime.checks import COUNT, PerChannel, Sides, checked
from vit_jax.runtime.printable import quoted

FILE = "preprocessor_config.json"
KIND = "image_processor_type"
# The file that may have a section in its place, and the section's name.
NESTED, SECTION = "processor_config.json", "image_processor"
# Pillow's filters, in the order of its numbers.
_PILLOW_FILTERS = (
  "nearest",
  "lanczos",
  "bilinear",
  "bicubic",
  "box",
  "hamming",
)
_OVERSHOOTING = (1, 3)  # Filters that have negative weights.
_VIT = {"size": 224, "resample": 2, "image_mean": HALF, "image_std": HALF}
_VIT |= {"resizer": "torchvision"}  # Since release 5.
_IMAGENET = {"image_mean": IMAGENET_MEAN}
_IMAGENET |= {"image_std": IMAGENET_STD}
_CROP = {"do_center_crop": True, "crop_size": 224, "resample": 3}
_CLIP = {**_VIT, **_CROP, "size": {"shortest_edge": 224}}
_CLIP |= {"image_mean": CLIP_MEAN}
_CLIP |= {"image_std": CLIP_STD}
_ANY_SIZE = "Siglip2"  # Its images keep their proportions (NaFlex).
_PATCH_KEYS = ("max_num_patches", "patch_size")
# The defaults of each class, by its name without "ImageProcessor".
_KINDS: Mapping[str, Mapping[str, Any]] = {
  "ViT": _VIT,
  "Beit": _VIT | {"resample": 3},
  "Siglip": _VIT | {"resample": 3},
  _ANY_SIZE: _VIT | {"max_num_patches": 256, "patch_size": 16},
  "DeiT": _VIT | _CROP | {"size": 256},
  "DINOv3ViT": _VIT | _IMAGENET | {"resizer": "torchvision_float"},
  "CLIP": _CLIP,
  "Bit": _CLIP,
  "ConvNext": _VIT | {"size": {"shortest_edge": 384}, "resample": 3},
  "Tipsv2": _VIT | {"size": 448, "do_normalize": False},
  "DPT": _VIT | _IMAGENET | {"size": 384, "resample": 3},
  "GotOcr2": {**_CLIP, "size": 384, "do_center_crop": False},
}
# Classes for which a single number as size is that of the short side.
_SHORT = ("CLIP", "Bit", "ConvNext")
_CONVNEXT_PCT = 224 / 256
_CONVNEXT_WARPED = 384  # From this size on, ConvNext squeezes whole pictures.
_ENDINGS = ("Fast", "Pil", "ImageProcessor", "FeatureExtractor")


def read(config: Mapping[str, Any], file: str = FILE) -> Preprocessing:
  """The preprocessing that a `preprocessor_config.json` describes.

  Raises ValueError, with the name of the file, if it is not supported.
  """
  try:
    return _read(config)
  except ValueError as error:
    raise ValueError(f"its {file}: {error}") from error


def _read(config: Mapping[str, Any]) -> Preprocessing:
  """As `read`, with errors that do not name the file."""
  older = config.get("feature_extractor_type", "ViT")
  name = config.get(KIND) or older
  kind = checked("image_processor_type", str, name)
  for ending in _ENDINGS:
    kind = kind.removesuffix(ending)
  if kind not in _KINDS:
    kinds = f"it must be one of {', '.join(_KINDS)}"
    raise _refusal("image_processor_type", name, kinds)
  settings = {**_KINDS[kind]}
  settings |= {k: v for k, v in config.items() if v is not None}
  if kind == "DPT":
    return _of_dpt(settings)
  unknown = ("do_pad", "crop_pct") if kind != "ConvNext" else ("do_pad",)
  for key in unknown:
    if settings.get(key):
      raise _refusal(key, settings[key], "this is not supported")
  if not settings.get("do_resize", True):
    raise _refusal("do_resize", False, "pictures must be resized")
  patches = None
  if kind == _ANY_SIZE:
    max_patches, patch_size = (
      checked(key, int, settings[key], COUNT) for key in _PATCH_KEYS
    )
    patches = AnySize(max_patches, patch_size)
    # The positions belong to the largest square that so many patches cover.
    settings["size"] = math.isqrt(patches.tokens) * patches.patch_size
  size, crop = _crop(settings, kind)
  mean, std = _normalization(settings)
  return Preprocessing(size, crop, mean, std, patches=patches)


def _of_dpt(settings: Mapping[str, Any]) -> Preprocessing:
  """The preprocessing of a DPT, whose images have sizes of their own.

  For other uses than answers for pixels, images are resized to the size that
  the positions belong to. Raises ValueError for a value that is not supported.
  """
  if settings.get("do_center_crop"):
    raise _refusal("do_center_crop", True, "this is not supported")

  def chosen(key: str, default: Any, kind: Any, rule: Any = None) -> Any:
    return checked(key, kind, settings.get(key, default), rule)

  own = OwnSize(keeps_proportions=chosen("keep_aspect_ratio", False, bool))
  if chosen("do_resize", True, bool):
    own = dataclasses.replace(
      own,
      size=_sides("size", settings["size"]),
      multiple=chosen("ensure_multiple_of", 1, int, COUNT),
    )
  if chosen("do_pad", False, bool):
    own = dataclasses.replace(own, pad_to=chosen("size_divisor", 1, int, COUNT))
  mean, std = _normalization(settings)
  crop = EvalTransformSettings(
    interpolation=_filter(settings), resizer=settings["resizer"]
  )
  return Preprocessing(None, crop, mean, std, own_size=own)


def compose(first: Preprocessing, second: Preprocessing) -> Preprocessing:
  """The preprocessing `first`, followed by the normalisation of `second`.

  ((x - m) / s - n) / t is (x - (m + s n)) / (s t).
  """
  m, s, n, t = (
    np.asarray(x) for x in (first.mean, first.std, second.mean, second.std)
  )
  mean, std = (tuple(x.tolist()) for x in (m + s * n, s * t))
  return dataclasses.replace(first, mean=mean, std=std)


def assumptions(config: Mapping[str, Any], file: str) -> list[str]:
  """Lines on values that a file lacks, and on keys that are not followed."""
  lines = []
  if config.get("crop_to_patches"):
    lines.append(
      f"its {file} says crop_to_patches, by which its library cuts a picture "
      "into tiles; here a picture is seen whole"
    )
  lacking = [key for key in _VIT if key != "resizer" and key not in config]
  names_kind = bool({KIND, "feature_extractor_type"} & {*config})
  if lacking and not names_kind:
    names = ", ".join(lacking)
    lines.append(f"its {file} names no {KIND}, so ViT's {names} are taken")
  overshoots = config.get("resample") in _OVERSHOOTING
  if overshoots and str(config.get(KIND)).startswith("DINOv3"):
    lines.append(
      f"its {file} says resample={config['resample']}, which goes beyond black "
      "and white at edges; its library keeps such values, and here they are "
      "clipped"
    )
  return lines


def resizing(
  config: Mapping[str, Any], size: Sides, file: str
) -> tuple[Mapping[str, Any], list[str]]:
  """A preprocessor's configuration by which all pictures get one size.

  The file is that of a model for any size. If it leaves pictures their own size
  or shape, they are resized to `size`, and the second result has a line on
  that. Otherwise the configuration is unchanged, and the second result empty.
  """
  size_setting = config.get("size")
  shortest = isinstance(size_setting, dict) and "height" not in size_setting
  cut = config.get("do_center_crop", True)
  if config.get("do_resize", True) and (cut or not shortest):
    return config, []
  changes = {"do_resize": True, "do_center_crop": False, "size": [*size]}
  height, width = size
  line = (
    f"its {file} leaves pictures their own size or shape; they are resized to "
    f"{height} x {width}, since a batch has one size"
  )
  return {**config, **changes}, [line]


def _crop(
  settings: Mapping[str, Any], kind: str
) -> tuple[Sides, EvalTransformSettings]:
  """The size of the result, and how pictures are cropped and resized to it.

  `kind` is a key of `_KINDS`. Raises ValueError if pictures would not all get
  one size, or for a value that is not supported.
  """
  filters: dict[str, Any] = dict(
    interpolation=_filter(settings),
    antialias=checked("antialias", bool, settings.get("antialias", True)),
    resizer=checked("resizer", str, settings["resizer"]),
    corner=checked("corner", str, settings.get("corner", "floor")),
  )
  size = settings["size"]
  if isinstance(size, int) and kind in _SHORT:
    size = {"shortest_edge": size}
  if kind == "ConvNext":
    settings, size = _as_clip(settings, size)
  cut = None  # The size that is cut out; None if nothing is cut away.
  if checked("do_center_crop", bool, settings.get("do_center_crop", False)):
    cut = _sides("crop_size", settings.get("crop_size", 224))
  if isinstance(size, dict) and "height" not in size:
    short = size.get("shortest_edge")
    short = checked("size['shortest_edge']", int, short, COUNT)
    if cut is not None and cut[0] != cut[1]:
      needs = (
        "only squares are cut from pictures that keep their shape (their short "
        f"side becomes {short}); write a crop_size of equal sides into it, or "
        "a height and a width as size"
      )
      raise _refusal("crop_size", list(cut), needs)
    if cut is None or short < cut[0]:
      needs = (
        "pictures keep their shapes then, and a batch needs one shape, so it "
        f"needs do_center_crop and a square crop_size, {short} or less, or a "
        "size with a height and a width"
      )
      raise _refusal("size", size, needs)
    if (longest := size.get("longest_edge")) is not None:
      longest = checked("size['longest_edge']", int, longest, COUNT)
      if longest < cut[0]:
        raise _refusal("size", size, f"longest_edge is below a crop of {cut}")
      filters["longest_ratio"] = longest / cut[0]
    return cut, EvalTransformSettings("center", short / cut[0], **filters)
  resized = _sides("size", size)
  if settings.get("crop") == "center":  # `open_clip` adds it for rectangles.
    return resized, EvalTransformSettings("center", 1.0, **filters)
  if cut is None or cut == resized:
    return resized, EvalTransformSettings(**filters)
  ratios = {whole / part for whole, part in zip(resized, cut, strict=True)}
  if len(ratios) > 1 or min(ratios) < 1:
    needs = f"size must be a multiple of it, not {resized}"
    raise _refusal("crop_size", list(cut), needs)
  return cut, EvalTransformSettings("squash", min(ratios), **filters)


def _as_clip(
  settings: Mapping[str, Any], size: Any
) -> tuple[dict[str, Any], Any]:
  """ConvNext's settings and size in CLIP's form.

  CLIP gives the size of the crop, ConvNext its share of the short side. Raises
  ValueError unless `size` has a `shortest_edge`.
  """
  if not isinstance(size, dict) or "shortest_edge" not in size:
    raise _refusal("size", size, "ConvNext needs a shortest_edge")
  side = checked("size['shortest_edge']", int, size["shortest_edge"], COUNT)
  square = {"height": side, "width": side}
  if side >= _CONVNEXT_WARPED:
    return {**settings, "do_center_crop": False}, square
  share = settings.get("crop_pct", _CONVNEXT_PCT)
  share = checked("crop_pct", float, share, checks.SHARE)
  cut = {"do_center_crop": True, "crop_size": square}
  return {**settings, **cut}, {"shortest_edge": int(side / share)}


def _sides(name: str, value: Any) -> Sides:
  """Height and width, given as a number, a pair or by their names.

  Raises ValueError if they are no whole numbers that `checks.SIDES` allows.
  """
  if isinstance(value, dict):
    value = [value.get("height"), value.get("width")]
  return checked(name, Sides, value, checks.SIDES)


def _filter(settings: Mapping[str, Any]) -> str:
  """The name of the filter by which pictures are resized.

  Raises ValueError if there is no filter of the name or number in `settings`.
  """
  if "interpolation" in settings:
    # `write` adds it for a filter without a number.
    name = settings["interpolation"]
    return checked("interpolation", str, name, None, FILTERS)
  number = settings["resample"]
  if isinstance(number, str) and number.lower() in _PILLOW_FILTERS:
    return number.lower()
  number = checked("resample", int, number)
  if not 0 <= number < len(_PILLOW_FILTERS):
    raise _refusal("resample", number, "it must be one of 0 to 5")
  return _PILLOW_FILTERS[number]


def _normalization(
  settings: Mapping[str, Any],
) -> tuple[PerChannel, PerChannel]:
  """The mean and standard deviation, for pixels from 0 to 1.

  The library computes (x f - m) / s of levels x, with f the rescale factor,
  which is (x / 255 - m / (255 f)) / (s / (255 f)).
  Raises ValueError for a value that is not supported.
  """
  mean: PerChannel = (0.0, 0.0, 0.0)
  std: PerChannel = (1.0, 1.0, 1.0)
  if checked("do_normalize", bool, settings.get("do_normalize", True)):
    mean, std = _per_channel(settings["image_mean"], settings["image_std"])
    mean = checked("image_mean", PerChannel, mean, checks.CHANNELS)
    std = checked("image_std", PerChannel, std, checks.POSITIVE_CHANNELS)
  factor = 1.0
  if checked("do_rescale", bool, settings.get("do_rescale", True)):
    factor = settings.get("rescale_factor", 1 / 255)
    factor = checked("rescale_factor", float, factor, checks.POSITIVE)
  if factor == 1 / 255:
    return mean, std
  mean, std = (tuple(x / (255 * factor) for x in xs) for xs in (mean, std))
  return mean, std


def _per_channel(*values: Any) -> list[Any]:
  """The values as lists, where a single number is repeated for all channels.

  There are as many channels as in the longest list, 3 if there is no list.
  """
  lengths = [len(value) for value in values if isinstance(value, list)]
  channels = max(lengths, default=3)

  def repeat(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return [value] * channels if is_number else value

  return [repeat(value) for value in values]


def _refusal(name: str, value: Any, why: str) -> ValueError:
  """The error for a value that is not supported."""
  return ValueError(f"{name}={quoted(value)}: {why}.")


def reason(preprocessing: Preprocessing) -> str | None:
  """Why a `preprocessor_config.json` cannot express it; None if it can."""
  height, width = preprocessing.image_size
  if preprocessing.cut_from:
    return "of its pictures at {} x {}, the upper left {} x {} is kept".format(
      *preprocessing.cut_from, height, width
    )
  if preprocessing.crop.crop == "center" and height != width:
    return (
      f"its pictures are cut to {height} x {width} from the centre, but only "
      "squares can be cut (evaluate with --config.eval_transform.crop=resize)"
    )
  return None


def write(preprocessing: Preprocessing) -> dict[str, Any]:
  """The `preprocessor_config.json` that gives the pixels of `preprocessing`.

  Interpolations that only vit_jax has are written under keys of its own.
  """
  crop = preprocessing.crop
  height, width = preprocessing.image_size
  tall, wide = (round(crop.resize_ratio * side) for side in (height, width))
  kind, size = "ViTImageProcessor", {"height": height, "width": width}
  cut: dict[str, Any] = {}
  if (patches := preprocessing.patches) is not None:
    kind = f"{_ANY_SIZE}ImageProcessor"
    cut = dict(
      zip(_PATCH_KEYS, (patches.tokens, patches.patch_size), strict=True)
    )
  if crop.crop != "resize":
    cut = {"do_center_crop": True, "crop_size": size}
    kind, size = "DeiTImageProcessor", {"height": tall, "width": wide}
  if crop.crop == "center":
    kind, size = "CLIPImageProcessor", {"shortest_edge": tall}
    if crop.longest_ratio is not None:
      size["longest_edge"] = round(crop.longest_ratio * height)
  ours: dict[str, Any] = {}  # Keys that only vit_jax reads.
  near = nearest(preprocessing).crop
  if near != dataclasses.replace(crop, corner="floor"):
    ours = dict(interpolation=crop.interpolation, antialias=crop.antialias)
  if crop.corner != "floor":
    ours["corner"] = crop.corner
  if crop.resizer in ("pillow", *TENSORFLOW):
    ours["resizer"] = crop.resizer
  elif crop.resizer == "torchvision_float":
    kind = "DINOv3ViTImageProcessor"
  return {
    "image_processor_type": kind,
    "do_resize": True,
    **({"size": size} if patches is None else {}),
    "resample": _PILLOW_FILTERS.index(near.interpolation),
    **cut,
    **ours,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": list(preprocessing.mean),
    "image_std": list(preprocessing.std),
  }


def file_of_one_size(preprocessing: Preprocessing) -> dict[str, Any]:
  """The file, by its name, to write beside a model without a configuration.

  Such a model takes pictures of one size. The result is {} if the file cannot
  express how they are prepared.
  """
  if not preprocessing.size or reason(preprocessing):
    return {}
  return {FILE: write(dataclasses.replace(preprocessing, patches=None))}


def nearest(preprocessing: Preprocessing) -> Preprocessing:
  """The most similar preprocessing that Hugging Face's library can do."""
  name = preprocessing.crop.interpolation
  name = "bilinear" if name == "area" else name
  changes = dict(interpolation=name, antialias=True, corner="floor")
  if preprocessing.crop.resizer in TENSORFLOW:
    changes["resizer"] = "torchvision"
  crop = dataclasses.replace(preprocessing.crop, **changes)
  return dataclasses.replace(preprocessing, crop=crop)
