"""Reads files of bounded size, and writes files completely or not at all.

Files of an unknown folder are read through `open_regular` and `read_regular`,
which take regular files alone: a FIFO would make its reader wait for ever, a
device such as /dev/zero never ends, and a file of gigabytes in the place of a
short text fills the memory.

What `replacing`, `filling` and `commit` write appears completely or not at all,
and survives a crash of the machine.
"""

import concurrent.futures
import contextlib
import errno
import io
import itertools
import os
import pathlib
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO

from etils import epath

from vit_jax.runtime.printable import say

Path = str | os.PathLike[str]
MOST_TEXT = 64 * 2**20  # Bytes of a text: JSON, rows, names, sums.

_KINDS = {
  stat.S_IFDIR: "a folder",
  stat.S_IFIFO: "a FIFO",
  stat.S_IFSOCK: "a socket",
  stat.S_IFCHR: "a device",
  stat.S_IFBLK: "a device",
}

CSV = {"CSV": (".csv", ".txt")}
# Endings by which people and programs tell what is in a file. Other endings,
# such as that of "model.v2", say nothing.
_ENDINGS = frozenset(
  """
  .csv .tsv .txt .md .json .jsonl .ndjson .yaml .yml .toml .xml .html .htm .xls
  .xlsx .ods .parquet .arrow .feather .db .sqlite .pdf .doc .docx .tex .py
  .ipynb .png .jpg .jpeg .webp .gif .bmp .tif .tiff .svg .eps .ps .heic .avif
  .npy .npz .h5 .hdf5 .mat .pkl .pickle .joblib .safetensors .pt .pth .pt2 .ckpt
  .gguf .onnx .tflite .pb .mlmodel .mlpackage .engine .stablehlo .mlir .hlo .zip
  .tar .gz .tgz .bz2 .xz .zst .7z
  """.split()
)

_PICTURES = frozenset(".png .jpg .jpeg .webp .gif .bmp .tif .tiff".split())

_DRAFT = re.compile(r"\..+\.[0-9a-f]{8}\.part", re.DOTALL)


class NotRegularError(OSError):
  """A path that leads to something else than a regular file."""


class TooLargeError(OSError):
  """A file that holds more bytes than its purpose can need."""


def open_regular(path: Path, at_most: int | None = None) -> io.BufferedReader:
  """Opens a local file to read bytes.

  Links are followed. The call never waits: a FIFO without a writer is refused
  at once.

  Raises:
    NotRegularError: the path leads to a folder, FIFO, socket or device.
    TooLargeError: the file has more than `at_most` bytes.
    OSError: as `open`, such as FileNotFoundError.
  """
  _check_regular(os.stat(path), path)  # Opening some devices changes them.
  # Between the two calls, the file may have been replaced.
  flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | os.O_CLOEXEC
  file = os.fdopen(os.open(path, flags), "rb")
  try:
    status = os.fstat(file.fileno())
    _check_regular(status, path)
    _check_size(status.st_size, path, at_most)
  except BaseException:
    file.close()
    raise
  return file


def open_anywhere(path: Path) -> IO[bytes]:
  """Opens a local file as `open_regular`, or one at an address such as gs://."""
  if "://" in os.fspath(path):
    return epath.Path(path).open("rb")
  return open_regular(path)


def read_regular(path: Path, at_most: int = MOST_TEXT) -> bytes:
  """The bytes of a file of at most `at_most` bytes.

  The path may be an address such as gs://bucket/name.

  Raises:
    NotRegularError: the path leads to a folder, FIFO, socket or device.
    TooLargeError: the file has more than `at_most` bytes.
    OSError: as `open`, such as FileNotFoundError; a bucket's library may raise
      its own errors.
  """
  if "://" in os.fspath(path):
    remote = epath.Path(path)
    _check_size(int(remote.stat().length), path, at_most)
    return remote.read_bytes()
  with open_regular(path, at_most) as file:
    size = os.fstat(file.fileno()).st_size
    # `read` takes memory for all bytes that it is asked for.
    content = file.read(size + 1)
    if len(content) > size:  # The file grows, or is one of /proc, of 0 bytes.
      content += file.read(at_most + 1 - len(content))
  _check_size(len(content), path, at_most)
  return content


def _check_regular(status: os.stat_result, path: Path) -> None:
  """Raises NotRegularError unless the status is that of a regular file."""
  if stat.S_ISREG(status.st_mode):
    return
  kind = _KINDS.get(stat.S_IFMT(status.st_mode), "no file")
  place = pathlib.Path(path)
  link = " (by a link)" if place.is_symlink() else ""
  number = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL
  raise NotRegularError(number, f"{kind}{link}, not a regular file", str(path))


def _check_size(size: int, path: Path, at_most: int | None) -> None:
  """Raises TooLargeError for more than `at_most` bytes."""
  if at_most is not None and size > at_most:
    why = f"larger than the {at_most:,} bytes that such a file may have"
    raise TooLargeError(errno.EFBIG, why, str(path))


def local_path(name: str) -> pathlib.Path:
  """The path for a name; raises ValueError if it is empty or an address."""
  if not name:
    raise ValueError("the path to write to is empty: give a path.")
  if "://" in name:
    needed = "is an address, and only local files can be written: give a path."
    raise ValueError(f"{name} {needed}")
  return pathlib.Path(os.path.expanduser(name))


def output_file(
  name: str | os.PathLike[str],
  formats: Mapping[str, Sequence[str]],
  chosen: str | None = None,
) -> tuple[pathlib.Path, str]:
  """The path of a file to write, and the format that its ending stands for.

  Args:
    formats: The endings of each format that can be written. A name without an
      ending stands for the first format, and so does one with an ending that
      says nothing; then a line says so.
    chosen: The format that the user chose by a flag or an argument, if any.

  Raises:
    ValueError: as `local_path` does, for a folder, and for the ending of a
      format that is not among `formats` or not the chosen one.
  """
  name = os.fspath(name)
  path = local_path(name)
  if path.is_dir():
    raise ValueError(f"{name!r} is a folder; name the file to write.")
  ending = path.suffix.lower()
  named = [key for key, endings in formats.items() if ending in endings]
  if ending in _ENDINGS and not (named and chosen in (None, *named)):
    can = {chosen: formats[chosen]} if chosen else formats
    those = " or ".join(f"{key} ({', '.join(can[key])})" for key in can)
    raise ValueError(
      f"{name!r}: {path.suffix} says another format than what is written, "
      f"{those}: give another ending."
    )
  kind = chosen or [*named, *formats][0]
  if ending and not (named or chosen):
    endings = " and ".join(itertools.chain(*formats.values()))
    say(
      f"{path}: {path.suffix} names no format, so it becomes {kind}; endings "
      f"of formats are {endings}."
    )
  return path, kind


def output_folder(name: str | os.PathLike[str]) -> pathlib.Path:
  """The path of a folder to write.

  Raises ValueError as `local_path` does, for a file, and for a name that has
  the ending of one, unless there is such a folder.
  """
  name = os.fspath(name)
  path = local_path(name)
  if path.exists() and not path.is_dir():
    raise ValueError(f"{name!r} is a file; name the folder to write to.")
  if path.suffix.lower() in _ENDINGS and not path.exists():
    raise ValueError(
      f"{name!r} is the name of a {path.suffix} file, and a folder is written: "
      "leave out the ending."
    )
  return path


def check_new_folder(folder: pathlib.Path | epath.Path) -> None:
  """Raises ValueError unless the folder to write does not exist or is empty."""
  if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
    raise ValueError(
      f"{folder} exists and is not empty, and nothing is written over: choose "
      "another name, or delete it first."
    )


def real_path(path: Path) -> str:
  """The absolute path of a local file or folder, the same by all its names."""
  return os.path.realpath(os.path.expanduser(path))


def check_apart(
  written: Iterable[Path | None], read: Iterable[Path | None]
) -> None:
  """Raises ValueError if a file to write is read as well, or written twice.

  A picture may not be written below a folder inside one that is read either,
  such as that of a class: it would be one more image there, or replace one.
  Each may be None, or an address, which is no local file.
  """
  sources = [real_path(p) for p in read if p]
  taken = dict.fromkeys(sources, "is read")
  for path in filter(None, written):
    place = real_path(path)
    folder, name = os.path.split(place)
    is_picture = os.path.splitext(name)[1].lower() in _PICTURES
    if is_picture and any(folder.startswith(f"{s}{os.sep}") for s in sources):
      raise ValueError(
        f"{os.fspath(path)!r} lies in a folder whose images are read: write to "
        "another place."
      )
    if place in taken:
      raise ValueError(
        f"{os.fspath(path)!r} {taken[place]} by this command as well: give "
        "another name for what it writes."
      )
    taken[place] = "is written"


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[io.BufferedWriter]:
  """Opens a draft to write, which replaces `path` at the end of the context.

  Missing parent folders are made.
  """
  path = path.resolve()
  with _part(path) as part:
    with open(part, "xb") as file:
      yield file
    commit(part, path)


@contextlib.contextmanager
def filling(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Makes a folder to write to, whose files appear in `folder` at the end.

  `folder` may exist if it is empty. Otherwise it is made, with its parents.
  """
  folder = folder.resolve()  # "." would have no name.
  with _part(folder) as part:
    part.mkdir()
    yield part
    if folder.exists():  # Not replaced: it may be a shell's.
      for file in part.iterdir():
        commit(file, folder / file.name)
      part.rmdir()
    else:
      commit(part, folder)


def commit(draft: os.PathLike[str], path: os.PathLike[str]) -> None:
  """Syncs a draft to the disk, renames it to `path`, and syncs the name."""
  sync(draft, *pathlib.Path(draft).rglob("*"))
  os.replace(draft, path)
  sync(pathlib.Path(path).parent)


def remove_drafts(folder: pathlib.Path) -> None:
  """Removes the drafts that killed processes have left in a folder."""
  for path in folder.glob(".*.part"):
    if _DRAFT.fullmatch(path.name):
      shutil.rmtree(path) if path.is_dir() else path.unlink()


def sync(*paths: os.PathLike[str]) -> None:
  """Forces files, and the names in folders, onto the disk if possible."""
  # Threads let the system combine writes.
  with concurrent.futures.ThreadPoolExecutor(16) as pool:
    list(pool.map(_sync, paths))


def _sync(path: os.PathLike[str]) -> None:
  """Forces one file or folder onto the disk, where that is possible."""
  try:
    number = os.open(path, os.O_RDONLY)
    try:
      os.fsync(number)
    finally:
      os.close(number)
  except OSError as error:
    if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES):
      raise


@contextlib.contextmanager
def _part(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields the path of a draft beside `path`.

  If the context raises an error, the draft is removed, and an OSError about the
  draft is raised as one about `path`.
  """
  part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
  try:
    _make_folder(path.parent)
    yield part
  except BaseException as error:
    if os.path.isdir(part):
      shutil.rmtree(part, ignore_errors=True)
    elif os.path.lexists(part):
      part.unlink()
    if isinstance(error, OSError) and _is_about(error, part):
      number = error.errno or 0
      if number == errno.EEXIST:  # A file is in the place of a parent folder.
        number = errno.ENOTDIR
      why = f"{str(path)!r} cannot be written ({os.strerror(number)})"
      clear = OSError(f"{why}: choose another place.")
      clear.errno = number  # An enclosing `_part` may look at it.
      raise clear from error
    raise


def _make_folder(folder: pathlib.Path) -> None:
  """Makes a folder and its parents, and forces their names onto the disk."""
  missing = [path for path in (folder, *folder.parents) if not path.exists()]
  folder.mkdir(parents=True, exist_ok=True)
  if missing:
    sync(*(path.parent for path in missing))


def _is_about(error: OSError, part: pathlib.Path) -> bool:
  """Whether an error comes from writing `part`, not from reading a file."""
  if error.filename is None:
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
  name = pathlib.Path(os.fsdecode(error.filename))
  return part in (name, *name.parents) or name in part.parents
