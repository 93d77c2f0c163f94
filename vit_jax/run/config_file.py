"""Finds and runs configuration files, and explains mistakes in them."""

import csv
import importlib.machinery
import inspect
import pathlib
import re
import traceback
import types
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

import vit_jax
from vit_jax.run.settings import Settings
from vit_jax.runtime import hints
from vit_jax.runtime.printable import quoted
from vit_jax.runtime.settings import UNITS, Section, all_keys, nearest_key

ALL_KEYS = "`vit_jax train --help=all` lists the keys."
FOR_CLASSES = "image_folder"
"""The configuration that learns classes without published weights."""
# Keys of the sizes that `model.variant` sets, unless they are set as well.
_SIZES = {
  "model.patch_size",
  "model.hidden_size",
  "model.num_layers",
  "model.mlp_size",
  "model.num_heads",
}
GO_ON = {"continue": hints.WEIGHTS, "high_res": "hf_s16_dinov3"}
"""The arguments of configurations that go on with published weights.

Each has the name of weights to start from.
"""


def shipped_configs() -> dict[str, pathlib.Path]:
  """The configuration files of the package, studies included, by name.

  They are in `vit_jax/configs`, or in `configs` beside it in a clone.
  """
  package = pathlib.Path(vit_jax.__file__).parent
  inside = package / "configs"
  folder = inside if inside.is_dir() else package.parent / "configs"
  paths = (*sorted(folder.glob("*.py")), *sorted(folder.glob("studies/*.py")))
  return {p.relative_to(folder).with_suffix("").as_posix(): p for p in paths}


def load_config(argument: str) -> Any:
  """The locked `ConfigDict` that `get_config` of `FILE:ARGUMENT` returns.

  Its type is Any, so that type checkers accept its keys as attributes. FILE may
  be the name of a shipped configuration. Raises ValueError as `load_file` and
  `make_config` do.
  """
  name, *parameter = argument.split(":", 1)
  return make_config(*load_file(name), *parameter)


def load_file(name: str) -> tuple[pathlib.Path, types.ModuleType]:
  """Runs a configuration file, or a shipped one of this name.

  Returns its path and its module. Raises ValueError with one line if there is
  no such file or it has a mistake.
  """
  path = pathlib.Path(name)
  if not path.is_file():
    shipped = shipped_configs()
    if name not in shipped:
      every = ", ".join(shipped)
      hint = hints.hint_for_path(name, shipped)
      hint = hint or f"the configurations that come with vit_jax are {every}."
      raise ValueError(f"there is no file {name!r}; {hint}")
    path = shipped[name]
  loader = importlib.machinery.SourceFileLoader("config_file", str(path))
  module = types.ModuleType(loader.name)
  module.__file__ = str(path)
  try:
    loader.exec_module(module)
  except Exception as error:
    raise ValueError(_mistake(path, error)) from error
  return path, module


def make_config(
  path: pathlib.Path, module: types.ModuleType, *argument: str
) -> ConfigDict:
  """Calls `get_config` of a file that was loaded.

  Raises ValueError with one line if it has a mistake, if an argument is given
  and it takes none, or if it is a study and the argument names none of its
  rows.
  """
  try:
    _check_argument(path, module, *argument)
    config = module.get_config(*argument)
    if not isinstance(config, ConfigDict):
      raise ValueError(
        f"{path}: get_config() returns {quoted(config)}; it must return "
        "base_config() with its changes."
      )
  except Exception as error:
    raise ValueError(_mistake(path, error)) from error
  return config.lock()


def _check_argument(
  path: pathlib.Path, module: types.ModuleType, *argument: str
) -> None:
  """Raises ValueError if a file does not take the argument after its colon.

  A study needs an argument: the name of one of its rows.
  """
  rows = getattr(module, "ROWS", {})
  if rows and (not argument or argument[0] not in rows):
    problem = "a study, not a single run"
    if argument:
      problem = f"no row {argument[0]!r}"
    raise ValueError(f"{path} has {problem}; its rows are {', '.join(rows)}.")
  if argument and not inspect.signature(module.get_config).parameters:
    raise ValueError(f"{path} takes no argument after a colon.")


def other_names() -> dict[str, list[str]]:
  """The names that other trainers use for our keys, by key."""
  table = pathlib.Path(__file__).with_name("other_names.csv").read_text()
  rows = csv.DictReader(table.splitlines())
  return {row["key"]: row["others"].split() for row in rows}


def check_weights(values: Mapping[str, str], workdir: str = "") -> None:
  """Raises ValueError if a configuration needs weights, and gets none.

  `values` are those of the flags, by key, as they were typed. A run that has
  begun in `workdir` has its weights.
  """
  config = values.get("config", "")
  argument = config.partition(":")[2]
  has_weights = values.get("pretrained", "") not in ("", "None")
  if has_weights or argument not in GO_ON:
    return
  # Imported here so that --help answers at once.
  from vit_jax.workdir.checkpoint import begun_config

  if begun_config(workdir) is None:
    raise ValueError(
      f"{config} goes on with published weights, and needs --pretrained, such "
      f"as --pretrained {GO_ON[argument]}; without :{argument}, it starts with "
      "a small model."
    )


def nearest(key: str, cls: type[Section]) -> str:
  """The valid key closest to an unknown name; "" if none is near."""
  name = key.rsplit(".", 1)[-1].replace("-", "_")
  valid_keys = set(all_keys(cls))
  for our_key, others in other_names().items():
    if name in others and our_key in valid_keys:
      return our_key
  return nearest_key(key, cls)


def replaced_keys(
  given: Mapping[str, Any], cls: type[Section] = Settings
) -> dict[str, int | None]:
  """The keys that `given` overrules, with the values that unset them.

  A given length sets its other units to 0: total_steps=100 does so for
  total_epochs and total_examples. A given variant sets to None those sizes that
  are not given, since a configuration may have them for its own variant.
  """
  valid_keys = set(all_keys(cls))
  unset: dict[str, int | None] = {}
  for key in given:
    name = key.rpartition("_")[0]
    lengths = {f"{name}_{unit}" for unit in UNITS}
    is_length = key in lengths and lengths <= valid_keys
    if is_length and given[key]:
      unset |= dict.fromkeys(lengths - {*given}, 0)
  if given.get("model.variant") not in (None, "None"):
    unset |= dict.fromkeys(_SIZES - {*given}, None)
  return unset


def _mistake(path: pathlib.Path, error: Exception) -> str:
  """One line about an error that a configuration file raised."""
  text = str(error).split("\n")[0]
  if isinstance(error, ValueError):  # A check's message stays as it is.
    return text
  text = text.strip("'\"")  # A KeyError's is in quotes.
  lines = [
    frame.lineno
    for frame in traceback.extract_tb(error.__traceback__)
    if frame.filename == str(path)
  ]
  line = lines[-1] if lines else getattr(error, "lineno", None)
  place = f"{path}, line {line}" if line else str(path)
  missing = re.match(r'Key "(\w+)" does not exist', text)
  if missing:
    key = nearest(missing[1], Settings)
    end = f"; did you mean {key}?" if key else f". {ALL_KEYS}"
    return f"{place}: there is no key {missing[1]}{end}"
  return f"{place}: {type(error).__name__}: {text}"
