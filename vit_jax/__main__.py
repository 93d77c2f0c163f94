"""The command `vit_jax`, which runs every other one.

vit_jax train --config digits --workdir runs/digits

It is the same as `python -m vit_jax.train ...`, which works too. `vit_jax`
alone lists the commands, and `vit_jax help COMMAND` describes one.
"""

import ast
import os
import runpy
import sys
from collections.abc import Callable

from vit_jax import __version__
from vit_jax.runtime import command, hints
from vit_jax.runtime.printable import say

# The commands and what each does, grouped by purpose. A test compares their
# names with the modules.
GROUPS = {
  "What most people come for": {
    "train": "Trains a model on your images, or goes on with a run.",
    "evaluate": "Says how good a run is, on its own images or on others.",
    "predict": "Names the classes of images, by a run or published weights.",
    "visualize": "Draws what a model looks at, and what it has learned.",
    "report": "Writes a page on a run: its curves, mistakes and settings.",
    "convert": "Lists published weights; writes yours for other libraries.",
  },
  "Before training": {
    "inspect_data": "Counts images, finds damaged ones and wrong labels.",
    "similar": "Finds near-duplicates, lone images, clusters, neighbours.",
    "pack": "Writes images into a few files that are read quickly.",
    "find_lr": "Finds a learning rate by a range test.",
    "estimate": "Tells what a step costs on TPUs, without a TPU.",
  },
  "Several runs": {
    "study": "Trains a list of configurations, and compares them.",
    "merge": "Averages the weights of runs, as model soups do.",
    "verify": "Replays steps of a run, and compares their digests.",
  },
  "More of a model": {
    "fewshot": "Tells how good a model's features are for your classes.",
    "export": "Writes a program that runs without vit_jax: JAX or ONNX.",
  },
}
COMMANDS = {
  name: says for group in GROUPS.values() for name, says in group.items()
}

# The modules of the commands that are not directly in the package.
_PLACES = {"merge": "run.experiments.merge", "similar": "report.similar"}

# The most words after one that is no command, such as `help config SECTION`.
_MOST_WORDS = {"help": 2}
_HELP = ("help", "--help", "-h", "-?")
_EXPORT = "export RUN model.onnx"
# Names that other libraries give to these commands, and what to type here.
OTHER_NAMES = {
  **dict.fromkeys(("resume", "continue"), "train DATA"),
  **dict.fromkeys(("finetune", "fine_tune"), "train DATA --pretrained NAME"),
  **dict.fromkeys(("test", "eval", "validate", "score"), "evaluate RUN"),
  **dict.fromkeys(("infer", "classify", "ask"), "predict RUN IMAGE"),
  **dict.fromkeys(
    ("features", "embed"), "predict RUN IMAGE --features OUT.npz"
  ),
  **dict.fromkeys(
    ("duplicates", "neighbours", "search", "cluster"), "similar RUN FOLDER"
  ),
  **dict.fromkeys(
    ("attention", "explain", "draw", "plot"), "visualize RUN IMAGE --out DIR"
  ),
  **dict.fromkeys(
    ("soup", "average", "ensemble", "wise_ft"), "merge RUN RUN --out NEW"
  ),
  **dict.fromkeys(("list", "models", "list_models"), "convert --list"),
  **dict.fromkeys(("serve", "server", "service", "deploy", "api"), _EXPORT),
}
# Sentences to add to hints whose command does only a part of the work.
_MORE = {
  _EXPORT: ' docs/howto/serve.md ("Serve a model") has a web service for it.'
}


def main() -> int:
  """Runs the command that `sys.argv` names; returns the exit code."""
  name, arguments = _command_line()
  if name in _HELP and arguments[:1] != ["config"]:
    name, arguments = _turn_help_into_flag(arguments), arguments[1:]
  if name in COMMANDS:
    del sys.argv[1:2]
    runpy.run_module(module_of(name), run_name="__main__", alter_sys=True)
    return 0
  command.open_missing_streams()
  command.complete(*COMMANDS, "configs", "help")
  texts = {
    "": _help,
    "configs": _configs,
    "help": lambda: _keys(*arguments[1:2]),
    "--version": lambda: f"vit_jax {__version__}",
  }
  try:
    if name in texts and (more := arguments[_MOST_WORDS.get(name, 0) :]):
      raise ValueError(f"unexpected argument {more[0]!r} after {name}.")
    with command.until_closed():
      say(_text(name, texts), sys.stdout)
      return 0
  except ValueError as error:
    say(f"error: {error}")
  return command.USAGE_EXIT


def _command_line() -> tuple[str, list[str]]:
  """The name of the command, by default "help", and the arguments after it."""
  # A shell that completes a command line passes it in COMP_LINE.
  typed = os.environ.get("COMP_LINE", "").split(" ")
  name, *arguments = typed[1:-1] or sys.argv[1:] or ["help"]
  return name, arguments


def _turn_help_into_flag(arguments: list[str]) -> str:
  """Changes `sys.argv` from `help train` to `train --help`.

  Returns the name of the command; "" if no command was named.
  """
  sys.argv[1:] = [*arguments[:1], "--help"]
  return arguments[0] if arguments else ""


def module_of(name: str) -> str:
  """The module of a command."""
  return f"vit_jax.{_PLACES.get(name, name)}"


def _text(name: str, texts: dict[str, Callable[[], str]]) -> str:
  """The text that a command prints; raises ValueError for an unknown one."""
  if name in texts:
    return texts[name]()
  commands = OTHER_NAMES | {command: command for command in (*COMMANDS, *texts)}
  near = hints.near_names(name, commands)
  hint = "vit_jax help lists them."
  if near:
    suggestion = commands[near[0]]
    if " " in suggestion:
      suggestion = f"`vit_jax {suggestion}`"
    hint = f"did you mean {suggestion}?{_MORE.get(commands[near[0]], '')}"
  raise ValueError(f"{name!r} is not a command; {hint}")


def _help() -> str:
  """The list of all commands."""
  lines = ["vit_jax COMMAND ..., and --help after a command for more."]
  for title, group in GROUPS.items():
    lines += ["", f"{title}:"]
    lines += [f"  {name:<14}{says}" for name, says in group.items()]
  lines += [
    "",
    "vit_jax configs lists the configurations that --config knows by name;",
    "vit_jax help config [SECTION] lists the keys of a configuration.",
  ]
  return "\n".join(lines)


def _keys(section: str = "") -> str:
  """The keys of a configuration, or of one section of it."""
  from vit_jax.run.flags import key_table

  return key_table(section)


def _configs() -> str:
  """The name, the path and the first sentence of each shipped configuration."""
  from vit_jax.run.config_file import shipped_configs

  lines = []
  for name, path in shipped_configs().items():
    says = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    lines += [f"{name:<21}{says.partition(chr(10))[0]}", f"{'':<21}{path}"]
  return "\n".join(lines)


if __name__ == "__main__":
  sys.exit(main())
