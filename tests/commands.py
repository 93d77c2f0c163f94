"""Runs a command as a user would."""

import os
import subprocess
import sys

from tests import forks


def run(module: str, *arguments: str, **environment: str):
  """Runs `python -m MODULE ARGUMENTS`; returns code, stdout and stderr.

  On Linux it is a fork of a process that has imported JAX, unless a variable
  that JAX and its like read when they are imported is another.
  """
  variables = {**os.environ, **forks.COMMON, **environment}
  if sys.platform == "linux" and forks.server().fits(variables):
    return forks.server().run(module, [*map(str, arguments)], variables)
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
    env={**os.environ, **forks.COMMON, **environment},
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
    env={**os.environ, **forks.COMMON, **environment},
  )
