"""Records of a run: its starts, metrics, digests and unreadable images.

WORKDIR/starts.jsonl has a line of JSON for each start: its time, the command
line, the machine and the versions of the packages. Metrics are written to
WORKDIR/metrics.jsonl, TensorBoard and Weights & Biases.
"""

import contextlib
import datetime
import importlib.metadata
import os
import platform
import secrets
import shlex
import socket
import struct
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import jax
import numpy as np
from etils import epath
from jaxtyping import UInt8

from vit_jax.runtime import extras
from vit_jax.runtime.files import read_regular
from vit_jax.workdir import bucket
from vit_jax.workdir.rows import (
  AppendFile,
  Row,
  RowFile,
  Rows,
  holds_numbers,
  is_count,
  is_text,
  read,
  read_rows,
  replace,
  to_line,
)

STARTS = "starts.jsonl"
METRICS, DIGESTS = "metrics.jsonl", "digests.jsonl"
_MOST_ID = 2**10  # Bytes of the file with a run's id at Weights & Biases.
_LAST_UPLOAD = 60  # Seconds; without a network, an upload would never end.
_Images = Mapping[str, UInt8[np.ndarray, "H W 3"]]
_PACKAGES = ("vit_jax", "jax", "flax", "optax", "orbax-checkpoint", "numpy")
_TEXTS = ("time", "devices", "system", "python")  # Texts in starts.jsonl.
_SHOWN = 3  # Names of unreadable images in a message.


def record_start(folder: epath.Path, step: int) -> None:
  """Records a start from this step; only the first process writes.

  Raises OSError if it cannot be written.
  """
  if jax.process_index():
    return
  path = folder / STARTS
  before = read(path)
  if before and not before.endswith(b"\n"):  # A full disk cut the last line.
    before += b"\n"
  replace(path, before + to_line({"step": step, **describe_start()}))


def read_starts(folder: epath.Path) -> Rows:
  """All recorded starts of a run, oldest first; see `describe_start`."""
  return read_rows(folder / STARTS, _is_start)


def _is_start(row: Row) -> bool:
  """Whether a row has all that `describe_start` gives, each of its type."""
  if not {"command", "hosts", "cores", "packages", *_TEXTS} <= row.keys():
    return False
  packages = row["packages"]
  if not isinstance(packages, dict):
    return False
  optional = row["command"], *packages.values()
  texts = [*(row[key] for key in _TEXTS), *packages]
  texts += [text for text in optional if text is not None]
  counts = row["hosts"], 0 if row["cores"] is None else row["cores"]
  return (
    all(map(is_text, texts))
    and all(map(is_count, counts))
    and _is_time(row["time"])
  )


def _is_time(text: str) -> bool:
  """Whether a text is a time with its zone, as `describe_start` writes it."""
  try:
    return datetime.datetime.fromisoformat(text).tzinfo is not None
  except ValueError:
    return False


def keep_unreadable(folder: epath.Path, images: Iterable[str]) -> str:
  """Adds images to WORKDIR/unreadable.txt, one per line with its reason.

  An example of a line is "photos/cat/1.jpg: the file is empty." The files of
  other hosts than the first have the host's number in their names. Returns a
  line with the number of images and the first ones. Raises OSError if the file
  cannot be written.
  """
  host = f"_{jax.process_index()}" if jax.process_index() else ""
  path = folder / f"unreadable{host}.txt"
  before = read(path).decode(errors="replace")
  lines = [*dict.fromkeys([*before.splitlines(), *images])]
  replace(path, "".join(f"{line}\n" for line in lines).encode())
  first = " ".join(lines[:_SHOWN])
  more = "" if len(lines) <= _SHOWN else " ..."
  noun = "image" if len(lines) == 1 else "images"
  return f"{len(lines):,} unreadable {noun}, listed in {path}: {first}{more}"


def describe_start() -> dict[str, Any]:
  """This process, its machine and its packages, for a row of starts.jsonl."""
  now = datetime.datetime.now(datetime.UTC)
  return {
    "time": now.isoformat(timespec="seconds"),
    "command": _command(sys.orig_argv),
    "devices": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
    "hosts": jax.process_count(),
    "cores": os.cpu_count(),
    "system": f"{platform.system()} {platform.machine()}",
    "python": platform.python_version(),
    "packages": {name: _version(name) for name in _PACKAGES},
  }


def _command(argv: list[str]) -> str | None:
  """The command line as it was typed; None if the run began in Python."""
  if "-m" in argv[1:]:
    typed = ["python", *argv[argv.index("-m") :]]
  else:  # It may be the script `vit_jax`, which pip installs.
    typed = [*map(os.path.basename, argv[1:2]), *argv[2:]]
  named = " ".join(typed).removeprefix("python -m ") + " "
  is_train = named.startswith(("vit_jax.train ", "vit_jax train "))
  return shlex.join(typed) if is_train else None


def _version(package: str) -> str | None:
  """A package's version; None if it is not installed, but run from source."""
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return None


def read_metrics(workdir: epath.Path) -> Rows:
  """The rows of a run's metrics, sorted by step.

  Raises OSError if they cannot be read.
  """
  table = read_rows(workdir / METRICS, holds_numbers)
  rows = sorted(table.rows, key=lambda row: row["step"])
  return table._replace(rows=rows)


def metrics_so_far(workdir: epath.Path) -> list[dict[str, Any]]:
  """The rows of a run's metrics, sorted by step; [] if they cannot be read."""
  with contextlib.suppress(OSError):
    return read_metrics(workdir).rows
  return []


def read_digests(workdir: epath.Path) -> Rows:
  """The rows of a run's digests; raises OSError if they cannot be read."""
  return read_rows(workdir / DIGESTS, holds_numbers)


class MetricWriter:
  """Writes metrics to `metrics.jsonl`, TensorBoard and Weights & Biases.

  `workdir/metrics.jsonl` has a JSON object a line, with `step` and keys such as
  `train/loss`. Only the first process writes. If one of the three cannot be
  written, the others still are. All methods raise an OSError when one of them
  begins to fail, and then only if it fails again after a success. The run
  starts from `first_step`, as for `RowFile`. `wandb_log` receives the same
  metrics, and is closed with this writer. `notes` has a line for each file of
  earlier starts with broken lines.
  """

  def __init__(
    self,
    workdir: epath.Path,
    first_step: int = 0,
    wandb_log: "WandbLog | None" = None,
  ):
    self.notes: list[str] = []
    self._failing: set[str] = set()
    self._files: dict[str, RowFile | EventFile | WandbLog] = {}
    if jax.process_index():
      return
    workdir.mkdir(parents=True, exist_ok=True)
    for name in (METRICS, DIGESTS):
      self._files[name] = rows = RowFile(workdir / name, first_step)
      if lines := rows.skipped:
        self.notes.append(
          f"{name} held {lines} broken lines, which are dropped."
        )
    self._files["TensorBoard"] = EventFile(workdir / "tensorboard", first_step)
    if wandb_log is not None:
      self._files["Weights & Biases"] = wandb_log

  def write(self, step: int, values: dict[str, Any]) -> None:
    """Writes a row; nested dictionaries go to `metrics.jsonl` alone."""
    numbers = {k: v for k, v in values.items() if isinstance(v, int | float)}

    def write_to(file: RowFile | EventFile | WandbLog) -> None:
      file.write(step, values if isinstance(file, RowFile) else numbers)

    self._attempt(self._files.keys() - {DIGESTS}, write_to)

  def write_digests(self, step: int, row: dict[str, Any]) -> None:
    """Writes a row of `digests.jsonl`."""
    digests = self._files.keys() & {DIGESTS}
    self._attempt(digests, lambda file: file.write(step, row))

  def write_images(self, step: int, images: _Images) -> None:
    """Writes pictures, which `metrics.jsonl` does not get."""
    boards = self._files.keys() - {METRICS, DIGESTS}
    self._attempt(boards, lambda board: board.write_images(step, images))

  def close(self, failed: bool = False) -> None:
    """Writes the data that still waits.

    `failed` says whether the run ends by an error, as Weights & Biases shows.
    """
    self._attempt(self._files, lambda file: file.close(failed))

  def _attempt(
    self, names: Collection[str], write: Callable[[Any], None]
  ) -> None:
    """Writes to some files; raises one OSError for those that begin to fail."""
    failures = []
    for name in filter(names.__contains__, self._files):
      try:
        write(self._files[name])
        self._failing.discard(name)
      except OSError as error:
        if name not in self._failing:
          failures.append(f"{name}: {error}")
        self._failing.add(name)
    if failures:
      raise OSError("; ".join(failures))


class EventFile(AppendFile):
  """TensorBoard's events of one start of a run.

  tensorboardX's own writer has a thread that ends with the first failed write,
  after which adding events waits for ever. Here a failed write is an OSError.
  TensorBoard drops events beyond `first_step`, from which the run starts, that
  earlier starts wrote. The folder is local or such as
  gs://bucket/run/tensorboard.
  """

  def __init__(self, folder: epath.Path, first_step: int):
    # Imported here, as a run opens this file while its step is compiled.
    from tensorboardX import summary
    from tensorboardX.proto import event_pb2

    self._summary = summary
    self._proto: Any = event_pb2  # Type checkers do not know its classes.
    host = f"{socket.gethostname()}.{os.getpid()}"
    name = f"events.out.tfevents.{int(time.time())}.{host}"
    version = _record(self._proto.Event(file_version="brain.Event:2"))
    start = self._proto.SessionLog(status=self._proto.SessionLog.START)
    purge = _record(self._proto.Event(step=first_step + 1, session_log=start))
    super().__init__(folder / name, version + purge)

  def write(self, step: int, numbers: Mapping[str, float]) -> None:
    """Adds the numbers of a step; raises OSError as `append` does."""
    scalar = self._summary.scalar
    self._add(step, [scalar(key, n) for key, n in numbers.items()])

  def write_images(self, step: int, images: _Images) -> None:
    """Adds the pictures of a step; raises OSError as `append` does."""
    image = self._summary.image
    values = [image(k, x, dataformats="HWC") for k, x in images.items()]
    self._add(step, values)

  def _add(self, step: int, values: list[Any]) -> None:
    """Appends an event for each value of a step."""
    event = self._proto.Event
    now = time.time()
    events = [event(step=step, wall_time=now, summary=v) for v in values]
    self.append(b"".join(map(_record, events)))


def _record(event: Any) -> bytes:
  """An event as a record of TFRecord: length and data, each with a checksum."""
  from tensorboardX.record_writer import masked_crc32c

  data = event.SerializeToString()
  length = struct.pack("<Q", len(data))
  checks = [struct.pack("<I", masked_crc32c(part)) for part in (length, data)]
  return length + checks[0] + data + checks[1]


class WandbLog:
  """One run at Weights & Biases for one workdir, however often it is started.

  A step that is written again, as the run went on from an older checkpoint,
  keeps the values that were written first. With WANDB_MODE=offline everything
  stays in WORKDIR/wandb until `wandb sync`, or in ./wandb if the workdir is an
  address. `place` says where to see the run: an address, or a folder when
  offline. Raises ValueError if wandb is not installed, or refuses the login,
  and OSError if a file cannot be written.
  """

  def __init__(self, folder: epath.Path, project: str, config: dict[str, Any]):
    self._wandb = wandb = extras.load("wandb", "wandb")
    local = None if bucket.is_address(folder) else os.fspath(folder)
    settings = {"console": "off", "silent": True, "finish_timeout_raises": True}
    settings["finish_timeout"] = _LAST_UPLOAD
    path = folder / "wandb_id"  # It keeps the run's id at Weights & Biases.
    if not path.exists():
      replace(path, secrets.token_hex(8).encode())
    try:
      self._run = wandb.init(
        project=project,
        id=read_regular(path, _MOST_ID).decode().strip(),
        resume="allow",
        name=folder.name,
        dir=local,
        config=config,
        allow_val_change=True,  # Some keys may change when a run goes on.
        settings=wandb.Settings(**settings),
      )
    except wandb.Error as error:
      reason = (str(error).splitlines() or [type(error).__name__])[0]
      raise ValueError(
        f"wandb_project={project!r}: {reason} Or set WANDB_MODE=offline, and "
        "send the run later by `wandb sync`."
      ) from error
    run = self._run
    place = f"offline, in {run.dir}" if run.offline else run.url
    self.place = place or "nothing is logged, as WANDB_MODE says"

  def write(self, step: int, numbers: Mapping[str, float]) -> None:
    """Logs numbers; raises OSError if they cannot be logged."""
    with bucket.as_os_error():
      self._run.log(dict(numbers), step=step)

  def write_images(self, step: int, images: _Images) -> None:
    """Logs pictures; raises OSError if they cannot be logged."""
    with bucket.as_os_error():
      logged = {key: self._wandb.Image(image) for key, image in images.items()}
      self._run.log(logged, step=step)

  def close(self, failed: bool) -> None:
    """Sends the remaining data and how the run ended; may raise OSError."""
    with bucket.as_os_error():
      self._run.finish(exit_code=int(failed))
