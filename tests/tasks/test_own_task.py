"""A task from a user's own file: the one that docs/howto/own_task.md shows."""

import json
import pathlib
import re
import sys
import types

import jax.numpy as jnp
import numpy as np
import pytest

from tests import runs
from tests.image_files import plain
from vit_jax.predict import predict_files
from vit_jax.run.loop import train
from vit_jax.run.saved import evaluate_checkpoint
from vit_jax.run.settings import read
from vit_jax.runtime.display import Metric
from vit_jax.tasks.choose import OwnTaskError, task_class
from vit_jax.tasks.classification.task import ClassificationTask
from vit_jax.tasks.task import Task

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "howto" / "own_task.md"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
  """The page's file, which has at most 60 lines."""
  (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
  assert len(code.splitlines()) <= 60
  path = tmp_path_factory.mktemp("own") / "ordinal.py"
  path.write_text(code)
  return path


@pytest.fixture(scope="module")
def run(file, data_dir, tmp_path_factory):
  """A short run of the task on the digits, as grades."""
  plain_steps = dict(ema_decay=0.0, accumulation_steps=1, digest_every=0)
  config = runs.config(data_dir, total_steps=8, **plain_steps)
  config.data.task = f"{file}:Ordinal"
  config.model.update(hidden_size=8, mlp_size=8, num_heads=1)
  workdir = str(tmp_path_factory.mktemp("own") / "run")
  _, metrics = train(read(config), workdir)
  return workdir, metrics


def test_the_probabilities_are_those_of_the_questions(file):
  outputs = np.random.default_rng(0).normal(size=(5, 3))
  task = task_class(f"{file}:Ordinal")()
  found = np.exp(task.class_logits(jnp.asarray(outputs)))
  yes = 1 / (1 + np.exp(-outputs))
  expected = np.stack(
    [
      1 - yes[:, 0],
      yes[:, 0] * (1 - yes[:, 1]),
      yes[:, 0] * yes[:, 1] * (1 - yes[:, 2]),
      yes.prod(axis=1),
    ],
    axis=1,
  )
  np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.slow
def test_the_description_names_the_class(run, file):
  workdir, metrics = run
  last = pathlib.Path(workdir, "log.txt").read_text().splitlines()[-1]
  assert last.endswith(f"evaluate {workdir} --task={file}:Ordinal")
  path = pathlib.Path(workdir, "checkpoints", "8", "description", "metadata")
  saved = json.loads(path.read_text())
  assert saved["task"] == "ordinal:Ordinal" and "targets" not in saved
  assert saved["model"]["num_classes"] == 9  # One less than there are grades.
  assert 0 <= metrics["eval/off_by"] <= 9


@pytest.mark.slow
def test_the_run_is_evaluated_with_the_class_alone(run, file, data_dir):
  workdir, metrics = run
  with pytest.raises(ValueError, match="ordinal:Ordinal.*--task=file.py:Ord"):
    evaluate_checkpoint(workdir)
  with pytest.raises(ValueError, match="the run's task is ordinal:Ordinal"):
    evaluate_checkpoint(workdir, task="classification")
  found = evaluate_checkpoint(workdir, task=f"{file}:Ordinal", best=True)
  assert found == {k: pytest.approx(metrics[k], rel=1e-5) for k in found}


@pytest.mark.slow
def test_answers_are_probabilities_of_grades(run, file, tmp_path, capsys):
  workdir, _ = run
  image = str(tmp_path / "a.png")
  plain(size=(12, 9)).save(image)
  task = f"{file}:Ordinal"
  assert predict_files(workdir, [image], top=10, as_json=True, task=task) == 0
  (line,) = capsys.readouterr().out.splitlines()
  answers = json.loads(line)["predictions"]
  assert {answer["index"] for answer in answers} == {*range(10)}
  assert sum(a["probability"] for a in answers) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
  "name, says",
  [
    ("missing.py:Ordinal", "unknown"),
    ("os:getcwd", "is no subclass of vit_jax.tasks.task.Task"),
    ("os:PathLike", "is no subclass of vit_jax.tasks.task.Task"),
    ("ordinal", "unknown"),
  ],
)
def test_what_is_no_task_is_refused(name, says):
  with pytest.raises(ValueError, match=says):
    task_class(name)


def test_metrics_may_stand_in_the_class_as_they_did():
  class Before(ClassificationTask):
    metrics = (Metric("off_by", "off by"), Metric("top1", "top-1"))

  class First(Task):
    metrics, score = (Metric("a", "A"), Metric("b", "B")), "b"

  before = ClassificationTask.scores
  assert Before.scores == before.showing(*Before.metrics)
  assert (Before.scores.best, First.scores.best) == ("top1", "b")
  assert [metric.key for metric in First.scores.metrics] == ["a", "b"]


def test_methods_that_nobody_asks_any_more_are_refused():
  class Before(Task):
    def outputs(self, logits, top):
      return {"values": logits}

    def label_text(self, label, names):
      return names[label]

  says = "^Before has outputs, label_text, .* belong to its answers and labels,"
  for given in (Before, "tests.before:Before"):
    with pytest.MonkeyPatch.context() as patch:
      module = types.ModuleType("tests.before")
      module.Before = Before
      Before.__qualname__ = "Before"
      patch.setitem(sys.modules, module.__name__, module)
      with pytest.raises(OwnTaskError, match=says):
        task_class(given)


@pytest.mark.parametrize(
  "name, part",
  [
    ("has_answers", "answers"),
    ("temperatures", "answers"),
    ("learns_from_average", "objective"),
    ("reads_texts", "text_setup"),
    ("evaluator", "measure"),
  ],
)
def test_what_nobody_reads_of_a_task_is_refused(name, part):
  kind = type("Before", (ClassificationTask,), {name: True})
  says = f"^Before has {name}, which .* belong to its {part}, as in"
  with pytest.raises(OwnTaskError, match=says):
    task_class(kind)
