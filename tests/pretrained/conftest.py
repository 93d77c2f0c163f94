"""Fixtures for tests of downloads: a server on loopback and an empty cache."""

import pytest

from tests.server import serving


@pytest.fixture
def site():
  """A server that serves what the test adds."""
  with serving() as site:
    yield site


@pytest.fixture
def cache(tmp_path, monkeypatch):
  """The folder for downloads, not made yet; clears the user's variables."""
  for name in ("HF_TOKEN", "HF_ENDPOINT", "STORAGE_EMULATOR_HOST"):
    monkeypatch.delenv(name, raising=False)
  for name in ("NO_PROXY", "no_proxy"):
    monkeypatch.setenv(name, "127.0.0.1")
  folder = tmp_path / "cache"
  monkeypatch.setenv("VIT_JAX_CACHE", str(folder))
  return folder
