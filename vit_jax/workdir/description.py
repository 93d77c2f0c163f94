"""A checkpoint's description of itself: a JSON object, sealed against damage.

It holds the configuration, the model, the class names and the position of the
data iterator, the checksums of all arrays, and a digest of all that.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from vit_jax.data.preprocessing import HALF, Preprocessing
from vit_jax.data.settings import EvalTransformSettings, NormalizationSettings
from vit_jax.runtime.printable import printable
from vit_jax.runtime.settings import (
  IMAGE_SIZE,
  Section,
  flat,
  from_dict,
  section,
  setting,
)
from vit_jax.training.settings import LossSettings

# Facts about the data besides its configuration.
_DATA_KEYS = ("class_names", "train_examples")
# Keys that every reader of a description needs.
_NEEDED_KEYS = ("config", "model", "class_names", "checksums")
# Keys that may differ when a run is resumed: none changes what is learned.
_FREE_KEYS = (
  "log_every",
  "eval_every",
  "save_every",
  "keep_last",
  "eval_batch_size",
  "eval_per_class",
  "eval_pictures",
  "wandb_project",
  "profile_steps",
  "max_skipped_steps",
  "eval_transform.",
  "fewshot.",
  "model.scan",
  "model.remat",
  "loader.",
  "mesh.",
  "data.data_dir",
  "data.root",
  "data.eval_split",
)


@dataclasses.dataclass(frozen=True)
class _Recorded(Section):
  """The part of a run's configuration that its model is used by."""

  image_size: tuple[int, int] = setting(
    (224, 224), "Height and width.", must=IMAGE_SIZE
  )
  ema_decay: float = setting(0.0, "Polyak averaging.")
  eval_transform: EvalTransformSettings = section(EvalTransformSettings)
  normalization: NormalizationSettings = section(NormalizationSettings)
  loss: LossSettings = section(LossSettings)


def _recorded(description: Mapping[str, Any]) -> _Recorded:
  config = description["config"]
  names = [field.name for field in dataclasses.fields(_Recorded)]
  found = {name: config[name] for name in names if name in config}
  return from_dict(_Recorded, found, saved=True)


def preprocessing(description: Mapping[str, Any]) -> Preprocessing:
  """The preprocessing that the run evaluated its images with."""
  found = _recorded(description)
  mean, std = found.normalization.mean, found.normalization.std
  return Preprocessing(
    found.image_size, found.eval_transform, mean or HALF, std or HALF
  )


def loss(description: Mapping[str, Any]) -> str:
  """The kind of loss the run was trained with."""
  return _recorded(description).loss.kind


def averages(description: Mapping[str, Any]) -> bool:
  """Whether the run evaluates the Polyak average of its parameters."""
  return bool(_recorded(description).ema_decay)


def class_names(description: Mapping[str, Any]) -> tuple[str, ...]:
  """The names of the classes the run was trained on, fit to be printed."""
  return tuple(printable(str(name)) for name in description["class_names"])


def sealed(description: dict[str, Any]) -> dict[str, Any]:
  """The description as JSON gives it back, with its digest."""
  plain = json.loads(json.dumps(description))
  return {**plain, "digest": _digest(plain)}


def check_seal(description: Any) -> None:
  """Raises ValueError if a description is not as it was sealed."""
  if not isinstance(description, dict):
    raise ValueError("its description is no JSON object")
  rest = {k: v for k, v in description.items() if k != "digest"}
  if description.get("digest") != _digest(rest):
    raise ValueError("its description does not match its digest")
  if missing := [key for key in _NEEDED_KEYS if key not in description]:
    raise ValueError(f"its description does not tell its {', '.join(missing)}")


def check_same_run(
  saved: dict[str, Any], now: dict[str, Any], workdir: str
) -> None:
  """Raises ValueError if a run cannot go on from a checkpoint.

  Args:
    saved: Description of the checkpoint.
    now: Description of the run that wants to continue.
    workdir: For the message.
  """
  if changed := changes(saved, now):
    raise ValueError(
      f"{workdir} holds a run of another configuration or other data: "
      f"{'; '.join(changed)}. Go on with the old, choose another --workdir, or "
      "say --allow_changes."
    )


def changes(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
  """What differs between two runs that changes what is learned, in words."""
  there, here = (
    _plain({**d["config"], **{key: d[key] for key in _DATA_KEYS}})
    for d in (saved, now)
  )
  return [
    f"{key} was {there.get(key)!r} and is now {here.get(key)!r}"
    for key in sorted(there.keys() | here.keys())
    if there.get(key) != here.get(key) and not key.startswith(_FREE_KEYS)
  ]


def _digest(description: dict[str, Any]) -> str:
  text = json.dumps(description, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


def _plain(tree: dict[str, Any]) -> dict[str, Any]:
  """Dotted keys and values of nested dictionaries, as JSON gives them back."""
  return {
    key: list(value) if isinstance(value, tuple) else value
    for key, value in flat(tree).items()
  }
