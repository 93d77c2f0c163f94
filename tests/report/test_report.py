"""The report: its numbers against NumPy, its page in a browser."""

import dataclasses
import html.parser
import math
import os
import shutil
import sys

import numpy as np
import pytest
from PIL import Image

from configs import image_folder
from tests.commands import run as run_command
from tests.runs import events
from vit_jax.config import base_config
from vit_jax.evaluation.confusion import Tally
from vit_jax.evaluation.eval_step import Answers
from vit_jax.inspection import charts
from vit_jax.report import page as report_page
from vit_jax.report.measure import Example, Measured, RunFacts, read_run
from vit_jax.report.page import page
from vit_jax.report.write import report_files
from vit_jax.run.loop import train
from vit_jax.run.settings import read

NAMES = ("<b>cat</b>", "dog & co", "$\\alpha$")
CONFUSION = np.array([[5, 1, 0], [2, 3, 0], [0, 0, 4]])


class Page(html.parser.HTMLParser):
  """The text of a page's elements, and what its elements refer to."""

  TOLD = ("td", "th", "h1", "h2", "code")

  def __init__(self, text):
    super().__init__()
    self.cells, self.images, self.links, self.tags = [], [], [], []
    self.inside = False
    self.feed(text)

  def handle_starttag(self, tag, attributes):
    given = dict(attributes)
    self.tags.append(tag)
    if tag == "img":
      self.images.append(given)
    if tag in self.TOLD:
      self.cells.append((tag, []))
      self.inside = True
    self.links += [v for k, v in attributes if k in ("src", "href")]

  def handle_endtag(self, tag):
    self.inside = self.inside and tag not in self.TOLD

  def handle_data(self, data):
    if self.inside:
      self.cells[-1][1].append(data)

  def texts(self, *tags):
    return ["".join(text).strip() for tag, text in self.cells if tag in tags]


@pytest.fixture(scope="module")
def measured():
  """Of answers whose confusion is `CONFUSION`."""
  label, answer = (
    np.repeat(where.ravel(), CONFUSION.ravel()) for where in np.indices((3, 3))
  )
  rng = np.random.default_rng(0)
  probability = np.float32(rng.uniform(0.4, 1, len(label)))
  loss = -np.log(np.where(label == answer, probability, 1 - probability))
  tally = Tally()
  counted = np.ones(len(label), bool)
  tally.add(Answers(label, answer, probability, np.float32(loss), counted))
  photo = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
  rollout = np.zeros((4, 4), np.float32)
  rollout[0, 3] = 1
  examples = {
    kind: [Example(answered, photo, rollout) for answered in kept]
    for kind, kept in tally.kinds.items()
  }
  metrics = {"eval/top1": 12 / 15, "eval/top5": 1.0, "eval/loss": 0.5}
  metrics |= {"eval/examples": 15, "eval/skipped_images": 0}
  return Measured(
    step=20,
    data_name="pets",
    num_parameters=1234,
    metrics=metrics,
    tally=tally,
    class_names=NAMES,
    examples=examples,
    filters=rng.random((3, 2, 2, 3)),
    positions=rng.random((2, 2, 2, 2)),
  )


def facts(workdir, measured, **config):
  start = {
    "step": 0,
    "time": "2026-01-02T03:04:05+00:00",
    "command": f"python -m vit_jax.train --workdir '{workdir}'",
    "devices": "8 x TPU v5e",
    "hosts": 2,
    "cores": 4,
    "system": "Linux x86_64",
    "python": "3.12.1",
    "packages": {"jax": "0.10.2", "vit_jax": None},
  }
  rows = [
    {"step": s, "train/loss": 1 / s, "train/images_per_second": 100.0 * s}
    for s in (1, 2, 4)
  ]
  problem = None if measured else "it has gone."
  config = {"seed": 0, **config}
  return RunFacts(workdir, rows, [start], config, measured, problem)


def test_numbers_of_the_page_are_those_of_the_confusion(measured):
  seen = Page(page([facts("runs/a&b", measured, batch_size=32)]))
  cells = seen.texts("td", "th")

  def after(name, count):
    return cells[cells.index(name) + 1 :][:count]

  assert after(NAMES[0], 2) == ["6", "83.33%"]
  assert after(NAMES[1], 2) == ["5", "60.00%"]
  assert after(NAMES[2], 2) == ["4", "100.00%"]
  assert after("top-1", 1) == ["top-5"]  # The column of the results,
  row = cells.index("a&b")
  assert cells[row + 1 :][:4] == ["20", "80.00%", "100.00%", "0.5000"]
  assert cells[row + 6 :][:2] == ["1,234", "200"]  # Median of 100, 200, 400.
  commonest = cells.index("times")
  assert cells[commonest + 1 :][:3] == [NAMES[1], NAMES[0], "2"]
  assert after("batch_size", 1) == ["32"]
  assert seen.texts("code") == ["python -m vit_jax.train --workdir 'runs/a&b'"]
  assert "8 x TPU v5e on 2 hosts" in cells
  assert "Python 3.12.1, jax 0.10.2" in cells
  assert seen.texts("h1") == ["Run a&b"]


def test_the_page_refers_to_nothing_else_and_every_picture_has_a_text(measured):
  text = page([facts("runs/a", measured)])
  seen = Page(text)
  outside = [r for r in seen.links if not r.startswith(("data:", "#"))]
  assert outside == []
  assert "script" not in seen.tags
  # Curves, confusion and calibration, 4 + 3 + 3 examples twice, embeddings.
  assert len(seen.images) == 2 + 2 + 20 + 2
  assert all(len(image["alt"]) > 10 for image in seen.images)
  told = [image["alt"] for image in seen.images]
  assert any(f"{NAMES[1]} answered as {NAMES[0]}, 2 times" in t for t in told)
  assert sum("most of it at the top right" in t for t in told) == 10
  assert "from 1 at step 1 to 0.25 at step 4" in told[0]
  assert seen.tags.count("caption") == seen.tags.count("table")


def test_runs_are_compared(measured):
  first = facts("runs/a", measured, batch_size=32, eval_pictures=0)
  second = facts("runs/b", None, seed=1, batch_size=32)  # Of an older version.
  third = dataclasses.replace(second, workdir="runs/c", config={})
  text = page([first, second, third])
  seen = Page(text)
  cells = seen.texts("td", "th")
  differ = cells[cells.index("key") :]
  assert differ[:6] == ["key", "a", "b", "seed", "0", "1"]
  assert differ[6] == "time"  # Of the next table.
  assert seen.texts("h1") == ["3 runs compared"]
  assert text.count("Evaluation of the checkpoint</caption>") == 1
  assert text.count("it has gone.") == 2
  assert text.count("No checkpoint tells it.") == 1


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
  text = page([facts("runs/a", broken)])
  cells = Page(text).texts("td", "th")
  assert cells[cells.index("answers that are NaN") + 1] == "3"
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
  runs = [facts(workdir, None) for workdir in workdirs]
  assert Page(page(runs)).texts("h2")[-2:] == names


def test_pictures_are_left_out_of_the_last_runs(measured, monkeypatch):
  runs = [facts(name, measured) for name in "abc"]
  whole = len(page(runs).encode())
  monkeypatch.setattr(report_page, "MOST_BYTES", whole - 1)
  text = page(runs)
  assert len(text.encode()) < whole
  before, after = text.split('<h2 id="run-3">')
  assert "pictures are left out" in after
  assert "pictures are left out" not in before


def test_thinned_curves_keep_their_mean():
  values = np.random.default_rng(0).normal(size=10_001)
  steps = np.arange(1, 10_002)
  few, means = charts._thinned(steps, values)
  assert len(few) == len(means) <= 501
  np.testing.assert_allclose(means[3], values[63:84].mean())
  assert few[3] == steps[63:84].mean()


def test_charts_draw_what_they_are_given():
  figure = charts.confusion_figure(CONFUSION, NAMES)
  (axes, _) = figure.axes
  drawn = np.asarray(axes.images[0].get_array())
  np.testing.assert_allclose(drawn, CONFUSION / [[6], [5], [4]])
  assert [t.get_text() for t in axes.texts] == ["5", "1", "2", "3", "4"]
  figure = charts.calibration_figure(np.array([[4, 0.5, 0.3], [1, 1.0, 0.9]]))
  dots = figure.axes[0].collections[0].get_offsets()
  np.testing.assert_allclose(dots, [[0.3, 0.5], [0.9, 1.0]])
  curves = {"_" + 40 * "a" + "1": ([1, 2], [0.5, 0.25])}
  curves |= {"_" + 40 * "a" + "2": ([1, 3], [1, 2])}
  figure = charts.curves_figure(curves, "Loss")
  lines = figure.axes[0].lines
  np.testing.assert_allclose(lines[1].get_xydata(), [[1, 1], [3, 2]])
  told = [t.get_text() for t in figure.axes[0].get_legend().get_texts()]
  assert [t[0] + t[-1] for t in told] == ["_1", "_2"]
  styles = {(line.get_linestyle(), line.get_color()) for line in lines}
  assert len({style for style, _ in styles}) == 2  # Told apart without colour.


def test_what_is_no_run_is_refused(tmp_path):
  with pytest.raises(ValueError, match="none holds no checkpoints: give the"):
    report_files([str(tmp_path / "none")], out=str(tmp_path / "r.html"))
  with pytest.raises(ValueError, match="--best would be of every run"):
    report_files(["a", "b"], best=True)
  with pytest.raises(ValueError, match="s3://bucket/run holds no checkpoints"):
    report_files(["s3://bucket/run"])  # In the current folder, were it there.
  assert not (tmp_path / "r.html").exists()


def test_a_missing_library_is_one_line(tmp_path, monkeypatch):
  monkeypatch.delitem(sys.modules, "vit_jax.report.page")
  monkeypatch.delattr("vit_jax.report.page", raising=False)
  monkeypatch.setitem(sys.modules, "jinja2", None)
  with pytest.raises(
    ValueError, match=r"jinja2 is not installed: pip.*figures"
  ):
    report_files([str(tmp_path)], out=str(tmp_path / "r.html"))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
  """Two classes of photographs that are as easy as can be: dark and light."""
  root = tmp_path_factory.mktemp("photos")
  rng = np.random.default_rng(0)
  for split, count in (("train", 16), ("test", 6)):
    for name, low in (("dark", 0), ("light", 128)):
      folder = root / split / name
      folder.mkdir(parents=True)
      for number in range(count):
        photo = rng.integers(low, low + 128, (40, 48, 3), dtype=np.uint8)
        Image.fromarray(photo).save(folder / f"{number}.jpg")
  return root


def config_of(root):
  """Of a run that sees the photographs only shortly."""
  config = image_folder.get_config()
  config.data.root = str(root)
  config.update(batch_size=8, image_size=(32, 32), total_epochs=0.0)
  config.update(total_steps=8, log_every_epochs=0.0, log_every_steps=2)
  config.update(eval_every_epochs=2.0, save_every_epochs=2.0)
  config.optimizer.update(warmup_epochs=0.0)
  config.model.num_layers = 1
  config.loader.num_workers = 0
  return config


@pytest.fixture(scope="module")
def workdir(root, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("runs") / "a run"
  train(read(config_of(root)), str(workdir))
  return workdir


def test_a_run_is_measured_as_it_was_evaluated(workdir, root):
  run = read_run(str(workdir))
  assert run.problem is None and run.measured is not None
  last = [row for row in run.rows if "eval/top1" in row][-1]
  for key in ("eval/top1", "eval/loss", "eval/examples"):
    assert run.measured.metrics[key] == pytest.approx(last[key])
  confusion = run.measured.tally.confusion([0, 1])
  assert confusion.sum() == 12
  assert np.trace(confusion) / 12 == pytest.approx(last["eval/top1"])
  for kept in run.measured.examples.values():
    for example in kept:
      dark = example.photograph.mean() < 128
      assert run.measured.class_names[example.answered.label] == (
        "dark" if dark else "light"
      )
      assert example.rollout is not None
      assert example.rollout.sum() == pytest.approx(1)  # Mean pooling.
  assert run.starts[0]["step"] == 0 and run.starts[0]["command"] is None
  assert run.config["data.root"] == str(root)


def test_data_that_have_gone_are_told(workdir, root, tmp_path, capsys):
  page_file = tmp_path / "report.html"
  run, out, moved = (
    str(tmp_path / "run"),
    str(page_file),
    str(tmp_path / "moved"),
  )
  shutil.copytree(workdir, run)
  root.rename(moved)
  try:
    assert report_files([run], out=out) == 0
    said = capsys.readouterr().out
    assert f"{run}: not evaluated: " in said and str(root) in said
    text = page_file.read_text()
    assert "could not be evaluated" in text and "Training loss" in text
    assert "image_size" in text  # The configuration is known all the same.
    assert report_files([run], out=out, root=moved) == 0
    assert "could not be evaluated" not in page_file.read_text()
    with pytest.raises(ValueError, match="no checkpoint of step 7"):
      report_files([run], out=out, root=moved, step=7)
  finally:
    os.rename(moved, root)


@pytest.mark.slow
def test_a_resnet_of_a_wide_head_has_a_report(root, tmp_path):
  """Without attention, trained by sigmoids, with classes that have no name."""
  config = config_of(root)
  config.model = base_config().model
  config.model.variant, config.model.num_classes = "R50x1", 50
  config.image_size, config.loss.kind = (32, 32), "sigmoid"
  config.eval_pictures = 1
  config.total_steps, config.loss.label_smoothing = 1, 0.0
  train(read(config), str(tmp_path))
  run = read_run(str(tmp_path))
  assert run.problem is None and run.measured is not None
  text = page([run])
  seen = Page(text)
  told = [image["alt"] for image in seen.images]
  assert not any("rollout" in t or "filters" in t for t in told)
  assert sum("Confusion matrix" in t for t in told) == 1
  last = [row for row in run.rows if "eval/loss" in row][-1]
  assert run.measured.metrics["eval/loss"] == pytest.approx(last["eval/loss"])
  kept = [
    one.answered for ones in run.measured.examples.values() for one in ones
  ]
  assert kept and all(0 < one.probability < 1 for one in kept)
  assert [tag for _, tag, value in events(tmp_path) if value.HasField("image")]


@pytest.fixture(scope="module")
def browser():
  """Chromium, as the system has it."""
  playwright = pytest.importorskip("playwright.sync_api")
  names = ("chromium", "chromium-browser", "google-chrome")
  path = next(filter(None, map(shutil.which, names)), None)
  if path is None:
    assert not os.environ.get("VIT_JAX_BROWSER"), "no Chromium was found"
    pytest.skip("Chromium is not installed")
  with playwright.sync_playwright() as started:
    # As root, Chromium has no sandbox.
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
  done = run_command(
    "vit_jax.report", str(workdir), str(workdir), f"--out={out}"
  )
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
  # Every picture is there, and nothing has to be scrolled sideways.
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
