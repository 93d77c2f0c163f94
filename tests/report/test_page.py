"""The page of a report: its numbers, its pictures, and it in a browser."""

import base64
import collections
import dataclasses
import io
import itertools
import math
import os
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from tests.browser import opened_page
from tests.commands import run
from tests.report import example
from tests.rows import some_slow
from vit_jax.report import page as report_page
from vit_jax.report import tables
from vit_jax.report.measure import ExampleGroup
from vit_jax.report.page import headline_of, page
from vit_jax.tasks.classification.confusion import ConfusionMatrix
from vit_jax.tasks.classification.eval_step import Predictions
from vit_jax.tasks.outcome import Curves
from vit_jax.tasks.scores import FoldScore
from vit_jax.tasks.self_distillation.task import SelfDistillationTask


@pytest.fixture(scope="module")
def measured():
  return example.measured()


def without_curves(workdir, measured):
  """The facts of a run without rows; its curves take most of a page's time."""
  facts = example.facts(workdir, measured)
  facts.rows.clear()
  return facts


@pytest.mark.slow
def test_numbers_of_the_page_are_those_of_the_confusion(measured):
  seen = example.Page(
    page([example.facts("runs/a&b", measured, batch_size=32)])
  )
  cells = seen.texts("td", "th")

  def after(name, count):
    return cells[cells.index(name) + 1 :][:count]

  # To train on, evaluated, precision, recall; of 8 answers "dog", 3 are right.
  columns = ["to train on", "evaluated", "precision", "recall", "F1"]
  assert after("class", 5) == columns
  assert after(example.NAMES[0], 5) == ["50", "6", "71.43%", "83.33%", "76.92%"]
  assert after(example.NAMES[1], 5) == ["20", "5", "75.00%", "60.00%", "66.67%"]
  assert after(example.NAMES[2], 3) == ["10", "4", "100.00%"]
  tiles = dict(zip(seen.texts("dt"), seen.texts("dd"), strict=True))
  assert tiles["top-1"] == "80.00%" and tiles["top-5"] == "100.00%"
  assert tiles["macro-F1"] == "81.20%" and tiles["loss"] == "0.5000"
  assert tiles["parameters"] == "1,234"
  assert tiles["images/s (median)"] == "200"  # Of 100, 200 and 400.
  commonest = cells.index("times")
  assert cells[commonest + 1 :][:3] == [example.NAMES[1], example.NAMES[0], "2"]
  assert after("batch_size", 1) == ["32"]
  assert seen.texts("code") == ["python -m vit_jax.train --workdir 'runs/a&b'"]
  assert "8 x TPU v5e on 2 hosts" in cells
  assert "Python 3.12.1, jax 0.10.2" in cells
  assert seen.texts("h1") == ["Run a&b"]
  assert seen.texts("p")[0].startswith(
    "80.0% of 15 images are right (95 % interval 55 to 93 %, too few to judge "
    'by); "dog & co"'
  )
  # The middle one of three by area, and of their sizes in bytes.
  sizes = ["80", "3", "8 x 9", "10 x 10", "640 x 480", "3 kB"]
  assert after("training", 6) == sizes
  assert after("evaluation", 6) == ["15", "0", "–", "–", "–", "74 bytes"]


@pytest.mark.slow
@pytest.mark.parametrize("best", [10, 20])
def test_the_best_checkpoint_is_named_beside_the_last(measured, best):
  run = example.facts("runs/a b", measured)
  run = dataclasses.replace(run, best=(best, "top-1 90.00%"))
  text = page([run])
  seen = example.Page(text)
  tiles = dict(zip(seen.texts("dt"), seen.texts("dd"), strict=True))
  assert (tiles["at step"], tiles["best step"]) == ("20", str(best))
  assert next(iter(tiles)) == "top-1"  # The score comes first.
  told = "Best checkpoint: step 10 with top-1 90.00%. To report on it:"
  assert (told in text) == (best == 10)
  command = "vit_jax report 'runs/a b' --best"
  assert (command in seen.texts("code")) == (best == 10)


@pytest.mark.parametrize("steps", [1, 2])
def test_a_single_point_is_a_sentence_and_no_chart(measured, steps):
  run = example.facts("runs/a", measured)
  run.rows[:] = [
    {"step": 5 * k, "train/loss": 0.5} for k in range(1, 1 + steps)
  ]
  text = page([run])
  told = "Loss, measured once: training 0.5 at step 5."
  assert (told in text) == (steps == 1)
  assert ("Loss by step." in text) == (steps == 2)


def test_a_run_that_was_started_in_python_has_no_command(measured):
  run = without_curves("runs/a", measured)
  run = dataclasses.replace(run, starts=[{**run.starts[0], "command": None}])
  (told,) = (p for p in example.Page(page([run])).texts("p") if "command" in p)
  assert "started in Python, or by an older" in " ".join(told.split())


@pytest.mark.slow
@pytest.mark.parametrize("labels, times", [([0, 2], 0), ([0, 0], 1)])
def test_a_label_that_all_augmented_images_share_is_said_once(
  measured, labels, times
):
  photo = measured.dataset.augmented[0][0]
  dataset = dataclasses.replace(
    measured.dataset, augmented=[(photo, label) for label in labels]
  )
  names = ("unlabelled", *example.NAMES[1:])
  run = dataclasses.replace(measured, dataset=dataset, class_names=names)
  seen = example.Page(page([example.facts("runs/a", run)]))
  told = "".join(seen.texts("p")).count(', all "unlabelled".')
  assert told == times
  assert seen.texts("figcaption").count("unlabelled") == 1 - times


@pytest.mark.parametrize(
  "total, said",
  some_slow(
    [
      (20, "step 20, evaluated"),
      (80, "step 20 of 80, ev"),
      (None, "step 20, e"),
    ],
    [(80, "step 20 of 80, ev")],
  ),
)
def test_a_run_that_has_not_ended_says_how_far_it_is(measured, total, said):
  measured = dataclasses.replace(measured, total_steps=total)
  assert f"Checkpoint of {said}" in page([without_curves("runs/a", measured)])


def test_the_page_draws_how_many_neighbours_of_the_start_are_kept(measured):
  measured = dataclasses.replace(measured, task=SelfDistillationTask())
  facts = example.facts("runs/a", measured)
  facts = dataclasses.replace(
    facts,
    task=measured.task,
    rows=[{"step": 0, "start/kept": 1.0}, {"step": 9, "start/kept": 0.625}],
  )
  end = "from 100.00% at step 0 to 62.50% at step 9"
  curves, _ = report_page._curves(["a"], [facts], measured.task.scores.curves)
  (alt,) = (one.alt for one in curves if "neighbours" in one.alt)
  assert end in alt


def test_single_points_of_two_runs_are_told_by_their_names():
  rows = {"a": {"step": 9, "eval/x": 0.625}, "b": {"step": 7, "eval/x": 0.5}}
  runs = [example.facts(name, None) for name in rows]
  for facts, row in zip(runs, rows.values(), strict=True):
    facts.rows[:] = [row]
  chart = Curves("X", {"eval/x": ""}, percent=True)
  drawn, said = report_page._curves([*rows], runs, [chart])
  assert not drawn
  assert said == ["X, measured once: a 62.50% at step 9; b 50.00% at step 7."]


def test_short_windows_are_averaged_with_the_one_before(measured):
  run = example.facts("a", None)
  values = {100: 4.0, 200: 3.0, 300: 2.0, 306: 9.0}
  run.rows[:] = [
    {"step": k, "train/loss": v, "eval/loss": v, "train/learning_rate": v}
    for k, v in values.items()
  ]
  steps, losses = run.curve("train/loss")
  assert steps == [100, 200, 306]
  assert losses == pytest.approx([4.0, 3.0, (100 * 2.0 + 6 * 9.0) / 106])
  # Neither of these is a mean over steps.
  for key in ("eval/loss", "train/learning_rate"):
    assert run.curve(key) == ([*values], [*values.values()])


def test_the_result_comes_first_and_in_words(measured):
  runs = [example.facts(name, measured) for name in "ab"]
  alone = headline_of(["a"], runs[:1])
  assert alone.startswith(
    "80.0% of 15 images are right (95 % interval 55 to 93 %, too few to judge "
    'by); "dog & co" is'
  )
  assert alone.endswith(" in 2 of 5.")
  unknown = dataclasses.replace(runs[1], config={})
  told = headline_of(["a", "b"], [runs[0], unknown])
  assert told.startswith('"b" has no checkpoint, so it is not known whether')
  for key, value, is_other in (
    ("data.eval_split", "test[:15]", True),
    ("data.labels_file", "b.csv", True),
    ("data.dir", "packed_b", True),
    ("data.train_split", "train[:50%]", False),
  ):
    other = dataclasses.replace(runs[1], config={**runs[1].config, key: value})
    told = headline_of(["a", "b"], [runs[0], other])
    refusal = "The runs were evaluated on different images or labels"
    assert told.startswith(refusal) == is_other, key
  for name, is_other in (("photos", False), ("photos, held out", True)):
    kept = dataclasses.replace(measured, data_name=name)
    runs = [example.facts(name, kept) for name in "ab"]
    runs[1] = dataclasses.replace(
      runs[1], config={**runs[1].config, "data.held_out_by": "rank"}
    )
    told = headline_of(["a", "b"], runs)
    assert ("evaluated on different images" in told) == is_other


def _scored(measured, count, shares, folds=()):
  """A run for each share of right answers, with the folds that it keeps.

  It has few pictures, which take most of the time of a page.
  """
  measured = dataclasses.replace(
    measured, groups=[], filters=None, positions=None, dataset=None
  )
  runs = []
  for name, share, kept in itertools.zip_longest(
    "abc"[: len(shares)], shares, folds
  ):
    found = {"eval/top1": share, "eval/examples": count}
    metrics = measured.metrics | found
    run = example.facts(name, dataclasses.replace(measured, metrics=metrics))
    run.rows[:] = [{"step": 5} | (kept or {})]
    runs.append(run)
  return runs


@pytest.mark.parametrize(
  "count, shares, says",
  [
    # 9 and 7 of 12 are right: Wilson's intervals are 47-91 and 32-81 %.
    (
      12,
      [7 / 12, 9 / 12],
      (
        '"b" and "a" cannot be told apart on 12 images, which are too few to '
        'judge by: 75.0% are right with "b", 58.3% are right with "a".'
      ),
    ),
    # Those of 80 and 86 of 100 are 71-87 and 78-91 %.
    pytest.param(
      100,
      [0.8, 0.86],
      (
        '"b" and "a" cannot be told apart on 100 images: 86.0% are right with '
        '"b", 80.0% are right with "a".'
      ),
      marks=pytest.mark.slow,
    ),
    pytest.param(
      1000,
      [0.8, 0.3, 0.8],
      (
        '"a" and "c", the first two of 3 runs, cannot be told apart on 1,000 '
        'images: 80.0% are right with "a", 80.0% are right with "c".'
      ),
      marks=pytest.mark.slow,
    ),
    (
      1000,
      [0.8, 0.86],
      '"b" is the best of 2 runs: 86.0% are right, 6.0 points more than "a".',
    ),
  ],
)
def test_a_run_is_best_only_where_the_images_tell(
  measured, count, shares, says
):
  runs = _scored(measured, count, shares)
  assert headline_of("abc"[: len(runs)], runs) == says
  marked = example.Page(page(runs)).best
  assert (marked > 0) == ("best of" in says)


def test_runs_that_learn_features_have_no_best(measured):
  """Their rank may rise while the features get worse."""
  runs = []
  for n, rank in enumerate((0.25, 0.75)):
    metrics = measured.metrics | {"eval/rank": rank, "eval/examples": 1000}
    task = SelfDistillationTask()
    run = dataclasses.replace(measured, metrics=metrics, task=task)
    facts = without_curves(f"runs/{n}", run)
    runs.append(dataclasses.replace(facts, task=task))
  assert headline_of("ab", runs) == (
    "The rank of the features does not tell which run is better: compare them "
    "by labels, with vit_jax fewshot. Rank of the features 75.00% with "
    '"b", rank of the features 25.00% with "a".'
  )
  assert not example.Page(page(runs)).best


def test_runs_that_are_alike_are_told_with_their_folds(measured):
  folds = FoldScore.of_shares([0.8, 0.9, 0.8, 0.9, 0.8], 48).metrics()
  other = FoldScore.of_shares([0.7, 0.9, 0.8, 0.9, 0.8], 48).metrics()
  same = headline_of("ab", _scored(measured, 12, [0.75, 0.5], [folds, folds]))
  by = "top-1 84% (95 % interval 64 to 94 %) by five folds of the 48 training i"
  assert f'right with "b". Both have {by}' in same
  told = headline_of("ab", _scored(measured, 12, [0.75, 0.5], [folds, other]))
  assert f'"a" has {by}mages, and "b" top-1 82% (95 ' in told
  one = headline_of("ab", _scored(measured, 12, [0.75, 0.5], [folds, None]))
  assert one.endswith('50.0% are right with "b".')


def test_runs_on_different_images_have_no_best(measured):
  runs = _scored(measured, 1000, [0.8, 0.5])
  runs[1].config["data.eval_split"] = "test[:15]"
  assert example.Page(page(runs)).best == 0


def test_the_page_refers_to_nothing_else_and_every_picture_has_a_text(measured):
  text = page([example.facts("runs/a", measured)])
  seen = example.Page(text)
  outside = [r for r in seen.links if not r.startswith(("data:", "#"))]
  assert outside == []
  assert "script" not in seen.tags
  # Three curves, confusion (15 images tell no calibration), 6 + 3 examples with
  # their rollouts (a mistake is in one group only), two augmented examples and
  # two pictures of the embeddings.
  assert len(seen.images) == 3 + 1 + 18 + 2 + 2
  assert all(len(image["alt"]) > 10 for image in seen.images)
  told = [image["alt"] for image in seen.images]
  assert any(
    f"{example.NAMES[1]} answered as {example.NAMES[0]}, 2 times" in t
    for t in told
  )
  assert sum("highest at the top right" in t for t in told) == 9
  assert "from 1 at step 1 to 0.25 at step 4" in told[0]
  captions = seen.texts("figcaption")
  assert len({c for c in captions if c.endswith(".jpg")}) == 9
  for *_, shown in measured.groups:
    for one in shown:
      assert any(c.endswith(f"test/{one.example.index}.jpg") for c in captions)
  assert seen.tags.count("caption") == seen.tags.count("table")
  # Only the tables may be wider than the screen of a telephone.
  assert text.count('class="wide"') == seen.tags.count("table")


@pytest.mark.slow
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
  assert differ[:6] == ["key", "a", "b", "top-1", "80.00%", "–"]
  assert differ[6:9] == ["seed", "0", "1"]
  assert differ[9] == "class"  # The first column of the next table.
  assert seen.texts("h1") == ["3 runs compared"]
  assert text.count("Scores of each class</caption>") == 1
  assert text.count("it has gone.") == 2
  assert text.count("as there is no checkpoint.") == 1


def test_a_model_that_answers_nan_has_a_report(measured):
  nothing = np.full(3, np.nan, np.float32)
  zeros = np.zeros(3, np.int32)
  counted = np.ones(3, bool)
  answers = Predictions(zeros, zeros, nothing, nothing, counted)
  confusion = ConfusionMatrix.of(answers)
  broken = dataclasses.replace(
    measured,
    outcome=dataclasses.replace(
      measured.outcome,
      totals=measured.outcome.totals | {"unanswered": 3},
      confusion=confusion,
    ),
    metrics=measured.metrics | {"eval/loss": math.nan},
    groups=[],
    filters=None,
    positions=None,
  )
  text = page([example.facts("runs/a", broken)])
  cells = example.Page(text).texts("td", "th", "dd")
  assert "The model answers NaN to 3 examples." in text
  assert "nan" not in "".join(cells)


@pytest.mark.parametrize(
  "workdirs, names",
  [
    (["runs/a/", "runs/b"], ["a", "b"]),
    pytest.param(["x/a", "y/a"], ["x/a", "y/a"], marks=pytest.mark.slow),
    (["a", "a"], ["1: a", "2: a"]),
  ],
)
def test_runs_have_names_that_tell_them_apart(workdirs, names):
  runs = [without_curves(workdir, None) for workdir in workdirs]
  assert example.Page(page(runs)).texts("h2")[-2:] == names


def test_the_keys_that_differ_come_before_all_of_them():
  shown = tables.facts(example.facts("runs/a", None, batch_size=77))
  rows = [(table.caption, table.rows) for table in shown[-2:]]
  assert rows == [
    ("Keys that differ from their defaults", [["batch_size", "77"]]),
    ("Every key of the configuration", [["seed", "0"], ["batch_size", "77"]]),
  ]


def test_a_group_without_examples_has_its_text_alone(measured):
  groups = [ExampleGroup("Worst mistakes", "There is none.", [])]
  none = dataclasses.replace(measured, groups=groups)
  text = page([without_curves("a", none)])
  assert '<p class="soft">There is none.</p>' in text
  assert '<ul class="examples">' not in text


@pytest.mark.slow
def test_photographs_are_shrunk_before_pictures_are_left_out(
  measured, monkeypatch
):
  large = np.random.default_rng(0).integers(0, 256, (900, 800, 3), np.uint8)
  groups = [
    group._replace(
      examples=[
        dataclasses.replace(one, photograph=large) for one in group.examples[:1]
      ]
    )
    for group in measured.groups
  ]
  run = example.facts("a", dataclasses.replace(measured, groups=groups))
  whole = page([run])
  assert _sides(whole) == {(900, 800)}
  monkeypatch.setattr(report_page, "MOST_BYTES", len(whole.encode()) - 1)
  text = page([run])
  assert _sides(text) == {(512, 455)}
  assert "Photographs are shrunk to 512 pixels a side" in text
  assert "left out" not in text


def _sides(text):
  """Height and width of the JPEGs of a page."""
  found = re.findall(r"data:image/jpeg;base64,([^\"]*)", text)
  files = [io.BytesIO(base64.b64decode(data)) for data in found]
  return {Image.open(file).size[::-1] for file in files}


@pytest.mark.slow
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
def report(workdir, tmp_path_factory):
  """A report on four runs, one of them with a long name."""
  folder = tmp_path_factory.mktemp("report")
  long = folder / "a_run_with_quite_a_long_name_for_a_column_of_a_table"
  for name in ("second", "third", long.name):
    shutil.copytree(workdir, folder / name)
  out = folder / "report.html"
  runs = [
    str(workdir),
    *(str(folder / n) for n in ("second", "third")),
    str(long),
  ]
  done = run("vit_jax.report", *runs, f"--out={out}")
  assert done.returncode == 0 and done.stderr == "", done.stderr
  assert done.stdout == f"{out}\n"
  assert out.stat().st_size < 5e6
  return out


@pytest.fixture(scope="module")
def alone(workdir, tmp_path_factory):
  """A report on one run, whose best checkpoint is not its last."""
  run = example.facts("runs/a b", example.measured())
  run = dataclasses.replace(run, best=(10, "top-1 90.00%"))
  out = tmp_path_factory.mktemp("alone") / "report.html"
  out.write_text(page([run]))
  return out


_SIZES = [(390, 844), (1000, 800), (1280, 900), (1400, 900)]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width, height", _SIZES)
@pytest.mark.parametrize("shown", ["report", "alone"])
def test_the_page_in_a_browser(
  browser, request, tmp_path, shown, width, height, scheme
):
  file = request.getfixturevalue(shown)
  with opened_page(browser, file, width, height, scheme) as tab:
    # Nothing else is read, and every picture has loaded.
    read = "performance.getEntriesByType('resource').map(e => e.name)"
    assert [r for r in tab.evaluate(read) if not r.startswith("data:")] == []
    loaded = "[...document.images].map(i => i.complete && i.naturalWidth > 0)"
    found = tab.evaluate(loaded)
    assert len(found) > 20 and all(found)
    cut = "[...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > "
    cut += "e.clientWidth).length"
    if width >= 1280:
      assert tab.evaluate(cut) == 0  # No table is wider than the page.
    folder = os.environ.get("VIT_JAX_SCREENSHOTS", str(tmp_path))
    shot = os.path.join(folder, f"{shown}_{width}_{scheme}.png")
    tab.screenshot(path=shot, full_page=True)
    with Image.open(shot) as image:
      assert image.width == width and image.height > height
      grey = np.asarray(image.convert("L"))
      assert grey.std() > 10
      assert (np.median(grey) < 50) == (scheme == "dark")


# The boxes of what a selector finds, as [left, top, width, height].
_BOXES = """name => [...document.querySelectorAll(name)].map(e =>
  e.getBoundingClientRect()).map(b => [b.left, b.top, b.width, b.height])"""


def _rows(tab, selector):
  """How many boxes each row has, of those that are seen."""
  boxes = [box for box in tab.evaluate(_BOXES, selector) if box[2]]
  return [*collections.Counter(round(box[1]) for box in boxes).values()]


@pytest.mark.slow
@pytest.mark.parametrize("width, height", _SIZES)
def test_the_page_is_tidy_at_every_width(browser, alone, width, height):
  with opened_page(browser, alone, width, height) as tab:
    charts = tab.evaluate(
      """[...document.querySelectorAll("img.chart")].map(i =>
        [i.currentSrc, i.getBoundingClientRect().width])"""
    )
    assert len(charts) == 4
    for uri, shown in charts:
      svg = base64.b64decode(uri.split(",")[1]).decode()
      (wide,) = re.findall(r'viewBox="0 0 ([\d.]+) ', svg)
      # A glyph is drawn for a size of 100, and so scaled by a hundredth of its.
      sizes = [float(x) for x in re.findall(r"scale\(([\d.]+) -", svg)]
      assert 100 * min(sizes) * shown / float(wide) >= 11
    # Tiles fill their rows but for the last, where one never stands alone.
    rows = _rows(tab, ".tiles > div")
    assert sum(rows) == 9 and rows[-1] > 1
    assert rows == {390: [1, 2, 2, 2, 2]}.get(width, [5, 4])
    # The confusion matrix (15 images tell no calibration); photographs in rows.
    assert len(tab.evaluate(_BOXES, ".matrix img")) == 1
    photographs = tab.evaluate(_BOXES, ".pair img")
    sizes = np.array(photographs)[:, 2:]
    assert np.ptp(sizes) < 0.1  # They are all squares of one size.
    assert {*_rows(tab, ".examples > li")} == {1 if width == 390 else 3}
    # All sections are in the navigation.
    ids = "n => [...document.querySelectorAll(n)].map(e => e.id || e.hash)"
    named = [f"#{name}" for name in tab.evaluate(ids, "h2")]
    assert tab.evaluate(ids, "nav a") == named and len(named) == 4


@pytest.mark.slow
def test_a_wide_photograph_has_its_own_shape(browser, tmp_path):
  measured = example.measured()
  for _, _, shown in measured.groups:
    wide = np.zeros((8, 24, 3), np.uint8)
    shown[:] = [dataclasses.replace(one, photograph=wide) for one in shown]
  file = tmp_path / "report.html"
  file.write_text(page([example.facts("runs/a", measured)]))
  with opened_page(browser, file, 1000, 800) as tab:
    for _, _, width, height in tab.evaluate(_BOXES, ".pair img"):
      assert height == pytest.approx(width / 3, abs=0.1)


@pytest.mark.slow
def test_a_table_that_scrolls_says_so(browser, report):
  """Its right edge is shaded until it is scrolled to its end."""
  with opened_page(browser, report, 390, 844) as tab:
    table = tab.locator(".wide").first
    assert table.evaluate("e => e.scrollWidth > e.clientWidth + 100")

    def edges():
      with Image.open(io.BytesIO(table.screenshot())) as image:
        grey = np.asarray(image.convert("L"))
      return [np.median(grey[:, column]) for column in (0, -1)]

    left, right = edges()
    assert left > 250 and right < 200
    row = tab.get_by_role("rowheader", name="evaluation", exact=True).first
    assert row.evaluate("e => e.getClientRects()[0].height") < 40  # One line.
    table.evaluate("e => e.scrollTo(e.scrollWidth, 0)")
    left, right = edges()
    assert left < 200 and right > 250


@pytest.mark.slow
def test_a_click_enlarges_a_photograph_and_print_unfolds(browser, report):
  context = browser.new_context(viewport={"width": 1280, "height": 900})
  tab = context.new_page()
  tab.goto(report.as_uri())
  photo = tab.locator(".pair img").first
  before = photo.bounding_box()
  photo.click()
  assert photo.bounding_box()["width"] == 1280 > 3 * before["width"]
  folded = tab.get_by_text("optimizer.peak_lr").last
  assert not folded.is_visible()
  tab.emulate_media(media="print")
  assert folded.is_visible()
  context.close()
