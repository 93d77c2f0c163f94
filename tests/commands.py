"""Runs a command as a user would."""

import os
import subprocess
import sys

# What a library will take away is an error here too; the cache is as in
# pyproject.toml.
_COMMON = {
  "JAX_PLATFORMS": "cpu",
  "PYTHONWARNINGS": "error::DeprecationWarning,error::FutureWarning,"
  "error::PendingDeprecationWarning,"
  "ignore:Error reading persistent compilation cache entry:UserWarning",
}


def run(module: str, *arguments: str, **environment: str):
  """Runs `python -m MODULE ARGUMENTS`; returns code, stdout and stderr."""
  return python("-m", module, *arguments, **environment)


def refused(module: str, *arguments: str) -> str:
  """The only line that a command prints of input that it refuses."""
  done = run(module, *arguments)
  assert done.returncode == 2, done.stderr
  (line,) = done.stderr.splitlines()
  assert line.startswith("error: ")
  return line


def python(*arguments: str, **environment: str):
  """Runs Python with these arguments; returns code, stdout and stderr."""
  return subprocess.run(
    [sys.executable, *arguments],
    capture_output=True,
    text=True,
    env={**os.environ, **_COMMON, **environment},
    timeout=300,
    check=False,
  )


def start(*arguments: str, **environment: str):
  """Starts Python with these arguments; its stdout and stderr are pipes."""
  return subprocess.Popen(
    [sys.executable, *arguments],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    env={**os.environ, **_COMMON, **environment},
  )
