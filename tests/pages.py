"""The pages of the documentation, and their blocks of code."""

import dataclasses
import importlib.util
import pathlib
import re
import types

ROOT = pathlib.Path(__file__).parent.parent
FOR_AN_INDEX = ROOT / "docs" / "package.md"
ON_THE_SITE = sorted({*(ROOT / "docs").rglob("*.md")} - {FOR_AN_INDEX})
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", FOR_AN_INDEX]
PAGES += ON_THE_SITE
IN_THE_PACKAGE = sorted((ROOT / "vit_jax").rglob("README.md"))
PAGES += IN_THE_PACKAGE
NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES]
RUN = ("sh", "python")
# Output, listings, and blocks that only Sphinx reads.
NOT_CODE = ("", "{toctree}", "{eval-rst}")

FENCE = re.compile(r"(?:^(.*)\n)?^```(.*)\n((?:.*\n)*?)^```$", re.MULTILINE)
MARK = re.compile(r"<!-- (not run|needs|clone):\s*(.*?)\s*-->")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)(?: \"[^\n]*?\")?\)")


def of_the_site(name: str) -> types.ModuleType:
  """A module of docs/, which only the build of the site has in its path."""
  file = ROOT / "docs" / f"{name}.py"
  spec = importlib.util.spec_from_file_location(name, file)
  assert spec and spec.loader
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def shown(name: str) -> str:
  """What a page shows, with its tables that are files of CSV."""
  path = ROOT / name
  return of_the_site("csv_tables").filled(path.read_text(), path.parent)


@dataclasses.dataclass(frozen=True)
class Block:
  """A fenced block of a page.

  Attributes:
    line: Number of its first line.
    language: The word after the fence.
    text: The content.
    mark: The kind of comment above: "not run", "needs", "clone" or "".
    says: The text of this comment.
  """

  line: int
  language: str
  text: str
  mark: str
  says: str

  @property
  def is_run(self) -> bool:
    """Whether it can be, here."""
    if self.language not in RUN or self.mark == "not run":
      return False
    modules = self.says.split(", ") if self.mark == "needs" else ()
    return all(importlib.util.find_spec(name) for name in modules)


def blocks(text):
  found = []
  for match in FENCE.finditer(text):
    mark = MARK.fullmatch((match[1] or "").strip())
    line = text.count("\n", 0, match.start(3)) + 1
    found.append(
      Block(line, match[2], match[3], *(mark.groups() if mark else ("", "")))
    )
  return found
