"""Leads from the addresses of pages that have moved to those of today.

A page of a site is named in letters and bookmarks. Its old address has a page
that goes on to the new one, to the same heading.
"""

import html
from collections.abc import Iterator
from typing import Any

from sphinx.application import Sphinx

_EVIDENCE = ("attempts", "faults", "parity", "results", "scaling", "scoreboard")
MOVED = {name: f"evidence/{name}" for name in _EVIDENCE} | {"plan": "recipes"}


def pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
  """For each old address: its name, its context, its template."""
  for old, new in MOVED.items():
    if old in app.env.found_docs or new not in app.env.found_docs:
      raise ValueError(f"{old} has not moved to {new}: see docs/moved.py")
    address = html.escape(app.builder.get_relative_uri(old, new))
    title = app.env.titles[new].astext()
    # Only a script sees which heading was asked for.
    body = (
      f"<h1>{html.escape(title)}</h1>"
      f'<p>This page <a id="moved" href="{address}">has moved</a>.</p>'
      f"<script>location.replace(document.getElementById('moved').href"
      f" + location.hash)</script>"
    )
    refresh = (
      f'<noscript><meta http-equiv="refresh" content="0; url={address}">'
      "</noscript>"
    )
    context = {"title": title, "body": body, "metatags": refresh}
    yield old, context, "page.html"


def setup(app: Sphinx) -> dict[str, bool]:
  app.connect("html-collect-pages", pages)
  return {"parallel_read_safe": True, "parallel_write_safe": True}
