"""The text of `--help`, and messages about wrong flags."""

import inspect
import itertools
import pathlib
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import flags

from vit_jax.runtime import hints
from vit_jax.runtime.printable import printable, say

# The form of the help that a word on the command line asks for.
ASKED: dict[str, str] = dict.fromkeys(("--help", "-h", "-?"), "short")
ASKED |= dict.fromkeys(("--help=all", "--helpfull"), "all")
_NAMES = 22  # Columns of a screen for the names of flags.
# Functions that return further help, by the name of the flag.
FURTHER: dict[str, Callable[[], str]] = {}
# Flags that stand for a key of the configuration, by the key.
SHORT: dict[str, str] = {}
# Functions that return {another name: key}, by the flag that takes the keys.
OTHER_NAMES: dict[str, Callable[[], Mapping[str, str]]] = {}
# The positional arguments of commands, with their help.
_ARGUMENTS = {
  "DATA": "A folder of images, a file of labels, or a configuration.",
  "CHECKPOINT": "A run's folder, a file, or a name from `convert --list`.",
  "IMAGE": "An image, a folder, or a pattern such as 'photos/*.jpg'.",
  "WORKDIR": "Folder of a run.",
  "[FOLDER]": "Other images to evaluate on: a folder, or a file of labels.",
  "FOLDER...": "Images to search: a folder, flat or with folders inside.",
}
# Example values of required flags.
_EXAMPLES = {"config": "digits", "workdir": "runs/digits", "out": "figures"}
# How absl begins its messages for a value that a flag lacks or does not take.
_NO_VALUE = "Missing value for flag --"
_VALUE = re.compile(r"flag --([^=\s]+)=(.*?): (.*)")
_NUMBERS = {
  "could not convert string to float": "it takes a number.",
  "invalid literal for int()": "it takes a whole number.",
}
# Flags of commands that open a run, by the last part of the key that each of
# them stands for.
_OWN_FLAGS: dict[str, str] = dict.fromkeys(("dir", "labels_file"), "root")
# Keys that say where data lie; commands that open a run have flags of the same
# name.
_PLACE = re.compile(r"--config\.data\.(?P<flag>root|data_dir)\b")
# Words of other programs for the run to resume.
_GOING_ON = ("resume", "resume_from", "resume_from_checkpoint", "continue")
# Words of other programs for the weights that a command opens.
_WEIGHTS = ("weights", "pretrained", "checkpoint", "ckpt", "model")
# Flags by which other programs choose the device, which JAX chooses here.
DEVICES = ("device", "devices", "cpu", "gpu", "tpu", "cuda")


def help_text(doc: str, takes: str, form: str) -> str:
  """The help of a command, whose flags are defined.

  `takes` are the arguments before the flags, as in "CHECKPOINT [DATA]", or "".
  `form` is "short" or "all". The short help fits a screen: it has the first
  paragraph of the docstring, and the second, which has the examples. The form
  "all" has all paragraphs, and the whole help of each flag.
  """
  has_keys = "config" in flags.FLAGS
  command = [_program(), takes or ("[DATA]" if has_keys else "")]
  says, examples, *more_paragraphs = inspect.cleandoc(doc).split("\n\n")
  parts = [" ".join(filter(None, [*command, "[--flag=value ...]"])), says]
  parts.append(textwrap.indent(examples, "  "))
  key_flags = flags.FLAGS.get_key_flags_for_module(sys.argv[0])
  if form == "all":
    more = {name: further() for name, further in FURTHER.items()}
    parts += more_paragraphs
    parts += [f"--{f.name}: {f.help}{more.get(f.name, '')}" for f in key_flags]
  else:
    rows = [row for row in _ARGUMENTS.items() if row[0] in " ".join(command)]
    rows += map(_name_and_help, key_flags)
    parts.append("\n".join(_in_columns(*row) for row in rows))
    more = " and the keys of --config" if has_keys else ""
    parts.append(f"--help=all shows all of the explanations{more}.")
  return "\n\n".join(parts)


def _name_and_help(flag: flags.Flag) -> tuple[str, str]:
  """A flag as --NAME=DEFAULT, and the first line of its help."""
  default = ""
  # A default of False or [] means that the flag is not given.
  if flag.default not in (None, []) and flag.default is not False:
    text = flag.default_as_str or ""
    default = f"={text}".replace("'", "") if text else ""
  first_line, *_ = (flag.help or "").splitlines()
  return f"--{flag.name}{default}", first_line.rstrip(":;")


def check_value(name: str, value: str | None) -> None:
  """Raises ValueError if a flag's value is missing, or is the next flag.

  `value` is the word after the flag, or None if there is none. A value that
  begins with two dashes has to be given as in --name=--value.
  """
  if value is None or value.startswith("--"):
    raise ValueError(f"--{name} needs a value.")


def check_values(words: Sequence[str]) -> None:
  """Raises ValueError if a flag among the words is followed by another flag.

  All flags have to be defined before. absl would take the second one as the
  value of the first.
  """
  for word, following in itertools.pairwise(words):
    if word == "--":  # The words after it are no flags.
      return
    name = word.lstrip("-")
    is_flag = word.startswith("-") and name in flags.FLAGS
    if is_flag and not flags.FLAGS[name].boolean:
      check_value(name, following)


def check_given() -> None:
  """Raises ValueError for an empty value; a line names flags given twice.

  The flags have been parsed. A value is empty if a shell's variable is not set;
  only a key of a configuration may be empty. Of several values the last counts,
  so that a script may add flags to its own.
  """
  for name in flags.FLAGS:
    flag = flags.FLAGS[name]
    is_several = isinstance(flag, flags.MultiFlag)
    values = (flag.value or []) if is_several else [flag.value]
    is_key = name.partition(".")[0] == "config"
    if flag.present and not is_key and any(v in ("", []) for v in values):
      raise ValueError(f"--{name}= is empty: give a value, or leave it out.")
    if flag.present > 1 and not is_several:
      count = f"--{name} is given {flag.present} times"
      say(printable(f"{count}: the last value, {flag.value}, counts."))


def how_to_resume(name: str, value: str, workdir: str) -> str:
  """How to resume a run, if `name` is a word for that; "" for other names.

  `value` is the value that was given for the name, and `workdir` is the flag or
  argument that takes a run's folder.
  """
  name = name.replace("-", "_")
  if name not in _GOING_ON:
    return ""
  run = value or "runs/my_photos"
  says = f"to resume the run in {run}, give its folder and the same settings"
  return (
    f"{name} is not needed: {says}, as in {workdir}={run!r}; "
    f"pretrained={run!r} starts a new run from its weights."
  )


def example() -> str:
  """The first example of the command, to end a sentence on what is wrong."""
  doc = inspect.cleandoc(sys.modules["__main__"].__doc__ or "")
  _, _, examples = doc.partition("\n\n")
  first_line, *_ = examples.split("\n")
  return f"as in: {first_line}" if first_line else "--help has examples."


def _in_columns(name: str, help: str) -> str:
  """A name and its help in two columns."""
  return textwrap.fill(
    help,
    initial_indent=f"{name:<{_NAMES - 2}}  ",
    subsequent_indent=" " * _NAMES,
    width=80,
    break_on_hyphens=False,
  )


def unknown_flag(error: flags.UnrecognizedFlagError, takes: str = "") -> str:
  """The message for an unknown flag, with the flag that may be meant.

  `takes` has the names of the command's arguments.
  """
  name = error.flagname
  if name.startswith("config."):
    if "config" in flags.FLAGS:
      return rewrite_in_flags("flag --config=None: ")
    return _no_configuration(name)
  flags_by_name = {}
  for flag, keys_by_name in OTHER_NAMES.items():
    for other, key in keys_by_name().items():
      flags_by_name[other] = SHORT.get(key, f"{flag}.{key}")
  flags_by_name |= {flag: flag for flag in flags.FLAGS}
  same = [f for f in flags.FLAGS if name in hints.names_elsewhere(f"--{f}")]
  near = same or hints.near_names(name, flags_by_name)
  hint = "--help lists those it has."
  if name in DEVICES:
    hint = (
      "JAX chooses the device; to use the CPU, write JAX_PLATFORMS=cpu in "
      "front of the command."
    )
  elif name in _WEIGHTS and (says := _for_weights(name, takes)):
    hint = says
  elif near:
    hint = f"did you mean --{flags_by_name[near[0]]}?"
  return f"--{name} is not a flag of this command; {hint}"


def _for_weights(name: str, takes: str) -> str:
  """A hint on how to give a command its weights; "" if it takes no weights.

  `name` is the unknown flag; `takes` has the names of the command's arguments.
  """
  if "pretrained" in flags.FLAGS:
    hint = "did you mean --pretrained?"
    if name == "model":
      hint += " --config.model.variant names an architecture, without weights."
    return hint
  if "model" in flags.FLAGS:
    return "did you mean --model?"
  if takes.startswith("CHECKPOINT"):
    return f"the CHECKPOINT is given without a flag, {example()}"
  return ""


def _no_configuration(name: str) -> str:
  """The message for a key that was given to a command without a configuration.

  Such a command may have a flag of its own with the meaning of the key.
  """
  key = name.rpartition(".")[2]
  own = _OWN_FLAGS.get(key, key)
  hint = "--help lists its flags."
  if own in flags.FLAGS:
    says, *_ = (flags.FLAGS[own].help or "").splitlines()
    hint = f"it has the flag --{own}: {says}"
  return f"--{name}: this command takes no configuration; {hint}"


def rewrite_in_flags(line: str) -> str:
  """An error that names keys, or missing flags, rewritten in terms of flags."""
  for name, example in _EXAMPLES.items():
    if line.startswith(f"flag --{name}=None: "):
      with_data = ""
      if name == "config":  # DATA suffices, and is what most have.
        with_data = f"; or give your images, as in {_program()} my_photos"
      return f"--{name} is missing, as in --{name} {example}{with_data}."
  if line.startswith(_NO_VALUE):
    key = line.removeprefix(_NO_VALUE).partition(" ")[0]
    return f"--{SHORT.get(key.removeprefix('config.'), key)} needs a value."
  if value := _VALUE.fullmatch(line):
    key, text, why = value.groups()
    key = SHORT.get(key.removeprefix("config."), key)
    why = next((says for part, says in _NUMBERS.items() if part in why), why)
    return f"--{key}={text}: {why}"
  if "config" not in flags.FLAGS:
    return _PLACE.sub(_own_flag, line)
  config: Any = flags.FLAGS["config"].value
  # A line that begins with no key of the configuration stays as it is.
  for part in line.partition("=")[0].split("."):
    if not hasattr(config, "keys") or part not in config:
      return line
    config = config[part]
  key, *value = line.partition("=")
  return "".join(["--", SHORT.get(key, f"config.{key}"), *value])


def option(name: str, value: str, key: str) -> str:
  """A value as a flag of the command that runs, or else as a keyword in Python.

  A command without the flag `name`, but with a configuration, takes the value
  as that of the configuration's `key`.
  """
  if name in flags.FLAGS:
    return f"--{name}={value}"
  if "config" in flags.FLAGS:
    return f"--config.{key}={value}"
  return f'{name}="{value}"'


def _own_flag(found: re.Match[str]) -> str:
  """The command's own flag for a key found by `_PLACE`, if it has one.

  Otherwise the key stays as it is, and so does a key inside a command that the
  message quotes.
  """
  before = found.string[: found.start()]
  is_own = found["flag"] in flags.FLAGS and "vit_jax " not in before
  return f"--{found['flag']}" if is_own else found[0]


def _program() -> str:
  """The command that is run, as the pages write it."""
  path = pathlib.Path(sys.argv[0])
  name = path.parent.name if path.stem == "__main__" else path.stem
  return f"vit_jax {name}"
