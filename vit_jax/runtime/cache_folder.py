"""The folder that keeps downloads and compiled programs between runs."""

import os
import pathlib


def cache_folder() -> pathlib.Path:
  """`$VIT_JAX_CACHE`, or else `vit_jax` in `$XDG_CACHE_HOME` or `~/.cache`."""
  if folder := os.environ.get("VIT_JAX_CACHE"):
    return pathlib.Path(folder).expanduser()
  base = os.environ.get("XDG_CACHE_HOME", "")
  if not os.path.isabs(base):  # The standard says to ignore a relative path.
    base = os.path.expanduser("~/.cache")
  return pathlib.Path(base, "vit_jax")
