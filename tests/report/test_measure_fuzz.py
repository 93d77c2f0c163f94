"""Odd rows in a run's folder: a report skips and counts them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzzing import distorted, examples, outcome
from tests.report.example import Page
from vit_jax.report import tables
from vit_jax.report.measure import read_run
from vit_jax.report.page import headline_of
from vit_jax.report.write import report_files

START = {
  "step": 0,
  "time": "2026-01-02T03:04:05+00:00",
  "command": "python -m vit_jax.train --workdir run",
  "devices": "8 x TPU v5e",
  "hosts": 2,
  "cores": 4,
  "system": "Linux x86_64",
  "python": "3.12.1",
  "packages": {"jax": "0.10.2", "vit_jax": None},
}
TRAINED = {
  "train/loss": 0.5,
  "train/learning_rate": 0.1,
  "train/gradient_norm": 2.0,
  "train/images_per_second": 100.0,
  "time": {"steps": 1.5, "saving": 0.25},
}
# By task; its metrics tell a report which one it was.
EVALUATED = [
  {"eval/top1": 0.5, "eval/top5": 0.9},
  {"eval/map": 0.5, "eval/ap_by_class": {"a": 0.5, "b": None}},
  {"eval/mae": 0.5, "eval/r2": None},
  {"eval/colours_right": 0.5, "eval/colours_common": 0.25},
]
COMMON = {"eval/loss": 0.7, "eval/examples": 12, "eval/skipped_images": 0}


def _write(folder, name, lines):
  folder.mkdir(exist_ok=True)
  (folder / name).write_bytes(b"".join(line + b"\n" for line in lines))


def _rows(scores):
  trained = [{"step": step, **TRAINED} for step in (2, 4, 6)]
  return [*trained, {"step": 6, **COMMON, **scores}]


@pytest.mark.slow
@given(data=st.data())
@examples(150)
def test_a_report_of_odd_rows_has_no_error(tmp_path_factory, data):
  folder = tmp_path_factory.getbasetemp() / "odd rows"
  rows = _rows(data.draw(st.sampled_from(EVALUATED)))
  rows = [data.draw(st.just(row) | distorted(row)) for row in rows]
  rows.append({"step": 8, **TRAINED})  # Without any row it would be no run.
  starts = data.draw(st.lists(st.just(START) | distorted(START), max_size=3))
  _write(folder, "metrics.jsonl", [json.dumps(row).encode() for row in rows])
  _write(folder, "starts.jsonl", [json.dumps(row).encode() for row in starts])

  def load():
    run = read_run(str(folder))
    tables.results(["a run"], [run])
    tables.facts(run)
    headline_of(["a run"], [run])
    for key in {key for row in run.rows for key in row} - {"time"}:
      if "by_" not in key:
        run.curve(key)

  assert outcome("rows of a report", load) == "read"


# Each was a traceback.
ODD_STARTS = [
  b'{"step": 0}',
  json.dumps({**START, "time": ["2026"]}).encode(),
  json.dumps({**START, "command": {"a": 1}}).encode(),
  json.dumps({**START, "packages": "jax"}).encode(),
  json.dumps({**START, "hosts": "2"}).encode(),
  json.dumps({**START, "devices": 8}).encode(),
]
ODD_METRICS = [
  b'{"step": 6, "train/loss": {"a": 1}}',
  b'{"step": 6, "train/loss": [1]}',
  b'{"step": 6, "train/loss": "0.5"}',
  b'{"step": 6, "train/loss": 1%s}' % (b"0" * 400),
  b'{"step": 1%s, "train/loss": 1}' % (b"0" * 400),
  b'{"step": 6, "train/loss": %s1%s}' % (b"[" * 500, b"]" * 500),
  b'{"step": 6, "train/loss": 1e999}',
]


@pytest.mark.parametrize("scores", EVALUATED)
def test_every_odd_row_is_skipped_and_counted(tmp_path, capsys, scores):
  good = [json.dumps(row).encode() for row in _rows(scores)]
  _write(tmp_path, "metrics.jsonl", [*ODD_METRICS, *good])
  _write(tmp_path, "starts.jsonl", [*ODD_STARTS, json.dumps(START).encode()])
  run = read_run(str(tmp_path))
  assert (run.rows, run.starts) == (_rows(scores), [START])
  said = [
    "metrics.jsonl: 7 broken lines are left out.",
    "starts.jsonl: 6 broken lines are left out.",
  ]
  assert run.notes == said
  assert run.curve("train/loss") == ([2, 4, 6], [0.5, 0.5, 0.5])
  if "eval/top1" in scores:
    report_files([str(tmp_path)])
    seen = Page((tmp_path / "report.html").read_text())
    assert set(said) <= {*seen.texts("p")}
    shown = capsys.readouterr().out
    assert all(f"{tmp_path}: {line}" in shown for line in said)


def test_equal_and_falling_steps_are_a_curve(tmp_path):
  """Their differences were weights of a mean, which may not sum to 0."""
  steps = [0, 0, 2, 2, 1]
  lines = [
    b'{"step": %d, "train/loss": %d}' % (s, n) for n, s in enumerate(steps)
  ]
  _write(tmp_path, "metrics.jsonl", lines)
  steps, values = read_run(str(tmp_path)).curve("train/loss")
  assert steps == [0, 1, 2] and values == [1, 4, 3]
