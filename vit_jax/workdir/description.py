"""What a checkpoint says of itself: a JSON object, sealed against damage.

It holds the configuration, the model, the class names and the position of the
data iterator, the checksums of all arrays, and a digest of all that.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

# What it says of the data besides its configuration.
_DATA_KEYS = ("class_names", "train_examples")
# What no reader of it does without.
_NEEDED_KEYS = ("config", "model", "class_names", "checksums")
# Keys that may differ when a run goes on: none changes what is learned.
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
    dict(_leaves({**d["config"], **{key: d[key] for key in _DATA_KEYS}}))
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


def _leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple]:
  """(dotted key, value as JSON would give it back) of nested dictionaries."""
  for key, value in tree.items():
    if isinstance(value, dict):
      yield from _leaves(value, f"{prefix}{key}.")
    else:
      yield prefix + key, list(value) if isinstance(value, tuple) else value
