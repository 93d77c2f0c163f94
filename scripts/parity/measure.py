"""Measures how our training differs from a recording, as the tests do."""

import functools
from typing import Any

from scripts.parity import recording
from scripts.parity.faults import FAULTS
from scripts.parity.inputs import Inputs
from scripts.parity.ours import Setup
from scripts.parity.recording import Recording
from scripts.parity.rows import ROWS


@functools.cache
def given(name: str) -> tuple[Setup, Inputs, Recording]:
  """Our side of a row, what both sides are given, and what theirs found."""
  setup = ROWS[name].setup()
  return setup, ROWS[name].inputs(setup), recording.read(name)


def differences(
  name: str,
  fault: str | None = None,
  marks: tuple[int, ...] = recording.MARKS,
) -> dict[str, float]:
  """The largest difference of each kind, with a fault put into our side.

  Training ends with the last of `marks`: if that is early, the rates and the
  decay are not compared; without any marks, they alone are.
  """
  setup, inputs, theirs = given(name)

  def compared(setup: Setup) -> dict[str, float]:
    found = ROWS[name].run(setup, inputs, marks)
    return recording.differences(found, theirs, ROWS[name].scale)

  if fault is None:
    return compared(setup)
  with FAULTS[fault](setup) as faulty:
    return compared(faulty)


def shown_by(
  name: str, fault: str, marks: tuple[int, ...] = recording.MARKS
) -> dict[str, Any]:
  """The kind of difference that shows a fault best, if any does.

  `times` is how many times as large as it may be the difference is.
  """
  allowed = ROWS[name].tolerances
  found = differences(name, fault, marks)
  times = {kind: x / getattr(allowed, kind) for kind, x in found.items()}
  best = max(times, key=lambda kind: times[kind])
  return {"by": best, "times": times[best], "found": times[best] > 1}
