"""Fixtures for tests of downloads: a server on loopback and an empty cache."""

import types

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


@pytest.fixture
def hub(site, cache, monkeypatch):
  """The server, which the library takes for Hugging Face."""
  from huggingface_hub import constants

  template = f"{site.root}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
  monkeypatch.setattr(constants, "ENDPOINT", site.root)
  monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
  monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
  monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache / "token"))
  monkeypatch.setattr(
    "huggingface_hub.file_download.time", types.SimpleNamespace(sleep=id)
  )
  return site
