"""The pages of the documentation, and their blocks of code."""

import dataclasses
import importlib.util
import pathlib
import re

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
