"""Training here follows the references, step by step, up to rounding."""

import functools

import pytest

from scripts.parity import ours, recording
from scripts.parity.faults import FAULTS
from scripts.parity.rows import ROWS

_KILOBYTES = 300  # A recording may have.


@functools.cache
def _given(name):
  setup = ROWS[name].setup()
  return setup, ROWS[name].inputs(setup), recording.read(name)


def _compared(name, setup, inputs):
  found = ours.run(setup, inputs, recording.MARKS)
  theirs = _given(name)[2]
  return recording.differences(found, theirs, ROWS[name].scale)


@pytest.mark.parametrize("name", ROWS)
def test_training_follows_the_reference(name):
  setup, inputs, theirs = _given(name)
  assert theirs.meta["digest"] == inputs.digest()
  assert len(theirs.loss) >= 100
  assert recording.path_of(name).stat().st_size < 1000 * _KILOBYTES
  found = _compared(name, setup, inputs)
  assert not recording.beyond(found, ROWS[name].tolerances), found


def test_each_row_has_at_least_five_faults_and_a_recording():
  assert all(len(set(row.faults)) >= 5 for row in ROWS.values())
  kept = {path.stem for path in recording.FOLDER.glob("*.npz")}
  assert kept == {*ROWS}


@pytest.mark.slow
@pytest.mark.parametrize(
  "name, fault", [(name, fault) for name in ROWS for fault in ROWS[name].faults]
)
def test_a_fault_is_found(name, fault):
  setup, inputs, _ = _given(name)
  with FAULTS[fault](setup) as faulty:
    found = _compared(name, faulty, inputs)
  assert recording.beyond(found, ROWS[name].tolerances), found
