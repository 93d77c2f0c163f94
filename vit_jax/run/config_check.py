"""What no value of a configuration may be, whatever the data and the devices.

This comes before any data are opened and any checkpoint is downloaded. Types
are `ConfigDict`'s to check, when a key is set. What has to fit the data, the
model or the devices is checked where these are known.
"""

import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import ml_collections

from vit_jax import data
from vit_jax.config import (
  UNITS,
  base_config,
  leaf_keys,
  nearest_key,
  resolve_steps,
)
from vit_jax.data.pipeline import ON_UNREADABLE
from vit_jax.models.position import PLACES, POSITIONS
from vit_jax.models.scan import REMATS
from vit_jax.models.vit import GELUS, POOLINGS
from vit_jax.runtime import extras
from vit_jax.training import losses, optimizer

Range = tuple[str, Callable[[float], bool]]

_ANY: Range = ("be finite", math.isfinite)
_POSITIVE: Range = ("be more than 0", lambda x: x > 0)
_COUNT: Range = ("be 1 or more", lambda x: x >= 1)
_NOT_NEGATIVE: Range = ("not be negative", lambda x: x >= 0)
_BELOW_1: Range = ("be in [0, 1)", lambda x: 0 <= x < 1)
_INSIDE: Range = ("lie between 0 and 1", lambda x: 0 < x < 1)
_RANGES = {
  "keep_last": _COUNT,
  "eval_batch_size": _NOT_NEGATIVE,
  "eval_pictures": _NOT_NEGATIVE,
  "ema_decay": _BELOW_1,
  "max_skipped_steps": _NOT_NEGATIVE,
  "profile_steps": _NOT_NEGATIVE,
  "data.eval_fraction": _INSIDE,
  "loader.num_workers": ("be 0 or more, or -1", lambda x: x >= -1),
  "model.num_classes": _COUNT,
  "model.patch_size": _COUNT,
  "model.hidden_size": _COUNT,
  "model.num_layers": _COUNT,
  "model.mlp_size": _COUNT,
  "model.num_heads": _COUNT,
  "model.representation_size": _COUNT,
  "model.dropout_rate": _BELOW_1,
  "model.attention_dropout_rate": _BELOW_1,
  "model.layer_norm_epsilon": _POSITIVE,
  "optimizer.peak_lr": _NOT_NEGATIVE,
  "optimizer.final_lr": _NOT_NEGATIVE,
  "optimizer.b1": _BELOW_1,
  "optimizer.b2": _BELOW_1,
  "optimizer.momentum": _BELOW_1,
  "optimizer.weight_decay": _NOT_NEGATIVE,
  "optimizer.clip_norm": _NOT_NEGATIVE,
  "fewshot.shots": _NOT_NEGATIVE,
  "fewshot.seeds": _COUNT,
  "fewshot.data.eval_fraction": _INSIDE,
}
_CHOICES = {
  "loader.on_unreadable": ON_UNREADABLE,
  "model.pooling": POOLINGS,
  "model.position": POSITIONS,
  "model.position_at": PLACES,
  "model.gelu": tuple(GELUS),
  "model.remat": tuple(REMATS),
  "model.dtype": ("float32", "bfloat16"),
  "model.param_dtype": ("float32", "bfloat16"),
}
_DURATIONS = ("total", "log_every", "eval_every", "save_every")


def check(config: ml_collections.ConfigDict) -> None:
  """Raises ValueError, in a line that names the key, for what cannot be meant.

  That is a key that is missing or unknown, None where there is no choice to
  leave to the program, a number out of its range, a word that is not among the
  known ones, and a duration that is given twice.
  """
  base = base_config()
  _check_keys(list(leaf_keys(config)), list(leaf_keys(base)))
  for key in leaf_keys(base):
    _check_value(key, _at(config, key), _at(base, key))
  _check_image_size(_at(config, "image_size"))
  for name, needed in (("mean", _ANY), ("std", _POSITIVE)):
    key = f"normalization.{name}"
    _check_channels(key, _at(config, key), needed)
  for name in _DURATIONS:
    resolve_steps(config, name, batch_size=1, num_examples=1)
  options = _at(config, "optimizer")
  resolve_steps(options, "warmup", batch_size=1, num_examples=1)
  _check_sections(config)


def _check_keys(given: Sequence[str], known: Sequence[str]) -> None:
  for key in given:
    if key not in known:
      raise ValueError(
        f"{key} is no key of a configuration; did you mean {nearest_key(key)}?"
      )
  for key in known:
    if key not in given:
      raise ValueError(
        f"the configuration has no {key}: let it start from base_config()."
      )


def _check_value(key: str, value: Any, default: Any) -> None:
  if value is None:
    # What the image size then is, a checkpoint says.
    if default is not None and key != "image_size":
      raise ValueError(f"{key}=None: set it, such as {key}={default!r}.")
    return
  if isinstance(value, float) and not math.isfinite(value):
    raise ValueError(f"{key}={value} must be a finite number.")
  if key in _RANGES:
    needed, holds = _RANGES[key]
    if not holds(value):
      raise ValueError(f"{key}={value} must {needed}.")
  if key in _CHOICES and value not in _CHOICES[key]:
    known = ", ".join(_CHOICES[key])
    raise ValueError(f"{key}={value!r} is unknown; choose one of {known}.")


def _check_image_size(size: Sequence[Any] | None) -> None:
  if size is None:
    return
  whole = [s for s in size if isinstance(s, numbers.Integral) and int(s) >= 1]
  if len(size) != 2 or len(whole) != 2:
    raise ValueError(
      f"image_size={tuple(size)} must be a height and a width, as in "
      "(224, 224)."
    )


def _check_channels(
  key: str, values: Sequence[Any] | None, needed: Range
) -> None:
  """Three numbers, of red, green and blue, where they are set."""
  if values is None:
    return
  text, holds = needed
  fitting = [x for x in values if _is_finite(x) and holds(x)]
  if len(values) != 3 or len(fitting) != 3:
    raise ValueError(
      f"{key}={tuple(values)} must {text}, and be three numbers, as of red, "
      "green, blue."
    )


def _check_sections(config: ml_collections.ConfigDict) -> None:
  """What those who use a section check themselves."""
  plain: dict[str, Any] = config.to_dict()
  loss, options = plain["loss"], plain["optimizer"]
  losses.check(loss["kind"], loss["label_smoothing"], loss["mixup_alpha"])
  size = plain["image_size"] or (1, 1)
  data.make_train_transform(size, **plain["train_transform"])
  data.make_eval_transform(size, **plain["eval_transform"])
  if plain["eval_pictures"]:
    extras.check("matplotlib", "figures", "eval_pictures")
  if plain["wandb_project"]:
    extras.check("wandb", "wandb", "wandb_project")
  for unit in UNITS:
    del options[f"warmup_{unit}"]
  del options["freeze_layers"]  # Of a model that is not known yet.
  rates = {name: options.pop(name) for name in ("peak_lr", "final_lr", "decay")}
  schedule = optimizer.make_schedule(total_steps=1, **rates)
  optimizer.make_optimizer(schedule, **options)


def _at(config: ml_collections.ConfigDict, key: str) -> Any:
  value: Any = config
  for step in key.split("."):
    value = value[step]
  return value


def _is_finite(value: Any) -> bool:
  return isinstance(value, numbers.Real) and math.isfinite(value)
