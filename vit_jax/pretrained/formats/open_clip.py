"""Reads `open_clip_config.json`, the configuration of both towers.

Its contents become a configuration of transformers, or of timm, that says the
same.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from vit_jax.families.family import CLIP_MEAN, CLIP_STD
from vit_jax.pretrained.formats.architecture import section
from vit_jax.runtime.checks import COUNT, Sides, checked
from vit_jax.runtime.checks import SIDES as ALL_SIDES
from vit_jax.runtime.json_files import read_json
from vit_jax.runtime.printable import quoted

NAME = "open_clip"
CONFIG = "open_clip_config.json"
WEIGHTS = "open_clip_model.safetensors"
POOLINGS = {"argmax": "end", "eos": "end", "last": "last"}
"""open_clip's names of the poolings of a text tower -> `TextTower.pooling`."""
CLEANINGS = ("", "whitespace", "lower", "canonicalize")
# Keys that may ask for another kind of tower or tokenizer, and the values with
# which they do not.
_TEXTS = {
  "hf_model_name": (None, ""),
  "text_arch": (None, "clip"),
  **dict.fromkeys(("tokenizer_mode", "tokenizer_type"), (None, "")),
}
_IMAGES = {
  "attentional_pool": (None, False),
  "no_ln_pre": (None, False),
  "pool_type": (None, "tok"),
  "pos_embed_type": (None, "learnable"),
}
_FILTERS = {"nearest": 0, "bilinear": 2, "bicubic": 3}  # Pillow's numbers.


def is_whole_beside(folder: pathlib.Path) -> bool:
  """Whether a folder's usual weights are only the image tower, timm's.

  Both towers are then in open_clip's own file, which may not be downloaded yet.
  """
  is_timms = "text_config" not in read_json(folder / "config.json")
  return is_timms and (folder / CONFIG).exists()


def read(content: Mapping[str, Any]) -> dict[str, Any]:
  """The configuration of both towers.

  `text_config` is that of the text tower. An image tower of timm's has
  `architecture`, and one of open_clip's own has `vision_config`. Raises
  ValueError if `content` holds a value that is not supported.
  """
  model = section("model_cfg", content.get("model_cfg"))
  vision = section("vision_cfg", model.get("vision_cfg"))
  text = {"text_config": {"open_clip": model}}
  if name := vision.get("timm_model_name"):
    return {"architecture": checked("timm_model_name", str, name), **text}
  return {"model_type": NAME, "vision_config": _vision(model, vision), **text}


def _act(model: Mapping[str, Any], tower: Mapping[str, Any]) -> dict[str, Any]:
  """The activation and the epsilon of a tower of open_clip's own.

  Raises ValueError for a setting of a wrong type.
  """
  norm = section("norm_kwargs", tower.get("norm_kwargs"))
  act = section("act_kwargs", tower.get("act_kwargs"))
  quick = checked("quick_gelu", bool, model.get("quick_gelu", False))
  plain = "gelu_pytorch_tanh" if act.get("approximate") == "tanh" else "gelu"
  return {
    "hidden_act": "quick_gelu" if quick else plain,
    "layer_norm_eps": norm.get("eps", 1e-5),
  }


def _vision(
  model: Mapping[str, Any], vision: Mapping[str, Any]
) -> dict[str, Any]:
  """The configuration of an image tower of open_clip's own.

  Raises ValueError for a value that is not supported.
  """
  _check(vision, _IMAGES, "image tower")
  width = checked("width", int, vision.get("width", 768), COUNT)
  head = checked("head_width", int, vision.get("head_width", 64), COUNT)
  return {
    **_act(model, vision),
    "num_attention_heads": width // head,
    "image_size": vision.get("image_size", 224),
  }


def _check(
  tower: Mapping[str, Any], supported: Mapping[str, tuple], what: str
) -> None:
  """Raises ValueError if a key of a tower has a value that is not supported."""
  for key, values in supported.items():
    if tower.get(key) not in values:
      raise ValueError(
        f"its {CONFIG} says {key}={quoted(tower[key])}: that {what} is not "
        "supported; those of open_clip's plain Transformer are."
      )


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
  """The keys of a text tower's configuration, named as transformers' are.

  `config` is what `read` returns. Raises ValueError if it is not from
  `open_clip_config.json`, is of another kind of network, or has a value that is
  not supported.
  """
  text_section = section("text_config", config.get("text_config"))
  if NAME not in text_section:
    raise ValueError(
      f"{CONFIG}, which tells how the text tower works, is not beside it: get "
      "that file from where the weights came from."
    )
  model = text_section[NAME]
  text = section("text_cfg", model.get("text_cfg"))
  _check(text, _TEXTS, "text tower")
  pool = text.get("pool_type", "argmax")
  bidirectional = text.get("no_causal_mask", False)
  return {
    **_act(model, text),
    "num_attention_heads": text.get("heads", 8),
    "pool_type": checked("pool_type", str, pool, choices=(*POOLINGS,)),
    "causal": not checked("no_causal_mask", bool, bidirectional),
    "eos_token_id": text.get("eos_id") if pool == "eos" else None,
  }


def cleaning(config: Mapping[str, Any]) -> str:
  """How a text is cleaned before it is cut into tokens, one of `CLEANINGS`.

  Raises ValueError if the configuration asks for anything else.
  """
  text_section = section("text_config", config.get("text_config"))
  if NAME not in text_section:
    return ""
  text = section("text_cfg", text_section[NAME].get("text_cfg"))
  options = section("tokenizer_kwargs", text.get("tokenizer_kwargs"))
  for key in options.keys() - {"clean"}:
    raise ValueError(
      f"its {CONFIG} says {key}={quoted(options[key])} for the tokenizer, "
      "which is not supported."
    )
  has_own_tokenizer = not text.get("hf_tokenizer_name")
  default = "lower" if has_own_tokenizer else "whitespace"
  clean = options.get("clean", default)
  return checked("clean", str, clean, choices=CLEANINGS)


def pictures(content: Mapping[str, Any]) -> dict[str, Any]:
  """How images are prepared, in the form of a `preprocessor_config.json`.

  Raises ValueError if a value is not supported.
  """
  model = section("model_cfg", content.get("model_cfg"))
  vision = section("vision_cfg", model.get("vision_cfg"))
  options = section("preprocess_cfg", content.get("preprocess_cfg"))
  size = options.get("size", vision.get("image_size", 224))
  height, width = checked("image_size", Sides, size, ALL_SIDES)
  mode = options.get("resize_mode", "shortest")
  mode = checked("resize_mode", str, mode, choices=("shortest", "squash"))
  name = options.get("interpolation", "bicubic")
  name = checked("interpolation", str, name, choices=(*_FILTERS,))
  size = {"height": height, "width": width}
  cut: dict[str, Any] = {"do_center_crop": False, "size": size}
  if mode == "shortest" and height != width:
    # open_clip resizes for such a crop bicubically, whatever its filter is.
    cut["crop"], name = "center", "bicubic"
  elif mode == "shortest":
    cut = {"do_center_crop": True, "size": {"shortest_edge": height}}
  return {
    "image_processor_type": "CLIPImageProcessor",
    **cut,
    "crop_size": {"height": height, "width": width},
    "resample": _FILTERS[name],
    # Its library resizes with Pillow, and crops with torchvision.
    "resizer": "pillow",
    "corner": "even",
    "image_mean": options.get("mean", [*CLIP_MEAN]),
    "image_std": options.get("std", [*CLIP_STD]),
  }
