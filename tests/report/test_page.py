"""The page of a report: its numbers, its pictures, and it in a browser."""

import dataclasses
import math
import os
import shutil

import numpy as np
import pytest
from PIL import Image

from tests.commands import run
from tests.report import example
from vit_jax.evaluation.confusion import Tally
from vit_jax.evaluation.eval_step import Answers
from vit_jax.report import page as report_page
from vit_jax.report.page import page


@pytest.fixture(scope="module")
def measured():
  return example.measured()


def test_numbers_of_the_page_are_those_of_the_confusion(measured):
  seen = example.Page(
    page([example.facts("runs/a&b", measured, batch_size=32)])
  )
  cells = seen.texts("td", "th")

  def after(name, count):
    return cells[cells.index(name) + 1 :][:count]

  assert after(example.NAMES[0], 2) == ["6", "83.33%"]
  assert after(example.NAMES[1], 2) == ["5", "60.00%"]
  assert after(example.NAMES[2], 2) == ["4", "100.00%"]
  assert after("top-1", 1) == ["top-5"]  # Columns of the table of results.
  row = cells.index("a&b")
  assert cells[row + 1 :][:4] == ["20", "80.00%", "100.00%", "0.5000"]
  assert cells[row + 6 :][:2] == ["1,234", "200"]  # Median of 100, 200, 400.
  commonest = cells.index("times")
  assert cells[commonest + 1 :][:3] == [example.NAMES[1], example.NAMES[0], "2"]
  assert after("batch_size", 1) == ["32"]
  assert seen.texts("code") == ["python -m vit_jax.train --workdir 'runs/a&b'"]
  assert "8 x TPU v5e on 2 hosts" in cells
  assert "Python 3.12.1, jax 0.10.2" in cells
  assert seen.texts("h1") == ["Run a&b"]


def test_the_page_refers_to_nothing_else_and_every_picture_has_a_text(measured):
  text = page([example.facts("runs/a", measured)])
  seen = example.Page(text)
  outside = [r for r in seen.links if not r.startswith(("data:", "#"))]
  assert outside == []
  assert "script" not in seen.tags
  # Two curves, confusion and calibration, 4 + 3 + 3 examples with their
  # rollouts, and two pictures of the embeddings.
  assert len(seen.images) == 2 + 2 + 20 + 2
  assert all(len(image["alt"]) > 10 for image in seen.images)
  told = [image["alt"] for image in seen.images]
  assert any(
    f"{example.NAMES[1]} answered as {example.NAMES[0]}, 2 times" in t
    for t in told
  )
  assert sum("highest at the top right" in t for t in told) == 10
  assert "from 1 at step 1 to 0.25 at step 4" in told[0]
  assert seen.tags.count("caption") == seen.tags.count("table")


def test_runs_are_compared(measured):
  first = example.facts("runs/a", measured, batch_size=32, eval_pictures=0)
  second = example.facts(
    "runs/b", None, seed=1, batch_size=32
  )  # An older version.
  third = dataclasses.replace(second, workdir="runs/c", config={})
  text = page([first, second, third])
  seen = example.Page(text)
  cells = seen.texts("td", "th")
  differ = cells[cells.index("key") :]
  assert differ[:6] == ["key", "a", "b", "seed", "0", "1"]
  assert differ[6] == "time"  # The first column of the next table.
  assert seen.texts("h1") == ["3 runs compared"]
  assert text.count("Evaluation of the checkpoint</caption>") == 1
  assert text.count("it has gone.") == 2
  assert text.count("as there is no checkpoint.") == 1


def test_a_model_that_answers_nan_has_a_report(measured):
  tally = Tally()
  nothing = np.full(3, np.nan, np.float32)
  zeros = np.zeros(3, np.int32)
  tally.add(Answers(zeros, zeros, nothing, nothing, np.ones(3, bool)))
  broken = dataclasses.replace(
    measured,
    tally=tally,
    metrics=measured.metrics | {"eval/loss": math.nan},
    examples={kind: [] for kind in tally.kinds},
    filters=None,
    positions=None,
  )
  text = page([example.facts("runs/a", broken)])
  cells = example.Page(text).texts("td", "th")
  assert cells[cells.index("NaN answers") + 1] == "3"
  assert cells[cells.index("expected calibration error") + 1] == "–"
  assert "nan%" not in text


@pytest.mark.parametrize(
  "workdirs, names",
  [
    (["runs/a/", "runs/b"], ["a", "b"]),
    (["x/a", "y/a"], ["x/a", "y/a"]),
    (["a", "a"], ["1: a", "2: a"]),
  ],
)
def test_runs_have_names_that_tell_them_apart(workdirs, names):
  runs = [example.facts(workdir, None) for workdir in workdirs]
  assert example.Page(page(runs)).texts("h2")[-2:] == names


def test_pictures_are_left_out_of_the_last_runs(measured, monkeypatch):
  runs = [example.facts(name, measured) for name in "abc"]
  whole = len(page(runs).encode())
  monkeypatch.setattr(report_page, "MOST_BYTES", whole - 1)
  text = page(runs)
  assert len(text.encode()) < whole
  before, after = text.split('<h2 id="run-3">')
  assert "Pictures of this run are left out" in after
  assert "Pictures of this run are left out" not in before


@pytest.fixture(scope="module")
def browser():
  """The system's Chromium."""
  playwright = pytest.importorskip("playwright.sync_api")
  names = ("chromium", "chromium-browser", "google-chrome")
  path = next(filter(None, map(shutil.which, names)), None)
  if path is None:
    assert not os.environ.get("VIT_JAX_BROWSER"), "no Chromium was found"
    pytest.skip("Chromium is not installed")
  with playwright.sync_playwright() as started:
    # Chromium refuses to run as root with its sandbox.
    found = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
    yield found
    found.close()


@pytest.mark.slow
@pytest.mark.parametrize("width, height", [(1280, 900), (390, 844)])
def test_the_page_in_a_browser(
  browser, workdir, tmp_path, width, height, monkeypatch
):
  from axe_playwright_python.sync_playwright import Axe

  out = tmp_path / "report.html"
  done = run("vit_jax.report", str(workdir), str(workdir), f"--out={out}")
  assert done.returncode == 0 and done.stderr == "", done.stderr
  assert done.stdout == f"{out}\n"
  assert out.stat().st_size < 5e6
  context = browser.new_context(
    viewport={"width": width, "height": height}, bypass_csp=True
  )
  context.set_offline(True)
  tab = context.new_page()
  messages, requests = [], []
  tab.on("console", lambda message: messages.append(message.text))
  tab.on("pageerror", lambda error: messages.append(str(error)))
  tab.on("request", lambda request: requests.append(request.url))
  tab.goto(out.as_uri())
  assert messages == []
  assert [r for r in requests if not r.startswith("data:")] == [out.as_uri()]
  # Every picture has loaded, and the page need not be scrolled sideways.
  loaded = "[...document.images].map(i => i.complete && i.naturalWidth > 0)"
  shown = tab.evaluate(loaded)
  assert len(shown) > 20 and all(shown)
  assert tab.evaluate("document.documentElement.scrollWidth") <= width
  folder = os.environ.get("VIT_JAX_SCREENSHOTS", str(tmp_path))
  shot = os.path.join(folder, f"report_{width}.png")
  tab.screenshot(path=shot, full_page=True)
  with Image.open(shot) as image:
    assert image.width == width and image.height > height
    assert np.asarray(image.convert("L")).std() > 10
  broken = Axe().run(tab).response["violations"]
  assert [(rule["id"], rule["help"]) for rule in broken] == []
  context.close()
