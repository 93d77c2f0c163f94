"""Tells at the end of a run whether it has diverged, or has learned nothing."""

import math
import statistics
from collections.abc import Sequence

RECENT = 10  # Steps at the end of a run that are looked at.
DIVERGED = 3  # Exit code of a run that has reached its end, but diverged.
_FAR = 10.0  # Times the loss at the start.
_LEAST = 1.0  # A start below this loss, as of a trained head, counts as this.
ADVICE = (
  "Try a smaller optimizer.peak_lr, more warm-up, or optimizer.clip_norm."
)


class DivergedError(FloatingPointError):
  """Raised by a run that has diverged, after it has ended and is saved."""

  exit_code = DIVERGED


def why_diverged(
  losses: Sequence[float], skipped: Sequence[bool], first: float | None
) -> str | None:
  """Says how a run diverged, by its last steps; None if it did not.

  It did if more than half of these updates were not applied, or if the median
  loss of the others is ten times that of the first step. A run that goes up
  for a while and comes back has not diverged.

  Args:
    losses: The loss of each of the last steps.
    skipped: Whether its update was not finite, so that it was not applied.
    first: The loss at the start; None if it is not known.
  """
  count = sum(skipped)
  if 2 * count > len(skipped):
    return (
      f"{count} of its last {len(skipped)} updates were not finite, and were "
      "not applied"
    )
  applied = [x for x, out in zip(losses, skipped, strict=True) if not out]
  if not applied or first is None or not math.isfinite(first):
    return None
  last = statistics.median(applied)
  if last <= _FAR * max(first, _LEAST):
    return None
  return f"its loss began at {first:.4g} and ended at {last:.4g}"


def at_chance(score: float | None, chance: float | None, count: int) -> bool:
  """Whether a score is no better than one answer for all of `count` examples.

  `chance` is what that answer scores, if it is known. A share has to be a
  standard deviation above it. Nothing is better than a chance of 1.
  """
  if score is None or chance is None or not 0 <= chance < 1:
    return False
  return score <= chance + math.sqrt(chance * (1 - chance) / max(count, 1))
