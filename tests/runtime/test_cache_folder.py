"""The location of the cache."""

import pathlib

from vit_jax.runtime.cache_folder import cache_folder


def test_the_environment_says_where_the_cache_is(monkeypatch):
  monkeypatch.setenv("HOME", "/home/ann")
  monkeypatch.setenv("VIT_JAX_CACHE", "~/kept")
  assert cache_folder() == pathlib.Path("/home/ann/kept")
  monkeypatch.delenv("VIT_JAX_CACHE")
  monkeypatch.setenv("XDG_CACHE_HOME", "/scratch")
  assert cache_folder() == pathlib.Path("/scratch/vit_jax")
  monkeypatch.setenv("XDG_CACHE_HOME", "relative")
  assert cache_folder() == pathlib.Path("/home/ann/.cache/vit_jax")
