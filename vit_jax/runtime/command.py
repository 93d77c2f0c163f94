"""Starts every command, and turns bad input into one line."""

import functools
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from absl import app, flags, logging

from vit_jax.runtime.cache_folder import cache_folder

# Flags defined here on behalf of a command are shown by its --help.
flags.disclaim_key_flags()

USAGE_EXIT = 2
_COMPILED_BYTES = 4 * 2**30  # Kept at most; the longest unused goes first.
# Flags that take several numbers: their type, how many, and that in words.
_LISTS = {
  "image_size": (
    int,
    (1, 2),
    "a side in pixels, or height,width; positions are interpolated to it",
  ),
  "grid": (int, (2,), "height,width, in patches, of the stored positions"),
  "mean": (float, (3,), "three numbers to take off the channels, in [0, 1]"),
  "std": (float, (3,), "three numbers above 0 to divide the channels by"),
}


def run(
  main: Callable[[list[str]], int | None],
  takes: str = "",
  *,
  define: Callable[[], None] | None = None,
  resumes: bool = False,
) -> None:
  """Runs `main` under absl's flags; bad input is one line and exit code 2.

  A ValueError or OSError is what our checks raise. VIT_JAX_TRACEBACK=1 shows
  where it came from.

  Args:
    main: Takes the command line's arguments, without the command's own name,
      and returns the exit code.
    takes: Names of the arguments, such as "CHECKPOINT IMAGE..."; flags may
      stand before, between and behind them. Those in brackets may be left out.
    define: Defines the command's flags, so that importing it defines none.
    resumes: Whether the same command resumes after it was stopped.
  """

  def guarded(argv: list[str]) -> None:
    logging.set_verbosity(logging.ERROR)  # Libraries report every file.
    arguments = argv[1:]
    _check_arguments(arguments, takes)
    if os.environ.get("VIT_JAX_TRACEBACK"):
      sys.exit(main(arguments))
    try:
      sys.exit(main(arguments))
    except (ValueError, OSError) as error:
      _fail(_one_line(error))
    except FloatingPointError as error:
      _fail(_one_line(error), code=1)
    except KeyboardInterrupt:
      further = "; the same command goes on" if resumes else ""
      _fail(f"stopped by Ctrl-C{further}.", code=130)

  _use_huge_pages()
  _keep_compiled()
  app.run(guarded, flags_parser=functools.partial(_parse, define))


def define_overrides() -> None:
  """Flags of every command that takes a checkpoint; `overrides` reads them."""
  flags.DEFINE_integer("step", None, "Of a workdir; by default the newest.")
  flags.DEFINE_integer("num_heads", None, "Where the source cannot tell.")
  flags.DEFINE_enum(
    "gelu", None, ("exact", "tanh"), "Against what the format says."
  )
  flags.DEFINE_float("layer_norm_epsilon", None, "Against the format.")
  for name, (_, _, needed) in _LISTS.items():
    flags.DEFINE_list(name, None, f"Give {needed}.")


def overrides() -> dict[str, Any]:
  """Keywords for `load_pretrained` from the flags that were given.

  Raises:
    ValueError: if a list of numbers is none, or of another length.
  """
  names = ("step", "num_heads", "gelu", "layer_norm_epsilon")
  given = {name: flags.FLAGS[name].value for name in names}
  given |= {name: _numbers(name) for name in _LISTS}
  if given["image_size"] is not None:
    given["image_size"] = (given["image_size"][0], given["image_size"][-1])
  return {name: value for name, value in given.items() if value is not None}


def define_choice() -> None:
  """Flags of every command that evaluates a run; `choice` reads them."""
  flags.DEFINE_integer("step", None, "Checkpoint; the newest by default.")
  flags.DEFINE_bool("best", False, "Take the checkpoint best in top-1.")
  flags.DEFINE_string("root", None, "Where the folder of images is now.")
  flags.DEFINE_string(
    "data_dir", None, "Where TFDS data sets are now, if they have moved."
  )


def choice() -> dict[str, Any]:
  """Keywords for `run.saved.opened` from the flags that were given."""
  names = ("step", "best", "root", "data_dir")
  given = {name: flags.FLAGS[name].value for name in names}
  return {k: v for k, v in given.items() if v is not None and v is not False}


def _numbers(name: str) -> tuple[float, ...] | None:
  """What was given to a flag of `_LISTS`."""
  words = flags.FLAGS[name].value
  if words is None:
    return None
  kind, lengths, needed = _LISTS[name]
  try:
    numbers = tuple(kind(word) for word in words)
  except ValueError:
    numbers = ()
  allowed = all(0 <= number < math.inf for number in numbers)
  if name != "mean":
    allowed = allowed and all(numbers)
  if len(numbers) not in lengths or not allowed:
    raise ValueError(f"--{name}={','.join(words)}: give {needed}.")
  return numbers


def _check_arguments(arguments: list[str], takes: str) -> None:
  needed = re.sub(r"\[.*\]", "", takes).split()
  if len(arguments) < len(needed):
    _fail(f"{needed[len(arguments)]} is missing; the arguments are: {takes}")
  most = len(takes.split())
  if len(arguments) > most and not takes.endswith(("...", "...]")):
    _fail(f"unexpected argument {arguments[most]!r}; flags start with --.")


def _use_huge_pages() -> None:
  """Starts this command over with glibc's huge pages, unless it was tuned.

  XLA's CPU backend maps its buffers anew at every step, and with pages of 4 KB
  a third of a small model's train step goes into that. glibc reads its
  tunables only when a process starts.
  """
  if sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ:
    os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _keep_compiled() -> None:
  """Has JAX keep what it compiles, so that the next start takes seconds.

  JAX_COMPILATION_CACHE_DIR names another folder; empty, nothing is kept.
  """
  folder = cache_folder() / "compiled"
  try:
    folder.mkdir(parents=True, exist_ok=True)
  except OSError:
    return
  os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder))
  os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(_COMPILED_BYTES))
  os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")


def _parse(define: Callable[[], None] | None, argv: Sequence[str]) -> list[str]:
  """Defines the flags and parses them; what is wrong is one line."""
  flags.FLAGS.set_gnu_getopt(True)
  try:
    if define is not None:
      define()
    return flags.FLAGS(list(argv))
  except (flags.Error, ValueError, AttributeError, KeyError, OSError) as error:
    _fail(_one_line(error))


def _one_line(error: BaseException) -> str:
  """The line of a message that says what is wrong.

  A configuration file that fails comes with its traceback, whose last line it
  is; of any other message it is the first. A ValueError's text is meant to be
  read alone.
  """
  lines = [line.strip() for line in str(error).splitlines() if line.strip()]
  if not lines:
    return type(error).__name__
  from_file = "Traceback" in str(error) or "Failed loading" in lines[0]
  line = lines[-1].removeprefix("ValueError: ") if from_file else lines[0]
  quoted = line[0] in "\"'" and line[0] == line[-1]  # As in a KeyError's.
  return line.strip(line[0]) if quoted else line


def _fail(message: str, code: int = USAGE_EXIT) -> NoReturn:
  print(f"error: {message}", file=sys.stderr)
  raise SystemExit(code)
