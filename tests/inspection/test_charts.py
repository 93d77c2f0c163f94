"""The curves, matrices and bins that charts show, read back from them."""

import numpy as np
import pytest

from tests.rows import some_slow
from vit_jax.inspection import charts

NAMES = ("<b>cat</b>", "dog & co", "$\\alpha$")
CONFUSION = np.array([[5, 1, 0], [2, 3, 0], [0, 0, 4]])


def test_thinned_curves_keep_their_mean():
  values = np.random.default_rng(0).normal(size=10_001)
  steps = np.arange(1, 10_002)
  figure = charts.curves_figure({"loss": (steps, values)}, "Loss")
  few, means = figure.axes[0].lines[0].get_data()
  assert len(few) == len(means) <= 501
  np.testing.assert_allclose(means[3], values[63:84].mean())
  assert few[3] == steps[63:84].mean()
  # No mean is of fewer values than the others: 10,001 = 475 x 21 + 26.
  assert means[-1] == pytest.approx(values[475 * 21 :].mean())


@pytest.mark.parametrize("percent", [True, False])
def test_curves_below_0_are_drawn_whole(percent, tmp_path):
  """A score such as R2 may begin there; others begin their axis at 0."""
  for values, bottom in (((-0.9, -0.05), -0.9), ((0.5, float("nan")), 0)):
    figure = charts.curves_figure(
      {"score": ((1, 12), values)}, "Score", percent=percent
    )
    figure.savefig(tmp_path / "curve.svg")
    low, high = figure.axes[0].get_ylim()
    assert (low < bottom if bottom else low >= 0) and high > max(values)


def test_charts_draw_what_they_are_given():
  figure = charts.confusion_figure(CONFUSION, NAMES)
  (axes,) = figure.axes
  told = [t.get_text() for t in axes.texts]
  assert told == ["5\n83%", "1\n17%", "2\n40%", "3\n60%", "4\n100%"]
  for ticks in (axes.get_xticks(minor=True), axes.get_yticks(minor=True)):
    assert ticks.tolist() == [-0.5, 0.5, 1.5, 2.5]  # Lines between the cells.
  rows = [t.get_text() for t in axes.get_yticklabels()]
  assert rows == [f"{NAMES[0]} (6)", f"{NAMES[1]} (5)", f"{NAMES[2]} (4)"]
  # White is 0 %, and the shade grows with the share alone: red at 40 % is as
  # strong in one row as in another, and twice as strong as at 20 %.
  shade = 1 - np.asarray(axes.images[0].get_array())
  parts = CONFUSION / CONFUSION.sum(1, keepdims=True)
  for cells, blue in (
    (np.eye(3, dtype=bool), True),
    (~np.eye(3, dtype=bool), False),
  ):
    full = shade[cells] / np.where(parts > 0, parts, 1)[cells][:, None]
    (full,) = np.unique(full[parts[cells] > 0].round(9), axis=0)
    red_left, _, blue_left = 1 - full
    assert (blue_left > red_left) == blue
    np.testing.assert_array_equal(shade[cells & (parts == 0)], 0)
  figure = charts.calibration_figure(np.array([[4, 0.5, 0.3], [1, 1.0, 0.9]]))
  dots = figure.axes[0].collections[0].get_offsets()
  np.testing.assert_allclose(dots, [[0.3, 0.5], [0.9, 1.0]])
  ideal, through = figure.axes[0].lines
  np.testing.assert_allclose(ideal.get_xydata(), [[0, 0], [1, 1]])
  np.testing.assert_allclose(through.get_xydata(), dots)
  curves = {"_" + 40 * "a" + "1": ([1, 2], [0.5, 0.25])}
  curves |= {"_" + 40 * "a" + "2": ([1, 3], [1, 2])}
  figure = charts.curves_figure(curves, "Loss")
  lines = figure.axes[0].lines
  np.testing.assert_allclose(lines[1].get_xydata(), [[1, 1], [3, 2]])
  told = [t.get_text() for t in figure.legends[0].get_texts()]
  assert [t[0] + t[-1] for t in told] == ["_1", "_2"]
  styles = {(line.get_linestyle(), line.get_color()) for line in lines}
  # The lines can be told apart without colour.
  assert len({style for style, _ in styles}) == 2


def test_labels_are_turned_only_if_they_would_overlap():
  few = charts.confusion_figure(CONFUSION, ("pizza", "steak", "sushi"))
  long = charts.confusion_figure(CONFUSION, [20 * x for x in "abc"])
  ten = charts.confusion_figure(np.eye(10, dtype=int), [*"0123456789"])
  turned = [
    {label.get_rotation() for label in figure.axes[0].get_xticklabels()}
    for figure in (few, long, ten)
  ]
  assert turned == [{0}, {90}, {0}]
  # Half of a page of 1000 pixels is 464, and a telephone has 358: in both, 7
  # points are at least 11 pixels.
  assert 7 / 72 * 464 / few.get_figwidth() >= 11
  assert 7 / 72 * 358 / charts.narrowest(ten) >= 11


def test_a_single_point_is_seen():
  """Also of training, whose line is thin and has no dots."""
  curves = {"training": ([3], [1.0]), "evaluation": ([3], [2.0])}
  curves = {"long": ([1, 2], [1.0, 2.0]), **curves}
  figure = charts.curves_figure(curves, "Loss", thin=("long", "training"))
  marks = [line.get_marker() for line in figure.axes[0].lines]
  assert marks == ["", ".", "."]


def test_points_at_the_edge_are_whole():
  figure = charts.curves_figure({"a": ([3], [1.0])}, "Accuracy", percent=True)
  bins = np.array([[4, 1.0, 1.0]])
  (dots,) = charts.calibration_figure(bins).axes[0].collections
  assert not any(x.get_clip_on() for x in (*figure.axes[0].lines, dots))


def test_the_suggested_rate_is_written_in():
  rates, losses = [1e-4, 1e-3, 1e-2], [2.0, 1.0, 9.0]
  figure = charts.range_figure(rates, losses, losses, 0.00123)
  (axes,) = figure.axes
  told = [text.get_text() for text in figure.legends[0].get_texts()]
  assert told == ["loss of a step", "its average", "suggested: 0.0012"]
  assert axes.lines[2].get_xdata() == [0.00123, 0.00123]
  assert axes.get_ylim() == (0, 3)  # As deep below and above as the valley.
  figure = charts.range_figure(rates, losses, losses, None)
  assert len(figure.legends[0].get_texts()) == 2


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("number", some_slow([2, 5, 6, 12, 60], [5, 60]))
def test_a_legend_is_short_and_beside_the_chart(number, long, tmp_path):
  names = [f"run {n}" + long * ", of a long name" for n in range(number)]
  curves = {name: ([1, 2], [n, n + 1.0]) for n, name in enumerate(names)}
  figure = charts.curves_figure(curves, f"Loss{' of a long title' * 2}")
  figure.savefig(tmp_path / "loss.svg")
  (legend,), (axes,) = figure.legends, figure.axes
  over, chart = (x.get_window_extent() for x in (legend, axes))
  assert over.y1 <= axes.title.get_window_extent().y0
  assert over.x0 >= chart.x1 or over.y1 <= chart.y0
  assert over.x0 >= 0 and over.x1 <= figure.bbox.x1  # None is cut off.
  assert chart.height > 0.4 * figure.bbox.height
  texts = legend.get_texts()
  assert len({round(text.get_window_extent().y0) for text in texts}) <= 5
  told = [text.get_text() for text in texts]
  if told != names:
    assert told[:-1] == names[: len(told) - 1]
    assert told[-1] == f"and {number - len(told) + 1} more"


def test_a_legend_leaves_out_training_before_evaluation():
  kinds = ("training", "evaluation")
  names = [f"{n}: of a long name, {kind}" for n in range(8) for kind in kinds]
  curves = {name: ([1, 2], [1.0, 2.0]) for name in names}
  thin = {name for name in names if "training" in name}
  figure = charts.curves_figure(curves, "Loss", thin=thin)
  told = [text.get_text() for text in figure.legends[0].get_texts()]
  assert told[:8] == [name for name in names if name not in thin]
  assert told[-1] == "and 7 more"
