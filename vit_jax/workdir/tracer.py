"""Writes a profile of some steps."""

import pathlib
import shutil
import tempfile
from typing import Any

import jax

from vit_jax.workdir import bucket
from vit_jax.workdir.read_errors import as_os_error


class Tracer:
  """Writes a trace of some steps, which XProf or TensorBoard shows.

  Args:
    folder: The folder for the trace, local or such as gs://bucket/run/profile.
    begin: The first step to trace.
    steps: How many steps to trace; 0 traces none.
    last: The run's last step, which ends the trace.
  """

  def __init__(self, folder: str, begin: int, steps: int, last: int):
    self._folder, self._begin = folder, begin
    # JAX cannot write to gs://, so a trace is written here and then sent.
    self._local = folder
    self._end = min(begin + steps - 1, last) if steps else 0
    self._tracing = False

  def before(self, step: int) -> None:
    """Starts the trace if it is to start with this step.

    Raises:
      OSError: if it cannot be started; the run then has no trace.
    """
    if step == self._begin <= self._end:
      with as_os_error():
        if bucket.is_address(self._folder):
          self._local = tempfile.mkdtemp()
        jax.profiler.start_trace(self._local)
        self._tracing = True

  def after(self, step: int, metrics: Any) -> None:
    """Ends the trace if this was its last step, which gave `metrics`.

    Raises:
      OSError: if it cannot be written.
    """
    if self._tracing and step == self._end:
      jax.block_until_ready(metrics)
      self._tracing = False
      with as_os_error():
        jax.profiler.stop_trace()
        if self._local != self._folder:
          self._send()

  def _send(self) -> None:
    for path in pathlib.Path(self._local).rglob("*"):
      if path.is_file():
        name = path.relative_to(self._local).as_posix()
        target = bucket.blob(f"{self._folder}/{name}")
        target.upload_from_filename(path, retry=bucket.retry())
    shutil.rmtree(self._local)
