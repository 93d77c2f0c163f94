"""The source distribution has all that its own fast tests need."""

import os
import subprocess
import sys
import tarfile

import pytest

from tests import wheels


@pytest.mark.slow
def test_the_source_distribution_passes_its_own_fast_tests(tmp_path):
  """Takes as long as `make test`."""
  sdist, _ = wheels.built(tmp_path)
  with tarfile.open(sdist) as archive:
    archive.extractall(tmp_path, filter="data")
  folder = tmp_path / sdist.name.removesuffix(".tar.gz")
  kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
  done = subprocess.run(
    [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
    cwd=folder,
    env=kept,
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2000:]
