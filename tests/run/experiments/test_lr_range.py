"""The learning-rate range test: its rates, its end and its advice."""

import csv

import numpy as np
import pytest
from PIL import Image

from tests import runs
from vit_jax.run.experiments.lr_range import find_lr, suggest
from vit_jax.run.settings import read


def test_the_steepest_fall_of_a_known_curve_is_suggested():
  """A sigmoid in log rate falls fastest at its middle, here 1e-3."""
  x = np.linspace(-6, 0, 601)
  losses = 2 - 1 / (1 + np.exp(-4 * (x + 3)))
  found = suggest(10**x, losses)
  # The average lags by beta / (1 - beta) = 9 steps of 0.01.
  assert np.log10(found.suggested) == pytest.approx(-3 + 0.09, abs=0.03)
  expected = np.average(losses[:5], weights=0.9 ** np.arange(5)[::-1])
  assert found.smoothed[4] == pytest.approx(expected)


def test_the_fall_after_a_leap_is_not_suggested():
  """The loss falls slowly to 1.5 at 1e-2, leaps to 9 and falls back to 2."""
  x = np.linspace(-6, 0, 601)
  slow = 2 - 0.5 / (1 + np.exp(-8 * (x + 3)))
  leap = 7 * np.exp(-((x + 0.8) ** 2) / 0.005)
  found = suggest(10**x, slow + leap)
  assert np.log10(found.suggested) == pytest.approx(-3 + 0.09, abs=0.03)


def test_a_loss_that_only_rises_suggests_nothing():
  assert suggest(np.geomspace(1e-6, 1, 50), np.arange(50.0)).suggested is None


@pytest.mark.parametrize(
  "change", [dict(steps=5), dict(lowest=0.0), dict(lowest=2.0)]
)
def test_a_range_that_is_none_is_refused(data_dir, tmp_path, change):
  options = dict(steps=20, lowest=1e-6, highest=1.0) | change
  with pytest.raises(ValueError, match="--lowest=.* 10 steps or more"):
    find_lr(read(runs.config(data_dir)), str(tmp_path), **options)


@pytest.mark.slow
def test_it_ends_where_the_loss_diverges(data_dir, tmp_path, capsys):
  config = read(runs.config(data_dir))
  find_lr(config, str(tmp_path), steps=40, lowest=1e-4, highest=1e6)
  with open(tmp_path / "lr_range.csv", newline="") as file:
    rows = [*csv.DictReader(file)]
  rates = np.array([float(row["learning_rate"]) for row in rows])
  assert len(rates) < 40
  expected = np.geomspace(1e-4, 1e6, 40)[: len(rates)]
  np.testing.assert_allclose(rates, expected, rtol=1e-4)
  # A head of zeros starts at log 10, with Mixup and smoothing as without.
  assert float(rows[0]["loss"]) == pytest.approx(np.log(10), rel=1e-4)
  with Image.open(tmp_path / "lr_range.png") as picture:
    assert picture.size[0] > 300
  assert "Try --lr " in capsys.readouterr().out
