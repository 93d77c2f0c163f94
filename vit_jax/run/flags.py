"""Defines the configuration's flags: `--config` and `--config.key=value`."""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags
from ml_collections import config_flags

from vit_jax.run.config_file import (
  load_config,
  nearest,
  other_units,
  shipped_configs,
)
from vit_jax.run.settings import Settings, base_config, read
from vit_jax.runtime.settings import Duration, Section, all_keys, keys

# Makes --help of a command show the flags that are defined here on its behalf.
flags.disclaim_key_flags()


def define_config_file() -> None:
  """Defines `--config=FILE`, which `config_settings` reads."""
  _check_keys(sys.argv, Settings)
  config_flags.DEFINE_config_file(
    "config",
    None,
    "Configuration: a file, or the name of one that comes with vit_jax "
    f"({', '.join(shipped_configs())}), followed by :argument if it takes one. "
    "Each of these keys can be set on the command line, as in "
    "--config.seed=1:\n" + _help(Settings),
  )
  flags.FLAGS["config"].parser = _ConfigFile()
  flags.mark_flag_as_required("config")


def define_config_keys(cls: type[Section]) -> None:
  """Defines `--config.key=value` for a command that reads no file."""
  _check_keys(sys.argv, cls)
  config_flags.DEFINE_config_dict(
    "config",
    base_config(cls),
    "Settings, given as --config.key=value. The keys are:\n" + _help(cls),
  )
  flags.FLAGS["config"].default_as_str = None  # The help lists the defaults.
  flags.declare_key_flag("config")


def config_settings(cls: type[Section] = Settings) -> Any:
  """Reads the settings from the flags.

  A length on the command line replaces the one that the file gives in another
  unit. One number for a size is the side of a square.

  Raises:
    ValueError: if a value is invalid; the message is one line and names the
      key.
  """
  config: Any = flags.FLAGS["config"].value
  given = config_flags.get_override_values(flags.FLAGS["config"])
  config.update_from_flattened_dict(other_units(given, cls))
  for key in ("image_size", "cut_from"):
    side = given.get(key)
    if side and len(side) == 1 and isinstance(side[0], int):
      config[key] = side * 2
  return read(config, cls)


class _ConfigFile(flags.ArgumentParser):
  """Reads `--config=FILE:ARGUMENT`."""

  def parse(self, argument: str) -> Any:
    return load_config(argument)


def _check_keys(argv: Sequence[str], cls: type[Section]) -> None:
  """Raises ValueError for a key that does not exist, and names the nearest."""
  for argument in argv[1:]:
    name = argument.lstrip("-").split("=", 1)[0]
    name = name.removeprefix("no") if name.startswith("noconfig.") else name
    if argument.startswith("-") and name.startswith("config."):
      key = name.removeprefix("config.").split("[")[0]
      if key not in all_keys(cls):
        raise ValueError(_unknown(name, key, cls))


def _unknown(name: str, key: str, cls: type[Section]) -> str:
  if key in all_keys(Settings):
    sections = ", ".join(f.name for f in dataclasses.fields(cls))
    return (
      f"--{name} is a key of a training run; this command takes only "
      f"{sections}."
    )
  meant = nearest(key, cls)
  return (
    f"--{name} is not a key of the configuration; did you mean "
    f"--config.{meant}?"
  )


def _help(cls: type[Section]) -> str:
  """One line for each key, with its default and its sentence."""
  return "\n".join(
    f"  {key}_steps|_epochs|_examples: {says}"
    if isinstance(default, Duration)
    else f"  {key}={default}: {says}"
    for key, default, says in keys(cls)
  )
