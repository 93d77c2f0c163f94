"""Values from outside are converted to their type, or refused by name."""

import numpy as np
import pytest

from vit_jax.runtime.checks import (
  CHANNELS,
  COUNT,
  POSITIVE,
  SIDES,
  PerChannel,
  Sides,
  checked,
)


@pytest.mark.parametrize(
  "kind, value, found",
  [
    (int, np.int64(3), 3),
    (float, 3, 3.0),
    (float, np.float32(0.5), 0.5),
    (Sides, 64, (64, 64)),
    (Sides, [4, 5], (4, 5)),
    (PerChannel, np.array([0.5, 0, 1]), (0.5, 0.0, 1.0)),
    (int | None, None, None),
    (bool, True, True),
  ],
)
def test_values_become_plain_python(kind, value, found):
  result = checked("x", kind, value)
  assert result == found
  assert type(result) is type(found)


@pytest.mark.parametrize(
  "kind, value, must, message",
  [
    (int, True, COUNT, "x=True must be a whole number"),
    (int, 2.0, COUNT, "x=2.0 must be a whole number"),
    (int, 0, COUNT, "x=0 must be 1 or more"),
    (int, None, COUNT, "x=None must be a whole number"),
    (float, 10**400, POSITIVE, r"x=10+\.\.\. must be a finite number"),
    (float, "1", POSITIVE, "x='1' must be a finite number"),
    (float, float("nan"), POSITIVE, "x=nan must be a finite number"),
    (Sides, True, SIDES, "x=True must be a height and a width"),
    (Sides, (4, 0), SIDES, r"x=\(4, 0\) must be a height and a width"),
    (PerChannel, 1, CHANNELS, "x=1 must be a finite number for each"),
    (str, 1, None, "x=1 must be a text"),
  ],
)
def test_other_values_are_refused_in_a_line(kind, value, must, message):
  with pytest.raises(ValueError, match=f"^{message}"):
    checked("x", kind, value, must)
