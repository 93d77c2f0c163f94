"""Shows tables that are files of CSV.

A line `<!-- csv: NAME.csv -->` of a page, or `<!-- csv: NAME.csv (a, b) -->`
for some of its columns, is replaced by the table when the site is built. NAME
is relative to the page; cells are Markdown. On a code host the line is
invisible, so the text beside it links to the file.
"""

import csv
import pathlib
import re

from sphinx.application import Sphinx

_LINE = re.compile(r"^<!-- csv: (\S+)(?: \((.*)\))? -->$", re.MULTILINE)


def filled(text: str, folder: pathlib.Path) -> str:
  """A page of a folder with its tables in their places."""
  return _LINE.sub(lambda line: _table(folder / line[1], line[2] or ""), text)


def _table(path: pathlib.Path, names: str) -> str:
  """A file's columns of these names, or all of them, as Markdown."""
  with path.open(encoding="utf-8", newline="") as file:
    reader = csv.DictReader(file)
    columns = names.split(", ") if names else [*(reader.fieldnames or ())]
    rows = [[row[name] for name in columns] for row in reader]
  lines = [columns, ["---"] * len(columns), *rows]
  escaped = [[cell.replace("|", r"\|") for cell in line] for line in lines]
  return "\n".join(f"| {' | '.join(line)} |" for line in escaped)


def fill(app: Sphinx, docname: str, source: list[str]) -> None:
  """Puts each table in its place on a page."""
  folder = pathlib.Path(app.env.doc2path(docname)).parent
  source[0] = filled(source[0], folder)


def setup(app: Sphinx) -> dict[str, bool]:
  app.connect("source-read", fill)
  return {"parallel_read_safe": True, "parallel_write_safe": True}
