"""Facts that an exported file carries for its users."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from vit_jax.data.reading.tokenizer import Tokenizer
from vit_jax.data.settings import EvalTransformSettings
from vit_jax.pretrained.loaded import Loaded
from vit_jax.pretrained.text import LoadedText

_PATCHES_RULE = (
  "h, w = max(1, ceil(side * scale / patch_size)) for the height and the width "
  "of the image, at the largest scale up to 100 for which h * w <= tokens (by "
  "bisection from 1e-6, or patch_size / longest side if that is less, until "
  "the bounds are less than 1e-5 apart); the image is resized to h * "
  "patch_size, w * patch_size; input images has its patches row by row, each "
  "flat in the order row, column, channel, and zeros after them, and input "
  "size has h, w"
)


def facts_of(source: Loaded | LoadedText) -> dict[str, str]:
  """Facts for users of the file, by name; each is a text or JSON."""
  if isinstance(source, LoadedText):
    return _as_json(_text_facts(source.tokenizer))
  return _as_json(_image_facts(source))


def _image_facts(loaded: Loaded) -> dict[str, Any]:
  """Facts on a model of images; None for those that do not apply."""
  preprocessing = loaded.preprocessing
  patches = preprocessing.patches  # None if images have one size.
  return {
    "class_names": [*loaded.class_names],
    "preprocessing": str(preprocessing),
    "image_size": None if patches else [*preprocessing.image_size],
    "patches": dataclasses.asdict(patches) if patches else None,
    "patches_rule": _PATCHES_RULE if patches else None,
    "resize": _resize_facts(preprocessing.crop),
    "cut_from": preprocessing.cut_from,
    "window": preprocessing.window,
    "value_range": [0, 255],
    "mean": [*preprocessing.mean],
    "std": [*preprocessing.std],
    "normalization": "(images / 255 - mean) / std, inside this file",
    "loss": loaded.loss if loaded.model.num_classes else None,
  }


def _resize_facts(crop: EvalTransformSettings) -> dict[str, Any]:
  """The settings of the crop, without those that have no effect."""
  facts = dataclasses.asdict(crop)
  if crop.crop == "resize":
    for name in ("resize_ratio", "corner"):
      del facts[name]
  if crop.longest_ratio is None:
    del facts["longest_ratio"]
  return facts


def _text_facts(tokenizer: Tokenizer) -> dict[str, Any]:
  """Facts on a text tower, which its tokenizer gives."""
  return {
    "tokenizer": tokenizer.file,
    "length": tokenizer.length,
    "pad": tokenizer.pad,
    "pad_side": "left" if tokenizer.left else "right",
  }


def _as_json(facts: Mapping[str, Any]) -> dict[str, str]:
  """The facts as texts: a text stays, others become JSON, None is left out."""
  return {
    name: fact if isinstance(fact, str) else json.dumps(fact)
    for name, fact in facts.items()
    if fact is not None
  }
