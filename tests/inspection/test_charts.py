"""The curves, matrices and bins that charts show, read back from them."""

import numpy as np

from vit_jax.inspection import charts

NAMES = ("<b>cat</b>", "dog & co", "$\\alpha$")
CONFUSION = np.array([[5, 1, 0], [2, 3, 0], [0, 0, 4]])


def test_thinned_curves_keep_their_mean():
  values = np.random.default_rng(0).normal(size=10_001)
  steps = np.arange(1, 10_002)
  few, means = charts._thinned(steps, values)
  assert len(few) == len(means) <= 501
  np.testing.assert_allclose(means[3], values[63:84].mean())
  assert few[3] == steps[63:84].mean()


def test_charts_draw_what_they_are_given():
  figure = charts.confusion_figure(CONFUSION, NAMES)
  (axes,) = figure.axes
  told = [t.get_text() for t in axes.texts]
  assert told == ["5\n83%", "1\n17%", "2\n40%", "3\n60%", "4\n100%"]
  rows = [t.get_text() for t in axes.get_yticklabels()]
  assert rows == [f"{NAMES[0]} (6)", f"{NAMES[1]} (5)", f"{NAMES[2]} (4)"]
  red, green, blue, _ = np.moveaxis(
    np.asarray(axes.images[0].get_array()), -1, 0
  )
  right = np.eye(3, dtype=bool)
  assert (blue > red)[right].all() and (red > blue)[[0, 1], [1, 0]].all()
  empty = ~right & (CONFUSION == 0)
  np.testing.assert_array_equal((red + green + blue)[empty], 3)
  # The more right answers and the more mistakes, the darker.
  assert green[2, 2] < green[0, 0] < green[1, 1]
  assert green[1, 0] < green[0, 1]
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
  # The lines can be told apart without colour.
  assert len({style for style, _ in styles}) == 2


def test_the_suggested_rate_is_written_in():
  rates, losses = [1e-4, 1e-3, 1e-2], [2.0, 1.0, 3.0]
  figure = charts.range_figure(rates, losses, losses, 0.00123)
  (axes,) = figure.axes
  told = [text.get_text() for text in axes.get_legend().get_texts()]
  assert told == ["loss of a step", "its average", "suggested: 0.0012"]
  assert axes.lines[2].get_xdata() == [0.00123, 0.00123]
  figure = charts.range_figure(rates, losses, losses, None)
  assert len(figure.axes[0].get_legend().get_texts()) == 2
