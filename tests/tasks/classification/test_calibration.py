"""Temperatures against other fits, and what uses them."""

import dataclasses
import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special
from sklearn.linear_model import LogisticRegression

from tests.old_runs import CHECKPOINTS
from vit_jax import export_model, load_pretrained
from vit_jax.run.saved import calibrate_checkpoint, evaluate_checkpoint
from vit_jax.tasks.answers import calibrator_of
from vit_jax.tasks.classification.calibration import (
  calibration_error,
  fit,
  temperature,
)
from vit_jax.tasks.classification.task import ClassificationTask
from vit_jax.tasks.multilabel.task import MultiLabelTask
from vit_jax.tasks.regression.task import RegressionTask
from vit_jax.training.settings import LossSettings
from vit_jax.workdir import calibration
from vit_jax.workdir.description import with_digest


def _drawn(count, classes, scale, seed=0):
  """Logits, and classes drawn by the softmax of the logits divided by scale."""
  rng = np.random.default_rng(seed)
  z = rng.normal(size=(count, classes)) * 2
  p = scipy.special.softmax(z, axis=1)
  drawn = (p.cumsum(1) > rng.random(count)[:, None]).argmax(1)
  return z * scale, drawn


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_the_temperature_has_the_highest_likelihood(scale):
  """By SciPy's search; data drawn at a temperature give it back, nearly."""
  z, label = _drawn(4000, 5, scale)

  def loss(T):
    rows = scipy.special.log_softmax(z / T, axis=1)
    return -rows[np.arange(len(z)), label].mean()

  best = scipy.optimize.minimize_scalar(
    loss, bounds=(0.05, 50), method="bounded", options={"xatol": 1e-9}
  )
  T = temperature("softmax", z, np.eye(5)[label])
  assert T == pytest.approx(best.x, rel=1e-4)
  assert T == pytest.approx(scale, rel=0.1)


def test_the_temperature_of_a_label_is_scikit_learns():
  """Its slope of a logistic regression without an offset is 1 / T."""
  rng = np.random.default_rng(1)
  z = rng.normal(size=(3000, 1)) * 3
  y = (rng.random((3000, 1)) < 1 / (1 + np.exp(-z / 2))).astype(float)
  model = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-10)
  slope = model.fit(z, y[:, 0]).coef_[0, 0]
  assert temperature("sigmoid", z, y) == pytest.approx(1 / slope, rel=1e-4)


def test_each_label_has_its_own_and_the_other_half_is_measured():
  rng = np.random.default_rng(2)
  z = rng.normal(size=(2000, 3)) * 3
  y = (rng.random(z.shape) < scipy.special.expit(z / [1, 3, 1])).astype(float)
  y[:, 2] = 1  # A label that all have: no temperature is best.
  fitted = fit("sigmoid", z, y, each=True)
  assert fitted.temperature[1] / fitted.temperature[0] == pytest.approx(3, 0.2)
  assert fitted.temperature[2] == 1 and fitted.unfitted == (2,)
  assert (fitted.fitted_on, fitted.measured_on) == (1000, 1000)
  assert fitted.error_after < fitted.error_before
  assert fitted.loss_after < fitted.loss_before
  assert "No temperature is best for c: 1" in fitted.lines(("a", "b", "c"))[-1]


@pytest.mark.parametrize(
  "several, error",
  # Of the pairs, 4 are at 0.05, of which 1 is right, and 4 at 0.2, of which
  # none is.
  [(False, (0.4 + 0.4) / 2), (True, (4 * (0.2 + 0.2) + 2 * (0.4 + 0.4)) / 12)],
)
def test_the_error_is_that_of_its_bins(several, error):
  """15 bins: answers of 0.9 are right half the time, those of 0.6 always."""
  p = np.array([0.9, 0.9, 0.6, 0.6])
  z = np.log(np.stack([p, (1 - p) / 2, (1 - p) / 2], axis=1))
  labels = np.eye(3)[[0, 1, 0, 0]]
  found = calibration_error("softmax", z, labels, several=several)
  assert found == pytest.approx(error)


@pytest.mark.parametrize(
  "count, says",
  [
    (3, "3 examples are too few to calibrate on: it takes 100"),
    (99, "99 examples are too few"),
    (100, "no temperature is best"),
  ],
)
def test_what_cannot_be_fitted_is_one_line(count, says):
  z = np.eye(2)[np.arange(count) % 2]
  with pytest.raises(ValueError, match=says):
    fit("softmax", z, z)


def test_a_temperature_that_makes_other_examples_worse_is_refused():
  rng = np.random.default_rng(0)
  z = rng.normal(size=(100, 2))
  right = scipy.special.expit(z[:, 1] - z[:, 0])
  y = np.eye(2)[(rng.random(100) < right).astype(int)]
  fitted = fit("softmax", z, y)
  assert (fitted.fitted_on, fitted.measured_on) == (50, 50)
  worse = dataclasses.replace(fitted, loss_before=0.5, loss_after=0.6)
  with pytest.raises(ValueError, match="not kept, .*0.5000 before, 0.6000"):
    worse.check()
  dataclasses.replace(fitted, loss_before=0.6, loss_after=0.5).check()


def test_a_task_without_probabilities_is_refused():
  with pytest.raises(ValueError, match="regression gives no probabilities"):
    calibrator_of(RegressionTask(LossSettings(kind="mse")), None, None)


def _logits(loaded, pixels):
  images = (jnp.asarray(pixels) / 255 - 0.5) / 0.5
  return np.asarray(loaded.model.apply({"params": loaded.params}, images))


@pytest.fixture
def workdir(tmp_path, capsys):
  return shutil.copytree(CHECKPOINTS / "workdirs/plain", tmp_path / "plain")


@pytest.mark.slow
def test_what_was_fitted_is_used_wherever_the_run_answers(
  workdir, data_dir, capsys
):
  images = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), np.uint8)
  logits = _logits(load_pretrained(workdir), images)
  found = evaluate_checkpoint(str(workdir), data_dir=str(data_dir))
  (T,) = calibrate_checkpoint(str(workdir), data_dir=str(data_dir))
  assert abs(T - 1) > 0.01
  said = capsys.readouterr().out
  assert f"Wrote {workdir / 'calibration.jsonl'}. predict, convert, " in said
  after = load_pretrained(workdir)
  np.testing.assert_allclose(
    _logits(after, images), logits / T, rtol=1e-4, atol=1e-6
  )
  exported = export_model(after, platforms=["cpu"])
  np.testing.assert_allclose(
    exported.call(jnp.asarray(images)), logits / T, rtol=1e-4, atol=1e-6
  )
  capsys.readouterr()
  calibrated = evaluate_checkpoint(str(workdir), data_dir=str(data_dir))
  assert "is calibrated: logits are divided by" in capsys.readouterr().out
  assert calibrated["eval/top1"] == found["eval/top1"]
  # The same again, from the logits as they are.
  assert calibrate_checkpoint(str(workdir), data_dir=str(data_dir)) == (T,)
  rows = (workdir / "calibration.jsonl").read_text().splitlines()
  assert [json.loads(row)["temperature"] for row in rows] == [[T]]
  # Another checkpoint of that step is not taken for this one.
  (file,) = workdir.glob("checkpoints/*/description/metadata")
  saved = json.loads(file.read_text())
  saved.pop("digest")
  file.write_text(json.dumps(with_digest({**saved, "train_examples": 7})))
  again = load_pretrained(workdir)
  np.testing.assert_allclose(_logits(again, images), logits, rtol=1e-5)


def _found(folder, **row):
  """What is read of a file with this row, as a checkpoint's calibration."""
  row = {"step": 24, "digest": "x", **row}
  (folder / "calibration.jsonl").write_text(json.dumps(row) + "\n")
  return calibration.find(str(folder), {"digest": "x"})


def test_a_file_that_was_damaged_is_as_none(workdir):
  (workdir / "calibration.jsonl").write_text(
    '{"step": 24, "digest": "x", "temperature": "hot"}\n{"step": 24, "dig'
  )
  loaded = load_pretrained(workdir)
  assert loaded.step == 24
  assert loaded.notes[-1].endswith(
    "calibration.jsonl: 2 broken lines are left out."
  )


@pytest.mark.parametrize(
  "temperature",
  [[], [0], [-1.0], [1e-300], [1e5], [True], ["1"], [[1.0]], 1.0, None],
)
def test_a_temperature_out_of_bounds_is_left_out_with_a_line(
  temperature, tmp_path
):
  for row in (
    {"temperature": temperature},
    {"temperature": [2.0], "threshold": 1e300},
  ):
    fitted, (line,) = _found(tmp_path, **row)
    assert not fitted
    assert line.endswith("calibration.jsonl: 1 broken line is left out.")
  assert _found(tmp_path, temperature=[2]).fitted == {"temperature": [2]}


def test_temperatures_of_another_number_are_refused(workdir):
  """Even of as many as classes, which would change the answers."""
  digest = load_pretrained(workdir).description["digest"]
  _found(workdir, digest=digest, temperature=[1 + k / 10 for k in range(10)])
  says = (
    "plain: calibration.jsonl has 10 temperatures, and the run's task takes 1: "
    "remove that file, and evaluate --calibrate writes it again"
  )
  with pytest.raises(ValueError, match=says):
    load_pretrained(workdir)


@pytest.mark.parametrize("count", [1, 2, 3, 1_000])
@pytest.mark.parametrize(
  "task, takes",
  [(ClassificationTask(), 1), (MultiLabelTask(), 2), (RegressionTask(), 0)],
)
def test_a_task_takes_a_number_of_temperatures(task, takes, count):
  fitted = {"temperature": [1.0] * count}
  assert task.answers.temperatures(("a", "b")) == takes
  if count == takes:
    calibration.check_count("run", fitted, takes)
    return
  says = f"has {count:,} temperatures, and the run's task takes {takes or 'no'}"
  with pytest.raises(ValueError, match=says):
    calibration.check_count("run", fitted, takes)


def test_several_labels_are_divided_each_by_its_own_and_the_threshold_follows():
  task = MultiLabelTask(LossSettings(kind="sigmoid"))
  fitted = {"temperature": [2.0, 4.0], "threshold": 0.3}
  task = task.with_facts({"threshold": 0.7, "calibration": fitted})
  assert task.answers.given_from == 0.3
  z = jnp.array([[2.0, -4.0]])
  answer = task.answers.outputs(z, top=2)
  expected = scipy.special.expit([1.0, -1.0])
  np.testing.assert_allclose(answer["probability"][0], expected, rtol=1e-6)
  kernel = task.answers.leaf_in_unit("head/kernel", np.ones((3, 2), np.float32))
  np.testing.assert_array_equal(kernel, np.tile([0.5, 0.25], (3, 1)))
  np.testing.assert_array_equal(
    task.in_unit().answers.outputs(z, 2)["index"], [[0, 1]]
  )
