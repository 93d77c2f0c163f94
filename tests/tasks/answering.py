"""Models whose parameters are their answers, for every task."""

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from tests.tasks.made_up import HALF, task
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.models import Model
from vit_jax.models.student import CLASS
from vit_jax.models.two_towers import Compared
from vit_jax.runtime.display import Metric
from vit_jax.tasks.autoencoder.settings import AutoencoderSettings
from vit_jax.tasks.autoencoder.task import AutoencoderTask
from vit_jax.tasks.classification.task import ClassificationTask
from vit_jax.tasks.dense_regression.objective import Scaling
from vit_jax.tasks.dense_regression.task import DenseRegressionTask
from vit_jax.tasks.lejepa.settings import LeJepaSettings
from vit_jax.tasks.lejepa.task import LeJepaTask
from vit_jax.tasks.masked.objective import COLOURS
from vit_jax.tasks.masked.settings import MaskedSettings
from vit_jax.tasks.masked.task import MaskedPatchesTask
from vit_jax.tasks.means import means
from vit_jax.tasks.multilabel.task import MultiLabelTask
from vit_jax.tasks.outcome import Stream
from vit_jax.tasks.pairs.task import PairsTask
from vit_jax.tasks.regression.task import RegressionTask
from vit_jax.tasks.segmentation.task import SegmentationTask
from vit_jax.tasks.self_distillation.settings import SelfDistillationSettings
from vit_jax.tasks.self_distillation.task import SelfDistillationTask
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
    halves = rows[:, :4], rows[:, 4:]
    u, v = (x / jnp.linalg.norm(x, axis=1, keepdims=True) for x in halves)
    return Compared(u, v, jnp.float32(0), jnp.float32(-1))

  captions = np.arange(1, N + 1).reshape(N, 1, 1)
  return PairsTask(), Answers(shape=(8,), wrap=compared), captions


def segmenter():
  masks = np.repeat(np.repeat(LABELS, SIDE), SIDE).reshape(N, SIDE, SIDE)
  given = task(data__task="segmentation")
  assert isinstance(given, SegmentationTask)
  return given, Answers(shape=(2, 2, K)), masks.astype(np.int32)


NUMBER_OF = np.arange(1, 1 + N, dtype=np.float32)


def dense():
  """Numbers of pixels, of which a row of each image is unknown."""
  numbers = np.repeat(NUMBER_OF, SIDE * SIDE).reshape(N, SIDE, SIDE)
  numbers[:, 0] = np.nan
  given = task(data__task="dense_regression")
  assert isinstance(given, DenseRegressionTask)
  scaling = Scaling(4.5, 2.0, 1.0, 0.5)
  given = dataclasses.replace(given, scaling=scaling)
  return given, Answers(shape=(2, 2, 1)), numbers


@dataclasses.dataclass(frozen=True)
class Own(ClassificationTask):
  """A task of a user's own, evaluated by its objective's means."""

  name = "own"
  metrics = (Metric("top1", "top-1"),)

  def measure(self, model, stream):
    objective = Classification(K, SOFTMAX, HALF, HALF)
    return means(objective, model, self.scores.best)


def distilled():
  def outputs(rows):
    return {"y": rows, "answers": rows}

  settings = SelfDistillationSettings(small_crops=0)
  given = SelfDistillationTask(self_distillation=settings)
  return given, Answers(shape=(4,), wrap=outputs), None


def lejepa():
  def outputs(rows):
    return {"y": rows, "z": rows}

  given = LeJepaTask(lejepa=LeJepaSettings(weight=0.5, small_crops=0))
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
  "lejepa": lejepa,
  "student": student,
  "pairs": pairs,
  "segmentation": segmenter,
  "dense_regression": dense,
  "own": lambda: (Own(SOFTMAX), Answers(), LABELS),
}
# These stand for all in fast tests of what tasks share. That each task's own
# metrics are right is tested fast in its folder.
FIRST = {"classification", "regression", "segmentation", "own"}


def rows_of(given, model, label):
  """Answers that are right where labels tell them, and others that differ."""
  rows = RNG.normal(size=(N, math.prod(model.shape))).astype(np.float32)
  if model.shape == (K,):
    rows = 9 * FLAGS if label.ndim == 1 or label is FLAGS else label
  if given.name == "segmentation":
    rows = np.tile(9 * FLAGS, 4)
  if given.name == "dense_regression":
    logs = (np.log(NUMBER_OF) - 1.0) / 0.5
    rows = np.repeat(logs[:, None], 4, axis=1) + 0.01 * rows
  if model.shape == (2, COLOURS):
    one = np.zeros((N, COLOURS))
    one[np.arange(N), np.where(IS_LIGHT, COLOURS - 1, 0)] = 9
    rows = np.tile(one, 2)
  elif given.name == "masked":
    rows = np.where(IS_LIGHT[:, None], 1, -1) + 0.01 * rows
  if given.name == "pairs":
    rows = np.tile(rows[:, :4], 2)
  return rows
