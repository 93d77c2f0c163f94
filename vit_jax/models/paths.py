"""The path of a parameter, such as "block_0/msa/out/bias", and its modules."""

import re

_QKV = re.compile("/(query|key|value)/")


def merge_qkv(path: str) -> str:
  """The path without "query", "key" or "value": one name for all three."""
  return _QKV.sub("/", path)


def is_kernel(path: str) -> bool:
  """Whether a parameter is a kernel."""
  return ends_with(path, "kernel")


def beside(path: str, name: str) -> str:
  """The path of the parameter `name` in the same module."""
  module, slash, _ = path.rpartition("/")
  return f"{module}{slash}{name}"


def within(path: str, module: str) -> bool:
  """Whether a path is that of a module, or of something in it.

  The module "" is the whole model, so every path is within it.
  """
  return not module or path == module or path.startswith(f"{module}/")


def below(path: str, module: str) -> str:
  """The path of something in a module, relative to that module."""
  return path.removeprefix(module).removeprefix("/") if module else path


def ends_with(path: str, end: str) -> bool:
  """Whether the last names of a path are those of `end`, such as "out/bias"."""
  return path == end or path.endswith(f"/{end}")
