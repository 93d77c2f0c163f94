"""Runs a command as a user would."""

import os
import subprocess
import sys


def run(module: str, *arguments: str, **environment: str):
  """Runs `python -m MODULE ARGUMENTS`; returns code, stdout and stderr."""
  return subprocess.run(
    [sys.executable, "-m", module, *arguments],
    capture_output=True,
    text=True,
    env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
    timeout=240,
    check=False,
  )
