"""Sends a run's metrics to Weights & Biases, on behalf of `MetricWriter`."""

import os
import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np
from etils import epath
from jaxtyping import UInt8

from vit_jax.runtime import extras
from vit_jax.workdir.bucket import as_os_error, is_address

_LAST_UPLOAD = 60  # Seconds at most; it would never end without a network.


class WandbLog:
  """One run at Weights & Biases for one workdir, however often it is started.

  A step that is written again, as the run went on from an older checkpoint,
  keeps the values that were written first. With WANDB_MODE=offline everything
  stays in WORKDIR/wandb until `wandb sync`, or in ./wandb if the workdir is an
  address.

  Attributes:
    place: Where to see the run: an address, or a folder when offline.

  Raises:
    ValueError: if wandb is not installed, or refuses the login.
  """

  def __init__(self, folder: epath.Path, project: str, config: dict[str, Any]):
    self._wandb = wandb = extras.load("wandb", "wandb")
    local = None if is_address(folder) else os.fspath(folder)
    try:
      self._run = wandb.init(
        project=project,
        id=_run_id(folder),
        resume="allow",
        name=folder.name,
        dir=local,
        config=config,
        allow_val_change=True,  # Some keys may change when a run goes on.
        settings=wandb.Settings(
          console="off",
          silent=True,
          finish_timeout=_LAST_UPLOAD,
          finish_timeout_raises=True,
        ),
      )
    except wandb.Error as error:
      reason = (str(error).splitlines() or [type(error).__name__])[0]
      raise ValueError(
        f"wandb_project={project!r}: {reason} Or set WANDB_MODE=offline, and "
        "send the run later by `wandb sync`."
      ) from error
    run = self._run
    where = f"offline, in {run.dir}" if run.offline else run.url
    self.place = where or "nothing is logged, as WANDB_MODE says"

  def write(self, step: int, numbers: Mapping[str, float]) -> None:
    """Logs numbers; raises OSError if they cannot be logged."""
    with as_os_error():
      self._run.log(dict(numbers), step=step)

  def write_images(
    self, step: int, images: Mapping[str, UInt8[np.ndarray, "H W 3"]]
  ) -> None:
    """Logs pictures; raises OSError if they cannot be logged."""
    with as_os_error():
      logged = {key: self._wandb.Image(image) for key, image in images.items()}
      self._run.log(logged, step=step)

  def close(self, failed: bool) -> None:
    """Sends the rest, and how the run ended; raises OSError if it cannot."""
    with as_os_error():
      self._run.finish(exit_code=int(failed))


def _run_id(folder: epath.Path) -> str:
  """The run's name at Weights & Biases, which the workdir keeps."""
  path = folder / "wandb_id"
  if not path.exists():
    path.write_text(secrets.token_hex(8))
  return path.read_text().strip()
