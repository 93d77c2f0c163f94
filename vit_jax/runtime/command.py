"""Starts every command, and turns errors about its input into one line."""

import ast
import contextlib
import ctypes
import functools
import gc
import io
import logging as std_logging
import os
import pathlib
import re
import select
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

from absl import app, flags, logging

from vit_jax.runtime import hosts, usage
from vit_jax.runtime.checks import IMAGE_VALUES, checked
from vit_jax.runtime.printable import printable, say
from vit_jax.runtime.restarts import MENDABLE

# With this line, --help of a command shows the flags that are defined here.
flags.disclaim_key_flags()

USAGE_EXIT = 2
_CLOSED_EXIT = 141  # As a shell reports a program that SIGPIPE ended.
_STREAMS = ("stdin", "stdout", "stderr")
# Exit codes of errors that are reported in one line; the first match counts.
_EXITS = dict.fromkeys((ChildProcessError, ConnectionError), MENDABLE)
_EXITS |= {ValueError: USAGE_EXIT, OSError: USAGE_EXIT, FloatingPointError: 1}
_COMPILED_BYTES = 4 * 2**30  # Size limit of the cache of compiled programs.
_KEPT = "the run goes on, and its log.txt has what it prints."
_GONE = (
  "the current folder was deleted: change to another one, or give absolute "
  "paths."
)
# Objects that Python makes between two searches for garbage.
_OBJECTS_PER_COLLECTION = 100_000
# From glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -3, -4, -8
_MMAP_MAX = 65_536  # glibc's default.
_LARGE = 32 * 2**20  # The largest threshold that glibc takes.
# Flags that a command with `define_overrides` has, besides `_SEVERAL`.
_OVERRIDES = ("step", "best", "task", "base", "num_heads", "gelu")
_OVERRIDES += ("layer_norm_epsilon", "pooling")
# Flags that take several numbers, with their help texts.
_SEVERAL = {
  "image_size": (
    "Image size to use the model at, as one side in pixels or height,width."
  ),
  "grid": "Grid of the stored position embeddings, as height,width.",
  "mean": "Mean to subtract from each channel, in [0, 1], as r,g,b.",
  "std": "Standard deviation to divide each channel by, as r,g,b.",
}


def run(
  main: Callable[[list[str]], int | None],
  takes: str = "",
  *,
  define: Callable[[], None] | None = None,
  resumes: bool = False,
  beside: Mapping[str, Sequence[str]] = MappingProxyType({}),
  needs: Mapping[str, str] = MappingProxyType({}),
) -> None:
  """Runs `main` under absl's flags; bad input prints one line and exits with 2.

  After the loss of a worker or a peer, the exit code is 75, as the same command
  may then succeed. Our checks raise ValueError or OSError, which are printed
  without a traceback. VIT_JAX_TRACEBACK=1 shows the traceback.

  Args:
    main: The command. It takes the command line's arguments, without the name
      of the command, and returns the exit code.
    takes: Names of the arguments, such as "CHECKPOINT IMAGE..."; flags may
      stand before, between and after them. Those in brackets may be left out.
    define: Defines the command's flags. It is called at the start, so importing
      the command defines none.
    resumes: Whether repeating the command resumes a run that was stopped.
    beside: For a flag, the flags that have no effect beside it.
    needs: For a flag, the flag without which it has no effect.
  """

  def check() -> None:
    """Raises ValueError if flags do not fit together."""
    usage.check_given()
    for flag, others in beside.items():
      if first_given(flag):
        refuse_beside(flag, *others)
    for flag, other in needs.items():
      if first_given(flag) and not flags.FLAGS[other].value:
        raise ValueError(f"--{flag} needs --{other}, which is not given.")

  def guarded(argv: list[str]) -> None:
    """Runs `main` with the arguments of absl's `argv`, and explains errors."""
    if not flags.FLAGS["verbosity"].present:
      # Libraries log every file they read.
      logging.set_verbosity(logging.ERROR)
    # This library logs a traceback of each error that it raises.
    std_logging.getLogger("gcsfs").setLevel(std_logging.CRITICAL)
    arguments = argv[1:]
    _check_arguments(arguments, takes)
    if "coordinator" not in flags.FLAGS:  # The command runs on one host.
      hosts.stay_alone()
    if was_closed:
      then = _KEPT if resumes else "what this command prints is lost."
      say(f"standard output is closed: {then}")
    if resumes:
      outlive_readers(_KEPT)
    if os.environ.get("VIT_JAX_TRACEBACK"):
      sys.exit(main(arguments))
    try:
      with until_closed():
        code = main(arguments)
      sys.exit(code)
    except (Exception, KeyboardInterrupt) as error:
      _explain(error, resumes)
      raise

  was_closed = open_missing_streams()
  keep_freed_memory()
  # With Python's default, it takes a tenth of the time until a step is traced.
  gc.set_threshold(_OBJECTS_PER_COLLECTION)
  _keep_compiled()
  app.run(guarded, flags_parser=functools.partial(_parse, define, takes, check))


def _explain(error: BaseException, resumes: bool) -> None:
  """Ends the process with one line, unless the error is a bug of ours.

  After a bug, the process has 10 s to end with a traceback.
  """
  if isinstance(error, KeyboardInterrupt):
    further = "; the same command resumes the run" if resumes else ""
    _fail(f"stopped by Ctrl-C{further}.", code=130)
  for kind, code in _EXITS.items():
    if isinstance(error, kind):
      _fail(
        usage.rewrite_in_flags(_one_line(error)),
        getattr(error, "exit_code", code),
      )
  hosts.leave_soon(1)


def cache_folder() -> pathlib.Path:
  """The folder that keeps downloads and compiled programs between runs.

  It is `$VIT_JAX_CACHE`, or else `vit_jax` in `$XDG_CACHE_HOME` or `~/.cache`.
  """
  if folder := os.environ.get("VIT_JAX_CACHE"):
    return pathlib.Path(folder).expanduser()
  base = os.environ.get("XDG_CACHE_HOME", "")
  if not os.path.isabs(base):  # The standard says to ignore a relative path.
    base = os.path.expanduser("~/.cache")
  return pathlib.Path(base, "vit_jax")


def keep_freed_memory() -> None:
  """Has glibc's malloc keep freed memory for the next buffers.

  XLA's CPU backend frees its buffers at every step. By default, large ones go
  back to the system, and new ones are mapped in page by page, which takes up to
  a third of a train step. All memory is kept in one heap, because the heaps of
  threads are too small for such buffers.
  """
  if libc := _glibc():
    libc.mallopt(_M_ARENA_MAX, 1)
    libc.mallopt(_M_MMAP_MAX, 0)
    libc.mallopt(_M_TRIM_THRESHOLD, -1)  # Never give memory back.


def give_back_freed_memory() -> None:
  """Has glibc's malloc give large buffers back to the system once freed.

  If malloc kept them, small buffers would lie between them, and a new large one
  might not fit into the room of a freed one: memory would hold both.
  """
  if libc := _glibc():
    libc.mallopt(_M_MMAP_THRESHOLD, _LARGE)
    libc.mallopt(_M_MMAP_MAX, _MMAP_MAX)
    libc.mallopt(_M_TRIM_THRESHOLD, _LARGE)
    libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
  """The C library, if it is glibc."""
  if sys.platform != "linux":
    return None
  libc = ctypes.CDLL(None)
  return libc if hasattr(libc, "mallopt") else None


def values(*names: str) -> dict[str, Any]:
  """The values of these flags, by their names."""
  return {name: flags.FLAGS[name].value for name in names}


def is_given(name: str) -> bool:
  """Whether the flag of this name is given, with any value."""
  return not flags.FLAGS[name].using_default_value


def first_given(*names: str) -> str | None:
  """The name of the first of these flags that is given a value, or None."""
  for name in names:
    if flags.FLAGS[name].value and is_given(name):
      return name
  return None


def refuse_beside(flag: str, *names: str) -> None:
  """Raises ValueError if one of the flags `names` is given with `flag`."""
  if name := first_given(*names):
    raise ValueError(
      f"--{name} has no effect with --{flag}: leave out one of the two."
    )


OVERRIDES = (*_OVERRIDES, *_SEVERAL)
"""The flags that `define_overrides` defines."""


def define_overrides() -> None:
  """Defines the flags of commands that take a checkpoint, for `overrides`."""
  says = "Step of a workdir's checkpoint; the newest by default."
  flags.DEFINE_integer("step", None, says)
  _define_best()
  says = "Number of heads, for sources that do not record it."
  flags.DEFINE_integer("num_heads", None, says)
  _define_own()
  says = "GELU to use in place of the source's."
  flags.DEFINE_enum("gelu", None, ("exact", "tanh", "quick"), says)
  says = "Pooling in place of the source's: token, gap or token_gap."
  flags.DEFINE_string("pooling", None, says)
  says = "Epsilon of the layer norms, in place of the source's."
  flags.DEFINE_float("layer_norm_epsilon", None, says)
  for name, says in _SEVERAL.items():
    flags.DEFINE_string(name, None, says)


def overrides() -> dict[str, Any]:
  """Keywords for `load_pretrained`, from the flags that were given.

  Raises ValueError if a flag's numbers are invalid.
  """
  keywords = values(*_OVERRIDES)
  keywords |= {name: _numbers_of(name) for name in _SEVERAL}
  return _given_keywords(keywords)


def define_choice() -> None:
  """Defines the flags of commands that evaluate a run, for `choice`."""
  says = "Step of the checkpoint; the newest by default."
  flags.DEFINE_integer("step", None, says)
  _define_best()
  _define_own()
  says = "Where the images or the packed data are now, if they have moved."
  flags.DEFINE_string("root", None, says)
  says = "Where the TFDS data sets are now, if they have moved."
  flags.DEFINE_string("data_dir", None, says)


def _define_best() -> None:
  """Defines the flag --best."""
  says = "Take the run's checkpoint with the best score."
  flags.DEFINE_bool("best", False, says)


def _define_own() -> None:
  """Defines the flags for a task of the user's own, and for moved weights."""
  says = "The run's task as file.py:Class, if it is one of your own."
  flags.DEFINE_string("task", None, says)
  says = "Where a LoRA base or a teacher is now, if it has moved."
  flags.DEFINE_string("base", None, says)


def choice() -> dict[str, Any]:
  """Keywords for `run.saved.open_saved_run`, from the flags that were given."""
  keywords = values("step", "best", "task", "base", "root", "data_dir")
  return _given_keywords(keywords)


def _given_keywords(keywords: dict[str, Any]) -> dict[str, Any]:
  """The keywords whose flags were given."""
  return {k: v for k, v in keywords.items() if v is not None and v is not False}


def _numbers_of(name: str) -> tuple[float, ...] | None:
  """The numbers given to a flag of `_SEVERAL`; None if it was not given.

  Raises ValueError if they are of another type or out of range.
  """
  value = flags.FLAGS[name].value
  if value is not None:
    with contextlib.suppress(ValueError, SyntaxError):  # `checked` refuses it.
      value = ast.literal_eval(value)
  kind, must = IMAGE_VALUES[name]
  return checked(f"--{name}", kind | None, value, must)


def _check_arguments(arguments: list[str], takes: str) -> None:
  """Ends the process with a line if arguments are missing or too many.

  `takes` is as in `run`.
  """
  needed = re.sub(r"\[.*\]", "", takes).split()
  if len(arguments) < len(needed):
    name = needed[len(arguments)].removesuffix("...")
    after = f" after {arguments[-1]!r}" if arguments else ""
    _fail(f"{name} is missing{after}; {usage.example()}")
  most = len(takes.split())
  if len(arguments) > most and not takes.endswith(("...", "...]")):
    _fail(f"unexpected argument {arguments[most]!r}; {usage.example()}")


def _keep_compiled() -> None:
  """Makes JAX cache compiled programs, so that the next start takes seconds.

  JAX_COMPILATION_CACHE_DIR names another folder; if it is empty, nothing is
  cached.
  """
  folder = cache_folder() / "compiled"
  try:
    folder.mkdir(parents=True, exist_ok=True)
  except OSError:
    return
  os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder))
  os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(_COMPILED_BYTES))
  os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.02")


def _parse(
  define: Callable[[], None] | None,
  takes: str,
  check: Callable[[], None],
  argv: list[str],
) -> list[str]:
  """Defines and parses the flags, or shows the help; returns other arguments.

  A mistake ends the process with a line. `check` raises ValueError if the flags
  do not fit together. `argv` is `sys.argv`, in which `define` may replace short
  forms by flags.
  """
  flags.FLAGS.set_gnu_getopt(True)
  help_form = next(filter(None, map(usage.ASKED.get, argv[1:])), "")
  try:
    if help_form:
      del argv[1:]
    if define is not None:
      define()
    complete()
    if help_form:
      doc = sys.modules["__main__"].__doc__ or ""
      with until_closed():
        sys.exit(say(usage.help_text(doc, takes, help_form), sys.stdout))
    usage.check_values(argv[1:])
    arguments = flags.FLAGS(list(argv))
    check()
    return arguments
  except flags.UnrecognizedFlagError as error:
    _fail(usage.unknown_flag(error, takes))
  except (flags.Error, ValueError, AttributeError, KeyError, OSError) as error:
    _fail(usage.rewrite_in_flags(_one_line(error)))


def complete(*commands: str) -> None:
  """Ends the process with an answer if a shell asks for completions.

  `eval "$(register-python-argcomplete vit_jax)"` makes bash and zsh ask. The
  first word may be one of `commands`, or any word if there are none.
  """
  if "_ARGCOMPLETE" in os.environ:
    import argcomplete
    from absl.flags import argparse_flags

    parser = argparse_flags.ArgumentParser(allow_abbrev=False)
    parser.add_argument("command", choices=commands or None)
    parser.add_argument("files", nargs="*")
    argcomplete.autocomplete(parser, always_complete_options="long")


def _one_line(error: BaseException) -> str:
  """The first line of an error's message, which says what is wrong."""
  lines = [line.strip() for line in str(error).splitlines() if line.strip()]
  if not lines:
    return type(error).__name__
  line = lines[0]
  quoted = line[0] in "\"'" and line[0] == line[-1]  # KeyError quotes its text.
  return line.strip(line[0]) if quoted else line


def _folder_is_gone() -> bool:
  """Whether the current folder was deleted, so that no relative path works."""
  try:
    os.getcwd()
  except FileNotFoundError:
    return True
  return False


def _fail(message: str, code: int = USAGE_EXIT) -> NoReturn:
  """Prints an error in one line, and ends the process."""
  if _folder_is_gone():
    message = f"{message.removesuffix('.')}; {_GONE}"
  # The message may quote control characters of a file or a flag.
  say(printable(f"error: {message}"))
  hosts.leave_soon(code)
  raise SystemExit(code)


def open_missing_streams() -> bool:
  """Opens standard streams that were closed at the start, on the null device.

  Python has None in the place of a closed stream, and the next file that is
  opened gets its number. Returns whether standard output was closed.
  """
  was_closed = sys.stdout is None
  for number, name in enumerate(_STREAMS):
    if getattr(sys, name) is not None:
      continue
    target = os.open(os.devnull, os.O_RDWR)
    try:
      os.fstat(number)  # The number may be another file's by now.
    except OSError:
      os.dup2(target, number)
    mode = "w" if number else "r"
    # Not closed with the object, which `outlive_readers` replaces.
    setattr(sys, name, open(target, mode, encoding="utf-8", closefd=False))
  return was_closed


@contextlib.contextmanager
def until_closed() -> Iterator[None]:
  """Ends the process quietly if the reader of its output has ended.

  The reader may be a program such as `head`. Raises SystemExit in this case,
  and BrokenPipeError for any other pipe.
  """
  try:
    yield
    sys.stdout.flush()
  except BrokenPipeError:
    poll = select.poll()
    poll.register(sys.stdout)
    if not any(state & ~select.POLLOUT for _, state in poll.poll(0)):
      raise  # It was another pipe, such as one to a process.
    # The rest of the buffer must not fail at the end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    hosts.leave_soon(_CLOSED_EXIT)
    raise SystemExit(_CLOSED_EXIT) from None


def outlive_readers(then: str) -> None:
  """Lets the process go on when its output can no longer be written.

  The reader, such as `head` or a terminal, may have gone, or the disk with the
  output may be full. One line on standard error says so, and ends in `then`.
  """

  def tell(error: OSError) -> None:
    why = f"standard output cannot be written ({error.strerror})"
    say(f"{why}: {then}")

  for name in _STREAMS[1:]:
    stream = getattr(sys, name)
    if type(stream) is not io.TextIOWrapper:  # A notebook's, or a test's.
      continue
    stream.flush()
    raw: Any = _LossyStream(stream.fileno(), tell if name == "stdout" else None)
    lasting = io.TextIOWrapper(
      raw if stream.write_through else io.BufferedWriter(raw),
      encoding=stream.encoding,
      errors=stream.errors,
      line_buffering=stream.line_buffering,
      write_through=stream.write_through,
    )
    setattr(sys, name, lasting)


class _LossyStream(io.FileIO):
  """A stream that drops everything after its first error.

  It calls `tell` once with that error.
  """

  def __init__(self, number: int, tell: Callable[[OSError], None] | None):
    super().__init__(number, "w", closefd=False)
    self._tell, self._is_lost = tell, False

  def write(self, data: Any) -> int:
    """Writes the data; returns the number of bytes written or dropped."""
    if not self._is_lost:
      try:
        return super().write(data)
      except OSError as error:
        self._is_lost = True
        if self._tell is not None:
          self._tell(error)
    return memoryview(data).nbytes
