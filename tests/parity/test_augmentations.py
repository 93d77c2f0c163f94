"""Images here have the pixels and the draws of the references."""

import json

import pytest

from scripts.parity import draws, page_images
from scripts.parity.pixels import measure
from scripts.parity.pixels.faults import FAULTS
from scripts.parity.pixels.measure import FOLDER, ROWS

MEASURED = json.loads(page_images.MEASURED.read_text())


@pytest.mark.parametrize("name", ROWS)
def test_pixels_are_those_of_the_reference(name):
  meta, _, _ = measure.recorded(name)
  assert meta["digest"] == measure.digest(ROWS[name]), "NumPy draws otherwise"
  assert (FOLDER / f"{name}.npz").stat().st_size < 300_000
  gaps = measure.differences(name)
  assert gaps["most"] <= ROWS[name].most and gaps["share"] <= ROWS[name].share


def test_each_row_was_measured_and_five_faults_of_it_were_found():
  assert {*MEASURED["pixels"]} == {*ROWS} == {*FAULTS}
  assert {*MEASURED["draws"]} == {*draws.ROWS}
  assert {path.stem for path in FOLDER.glob("*.npz")} == {*ROWS}
  assert {path.stem for path in draws.FOLDER.glob("*")} == {*draws.ROWS}
  known = {k: {*row.faults} for k, row in draws.ROWS.items()}
  known |= {k: {*faults} for k, faults in FAULTS.items()}
  for name, row in {**MEASURED["pixels"], **MEASURED["draws"]}.items():
    assert known[name] == {*row["faults"]} and len(known[name]) >= 5
    assert all(fault["found"] for fault in row["faults"].values())
  for row in MEASURED["draws"].values():
    assert max(row["differences"].values()) <= draws.ALLOWED


@pytest.mark.slow
@pytest.mark.parametrize(
  "name, fault", [(name, fault) for name in FAULTS for fault in FAULTS[name]]
)
def test_a_fault_of_pixels_is_found(name, fault):
  assert measure.shown_by(name, fault)["found"]


@pytest.mark.slow
@pytest.mark.parametrize("name", draws.ROWS)
def test_draws_are_those_of_the_reference(name):
  """200,000 of them, which no difference of 2 % can hide in."""
  assert max(draws.differences(name).values()) <= draws.ALLOWED
  for fault in draws.ROWS[name].faults:
    assert draws.shown_by(name, fault)["found"], fault
