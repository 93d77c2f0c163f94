"""A model that answers NaN scores worst, and evaluations say so: every task."""

import dataclasses
import itertools
import math
from types import SimpleNamespace
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tasks.made_up import HALF, task
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.models import Model
from vit_jax.models.student import CLASS
from vit_jax.models.two_towers import Compared
from vit_jax.runtime.display import Metric
from vit_jax.tasks import calibration, finite
from vit_jax.tasks.autoencoder import AutoencoderTask
from vit_jax.tasks.classification import ClassificationTask
from vit_jax.tasks.masked import MaskedPatchesTask
from vit_jax.tasks.masking import COLOURS
from vit_jax.tasks.means import means_evaluator
from vit_jax.tasks.multilabel import MultiLabel, MultiLabelTask
from vit_jax.tasks.outcome import Stream
from vit_jax.tasks.pairs import PairsTask
from vit_jax.tasks.probes import (
  few_shot,
  label_errors,
  linear_probe,
  segmentation,
  whole_set,
)
from vit_jax.tasks.regression import RegressionTask
from vit_jax.tasks.segmentation import SegmentationTask
from vit_jax.tasks.segmentation_objective import PixelClasses
from vit_jax.tasks.self_distillation import SelfDistillationTask
from vit_jax.tasks.settings import (
  AutoencoderSettings,
  MaskedSettings,
  SelfDistillationSettings,
)
from vit_jax.training import sharding
from vit_jax.training.distillation import Teacher
from vit_jax.training.losses import Classification
from vit_jax.training.settings import DistillSettings, LossSettings

N, P, K = 8, 4, 3
SIDE = 2 * P
RNG = np.random.default_rng(0)
IS_LIGHT = np.arange(N) % 2 == 1  # The colour of each image, of two.
PIXELS = (
  RNG.integers(0, 32, (N, SIDE, SIDE, 3)) + 224 * IS_LIGHT[:, None, None, None]
)
LABELS = np.arange(N) % K
FLAGS = np.eye(K, dtype=np.float32)[LABELS]
NAMES = ("a", "b", "c")
SOFTMAX = LossSettings()
FOR = ("train", "test")
REPRESENTS = "the model represents images by NaN: its parameters are damaged"


class Answers(Model):
  """A model whose parameters are its outputs: a row for each image.

  The first pixel of an image is its number.
  """

  num_classes: int = K
  shape: tuple[int, ...] = (K,)
  wrap: Any = lambda rows: rows
  stride: Any = P
  patch_size: int = P

  @nn.nowrap
  def apply(self, variables, inputs, **_):
    images = inputs[0] if isinstance(inputs, tuple) else inputs
    number = jnp.rint((images[:, 0, 0, 0] / 2 + 0.5) * 255).astype(int)
    return self.wrap(variables["params"][number].reshape(-1, *self.shape))


class OneBatch(Stream):
  """All images of a split in one batch."""

  def __init__(self, label):
    source: Any = SimpleNamespace(class_names=NAMES, most_captions=1)
    self.mesh, self.source, self.batch_size = sharding.make_mesh(), source, N
    self.preprocessing = Preprocessing((SIDE, SIDE), mean=HALF, std=HALF)
    pixels = PIXELS.astype(np.uint8)
    pixels[:, 0, 0] = np.arange(N)[:, None]
    self.batch = {
      "image": pixels,
      "mask": np.ones(N, np.float32),
      "skipped": np.zeros(N, bool),
      **({} if label is None else {"label": label}),
    }

  def __call__(self, *_):
    yield self.batch


def student():
  model = Answers(shape=(4,), wrap=lambda rows: {CLASS: rows})
  teacher = Teacher(model, (SIDE, SIDE), HALF, HALF, DistillSettings())
  changes = dict(student__learns="class", distill__teacher="teacher")
  taught = dataclasses.replace(
    task(**changes),
    teacher=teacher,
    teacher_params=jnp.array(RNG.normal(size=(N, 4)), jnp.float32),
  )
  return taught, model, None


def masked(target):
  settings = MaskedSettings(rate=0.5, target=target)
  width = 3 * P * P if target == "pixels" else COLOURS
  return MaskedPatchesTask(masked=settings), Answers(shape=(2, width)), None


def pairs():
  def compared(rows):
    z = rows / jnp.linalg.norm(rows, axis=1, keepdims=True)
    u, v = z[:, :4], z[:, 4:]
    return Compared(u, v, jnp.float32(0), jnp.float32(-1))

  captions = np.arange(1, N + 1).reshape(N, 1, 1)
  return PairsTask(), Answers(shape=(8,), wrap=compared), captions


def segmenter():
  masks = np.repeat(np.repeat(LABELS, SIDE), SIDE).reshape(N, SIDE, SIDE)
  given = task(data__task="segmentation")
  assert isinstance(given, SegmentationTask)
  return given, Answers(shape=(2, 2, K)), masks.astype(np.int32)


@dataclasses.dataclass(frozen=True)
class Own(ClassificationTask):
  """A task of a user's own, evaluated by its objective's means."""

  name = "own"
  metrics = (Metric("top1", "top-1"),)

  def evaluator(self, model, stream):
    objective = Classification(K, SOFTMAX, HALF, HALF)
    return means_evaluator(objective, model, stream, self.score)


def distilled():
  def outputs(rows):
    return {"y": rows, "answers": rows}

  settings = SelfDistillationSettings(small_crops=0)
  given = SelfDistillationTask(self_distillation=settings)
  return given, Answers(shape=(4,), wrap=outputs), None


def autoencoder():
  given = AutoencoderTask(autoencoder=AutoencoderSettings(rate=0.5))
  return given, Answers(shape=(2, 3 * P * P)), None


MULTI = LossSettings(kind="sigmoid")
NUMBERS = np.stack([np.arange(N) + k for k in range(K)], 1).astype(np.float32)
MEAN = (0.0,) * K
TASKS = {
  "classification": lambda: (ClassificationTask(SOFTMAX), Answers(), LABELS),
  "sigmoid": lambda: (ClassificationTask(MULTI), Answers(), LABELS),
  "multilabel": lambda: (MultiLabelTask(MULTI), Answers(), FLAGS),
  "regression": lambda: (
    RegressionTask(LossSettings(kind="mse"), MEAN, (1.0,) * K),
    Answers(),
    NUMBERS,
  ),
  "masked": lambda: masked("colour"),
  "masked_pixels": lambda: masked("pixels"),
  "autoencoder": autoencoder,
  "self_distillation": distilled,
  "student": student,
  "pairs": pairs,
  "segmentation": segmenter,
  "own": lambda: (Own(SOFTMAX), Answers(), LABELS),
}


@pytest.mark.parametrize("name", TASKS)
def test_an_answer_that_is_none_scores_worst(name):
  """By every metric, also if only some answers are none, and it is said."""
  given, model, label = TASKS[name]()
  evaluate = given.evaluator(model, OneBatch(label))
  good = rows_of(given, model, label)

  def measured(rows):
    outcome = evaluate(jnp.asarray(rows, jnp.float32), detail=True)
    each = {m: outcome.scores.get(m.key) for m in given.metrics}
    signs = {True: 1, False: -1}
    return outcome, {
      m.key: finite.rated(signs[m.higher_is_better] * score)
      for m, score in each.items()
      if score is not None and m.higher_is_better is not None
    }

  outcome, best = measured(good)
  assert not outcome.unanswered and not outcome.broken and not outcome.constant
  for count, value in itertools.product((N // 2, N), (np.nan, np.inf, -np.inf)):
    rows = good.copy()
    rows[:count] = value
    outcome, found = measured(rows)
    assert outcome.unanswered == count
    said = f"The model answers NaN to {count} examples."
    assert outcome.remarks[0] == said and outcome.broken == [said]
    assert found.keys() == best.keys() and given.score in found
    for key, score in found.items():
      assert score < best[key], (key, value, count)
      if count == N:
        assert score <= (outcome.chance or 0), (key, value)


def rows_of(given, model, label):
  """Answers that are right where labels tell them, and others that differ."""
  rows = RNG.normal(size=(N, math.prod(model.shape))).astype(np.float32)
  if model.shape == (K,):
    rows = 9 * FLAGS if label.ndim == 1 or label is FLAGS else label
  if given.name == "segmentation":
    rows = np.tile(9 * FLAGS, 4)
  if model.shape == (2, COLOURS):
    one = np.zeros((N, COLOURS))
    one[np.arange(N), np.where(IS_LIGHT, COLOURS - 1, 0)] = 9
    rows = np.tile(one, 2)
  elif given.name == "masked":
    rows = np.where(IS_LIGHT[:, None], 1, -1) + 0.01 * rows
  if given.name == "pairs":
    rows = np.tile(rows[:, :4], 2)
  return rows


@pytest.mark.parametrize("name", sorted({*TASKS} - {"own"}))
def test_one_answer_for_all_examples_is_said(name):
  given, model, label = TASKS[name]()
  evaluate = given.evaluator(model, OneBatch(label))
  rows = np.ones((N, math.prod(model.shape)), np.float32)
  outcome = evaluate(jnp.asarray(rows), detail=True)
  lines = "\n".join(outcome.remarks)
  if name == "self_distillation":
    assert "all images get nearly the same" in lines
  else:
    assert outcome.constant
    assert "The model gives all 8 examples the same answer." in lines
  if outcome.chance is not None:
    assert outcome.scores[given.score] <= outcome.chance + 1e-6


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
  "objective, shape, targets",
  [
    (Classification(K, SOFTMAX, HALF, HALF), (K,), np.eye(K)[LABELS]),
    (Classification(K, MULTI, HALF, HALF), (K,), np.eye(K)[LABELS]),
    (MultiLabel(K, MULTI, HALF, HALF), (K,), np.zeros((N, K))),
    (PixelClasses(HALF, HALF), (2, 2, K), np.zeros((N, 2, 2), int)),
  ],
)
def test_in_training_such_an_answer_is_wrong(objective, shape, targets, value):
  logits = jnp.full((N, *shape), value)
  if isinstance(objective, PixelClasses):
    _, score = objective.compare(logits, jnp.asarray(targets))
  else:
    _, score = objective.loss_and_score(logits, jnp.asarray(targets))
  assert not np.asarray(score).any()


def batches(y, labels):
  info = {"label": labels, "mask": np.ones(len(y)), "skipped": np.zeros(len(y))}
  yield jnp.asarray(y), {k: jnp.asarray(v) for k, v in info.items()}


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("bad", ["train", "test"])
@pytest.mark.parametrize("probe", ["knn", "linear", "segment", "errors"])
def test_probes_of_such_representations_are_one_line(probe, bad, value):
  """Also where the images of one split alone have them."""
  y = {key: RNG.normal(size=(30, 4)).astype(np.float32) for key in FOR}
  y[bad][7] = value
  labels = np.arange(30) % K
  train, test = (batches(y[key], labels) for key in FOR)
  with pytest.raises(finite.NotFiniteError, match=REPRESENTS):
    if probe == "knn":
      whole_set.nearest_neighbours(train, test, K, 5)
    elif probe == "linear":
      whole_set.linear(train, test, K, 30)
    elif probe == "errors":
      label_errors.out_of_fold(y[bad], labels, K)
    else:
      masks = np.broadcast_to(labels[:, None, None], (30, 4, 4))
      maps = [np.tile(y[key][:, None, None], (2, 2, 1)) for key in FOR]
      segmentation.segment(batches(maps[0], masks), batches(maps[1], masks), K)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_calibration_and_masks_of_such_answers_are_one_line(value):
  logits = np.full((200, K), value)
  says = "the model answers with NaN: its parameters are damaged, or its tr"
  with pytest.raises(finite.NotFiniteError, match=says):
    calibration.fit("softmax", logits, np.tile(FLAGS, (25, 1)))
  given, model, label = TASKS["segmentation"]()
  mark = given.make_mark(model, OneBatch(label).preprocessing)
  assert mark is not None
  with pytest.raises(finite.NotFiniteError, match=says):
    params = jnp.full((N, 4 * K), value)
    mark(params, np.zeros((SIDE, SIDE, 3), np.uint8))


def test_few_shots_of_such_representations_are_one_line():
  """The shots are checked as they are read, and the images to test on here."""
  probe = linear_probe.fit_shots(RNG.normal(size=(K, 2, 4)))
  names = ("mean", "scale", "W")
  fitted = {name: jnp.stack([getattr(probe, name)]) for name in names}
  y = np.where(np.arange(N)[:, None] < 3, np.nan, np.ones((N, 4), np.float32))
  ((_, info),) = batches(y, LABELS)
  counts = few_shot.count_right(fitted, jnp.asarray(y), info)
  assert counts["unanswered"] == 3 and counts["examples"] == N
