"""The configuration reference, from `vit_jax.config` and `configs/`.

A line `<!-- table: NAME -->` of a page is replaced by Markdown when the site is
built; on a code host it is invisible.
"""

import ast
import inspect
import io
import pathlib
import re
import tokenize
from collections.abc import Iterable, Iterator
from typing import Any

from sphinx.application import Sphinx

from vit_jax import config as config_module
from vit_jax.config import UNITS, base_config
from vit_jax.models import Vit

CONFIGS = pathlib.Path(__file__).parent.parent / "configs"


def keys() -> str:
  """A section and a table for each part of `base_config`."""
  base, source = base_config(), _Source()
  of_model = _attributes(Vit)
  sections: dict[str, list[str]] = {}
  for key, says in source.keys():
    section, _, name = key.rpartition(".")
    home: Any = base
    for part in section.split(".") if section else ():
      home = home[part]
    names = [name] if name in home else [f"{name}_{unit}" for unit in UNITS]
    if section == "model":
      says = says or of_model[name]
    shown = ", ".join(f"`{section and section + '.'}{n}`" for n in names)
    defaults = ", ".join(f"`{_default(home, n)}`" for n in names)
    row = f"| {shown} | {defaults} | {says.replace('|', chr(92) + '|')} |"
    sections.setdefault(section, []).append(row)
  lines = []
  for section, rows in sections.items():
    lines += ["", f"## {section or 'The run itself'}", ""]
    lines += [source.sections.get(section, ""), ""]
    lines += ["| key | default | what |", "| --- | --- | --- |", *rows]
  return "\n".join(lines)


def _default(section: Any, name: str) -> str:
  """As it is typed; of None, the type of what may be given instead."""
  if section[name] is None:
    return f"None ({section.get_type(name).__name__})"
  return repr(section[name])


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
      is_command = paragraph.startswith("python ")
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


class _Source:
  """The text of `vit_jax.config`: keys in order, and what it says of them.

  That is the comment at the end of a key's line, or, if it has none, what
  stands directly above. `sections` has it by section, once all keys were asked
  for.
  """

  def __init__(self):
    text = inspect.getsource(config_module)
    self.sections: dict[str, str] = {}
    self._comments: dict[int, tuple[bool, str]] = {}  # By line; alone on it?
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
      if token.type == tokenize.COMMENT:
        alone = not token.line[: token.start[1]].strip()
        comment = token.string.removeprefix("#").strip()
        self._comments[token.start[0]] = alone, comment
    self._functions = {
      node.name: node
      for node in ast.parse(text).body
      if isinstance(node, ast.FunctionDef)
    }

  def keys(self) -> Iterator[tuple[str, str]]:
    """Dotted keys; a duration's is without its unit."""
    seen = set()
    for node in self._functions["base_config"].body:
      match node:
        case ast.Assign(targets=[ast.Attribute(attr=name)], value=value):
          # A duration's default, which is set by its unit.
          if name.removesuffix("_steps").removesuffix("_epochs") in seen:
            continue
          dicts = [*self._dicts([value])]
          if not dicts:
            yield name, self._says(node)
            continue
          self.sections[name] = self._says(node, node.lineno)
          for keywords in dicts:
            yield from self._keys(f"{name}.", keywords)
        case ast.For(iter=ast.Tuple(elts=names)):
          for name in map(ast.literal_eval, names):
            seen.add(name)
            yield name, self._above(node.lineno)

  def _keys(
    self, prefix: str, keywords: list[ast.keyword]
  ) -> Iterator[tuple[str, str]]:
    for keyword in keywords:
      if keyword.arg is None:  # **_duration("warmup")
        assert isinstance(keyword.value, ast.Call)
        name = prefix + ast.literal_eval(keyword.value.args[0])
        yield name, self._says(keyword.value)
        continue
      name = f"{prefix}{keyword.arg}"
      dicts = [*self._dicts([keyword.value])]
      if not dicts:
        yield name, self._says(keyword)
      for inner in dicts:
        self.sections[name] = self._says(keyword)
        yield from self._keys(f"{name}.", inner)

  def _dicts(self, nodes: Iterable[ast.AST]) -> Iterator[list[ast.keyword]]:
    """The keywords of each `dict(...)`, also of a function that is called."""
    for node in nodes:
      match node:
        case ast.Call(func=ast.Name(id="dict"), keywords=keywords):
          yield keywords
        case ast.Call(func=ast.Name(id=name)) if name in self._functions:
          yield from self._dicts(self._functions[name].body)
        case _:
          yield from self._dicts(ast.iter_child_nodes(node))

  def _says(self, node: Any, line: int | None = None) -> str:
    """The comment behind a key or, if there is none, above it."""
    alone, text = self._comments.get(line or node.end_lineno, (True, ""))
    return self._above(node.lineno) if alone else text

  def _above(self, line: int) -> str:
    """The comment that ends on the line before."""
    lines = []
    while self._comments.get(line - 1, (False, ""))[0]:
      line -= 1
      lines.insert(0, self._comments[line][1])
    return " ".join(lines)


def _attributes(cls: type) -> dict[str, str]:
  """What a Google-style docstring says of each attribute."""
  text = (inspect.getdoc(cls) or "").partition("Attributes:\n")[2]
  text = re.split(r"\n\n(?=\S)", text)[0]
  found = re.findall(r"^  (\w+): (.*(?:\n    .*)*)", text, re.MULTILINE)
  return {name: " ".join(says.split()) for name, says in found}


def setup(app: Sphinx) -> dict[str, bool]:
  app.connect("source-read", fill)
  return {"parallel_read_safe": True, "parallel_write_safe": True}
