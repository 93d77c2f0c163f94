"""The chart of a study."""

import numpy as np
import pytest

from vit_jax.inspection.study_chart import study_figure


def test_seeds_become_a_mean_and_a_bar():
  rows = [
    dict(size=size, model=model, seed=seed, top1=size / 1000 + seed / 10)
    for size in (100, 400)
    for model in ("S", "L")
    for seed in (0, 1, 2)
  ]
  rows.append(dict(size=900, model="S", seed=0))  # It has no score.
  figure = study_figure(rows, {}, x="size", y="top1", lines="model", log=True)
  (axes,) = figure.axes
  assert axes.get_xscale() == "log"
  assert [x.get_text() for x in figure.legends[0].get_texts()] == ["S", "L"]
  line, _, (bars,) = axes.containers[0].lines
  np.testing.assert_allclose(line.get_xydata(), [[100, 0.2], [400, 0.5]])
  # The sample standard deviation of 0, 0.1 and 0.2 is 0.1.
  ends = [segment[:, 1] for segment in bars.get_segments()]
  np.testing.assert_allclose(ends, [[0.1, 0.3], [0.4, 0.6]])


def test_the_papers_points_have_a_scale_of_their_own():
  rows = [
    dict(kind=kind, place=place, top1=0.4 + 0.1 * (kind == "learned"))
    for kind in ("none", "learned")
    for place in ("input", "every_layer")
  ]
  paper = {"input": {"none": 0.6, "learned": 0.65, "relative_1d": 0.64}}
  words = {"none": "no positions", "top1": "accuracy"}
  columns = {"x": "kind", "y": "top1", "lines": "place", "names": words}
  figure = study_figure(rows, paper, **columns, title="Positions")
  above, below = figure.axes
  assert (above.get_title(loc="left"), above.get_ylabel()) == (
    "Positions",
    "accuracy",
  )
  assert below.get_title(loc="left") == "In the paper"
  labels = [tick.get_text() for tick in below.get_xticklabels()]
  assert labels == ["no positions", "learned", "relative 1d"]
  theirs = below.containers[0].lines[0]
  assert [*theirs.get_ydata()] == pytest.approx([0.6, 0.65, 0.64])
  assert above.get_ylim()[1] < 0.6 < below.get_ylim()[1]
  # Points of two lines at one name stand apart, and those of a line below
  # each other.
  first, second = (
    np.array(c.lines[0].get_xdata(), float) for c in above.containers
  )
  assert (np.abs(first - second) > 0.1).all()
  assert [*first] == pytest.approx([*theirs.get_xdata()[:2]])
  told = [text.get_text() for text in figure.legends[0].get_texts()]
  assert told == ["input", "every layer"]


def test_only_seeds_have_bars():
  rows = [dict(x=x, line="a", seed=s, top1=s) for x in (1, 2) for s in (0, 1)]
  rows += [dict(x=1, line="b", seed=0, top1=0.5)]
  figure = study_figure(rows, {}, x="x", y="top1", lines="line")
  several, single = figure.axes[0].containers
  assert several.has_yerr and not single.has_yerr
