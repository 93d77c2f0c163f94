"""A checkpoint's description of its run: a JSON object with a digest.

It holds the configuration, the model, the class names, the position of the
data iterator and the checksums of all arrays. The digest of all these detects
damage.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from vit_jax.data.preprocessing import HALF, Preprocessing
from vit_jax.data.settings import EvalTransformSettings, NormalizationSettings
from vit_jax.runtime.checks import SIDES
from vit_jax.runtime.printable import printable
from vit_jax.runtime.settings import Section, flat, from_dict, section, setting
from vit_jax.training.settings import LoraSettings, LossSettings

# Facts about data and teacher that the configuration does not tell.
_DATA_KEYS = ("class_names", "train_examples", "targets", "task", "teacher")
# Keys that every reader of a description needs.
_NEEDED_KEYS = ("config", "model", "class_names", "checksums")
# Keys that may differ when a run is resumed, as they do not change what the
# model learns.
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
  "hang_factor",
  "early_stop_evaluations",
  "eval_transform.",
  "fewshot.",
  "model.scan",
  "model.remat",
  "loader.",
  "mesh.",
  "data.data_dir",
  "data.root",
  "data.dir",
  "data.labels_file",
  "data.eval_labels_file",
  "data.eval_split",
  "teacher.source",
)


@dataclasses.dataclass(frozen=True)
class _Recorded(Section):
  """The part of a run's configuration that is needed to use its model."""

  image_size: tuple[int, int] = setting(
    (224, 224), "Height and width.", must=SIDES
  )
  cut_from: tuple[int, int] | None = setting(
    None, "Height and width before the cut.", must=SIDES
  )
  ema_decay: float = setting(0.0, "Polyak averaging.")
  eval_transform: EvalTransformSettings = section(EvalTransformSettings)
  normalization: NormalizationSettings = section(NormalizationSettings)
  loss: LossSettings = section(LossSettings)
  lora: LoraSettings = section(LoraSettings)


def _recorded(description: Mapping[str, Any]) -> _Recorded:
  config = description["config"]
  names = [field.name for field in dataclasses.fields(_Recorded)]
  found = {name: config[name] for name in names if name in config}
  return from_dict(_Recorded, found, saved=True)


def preprocessing(description: Mapping[str, Any]) -> Preprocessing:
  """The preprocessing of the images that the run was evaluated on."""
  found = _recorded(description)
  mean, std = found.normalization.mean, found.normalization.std
  return Preprocessing(
    found.image_size,
    found.eval_transform,
    mean or HALF,
    std or HALF,
    window=found.normalization.window,
    cut_from=found.cut_from,
  )


def loss(description: Mapping[str, Any]) -> LossSettings:
  """The loss the run was trained with."""
  return _recorded(description).loss


def averages(description: Mapping[str, Any]) -> bool:
  """Whether the run evaluates the Polyak average of its parameters."""
  return bool(_recorded(description).ema_decay)


def lora(description: Mapping[str, Any]) -> LoraSettings:
  """The run's low-rank products; their rank is 0 if it has none."""
  return _recorded(description).lora


def class_names(description: Mapping[str, Any]) -> tuple[str, ...]:
  """The names of the run's classes, with unprintable characters escaped."""
  return tuple(printable(str(name)) for name in description["class_names"])


def with_digest(description: dict[str, Any]) -> dict[str, Any]:
  """The description as JSON would return it, with its digest added."""
  plain = json.loads(json.dumps(description))
  return {**plain, "digest": _digest(plain)}


def verify_digest(description: Any) -> None:
  """Raises ValueError unless a description is complete and has its digest."""
  if not isinstance(description, dict):
    raise ValueError("its description is not a JSON object")
  rest = {k: v for k, v in description.items() if k != "digest"}
  if description.get("digest") != _digest(rest):
    raise ValueError("its description does not match its digest")
  if missing := [key for key in _NEEDED_KEYS if key not in description]:
    raise ValueError(f"its description has no {' and no '.join(missing)}")


def check_same_run(
  saved: dict[str, Any], now: dict[str, Any], workdir: str
) -> None:
  """Raises ValueError if a run must not resume from a checkpoint.

  Args:
    saved: The checkpoint's description.
    now: The description of the run that resumes.
  """
  if changed := changes(saved, now):
    raise ValueError(
      f"{workdir} holds a run with another configuration or other data: "
      f"{'; '.join(changed)}. Resume with the old ones, choose another "
      "--workdir, or pass --allow_changes."
    )


def changes(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
  """Lists in words the differences between two runs that affect learning."""
  there, here = (
    _plain({**d["config"], **{key: d[key] for key in _DATA_KEYS if key in d}})
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
  """Dotted keys and values of nested dictionaries, with tuples as lists."""
  return {
    key: list(value) if isinstance(value, tuple) else value
    for key, value in flat(tree).items()
  }
