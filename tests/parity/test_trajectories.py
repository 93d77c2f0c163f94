"""Training here follows the references, step by step, up to rounding."""

import dataclasses
import json

import pytest

from scripts.parity import measure, page, recording
from scripts.parity.faults import FAULTS
from scripts.parity.rows import ROWS


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_training_follows_the_reference(name):
  _, inputs, theirs = measure.given(name)
  assert theirs.meta["digest"] == inputs.digest(), "NumPy draws otherwise"
  assert len(theirs.loss) >= 100
  assert recording.path_of(name).stat().st_size < 300_000
  found = measure.differences(name)
  assert not recording.beyond(found, ROWS[name].tolerances), found


def test_rows_of_float32_have_the_same_tolerances():
  others = [k for k, row in ROWS.items() if row.tolerances != page.TOLERANCES]
  assert others == ["big_vision_s16_bfloat16"]
  assert dataclasses.astuple(page.TOLERANCES) == (1e-5, *[1e-4] * 3, 1e-6, 1e-6)


def test_each_row_has_a_recording_and_five_faults_that_were_found():
  kept = {path.stem for path in recording.FOLDER.glob("*.npz")}
  measured = json.loads(page.MEASURED.read_text())
  assert kept == {*ROWS} == {*measured}
  assert {*FAULTS} == {fault for row in ROWS.values() for fault in row.faults}
  for name, row in ROWS.items():
    assert len({*row.faults}) >= 5
    assert {*measured[name]["faults"]} == {*row.faults}
    assert all(fault["found"] for fault in measured[name]["faults"].values())


def test_the_page_shows_what_was_measured():
  assert page.PAGE.read_text() == page.rendered()
  for name, text in page.tables().items():
    assert (page.PAGE.parent / name).read_text() == text


@pytest.mark.slow
@pytest.mark.parametrize(
  "name, fault", [(name, fault) for name in ROWS for fault in ROWS[name].faults]
)
def test_a_fault_is_found(name, fault):
  """Training ends with the first steps that show it.

  Where the rates or the decay show it best, nothing is trained.
  """
  by = json.loads(page.MEASURED.read_text())[name]["faults"][fault]["by"]
  trained = [recording.MARKS[:3], recording.MARKS]
  tried = [()] if by in ("rate", "decay") else trained
  assert any(measure.shown_by(name, fault, marks)["found"] for marks in tried)
