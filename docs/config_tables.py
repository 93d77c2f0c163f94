"""The configuration reference, from the settings and from `configs/`.

A line `<!-- table: NAME -->` of a page is replaced by Markdown when the site is
built; on a code host it is invisible.
"""

import ast
import dataclasses
import inspect
import pathlib
import re
import typing
from collections.abc import Iterator
from typing import Any

from sphinx.application import Sphinx

from vit_jax.run.settings import Settings
from vit_jax.runtime.checks import without_none
from vit_jax.runtime.settings import (
  UNITS,
  Duration,
  Section,
  is_section,
  types_of,
)

CONFIGS = pathlib.Path(__file__).parent.parent / "configs"


def keys() -> str:
  """A section and a table for each section of the settings."""
  return "\n".join(_tables(Settings, ""))


def _tables(cls: type[Section], name: str) -> Iterator[str]:
  """The lines of a section's table, then those of the sections in it."""
  rows, inner = [], []
  for field in dataclasses.fields(cls):
    kind = types_of(cls)[field.name]
    key = f"{name}.{field.name}" if name else field.name
    if is_section(kind):
      inner.append((kind, key))
      continue
    shown, defaults = f"`{key}`", f"`{_default(kind, field.default)}`"
    if kind is Duration:
      shown = ", ".join(f"`{key}_{unit}`" for unit in UNITS)
      values = (getattr(field.default, unit) for unit in UNITS)
      defaults = ", ".join(f"`{value!r}`" for value in values)
    says = field.metadata["says"].replace("|", r"\|")
    choices = ", ".join(f"`{choice}`" for choice in field.metadata["choices"])
    known = f" One of {choices}." if choices else ""
    rows.append(f"| {shown} | {defaults} | {says}{known} |")
  yield from ["", f"## {name or 'The run itself'}", ""]
  yield from [inspect.getdoc(cls) or "", ""]
  yield from ["| key | default | meaning |", "| --- | --- | --- |", *rows]
  for kind, key in inner:
    yield from _tables(kind, key)


def _default(kind: Any, default: Any) -> str:
  """As it is typed; for None, with the type of what may be given instead."""
  if default is not None:
    return repr(default)
  given, _ = without_none(kind)
  return f"None ({(typing.get_origin(given) or given).__name__})"


def files() -> str:
  """A section for each file of `configs/`, with its docstring."""
  lines = []
  for path in sorted(CONFIGS.glob("*.py")):
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8")))
    assert docstring
    lines += ["", f"### [configs/{path.name}](../configs/{path.name})", ""]
    for paragraph in docstring.split("\n\n"):
      # A docstring's own backslashes have joined the lines of a command.
      command = re.sub(" {3,}", " \\\n  ", paragraph)
      is_command = paragraph.startswith("vit_jax ")
      lines += ["```sh", command, "```"] if is_command else [paragraph]
      lines.append("")
  return "\n".join(lines)


TABLES = {"keys": keys, "files": files}


def fill(app: Sphinx, docname: str, source: list[str]) -> None:
  """Puts each table in its place on a page."""
  source[0] = re.sub(
    r"^<!-- table: (\w+) -->$",
    lambda match: TABLES[match[1]](),
    source[0],
    flags=re.MULTILINE,
  )


def setup(app: Sphinx) -> dict[str, bool]:
  app.connect("source-read", fill)
  return {"parallel_read_safe": True, "parallel_write_safe": True}
