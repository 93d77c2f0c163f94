"""Intervals and the binomial test, beside scipy's and values of the formula."""

import numpy as np
import pytest
from scipy import stats

from vit_jax.tasks import intervals


@pytest.mark.parametrize("right, count", [(0, 8), (5, 8), (38, 45), (359, 359)])
def test_the_interval_is_wilsons(right, count):
  found = intervals.wilson(right / count, count)
  known = stats.binomtest(right, count).proportion_ci(method="wilson")
  np.testing.assert_allclose(found, (known.low, known.high), atol=1e-12)


@pytest.mark.parametrize("right", [0, 1, 5, 8])
@pytest.mark.parametrize("chance", [0.1, 1 / 3, 0.625])
def test_chance_is_the_upper_tail_of_the_binomial_distribution(right, chance):
  found = intervals.by_chance(right / 8, chance, 8)
  known = stats.binomtest(right, 8, chance, alternative="greater").pvalue
  assert found == pytest.approx(known, abs=1e-12)


def test_folds_that_agree_are_no_surer_than_their_images():
  """Each fit has four fifths of them: 1 + 5 / 4 times the variance."""
  low, high = intervals.wilson(0.8, 48 / 2.25)
  assert low < intervals.wilson(0.8, 48).low
  assert intervals.of_folds([0.8] * 5, 48) == pytest.approx((low, high))
  assert intervals.of_folds([0.5, 0.8, 0.8, 0.9, 1.0], 48) == (0.5, 1.0)


@pytest.mark.parametrize("views", [1, 2])
def test_drawn_answers_of_folds_are_as_sure_as_counted_ones(views):
  """For a share, the bootstrap comes near to Wilson's interval."""
  right = (np.arange(480) % 4 > 0).repeat(views)
  found = intervals.of_resampled_folds(
    lambda rows: right[rows].mean(), size=480 * views, count=480, parts=5
  )
  expected = intervals.wilson(0.75, 480 / 2.25)
  np.testing.assert_allclose(found, expected, atol=0.012)


def test_draws_without_a_score_are_left_out():
  value = np.arange(10.0)

  def mean_unless_the_first_is_drawn(rows):
    return np.nan if (rows == 0).any() else value[rows].mean()

  found = intervals.of_resampled_folds(
    mean_unless_the_first_is_drawn, size=10, count=10, parts=5
  )
  assert 1 <= found.low < found.high <= 9
  none = intervals.of_resampled_folds(
    lambda _: np.nan, size=10, count=10, parts=5
  )
  assert np.isnan(none).all()
  assert found.as_numbers == f"{found.low:.2f} to {found.high:.2f}"


def test_narrow_intervals_have_a_decimal():
  assert str(intervals.Interval(0.306, 0.863)) == "31 to 86 %"
  assert str(intervals.Interval(0.9641, 0.9923)) == "96.4 to 99.2 %"
