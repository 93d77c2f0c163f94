"""What a notebook shows of files that were written."""

import base64
import html
import os
import re

import pytest

from vit_jax.runtime.shown import Shown


def test_pictures_and_pages_are_shown_as_they_are(tmp_path):
  """Whole, and such that nothing in a page ends the element around it."""
  picture, page = tmp_path / "a.png", tmp_path / "b.html"
  picture.write_bytes(b"\x89PNG<")
  page.write_text('<p title="x">\'&amp;</iframe>')
  shown = Shown((str(picture), str(page)), "a < b")
  text = shown._repr_html_()
  (data,) = re.findall(r'src="data:image/png;base64,([^"]*)"', text)
  assert base64.b64decode(data) == picture.read_bytes()
  (inside,) = re.findall(r'srcdoc="([^"]*)"', text)
  assert html.unescape(inside) == page.read_text()
  assert text.startswith("<p>a &lt; b</p>") and text.count("</iframe>") == 1
  assert os.fspath(shown) == str(picture)
  assert repr(shown) == f"a < b\n{picture}\n{page}"


@pytest.mark.parametrize("count, more", [(12, 0), (15, 3)])
def test_some_of_many_pictures_are_shown(tmp_path, count, more):
  paths = [tmp_path / f"{n}.png" for n in range(count)]
  for path in paths:
    path.write_bytes(b"x")
  text = Shown(tuple(map(str, paths)))._repr_html_()
  assert text.count("<img") == 12
  assert (f"{more} more in {tmp_path}" in text) == (more > 0)
