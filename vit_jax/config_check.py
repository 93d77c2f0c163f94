"""What no value of a configuration may be, whatever the data and the model.

Types are `ConfigDict`'s to check, when a key is set. What has to fit the data,
the model or the devices is checked where these are known.
"""

import functools
import math
import numbers
import operator
from collections.abc import Callable, Sequence
from typing import Any

import ml_collections

from vit_jax.config import base_config, leaf_keys, nearest_key

Range = tuple[str, Callable[[float], bool]]

_ANY: Range = ("finite", lambda x: True)
_POSITIVE: Range = ("more than 0", lambda x: x > 0)
_COUNT: Range = ("1 or more", lambda x: x >= 1)
_NOT_NEGATIVE: Range = ("0 or more", lambda x: x >= 0)
_DECAY: Range = ("0 or more and less than 1", lambda x: 0 <= x < 1)
_PART: Range = ("more than 0 and less than 1", lambda x: 0 < x < 1)
# Of the numbers that nothing else checks before the first step.
_RANGES = {
  "keep_last": _COUNT,
  "profile_steps": _NOT_NEGATIVE,
  "data.eval_fraction": _PART,
  "fewshot.data.eval_fraction": _PART,
  "fewshot.seeds": _COUNT,
  "model.representation_size": _COUNT,
  "optimizer.peak_lr": _NOT_NEGATIVE,
  "optimizer.final_lr": _NOT_NEGATIVE,
  "optimizer.b1": _DECAY,
  "optimizer.b2": _DECAY,
  "optimizer.momentum": _DECAY,
  "optimizer.weight_decay": _NOT_NEGATIVE,
  "optimizer.clip_norm": _NOT_NEGATIVE,
}


def check(config: ml_collections.ConfigDict) -> None:
  """Raises ValueError, in a line that names the key, for what cannot be meant.

  That is a key that is missing or unknown, None where there is no choice to
  leave to the program, and a number out of range, infinite or not a number.
  """
  base = base_config()
  known = list(leaf_keys(base))
  given = set(leaf_keys(config))
  for key in given.difference(known):
    raise ValueError(
      f"{key} is no key of a configuration; did you mean {nearest_key(key)}?"
    )
  for key in known:
    if key not in given:
      raise ValueError(
        f"the configuration has no {key}: let it start from base_config()."
      )
    _check_value(key, _at(config, key), _at(base, key))
  _check_image_size(config.image_size)
  for name, needed in (("mean", _ANY), ("std", _POSITIVE)):
    _check_channels(f"normalization.{name}", config.normalization[name], needed)


def _at(config: ml_collections.ConfigDict, key: str) -> Any:
  return functools.reduce(operator.getitem, key.split("."), config)


def _check_value(key: str, value: Any, default: Any) -> None:
  if value is None and default is not None and key != "image_size":
    raise ValueError(f"{key}=None: set it, such as {key}={default!r}.")
  if isinstance(value, float) and not math.isfinite(value):
    raise ValueError(f"{key}={value} must be a finite number.")
  needed, holds = _RANGES.get(key, ("", None))
  if holds is not None and value is not None and not holds(value):
    raise ValueError(f"{key}={value} must be {needed}.")


def _check_image_size(size: Sequence[Any] | None) -> None:
  if size is None:  # Of a checkpoint to start from.
    return
  whole = [s for s in size if isinstance(s, numbers.Integral) and s >= 1]
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
      f"{key}={tuple(values)} must be three numbers, each {text}, as of red, "
      "green, blue."
    )


def _is_finite(value: Any) -> bool:
  return isinstance(value, numbers.Real) and math.isfinite(value)
