"""The CSV file of all answers, against a sort in NumPy."""

import csv

import numpy as np

from vit_jax.tasks.classification.eval_step import Predictions
from vit_jax.tasks.classification.evaluation import ClassificationOutcome

NAMES = ["cat", "dog", "owl, barn"]


class Files:
  """A source whose examples are named, and must not be read."""

  def __init__(self, with_ids):
    self._with_ids = with_ids
    if with_ids:
      self.ids = lambda indices: [f"file_{i}" for i in indices]

  def read(self, indices):
    assert not self._with_ids
    return [{"id": f"file_{i}"} for i in indices]


def written(tmp_path, source, *batches):
  outcome = ClassificationOutcome({}, {}, NAMES, None, batches)
  outcome.write(tmp_path / "out.csv", source)
  with open(tmp_path / "out.csv", newline="", encoding="utf-8") as file:
    header, *rows = csv.reader(file)
  assert header == ["file", "label", "answer", "probability", "loss"]
  return rows


def test_rows_are_sorted_by_loss(tmp_path):
  rng = np.random.default_rng(0)
  label, answer = rng.integers(0, 3, (2, 100))
  loss, probability = rng.random((2, 100)).astype(np.float32)
  counted = rng.random(100) < 0.9
  batches = [
    Predictions(
      *(row[k : k + 32] for row in (label, answer, probability, loss, counted))
    )
    for k in range(0, 100, 32)
  ]
  order = [i for i in np.argsort(-loss, kind="stable") if counted[i]]
  for source in (Files(with_ids=True), Files(with_ids=False)):
    rows = written(tmp_path, source, *batches)
    assert [row[0] for row in rows] == [f"file_{i}" for i in order]
    assert [row[1] for row in rows] == [NAMES[label[i]] for i in order]
    assert [row[2] for row in rows] == [NAMES[answer[i]] for i in order]
    numbers = np.array([row[3:] for row in rows], float)
    expected = np.stack([probability, loss], 1)[order]
    np.testing.assert_allclose(numbers, expected, rtol=1e-5)


def test_an_answer_of_nan_comes_first_and_is_none(tmp_path):
  nan = np.nan
  batch = Predictions(
    np.array([0, 1, 2]),
    np.array([0, 0, 0]),
    np.array([0.5, nan, 0.5]),
    np.array([9.0, nan, 1.0]),
    np.array([True, True, True]),
  )
  rows = written(tmp_path, Files(with_ids=True), batch)
  assert rows[0] == ["file_1", "dog", "", "nan", "nan"]
  assert [row[0] for row in rows[1:]] == ["file_0", "file_2"]
