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
  assert [c.get_label() for c in axes.containers] == ["S", "L"]
  line, _, (bars,) = axes.containers[0].lines
  np.testing.assert_allclose(line.get_xydata(), [[100, 0.2], [400, 0.5]])
  # The sample standard deviation of 0, 0.1 and 0.2 is 0.1.
  ends = [segment[:, 1] for segment in bars.get_segments()]
  np.testing.assert_allclose(ends, [[0.1, 0.3], [0.4, 0.6]])


def test_the_papers_points_are_behind_ours():
  rows = [dict(kind="none", top1=0.4), dict(kind="learned", top1=0.5)]
  paper = {"": {"none": 0.6, "learned": 0.65, "relative": 0.64}}
  figure = study_figure(rows, paper, x="kind", y="top1")
  (axes,) = figure.axes
  labels = [tick.get_text() for tick in axes.get_xticklabels()]
  assert labels == ["none", "learned", "relative"]
  behind = axes.lines[0]
  assert behind.get_label() == "paper"
  np.testing.assert_allclose(behind.get_ydata(), [0.6, 0.65, 0.64])
  assert behind.zorder <= axes.containers[0].lines[0].zorder
  ours = axes.containers[0].lines[0]
  assert [*ours.get_ydata()] == pytest.approx([0.4, 0.5])
