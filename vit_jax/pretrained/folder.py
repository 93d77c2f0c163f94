"""Finds and reads the files in a checkpoint's folder."""

import dataclasses
import json
import pathlib
from typing import Any

from vit_jax.pretrained.formats import processor
from vit_jax.pretrained.formats.architecture import Architecture

# Names of files of weights, as other libraries and `convert` write them.
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "model.npz")
_LABELS = "labels.txt"  # Class names, for formats without a config.json.
_MOST_TEXT_BYTES = 16 << 20


def weights_and_configs(
  path: pathlib.Path,
) -> tuple[pathlib.Path, dict[str, Any], dict[str, Any]]:
  """A checkpoint's file of weights, `config.json`, `preprocessor_config.json`.

  The last two are parsed, and {} if there is no such file.
  """
  folder = path if path.is_dir() else path.parent
  if path.is_dir():
    present = [path / name for name in _WEIGHTS if (path / name).exists()]
    if not present:
      raise ValueError(
        f"{path} is a folder without checkpoints/, which a workdir has, and "
        f"without {_WEIGHTS[0]} or {_WEIGHTS[-1]}: name a file of weights in "
        "it, or another folder."
      )
    path = present[0]
  config: dict[str, Any] = {}
  if path.name.endswith((".safetensors", ".json")):
    config = _read_json(folder / "config.json")
  preprocessor: dict[str, Any] = {}
  if config or path.name in _WEIGHTS:
    preprocessor = _read_json(folder / processor.FILE)
  return path, config, preprocessor


def named(architecture: Architecture, path: pathlib.Path) -> Architecture:
  """Adds the class names that `labels.txt` beside the weights may hold."""
  labels = path.parent / _LABELS
  num_classes = architecture.fields["num_classes"]
  needs_names = (
    path.name in _WEIGHTS and num_classes and not architecture.class_names
  )
  if not needs_names or not labels.exists():
    return architecture
  names = _read_text(labels).removesuffix("\n").split("\n")
  while len(names) > num_classes and not names[-1]:  # Empty lines at the end.
    names.pop()
  if len(names) > num_classes:
    raise ValueError(
      f"{labels} names {len(names)} classes and the model has {num_classes}: "
      "correct the file or remove it."
    )
  return dataclasses.replace(architecture, class_names=tuple(names))


def _read_text(path: pathlib.Path) -> str:
  """The text of a file, which must be of reasonable size."""
  if path.stat().st_size > _MOST_TEXT_BYTES:
    raise ValueError(f"{path} is too large for a configuration file.")
  try:
    return path.read_text("utf-8")
  except UnicodeDecodeError as error:
    raise ValueError(f"{path} is not UTF-8 text: {error}.") from error


def _read_json(path: pathlib.Path) -> dict[str, Any]:
  """The JSON object in a file; {} if there is no such file."""
  if not path.exists():
    return {}
  text = _read_text(path)
  try:
    found = json.loads(text)
  except (ValueError, RecursionError) as error:
    raise ValueError(f"{path} is not JSON: {error}.") from error
  if not isinstance(found, dict):
    raise ValueError(f"{path} does not hold a JSON object.")
  return found
