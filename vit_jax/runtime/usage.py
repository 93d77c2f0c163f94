"""The text of `--help`, and what is said of wrong flags."""

import difflib
import inspect
import os
import pathlib
import sys
import textwrap
from collections.abc import Callable
from typing import Any

from absl import flags

ASKED: dict[str, str] = dict.fromkeys(("--help", "-h", "-?"), "short")
ASKED |= dict.fromkeys(("--help=all", "--helpfull"), "all")
_NAMES = 22  # Columns of a screen for the names of flags.
FURTHER: dict[str, Callable[[], str]] = {}  # More help, by name of the flag.
# Example values of required flags.
_EXAMPLES = {"config": "digits", "workdir": "runs/digits", "out": "figures"}


def as_typed(text: str) -> str:
  """The text, with commands written as `vit_jax` if that was typed."""
  program = {os.path.basename(word) for word in sys.orig_argv[1:3]}
  is_short = "vit_jax" in program
  return text.replace("python -m vit_jax.", "vit_jax ") if is_short else text


def text(doc: str, takes: str, which: str) -> str:
  """The help of a command, whose flags are defined.

  The short one fits a screen. It has the first sentence of the docstring and
  the examples, which are the second paragraph; the whole one has all of both.
  """
  path, has_keys = pathlib.Path(sys.argv[0]), "config" in flags.FLAGS
  name = path.parent.name if path.stem == "__main__" else path.stem
  words = ["python -m vit_jax." + name, takes or "[DATA]" * has_keys]
  says, examples, *rest = inspect.cleandoc(doc).split("\n\n")
  parts = [" ".join(filter(None, [*words, "[--flag=value ...]"])), says]
  parts.append(textwrap.indent(examples, "  "))
  own = flags.FLAGS.get_key_flags_for_module(sys.argv[0])
  if which == "all":
    more = {name: further() for name, further in FURTHER.items()}
    parts += rest
    parts += [f"--{f.name}: {f.help}{more.get(f.name, '')}" for f in own]
  else:
    parts.append("\n".join(map(_in_columns, own)))
    more = " and the keys of --config" * has_keys
    parts.append(f"--help=all shows all of the explanations{more}.")
  return as_typed("\n\n".join(parts))


def _in_columns(flag: flags.Flag) -> str:
  """A flag with its default, and the first line of its help beside it."""
  usual = f"={flag.default_as_str}".replace("'", "") if flag.default else ""
  name, help = f"--{flag.name}{usual}", (flag.help or "").splitlines()[0]
  return textwrap.fill(
    help,
    initial_indent=f"{name:<{_NAMES - 2}}  ",
    subsequent_indent=" " * _NAMES,
    width=80,
    break_on_hyphens=False,
  )


def unknown(error: flags.UnrecognizedFlagError) -> str:
  """Says that there is no such flag, and which was likely meant."""
  name = error.flagname
  if name.startswith("config."):
    return in_flags("flag --config=None: ")
  near = difflib.get_close_matches(name, [*flags.FLAGS], n=1)
  meant = f"did you mean --{near[0]}?" if near else "--help lists those it has."
  return f"--{name} is not a flag of this command; {meant}"


def in_flags(line: str) -> str:
  """An error in terms of flags: those that are missing, and keys as flags."""
  for name, example in _EXAMPLES.items():
    if line.startswith(f"flag --{name}=None: "):
      return f"--{name} is missing, as in --{name} {example}."
  config: Any = flags.FLAGS["config"].value if "config" in flags.FLAGS else None
  for part in line.partition("=")[0].split("."):  # A key is told as its flag.
    if not hasattr(config, "keys") or part not in config:
      return line
    config = config[part]
  return f"--config.{line}"


def complete(*words: str) -> None:
  """Answers a shell that asks for completions, and ends the process.

  `eval "$(register-python-argcomplete vit_jax)"` makes bash and zsh ask. The
  first word may be one of `words`; any, if the command is known already.
  """
  if "_ARGCOMPLETE" in os.environ:
    import argcomplete
    from absl.flags import argparse_flags

    parser = argparse_flags.ArgumentParser(allow_abbrev=False)
    parser.add_argument("command", choices=words or None)
    parser.add_argument("files", nargs="*")
    argcomplete.autocomplete(parser, always_complete_options="long")
