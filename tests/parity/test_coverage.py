"""The comparison of every encoder of timm and of transformers with ours."""

import csv
import json

import numpy as np
import pytest

from scripts.parity import coverage

ROWS = (
  coverage.Row("timm", "eva", "a", coverage.SAME, 1e-6),
  coverage.Row("timm", "eva", "b", coverage.REFUSED, reason="it is a b"),
  coverage.Row("transformers", "vit", "c", coverage.OTHER, 0.5),
)


def test_the_table_counts_the_answers_of_each_module(tmp_path):
  table = [*coverage.summary(ROWS)]
  assert table[2:] == [
    "| timm | eva | 2 | 1 | 1 | 0 | 0 |",
    "| transformers | vit | 1 | 0 | 0 | 1 | 0 |",
    "| all |  | 3 | 1 | 1 | 1 | 0 |",
  ]
  coverage.write([*ROWS], tmp_path / "a.csv", tmp_path / "a.json")
  with (tmp_path / "a.csv").open() as file:
    reasons = [row["reason"] for row in csv.DictReader(file)]
  assert reasons == ["", "it is a b", ""]
  (_, _, other) = json.loads((tmp_path / "a.json").read_text())
  assert (other["answer"], other["error"]) == ("other", 0.5)


def test_a_difference_is_a_share_of_the_largest_value():
  expected = np.array([[-4.0, 1.0]])
  assert coverage.difference(expected + 0.5, expected) == 0.125
  with pytest.raises(ValueError, match=r"its shape is \(1, 1\), not \(1, 2\)"):
    coverage.difference(expected[:, :1], expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_answer_that_is_not_theirs_is_seen(monkeypatch):
  """The same model with another GELU answers otherwise."""
  encoders = torch_encoders()
  arguments = coverage.arguments([])
  found = {e.name: e for e in encoders.encoders("timm")}
  encoder = found["test_vit"]
  assert coverage.compare(encoder, arguments).answer == coverage.SAME
  opened = coverage.open_checkpoint
  monkeypatch.setattr(
    coverage, "open_checkpoint", lambda path: opened(path, gelu="quick")
  )
  row = coverage.compare(encoder, arguments)
  assert row.answer == coverage.OTHER and (row.error or 0) > 1e-4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
  "name", ["vit_small_r26_s32_224", "vit_so150m_patch16_reg4_map_256"]
)
def test_timms_answer_is_ours_before_and_after_it_is_written(name):
  """A hybrid, and attention pooling beside registers, of real widths."""
  found = {e.name: e for e in torch_encoders().encoders("timm")}
  row = coverage.compare(found[name], coverage.arguments(["--write"]))
  assert row.answer == coverage.SAME, row.reason
  assert float(row.written) <= 1e-6


def torch_encoders():
  """The module that makes the libraries' models; skips without them."""
  for name in ("torch", "timm", "transformers", "torchvision"):
    pytest.importorskip(name, reason=f"needs {name}")
  from scripts.parity.reference import encoders

  return encoders
