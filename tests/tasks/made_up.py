"""Made-up splits and settings, for tests of tasks."""

import csv

import numpy as np

from vit_jax.run import build
from vit_jax.run.plan import Plan, absent_splits
from vit_jax.run.settings import Settings
from vit_jax.runtime.settings import replaced
from vit_jax.tasks.metrics import Evaluator
from vit_jax.training import sharding
from vit_jax.training.state import Extras

HALF = (0.5, 0.5, 0.5)


class Split:
  """A source of labels, whose images are named and must not be read."""

  name = "made up"

  def __init__(self, labels, names=("a", "b")):
    self._labels, self.class_names = np.array(labels), tuple(names)

  def __len__(self):
    return len(self._labels)

  def labels(self, indices):
    return self._labels[np.array(indices)]

  def ids(self, indices):
    return [f"{k}.png" for k in indices]


def settings(**changes):
  """Settings with a file of labels; "__" stands for the dot in a key."""
  changes = {key.replace("__", "."): value for key, value in changes.items()}
  return replaced(Settings(), {"data.labels_file": "labels.csv"} | changes)


def task(**changes):
  """The task of these settings."""
  return build.task_of(settings(**changes))


def plan(given, task, model, extras=Extras(), *, classes=1, examples=100):
  """The plan of a run of 10 steps with this model, of data that are absent."""
  given = replaced(given, {"total_steps": 10})
  return Plan(
    settings=build.resolved(given, None),
    task=task,
    mesh=sharding.make_mesh(),
    splits=absent_splits(task, classes, examples),
    start=None,
    model=model,
    extras=extras,
  )


def evaluator(given, model, stream):
  """Evaluates parameters of a model of a task."""
  return Evaluator(given.measure(model, stream), stream)


def rows_of(outcome, tmp_path, source):
  """The rows of the CSV file of all answers."""
  outcome.write(tmp_path / "out.csv", source)
  with (tmp_path / "out.csv").open() as file:
    return list(csv.reader(file))
