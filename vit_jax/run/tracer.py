"""Profiles some steps of a run."""

import pathlib
import shutil
import tempfile
from typing import Any

import jax

from vit_jax.workdir import bucket


class Tracer:
  """Writes a trace of some steps, which XProf or TensorBoard shows.

  The trace begins with step `begin` and has `steps` steps; 0 writes no trace.
  It ends with the run's last step at the latest. The folder is local or an
  address such as gs://bucket/run/profile. If the trace cannot be written, the
  methods raise OSError.
  """

  def __init__(self, folder: str, begin: int, steps: int, last: int):
    # JAX cannot write to gs://, so a trace is written to `_local` and sent.
    self._folder = self._local = folder
    self._begin, self._tracing = begin, False
    self._end = min(begin + steps - 1, last) if steps else 0

  def before(self, step: int) -> None:
    """Starts the trace if it is due; raises OSError if that fails."""
    if step == self._begin <= self._end:
      with bucket.as_os_error():
        if bucket.is_address(self._folder):
          self._local = tempfile.mkdtemp()
        jax.profiler.start_trace(self._local)
        self._tracing = True

  def after(self, step: int, metrics: Any) -> None:
    """Ends the trace if `step`, which returned `metrics`, was its last one."""
    if self._tracing and step == self._end:
      jax.block_until_ready(metrics)
      self._tracing = False
      with bucket.as_os_error():
        jax.profiler.stop_trace()
        if self._local != self._folder:
          self._send()

  def _send(self) -> None:
    """Uploads the local trace, and then deletes it here."""
    for path in pathlib.Path(self._local).rglob("*"):
      if path.is_file():
        name = path.relative_to(self._local).as_posix()
        target = bucket.blob(f"{self._folder}/{name}")
        target.upload_from_filename(path, retry=bucket.retry())
    shutil.rmtree(self._local)
