"""The files of a checkpoint's folder: weights, and what lies beside them."""

import dataclasses
import json
import pathlib
from typing import Any

from vit_jax.pretrained.formats.architecture import Facts

# Names of weights in a folder, as others and `convert` write it.
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "model.npz")
_LABELS = "labels.txt"  # Beside them where no config.json has the names.
_MOST_TEXT_BYTES = 16 << 20


def weights_and_config(
  path: pathlib.Path,
) -> tuple[pathlib.Path, dict[str, Any]]:
  """The file of weights, and what the configuration beside it says."""
  folder = path if path.is_dir() else path.parent
  if path.is_dir():
    present = [path / name for name in _WEIGHTS if (path / name).exists()]
    if not present:
      raise ValueError(
        f"{path} is a folder without checkpoints/, as a workdir has them, and "
        f"without {_WEIGHTS[0]} or {_WEIGHTS[-1]}: name a file of weights in "
        "it, or another folder."
      )
    path = present[0]
  config: dict[str, Any] = {}
  if path.name.endswith((".safetensors", ".json")):
    config = _read_json(folder / "config.json")
    beside = _read_json(folder / "preprocessor_config.json")
    config |= {k: beside[k] for k in ("image_mean", "image_std") if k in beside}
  return path, config


def named(facts: Facts, path: pathlib.Path) -> Facts:
  """With the names of classes, one a line, in a file that may be beside."""
  labels = path.parent / _LABELS
  num_classes = facts.fields["num_classes"]
  needs_names = path.name in _WEIGHTS and num_classes and not facts.class_names
  if not needs_names or not labels.exists():
    return facts
  names = _read_text(labels).removesuffix("\n").split("\n")
  while len(names) > num_classes and not names[-1]:  # Empty lines at the end.
    names.pop()
  if len(names) > num_classes:
    raise ValueError(
      f"{labels} names {len(names)} classes and the model has {num_classes}: "
      "correct it or take it away."
    )
  return dataclasses.replace(facts, class_names=tuple(names))


def _read_text(path: pathlib.Path) -> str:
  """Of a file of reasonable size."""
  if path.stat().st_size > _MOST_TEXT_BYTES:
    raise ValueError(f"{path} is larger than any configuration.")
  try:
    return path.read_text("utf-8")
  except UnicodeDecodeError as error:
    raise ValueError(f"{path} is no text in UTF-8: {error}.") from error


def _read_json(path: pathlib.Path) -> dict[str, Any]:
  """The object in a file of reasonable size; {} where there is none."""
  if not path.exists():
    return {}
  text = _read_text(path)
  try:
    found = json.loads(text)
  except (ValueError, RecursionError) as error:
    raise ValueError(f"{path} is no JSON: {error}.") from error
  if not isinstance(found, dict):
    raise ValueError(f"{path} holds no JSON object.")
  return found
