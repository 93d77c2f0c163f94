"""Defines the configuration's flags: `--config` and `--config.key=value`."""

import dataclasses
import functools
import itertools
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from absl import flags
from ml_collections import config_flags
from ml_collections.config_flags import config_path

from vit_jax.data.settings import LABEL_FILES
from vit_jax.run.config_file import (
  ALL_KEYS,
  FOR_CLASSES,
  check_weights,
  load_config,
  nearest,
  other_names,
  replaced_keys,
  shipped_configs,
)
from vit_jax.run.settings import Settings, base_config, read
from vit_jax.runtime import hints, usage
from vit_jax.runtime.printable import say
from vit_jax.runtime.settings import UNITS, Duration, Section, all_keys, keys

# Makes --help of a command show the flags that are defined here on its behalf.
flags.disclaim_key_flags()

# Endings of files of weights, which the name of a run leaves out.
_WEIGHT_FILES = (".npz", ".safetensors", ".msgpack")

# Flags that stand for a key of the configuration.
SHORT = {
  "epochs": "total_epochs",
  "batch_size": "batch_size",
  "lr": "optimizer.peak_lr",
  "image_size": "image_size",
  "pretrained": "pretrained",
}


# Keys that a test of learning rates replaces, and what it takes instead.
_IN_PLACE = {
  **dict.fromkeys(
    ("optimizer.peak_lr", "optimizer.decay"),
    "which tries the rates from lowest to highest",
  ),
  **{
    f"{length}_{unit}": "which takes as many steps as steps says"
    for length in ("total", "optimizer.warmup")
    for unit in UNITS
  },
}


def check_range_test(given: Iterable[str]) -> None:
  """Raises ValueError for a key that has no effect on a test of rates.

  The keys are those that the user gives; short forms, such as lr, may stand for
  them.
  """
  for name in given:
    if instead := _IN_PLACE.get(SHORT.get(name, name)):
      raise ValueError(
        f"{name} has no effect on find_lr, {instead}: leave it out."
      )


def define_config_file() -> None:
  """Defines `--config=FILE`, which `config_settings` reads, and `SHORT`."""
  _check_keys(sys.argv, Settings)
  config_flags.DEFINE_config_file(
    "config",
    None,
    "Configuration: a file or a name that `vit_jax configs` lists, with "
    ":argument if it takes one. --config.KEY=VALUE sets any of its keys:\n",
  )
  usage.FURTHER["config"] = key_table
  usage.SHORT |= {key: name for name, key in SHORT.items()}
  usage.OTHER_NAMES["config"] = _keys_by_name
  flags.FLAGS["config"].parser = _ConfigFile()
  flags.mark_flag_as_required("config")
  defaults = load_config(FOR_CLASSES)
  sentences = {key: says for key, _, says in keys(Settings)}
  for name, key in SHORT.items():
    default = config_path.get_value(key, defaults)
    says = f"Short for --config.{key}; {default} if DATA is a folder."
    if default is None:
      first = sentences[key].split(". ")[0].rstrip(".")
      says = f"{first}; short for --config.{key}."
    flags.DEFINE_string(name, None, says)


def expanded(words: Sequence[str], workdir: bool = False) -> list[str]:
  """The words of a command line, with flags for its short forms and its DATA.

  DATA is a folder of images, a file of labels or a configuration: the word that
  is neither a flag nor its value. All flags have to be defined before. In the
  result, `--config` comes before its keys. The result has to replace the words
  in `sys.argv`, where `config_flags` looks for the keys. Raises ValueError if
  DATA is none of these, or is missing beside --pretrained; if two words could
  be DATA; if a setting is given twice; or if the weights that a configuration
  needs are missing.

  Args:
    words: The command line, without the name of the program.
    workdir: Whether the command has --workdir, which is then named after DATA.
  """
  flag_words, names, data = _parse(words, workdir)
  for name, key in SHORT.items():
    if name in names and names.count(f"config.{key}") > 1:
      raise ValueError(f"--{name} or --config.{key} is given twice: drop one.")
  if not data and "pretrained" in names and "config" not in names:
    raise ValueError(f"no images are given; {_no_weights()}")
  if len(data) > 1:
    raise ValueError(
      f"{data[0]!r} is the DATA, and {data[1]!r} is one too many: give one "
      "folder, file or configuration, in quotes if its name has spaces."
    )
  if data:
    flag_words += flags_of_data(data[0], flag_words, names, workdir)
  if workdir:
    values = dict(map(key_and_value, flag_words))
    check_weights(values, values.get("workdir", ""))
  return sorted(flag_words, key=lambda w: "config." in w.partition("=")[0])


def _parse(
  arguments: Iterable[str], workdir: bool
) -> tuple[list[str], list[str], list[str]]:
  """The flags as --name=value, their names, and the words that are no flags.

  A short form becomes its key; both are among the names. Raises ValueError if a
  flag lacks its value, or is another library's flag for resuming a run.
  """
  flag_words: list[str] = []
  names: list[str] = []
  data: list[str] = []
  arguments = iter(arguments)
  for word in arguments:
    if not word.startswith("-"):
      data.append(word)
      continue
    name, *value = word.lstrip("-").split("=", 1)
    if not value and not _stands_alone(name):
      value = [*itertools.islice(arguments, 1)]
    if name == "pretrained" and "".join(value)[:1] in ("", "-"):
      raise ValueError(_no_weights())
    if workdir and name not in flags.FLAGS:
      if advice := usage.how_to_resume(name, "".join(value), "--workdir"):
        raise ValueError(advice)
    is_known = name in flags.FLAGS or name.startswith("config.")
    if is_known and not _stands_alone(name):
      usage.check_value(name, *value or [None])
    long = f"config.{SHORT[name]}" if name in SHORT else name
    flag_words.append("=".join([f"--{long}", *value]))
    names += dict.fromkeys((long, name))
  return flag_words, names, data


def _no_weights() -> str:
  """Says what --pretrained takes, with a command to copy."""
  from vit_jax.run.few_images import better_command

  return (
    "--pretrained names the weights to start from, as in "
    f"`{better_command('my_photos')}`; `vit_jax convert --list` has the names."
  )


def _stands_alone(name: str) -> bool:
  """Whether a flag, which may have "no" before it, needs no value."""
  name = name if name in flags.FLAGS else name.removeprefix("no")
  if name in flags.FLAGS:
    return bool(flags.FLAGS[name].boolean)
  key = name.removeprefix("config.").split("[")[0]
  return key != name and config_path.get_type(key, base_config()) is bool


def flags_of_data(
  data: str, given_words: list[str], flag_names: list[str], workdir: bool
) -> list[str]:
  """The flags that DATA stands for, besides those given; prints a line on them.

  Args:
    data: DATA, as on the command line.
    given_words: The flags that are given, as --name=value.
    flag_names: Their names, and those of short forms as well.
    workdir: Whether a run is written, whose folder is named after DATA.

  Raises:
    ValueError: if the flag that DATA stands for is given as well, or DATA is
      neither data nor a configuration. Also where `data_choice.suited` raises
      it.
  """
  flag, text = _kind(data)
  if flag in flag_names:
    told = f"{data} stands for --{flag}, which is given as well: leave one out"
    if flag == "config":
      told += ", or name the data by --config.data.name"
    raise ValueError(f"{told}.")
  flag_words = [f"--{flag}={data}"]
  values = dict(map(key_and_value, (*given_words, *flag_words)))
  weights = values.get("pretrained")
  needs_config = "config" not in (flag, *flag_names)
  folder = values.get("workdir", "")
  if not folder:
    sources = [data]
    if weights and (needs_config or "pretrained" in flag_names):
      sources.append(weights)
    folder = _run_folder(sources)
  if flag != "config":
    from vit_jax.run import data_choice

    chosen, why = data_choice.suited(data, values, folder)
    config = chosen.pop("config", None)
    if config is not None:
      flag_words.insert(0, f"--config={config}")
    flag_words += [f"--config.{key}={value}" for key, value in chosen.items()]
    if config is not None or chosen:
      config = config or values["config"]
      parts = [f"{text}{why} with the configuration {config}"]
      text = " and ".join(parts + [f"{k}={v}" for k, v in chosen.items()])
  if workdir and "workdir" not in flag_names:
    flag_words.append(f"--workdir={folder}")
    text += f"; the run goes to {folder}"
  say(f"Taking {text}.")
  return flag_words


def _kind(data: str) -> tuple[str, str]:
  """The flag whose value DATA is, and a description of DATA in words.

  Raises ValueError if DATA is neither data nor a configuration.
  """
  # Imported here so that --help answers at once.
  from vit_jax.data.reading.places import place_of

  if place := place_of(data):
    return f"config.data.{place.key}", f"{place.words} {data}"
  file = data.partition(":")[0]
  if not os.path.isfile(file) and file not in shipped_configs():
    hint = hints.hint_for_path(data, shipped_configs())
    hint = hint or "`vit_jax configs` lists those that come with it."
    raise ValueError(
      f"{data!r} is neither a folder here nor a configuration; {hint}"
    )
  if os.path.splitext(file)[1] not in ("", ".py"):
    raise ValueError(
      f"{data} is neither a folder, nor a file of labels (it ends in "
      f"{', '.join(LABEL_FILES)}), nor a configuration (.py); for images, give "
      "the folder that has a folder for each class."
    )
  return "config", f"the configuration {data}"


def key_and_value(word: str) -> tuple[str, str]:
  """The key and the value of a flag, such as --config.total_steps=100.

  The key of another flag, such as --workdir=DIR, is its name.
  """
  name, _, value = word.lstrip("-").partition("=")
  return name.removeprefix("config."), value


def _run_folder(sources: Sequence[str]) -> str:
  """The workdir for data or a configuration, and weights if there are any.

  Runs of older versions have names with the endings of files. If there is such
  a run, its folder is returned.
  """
  names = [_run_name(source) for source in sources]
  former = os.path.join("runs", "_".join(names))
  if os.path.isdir(former):
    return former
  return os.path.join("runs", "_".join(map(_without_ending, sources)))


def _run_name(source: str) -> str:
  """The name of data or weights with its ending, or of a configuration."""
  path = os.path.abspath(source)
  if "://" in source:  # The query, after a "?", may be secret.
    path = source.partition("?")[0].rstrip("/")
  return os.path.basename(path).removesuffix(".py").replace(":", "_")


def _without_ending(source: str) -> str:
  """The name without the ending of a file of labels or of weights.

  If a file or folder beside it has that name, the ending follows after "_".
  """
  name = _run_name(source)
  stem, ending = os.path.splitext(name)
  if ending.lower() not in (*LABEL_FILES, *_WEIGHT_FILES):
    return name
  is_taken = os.path.exists(os.path.splitext(os.path.expanduser(source))[0])
  return f"{stem}_{ending[1:]}" if is_taken else stem


def define_config_keys(cls: type[Section]) -> None:
  """Defines `--config.key=value` for a command that reads no file."""
  _check_keys(sys.argv, cls)
  config_flags.DEFINE_config_dict(
    "config",
    base_config(cls),
    "Settings, given as --config.KEY=VALUE:\n",
  )
  usage.FURTHER["config"] = functools.partial(key_table, cls=cls)
  flags.FLAGS["config"].default_as_str = None  # The help lists the defaults.
  flags.declare_key_flag("config")


# The keys of `data` that name the data, and those that only training reads.
DATA_PLACES = ("name", "root", "dir", "labels_file")
_OF_TRAINING = ("labels", "sampling", "tokens")


def data_keys(data: str, sets: bool = False) -> dict[str, Any]:
  """The keys of the configuration that a folder or a file of labels stands for.

  With `sets`, `data` may also be a configuration, such as digits, and stands
  for the keys of its data, but for those that only training reads. Raises
  ValueError if it is none of these.
  """
  flag, text = _kind(data)
  if flag == "config":
    found = load_config(data).data if sets else {}
    if any(found.get(place) for place in DATA_PLACES):
      default = base_config().data
      return {
        f"data.{key}": value
        for key, value in found.items()
        if value != default[key] and key not in _OF_TRAINING
      }
    raise ValueError(
      f"{text} has no folder of images: give a folder or a file of labels."
    )
  return {flag.removeprefix("config."): data}


def config_settings(
  cls: type[Section] = Settings, given: Mapping[str, Any] = MappingProxyType({})
) -> Any:
  """Reads the settings from the flags.

  `given` has further keys with their values, which the command line sets by
  words that are no flags, such as DATA. Raises ValueError if a flag sets one of
  them as well.

  A length on the command line replaces the one that the file gives in another
  unit. One number for a size is the side of a square, and the text None leaves
  a key unset. Raises ValueError if a value is invalid; the message is one line
  and names the key.
  """
  config: Any = flags.FLAGS["config"].value
  overrides = config_flags.get_override_values(flags.FLAGS["config"])
  if twice := next(filter(overrides.__contains__, given), None):
    raise ValueError(
      f"{given[twice]} stands for --config.{twice}, which is given as well: "
      "leave one of them out."
    )
  unset = {key: None for key, value in overrides.items() if value == "None"}
  config.update_from_flattened_dict(replaced_keys(overrides, cls) | unset)
  config.update_from_flattened_dict(given)
  for key in ("image_size", "cut_from"):
    side = overrides.get(key)
    if side and len(side) == 1 and isinstance(side[0], int):
      config[key] = side * 2
  return read(config, cls)


def config_name() -> str:
  """The configuration as `--config` took it, FILE:ARGUMENT."""
  return config_flags.get_config_filename(flags.FLAGS["config"])


def is_given(key: str) -> bool:
  """Whether the command line sets a key of the configuration."""
  return key in config_flags.get_override_values(flags.FLAGS["config"])


class _ConfigFile(flags.ArgumentParser):
  """Reads `--config=FILE:ARGUMENT`."""

  def parse(self, argument: str) -> Any:
    return load_config(argument)


def _keys_by_name() -> dict[str, str]:
  """The keys by the names that may be typed for them.

  These are a key's last part, and its names in other trainers.
  """
  deepest_first = sorted(all_keys(Settings), key=lambda key: -key.count("."))
  by_name = {key.rpartition(".")[2]: key for key in deepest_first}
  for key, others in other_names().items():
    by_name |= dict.fromkeys(others, key)
  return by_name


def _check_keys(argv: Sequence[str], cls: type[Section]) -> None:
  """Raises ValueError, with the nearest key, for a key that does not exist."""
  for argument in argv[1:]:
    name = argument.lstrip("-").split("=", 1)[0]
    name = name.removeprefix("no") if name.startswith("noconfig.") else name
    if argument.startswith("-") and name.startswith("config."):
      key = name.removeprefix("config.").split("[")[0]
      if key not in all_keys(cls):
        near = nearest(key, cls)
        text = "is not a key of the configuration"
        text += f"; did you mean --config.{near}?" if near else f". {ALL_KEYS}"
        if key in all_keys(Settings):
          sections = ", ".join(f.name for f in dataclasses.fields(cls))
          text = "is a key of a training run; this command takes only"
          text += f" {sections}."
        raise ValueError(f"--{name} {text}")


def key_table(section: str = "", cls: type[Section] = Settings) -> str:
  """One line for each key of a section, with its default and its sentence.

  Raises ValueError if no key begins with `section`.
  """
  rows = [row for row in keys(cls) if row[0].startswith(section)]
  if not rows:
    depth = 1 + section.count(".")
    near = ".".join(nearest(section, cls).split(".")[:depth])
    end = f"; did you mean {near}?" if near else f". {ALL_KEYS}"
    raise ValueError(f"no key begins with {section!r}{end}")
  return "\n".join(
    f"  {key}_steps|_epochs|_examples: {says}"
    if isinstance(default, Duration)
    else f"  {key}={default}: {says}"
    for key, default, says in rows
  )
