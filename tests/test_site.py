"""The site that `make docs` builds."""

import contextlib
import html.parser
import os
import re
import subprocess
import sys
import tomllib
import urllib.parse

import pytest

from tests.browser import opened_page
from tests.pages import ON_THE_SITE, ROOT, blocks, of_the_site
from vit_jax.run.settings import Settings
from vit_jax.runtime.settings import all_keys


class _Page(html.parser.HTMLParser):
  """The resources, links, anchors and text of a page of HTML."""

  def __init__(self, text):
    super().__init__()
    self.resources, self.links, self.ids, self.text = [], [], set(), ""
    self.code = set(re.findall(r'<span class="pre">([^<]*)</span>', text))
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    named = dict(attrs)
    self.ids.add(named.get("id"))
    if tag == "a" and "href" in named:
      self.links.append(named["href"])
    elif tag != "a":
      values = (named.get(key) for key in ("src", "href", "srcset", "data"))
      self.resources += [value for value in values if value]

  def handle_data(self, data):
    self.text += data


def test_commands_of_configurations_are_blocks_of_the_page():
  """Of the page that is made of their docstrings."""
  tables = of_the_site("config_tables")
  text = tables.files()
  commands = re.findall(r"^vit_jax .*", text, re.MULTILINE)
  shown = [b.text.split("\n")[0] for b in blocks(text) if b.language == "sh"]
  assert len(commands) > 20 and shown == commands


def test_a_table_of_a_file_is_shown_in_its_place(tmp_path):
  (tmp_path / "a.csv").write_text('x,y,z\n1,"a | b",`c`\n2,"d, e",\n')
  shown = of_the_site("csv_tables").filled
  assert shown("A:\n\n<!-- csv: a.csv -->\n\nB", tmp_path) == (
    "A:\n\n| x | y | z |\n| --- | --- | --- |\n"
    "| 1 | a \\| b | `c` |\n| 2 | d, e |  |\n\nB"
  )
  assert shown("<!-- csv: a.csv (z, x) -->", tmp_path) == (
    "| z | x |\n| --- | --- |\n| `c` | 1 |\n|  | 2 |"
  )
  with pytest.raises(KeyError, match="'w'"):
    shown("<!-- csv: a.csv (w) -->", tmp_path)


@pytest.fixture(scope="session")
def site(made_once):
  """The site, which builds without warnings."""
  return made_once("docs", _build) / "site"


def _build(folder):
  done = subprocess.run(
    [
      *(sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-E"),
      *("-d", folder / "doctrees", ROOT / "docs", folder / "site"),
    ],
    capture_output=True,
    text=True,
    timeout=600,
    check=False,
  )
  assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1000, 1280, 1400])
def test_the_home_page_in_a_browser(browser, site, width, scheme):
  with opened_page(browser, site / "index.html", width, 900, scheme) as tab:
    assert tab.locator("h1").inner_text().startswith("vit_jax")


@pytest.mark.slow
def test_the_home_page_has_the_version_and_the_repository(site):
  page = _Page((site / "index.html").read_text("utf-8"))
  project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
  assert f"vit_jax {project['version']}" in page.text
  assert project["urls"]["Source"] in page.links


# Of each part of a line of code, its height in lines and whether it is
# narrower than the text around it.
_LINES = """[...document.querySelectorAll("p code.literal > .pre")].map(e => [
  e.getBoundingClientRect().height / parseFloat(getComputedStyle(e).lineHeight),
  e.scrollWidth < e.closest("p").clientWidth * 0.9])"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1400])
def test_code_of_a_page_is_whole_and_can_be_copied(browser, site, width):
  context = browser.new_context(
    viewport={"width": width, "height": 900},
    permissions=["clipboard-read", "clipboard-write"],
  )
  with contextlib.closing(context):
    tab = context.new_page()
    tab.goto((site / "howto" / "data.html").as_uri())
    lines = [height for height, fits in tab.evaluate(_LINES) if fits]
    assert len(lines) > 20 and max(lines) < 1.5  # No flag is broken.
    block = tab.locator(".highlight").filter(has_text="inspect_data").first
    block.hover()
    block.get_by_role("button", name="Copy").click()
    block.get_by_role("button", name="Copied").wait_for()
    text = tab.evaluate("navigator.clipboard.readText()")
    assert text.startswith("vit_jax inspect_data my_photos --out=augmented.png")
    # What goes on to the right can be reached by keys, and its edge is shaded.
    wide = tab.locator(".table-wrapper[tabindex], .highlight pre[tabindex]")
    assert wide.count() > 0 or width > 390
    shaded = "e => getComputedStyle(e).backgroundImage.match(/linear/g).length"
    assert tab.locator(".table-wrapper").first.evaluate(shaded) == 4


# Of each button that copies, the text that it covers.
_COVERED = """[...document.querySelectorAll(".copy")].flatMap(button => {
  const over = button.getBoundingClientRect();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  while (texts.nextNode()) {
    if (button.contains(texts.currentNode)) continue;
    if (!texts.currentNode.data.trim()) continue;
    const range = document.createRange();
    range.selectNodeContents(texts.currentNode);
    for (const box of range.getClientRects())
      if (box.left < over.right && over.left < box.right
          && box.top < over.bottom && over.top < box.bottom)
        found.push(texts.currentNode.data);
  }
  return found;
})"""


@pytest.mark.slow
@pytest.mark.parametrize("page", ["index", "howto/data", "howto/label_errors"])
@pytest.mark.parametrize("width", [390, 1400])
def test_the_button_that_copies_covers_no_text(browser, site, width, page):
  context = browser.new_context(viewport={"width": width, "height": 900})
  with contextlib.closing(context):
    tab = context.new_page()
    tab.goto((site / f"{page}.html").as_uri())
    assert tab.locator(".copy").count() > 0
    assert tab.evaluate(_COVERED) == []


@pytest.mark.slow
@pytest.mark.parametrize(
  "old, new",
  [
    ("results.html#images-in", "evidence/results.html#images-in"),
    ("faults.html", "evidence/faults.html"),
    ("plan.html", "recipes.html"),
  ],
)
def test_an_old_address_leads_to_the_page_and_its_heading(
  browser, site, old, new
):
  with contextlib.closing(browser.new_context()) as context:
    tab = context.new_page()
    tab.goto(f"{site.as_uri()}/{old}")
    tab.wait_for_url(f"{site.as_uri()}/{new}")


@pytest.mark.slow
def test_the_site_is_whole(site):
  """It needs no network, and has no dead links."""
  pages = {
    path.relative_to(site).as_posix(): _Page(path.read_text("utf-8"))
    for path in site.rglob("*.html")
  }
  for path in ON_THE_SITE:
    name = path.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
    assert name in pages

  on_network = re.compile(r"^\s*(https?:)?//")
  of_network = [
    (name, resource)
    for name, page in pages.items()
    for resource in page.resources
    if on_network.match(resource)
  ]
  imported = re.compile(r"(?:url\(|@import)\s*[\"']?\s*(?:https?:)?//")
  of_network += [
    path for path in site.rglob("*.css") if imported.search(path.read_text())
  ]
  assert of_network == []
  assert [
    (name, link)
    for name, page in pages.items()
    for link in page.links
    if not _leads(name, link, pages, site)
  ] == []

  assert set(all_keys(Settings)) <= pages["configuration.html"].code
  lines = re.findall(r"attention\.py:(\d+)", pages["paper_to_code.html"].text)
  attention = (ROOT / "vit_jax/models/attention.py").read_text().splitlines()
  cited = [attention[int(line) - 1].split("# ")[-1] for line in lines]
  assert [c for c in cited if c.startswith("Eq.")][:4] == [
    "Eq. 5",
    "Eq. 6",
    "Eq. 7",
    "Eq. 8",
  ]


def _leads(name, link, pages, site):
  """Whether a link leads out of the site, or to an existing place in it."""
  if re.match(r"[a-z]+:", link):
    return True
  target, _, part = urllib.parse.unquote(link).partition("#")
  path = os.path.normpath(os.path.join(os.path.dirname(name), target))
  path = path if target else name
  if path not in pages:
    return (site / path).exists() and not part
  return not part or part in pages[path].ids
