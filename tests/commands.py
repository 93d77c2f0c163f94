"""A command as a user types it."""

import os
import subprocess
import sys


def run(module: str, *arguments: str, **environment: str):
  """What `python -m MODULE ARGUMENTS` did: returncode, stdout, stderr."""
  return subprocess.run(
    [sys.executable, "-m", module, *arguments],
    capture_output=True,
    text=True,
    env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
    timeout=240,
    check=False,
  )
