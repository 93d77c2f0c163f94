"""How far a share of right answers on few examples can be trusted."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

FEW = 50
"""Fewer examples are too few to judge a model by."""
_CONFIDENCE = 0.95
_DRAWS = 400
_LIKELY = 0.05  # A share that chance reaches more often may be due to chance.


class Interval(NamedTuple):
  """An interval of a score; that of a share lies between 0 and 1."""

  low: float
  high: float

  def overlaps(self, other: "Interval") -> bool:
    """Whether some score lies in both intervals."""
    return self.low <= other.high and other.low <= self.high

  def __str__(self) -> str:
    """The interval in percent, as "67 to 84 %".

    Numbers have a decimal if the interval is narrower than 5 points.
    """
    digits = 0 if self.high - self.low >= 0.05 else 1
    return f"{100 * self.low:.{digits}f} to {100 * self.high:.{digits}f} %"

  @property
  def as_numbers(self) -> str:
    """The interval of a score that is no share, as "0.35 to 0.75"."""
    return f"{self.low:.2f} to {self.high:.2f}"


def wilson(share: float, count: float) -> Interval:
  """Wilson's score interval, at 95 %, of a share of `count` examples.

  With p the share and z the normal quantile it is
  (p + z^2 / 2N -+ z sqrt(p (1 - p) / N + z^2 / 4N^2)) / (1 + z^2 / N)
  (Wilson, 1927).
  """
  # Imported here, since a run needs it only once it has evaluated.
  from scipy.special import ndtri

  z = float(ndtri((1 + _CONFIDENCE) / 2))
  middle = share + z * z / (2 * count)
  spread = z * math.sqrt(
    share * (1 - share) / count + z * z / (4 * count * count)
  )
  scale = 1 + z * z / count
  low = (middle - spread) / scale
  high = (middle + spread) / scale
  return Interval(max(0.0, low), min(1.0, high))


def of_folds(shares: Sequence[float], count: int) -> Interval:
  """The interval of an accuracy by k folds of `count` examples in all.

  It goes from the lowest fold to the highest, and is no narrower at either end
  than Wilson's of all answers: folds of few images may agree by chance. As the
  fits to the folds share most of their examples, the variance of the mean is
  1 + k n / m times that of `count` independent answers, with n examples in a
  fold and m in all others (Nadeau and Bengio, 2003), so n / m = 1 / (k - 1).
  Wilson's interval is therefore taken for `count` divided by this factor.
  """
  mean = sum(shares) / len(shares)
  low, high = wilson(mean, _independent(count, len(shares)))
  return Interval(min(low, *shares), max(high, *shares))


def of_resampled_folds(
  score: Callable[[np.ndarray], float], size: int, count: int, parts: int
) -> Interval:
  """The interval of any score of the answers to `parts` folds.

  It is a bootstrap's (Efron, 1979), from draws of answers with replacement.
  `count` answers to folds are worth fewer independent answers, as `of_folds`
  says, and a draw has this smaller number. The draws are the same each time.

  Args:
    score: A function from indices of answers to their score, which may be NaN.
    size: Number of answers.
    count: Number of images, each of which has one or several of the answers.
    parts: Number of folds.

  Returns:
    The middle 95 % of the scores that are numbers; NaN without such scores.
  """
  rng = np.random.default_rng(0)
  drawn = max(2, round(_independent(count, parts)))
  scores = [score(rng.integers(size, size=drawn)) for _ in range(_DRAWS)]
  known = [one for one in scores if not math.isnan(one)]
  if not known:
    return Interval(math.nan, math.nan)
  tail = (1 - _CONFIDENCE) / 2
  low, high = np.quantile(known, [tail, 1 - tail])
  return Interval(float(low), float(high))


def _independent(count: float, parts: int) -> float:
  """How many independent answers `count` answers to `parts` folds are worth."""
  k = max(2, parts)
  return count / (1 + k / (k - 1))


def by_chance(share: float, chance: float, count: int) -> float:
  """The probability that at least this `share` of `count` guesses is right.

  Each guess is right with probability `chance`: the result is the exact upper
  tail of the binomial distribution.
  """
  right = round(share * count)
  if right == 0:
    return 1.0
  from scipy.special import betainc

  return float(betainc(right, count - right + 1, chance))


def may_be_chance(share: float, chance: float, count: int) -> bool:
  """Whether guesses reach this share of right answers in over 5 % of cases."""
  return by_chance(share, chance, count) > _LIKELY
