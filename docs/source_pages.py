"""Makes a page for each source file, and links to its lines.

A relative link from Markdown to a file of the repository leads to the file on a
code host, and to the file's page on this site. If the link has a title, as in
`[Msa](../vit_jax/models/attention.py "# Eq. 6")`, it leads to the one line that
contains the title, and shows its number. So nobody writes down a number, and a
title that is not found fails the build.
"""

import functools
import importlib
import inspect
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from pygments.lexers.special import TextLexer
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

ROOT = pathlib.Path(__file__).parent.parent
# API pages may link to any of these; other files get a page if a link needs it.
_ALWAYS = ("vit_jax/**/*.py", "configs/*.py")
_STYLE = """<style>
.highlight span:target { background: var(--color-highlight-on-target); }
</style>"""
_LOG = logging.getLogger(__name__)


def page(path: str) -> str:
  """The name of a file's page, on which lines are #L-1, #L-2, ..."""
  return f"source/{path}"


class SourceLinks(SphinxTransform):
  """Turns links that MyST takes for downloads into links to source pages."""

  default_priority = 400

  def apply(self, **kwargs: Any) -> None:
    for node in list(self.document.findall(addnodes.download_reference)):
      _, absolute = self.env.relfn2path(node["reftarget"], self.env.docname)
      path = pathlib.Path(absolute).resolve().relative_to(ROOT).as_posix()
      _linked(self.env).add(path)
      uri = self.app.builder.get_relative_uri(self.env.docname, page(path))
      link = nodes.reference("", "", refuri=uri, internal=True)
      link.extend(node.children)
      if marker := node.get("reftitle"):
        number = self._line(path, marker, node)
        link["refuri"] += f"#L-{number}"
        link.append(nodes.Text(f":{number}"))
      node.replace_self(link)

  def _line(self, path: str, marker: str, node: nodes.Element) -> int:
    """The number of the one line that contains the marker."""
    text = (ROOT / path).read_text("utf-8")
    pattern = re.escape(marker) + (r"\b" if marker[-1].isalnum() else "")
    found = [
      number
      for number, line in enumerate(text.splitlines(), 1)
      if re.search(pattern, line)
    ]
    if len(found) != 1:
      _LOG.warning(
        "%s has %d lines with %r, not one",
        path,
        len(found),
        marker,
        location=node,
      )
    return found[0] if found else 1


def linkcode_resolve(domain: str, info: dict[str, str]) -> str | None:
  """The page and line of a documented object, relative to docs/api/."""
  thing: Any = importlib.import_module(info["module"])
  for name in info["fullname"].split("."):
    thing = getattr(thing, name, None)
  thing = inspect.unwrap(thing) if callable(thing) else thing
  try:
    path = pathlib.Path(inspect.getsourcefile(thing) or "")
    number = inspect.getsourcelines(thing)[1]
  except (TypeError, OSError):  # For instance, a constant.
    return None
  if not path.is_relative_to(ROOT):
    return None
  return f"../{page(path.relative_to(ROOT).as_posix())}.html#L-{number}"


def collect_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
  """Every source page: its name, its context, its template."""
  paths = {
    path.relative_to(ROOT).as_posix()
    for pattern in _ALWAYS
    for path in ROOT.glob(pattern)
  }
  formatter = HtmlFormatter(linenos="inline", linespans="L")
  for path in sorted(paths | _linked(app.env)):
    try:
      lexer = get_lexer_for_filename(path)
    except ClassNotFound:
      lexer = TextLexer()
    body = highlight((ROOT / path).read_text("utf-8"), lexer, formatter)
    context = {"title": path, "body": f"{_STYLE}<h1>{path}</h1>{body}"}
    yield page(path), context, "page.html"


def _linked(env: Any) -> set[str]:
  if not hasattr(env, "linked_source_files"):
    env.linked_source_files = set()
  return env.linked_source_files


def share_navigation(
  trees: dict[int, str],
  app: Sphinx,
  page_name: str,
  template: str,
  context: dict[str, Any],
  _: Any,
) -> None:
  """Makes the navigation once for all source pages of one depth.

  No source page is in it, so it differs in the relative links alone. To make it
  for each of the hundreds of pages took most of the time of building the site.
  """
  del app, template
  if not page_name.startswith(page("")):
    return
  make, depth = context["toctree"], page_name.count("/")

  def made_once(**options: Any) -> str:
    if depth not in trees:
      trees[depth] = make(**options)
    return trees[depth]

  context["toctree"] = made_once


def name_levels(
  app: Sphinx, page_name: str, template: str, context: dict[str, Any], _: Any
) -> None:
  """Gives the headings of the navigation the level that ARIA requires."""
  del app, page_name, template
  tree = context.get("furo_navigation_tree", "")
  level = 'role="heading" aria-level="2"'
  context["furo_navigation_tree"] = tree.replace('role="heading"', level)


def setup(app: Sphinx) -> dict[str, bool]:
  # Furo makes the navigation between these two.
  share = functools.partial(share_navigation, {})
  app.connect("html-page-context", share, priority=100)
  app.connect("html-page-context", name_levels, priority=900)
  app.add_transform(SourceLinks)
  app.connect("html-collect-pages", collect_pages)
  return {"parallel_read_safe": False, "parallel_write_safe": True}
