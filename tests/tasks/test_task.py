"""What every task has to do, and what each refuses."""

import contextlib
import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.rows import some_slow
from tests.tasks.made_up import HALF, Split, evaluator, rows_of, settings, task
from tests.tiny import SIZES, random_params
from vit_jax import make_vit
from vit_jax.data.batch import batch_spec, row_spec
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading.captions import TEXT, Captions
from vit_jax.data.reading.labels import NONE, SINGLE
from vit_jax.data.reading.mask_folder import IGNORED, MASKS
from vit_jax.data.reading.number_folder import PIXEL_NUMBERS
from vit_jax.data.reading.several import SEVERAL
from vit_jax.data.reading.sources import Splits
from vit_jax.data.reading.targets import NUMBERS
from vit_jax.data.reading.tokenizer_files import new_tokenizer
from vit_jax.data.settings import TrainTransformSettings
from vit_jax.inference.predictor import Prediction
from vit_jax.inspection.charts import figure_of_chart
from vit_jax.models import to_fields
from vit_jax.pretrained.run_checkpoint import open_run_checkpoint
from vit_jax.run.plan import _fit_task
from vit_jax.run.settings import Settings
from vit_jax.runtime.settings import flat, to_dict
from vit_jax.tasks import choose
from vit_jax.tasks.classification.task import ClassificationTask
from vit_jax.tasks.outcome import Stream
from vit_jax.tasks.table import ALL_TASKS, SECTIONS
from vit_jax.tasks.table import LABELLED_TASKS as NAMED
from vit_jax.training import sharding
from vit_jax.training.distillation import Teacher
from vit_jax.training.losses import StepContext
from vit_jax.training.settings import DistillSettings, LossSettings
from vit_jax.training.state import TrainState
from vit_jax.workdir.checkpoint import Checkpoints

B, NAMES = 24, tuple("abcdefg")
WORDS = [f"{colour} {name}" for name in NAMES for colour in ("red", "blue")]
TOKENIZER = new_tokenizer(WORDS, 300, 6)
CAPTIONS = Captions(files=TOKENIZER, most=2, length=6)
RNG = np.random.default_rng(0)
CLASSES = RNG.permutation(np.arange(B) % 7).astype(np.int32)
TEXTS = [
  [WORDS[2 * k], WORDS[2 * k + 1]][: 1 + n % 2] for n, k in enumerate(CLASSES)
]
LABELS = {
  SINGLE: CLASSES,
  SEVERAL: (RNG.random((B, 7)) < 0.4).astype(np.float32),
  NUMBERS: (100 + 50 * RNG.normal(size=(B, 7))).astype(np.float32),
  NONE: CLASSES,
  MASKS: RNG.choice([*range(7), IGNORED], (B, 8, 8)).astype(np.int32),
  PIXEL_NUMBERS: np.where(
    RNG.random((B, 8, 8)) < 0.2, np.nan, RNG.uniform(1, 9, (B, 8, 8))
  ).astype(np.float32),
  CAPTIONS: CAPTIONS.ids(TEXTS),
}
TASKS = {
  "classification": {},
  "sigmoid": {"loss__kind": "sigmoid"},
  "multilabel": {"data__task": "multilabel"},
  "regression": {"data__task": "regression"},
  "segmentation": {"data__task": "segmentation"},
  "dense_regression": {"data__task": "dense_regression"},
  "pairs": {
    "data__task": "pairs",
    "pairs__captions": 2,
    "pairs__text_length": 6,
    "pairs__text_size": 8,
  },
  "masked": {"masked__rate": 0.5},
  "autoencoder": {
    "autoencoder__rate": 0.5,
    "autoencoder__decoder_size": 8,
    "autoencoder__decoder_layers": 1,
    "autoencoder__decoder_heads": 2,
  },
  "student": {"student__learns": "both", "distill__teacher": "teacher"},
  "self_distillation": {
    "ema_decay": 0.9,
    "image_size": (8, 8),
    "self_distillation__prototypes": 32,
    "self_distillation__head_size": 16,
    "self_distillation__bottleneck": 8,
    "self_distillation__small_size": 4,
  },
  "lejepa": {
    "lejepa__weight": 0.5,
    "lejepa__projections": 8,
    "lejepa__projector_size": 16,
    "lejepa__small_size": 4,
  },
}
# Without a folder of labelled images, and on few examples.
UNMEASURED = {"eval/zero_shot", "eval/calibration_error"}
# These answer nothing for a whole image.
SILENT = {*TASKS} - {"classification", "sigmoid", "multilabel", "regression"}
OF_PIXELS = {"segmentation", "dense_regression"}
every_task = pytest.mark.parametrize("name", TASKS)


def a_teacher():
  """A teacher with its parameters."""
  sizes = dict(num_layers=1, hidden_size=8, mlp_size=8, num_heads=2)
  model = make_vit("Ti/4", 0, **sizes)
  teacher = Teacher(model, (8, 8), HALF, HALF, DistillSettings())
  return teacher, random_params(model, (8, 8), 1)


class Batch(Stream):
  """A pass over `B` images, of which the last two are unreadable."""

  mesh = sharding.make_mesh()
  preprocessing = Preprocessing((8, 8), mean=HALF, std=HALF)

  def __init__(self, given):
    labels = LABELS[given.labels]
    self.source = Split(labels, NAMES)
    self.batch_size = B
    self.texts = {}
    if given.text_setup is not None:
      self.source.label_spec = given.labels.spec(len(NAMES))
      self.texts = {TEXT: labels[:, 0]}

  def __call__(self, track=None):
    images = np.random.default_rng(0).integers(0, 256, (B, 8, 8, 3), np.uint8)
    mask = np.float32(np.arange(B) < B - 2)
    batch = {"image": images, "label": self.source.labels(range(B))}
    batch |= {"mask": mask, "skipped": mask == 0}
    batch |= self.texts
    yield jax.device_put(batch, sharding.batch_sharding(self.mesh))


def test_the_second_batch_of_an_evaluation_is_not_traced_again(monkeypatch):
  traced = []
  class_logits = ClassificationTask.class_logits

  def counted(task, logits):
    traced.append(logits.shape)
    return class_logits(task, logits)

  class Batches(Batch):
    def __call__(self, track=None):
      for _ in range(2):
        yield from super().__call__(track)

  monkeypatch.setattr(ClassificationTask, "class_logits", counted)
  given = task()
  model = make_vit("Ti/4", len(NAMES), num_layers=1, hidden_size=8, num_heads=2)
  outcome = evaluator(given, model, Batches(given))(
    random_params(model, (8, 8), 0)
  )
  assert outcome.metrics["eval/examples"] == 2 * (B - 2)
  assert traced == [(B, len(NAMES))]


@pytest.mark.parametrize(
  "name",
  some_slow(TASKS, ["classification"]),
)
def test_what_every_task_does(name, tmp_path):
  given = task(**TASKS[name])
  if given.text_setup is not None:
    setup = given.text_setup.of(given.pairs, TOKENIZER, None)
    given = dataclasses.replace(given, text_setup=setup)
  stream = Batch(given)
  given.check_evaluation(stream.source)
  given = given.fitted(stream.source)
  teacher, teacher_params = a_teacher()
  given = given.with_teacher(teacher, teacher_params)
  model = make_vit("Ti/4", given.num_outputs(NAMES), **SIZES)
  model = given.adapted(model)
  params = random_params(model, (8, 8), 0)
  objective = given.objective(model, stream.preprocessing)
  outcome = evaluator(given, model, stream)(
    params, detail=True, examples=name not in SILENT
  )
  found = outcome.metrics | outcome.details

  # The arrays of a batch are those that the task says a step takes.
  (batch,) = stream()
  transform = given.train_transform(
    stream.preprocessing, TrainTransformSettings()
  )
  spec = batch_spec(row_spec(transform, given.labels.spec(len(NAMES))), B)
  arrays = {k: (x.shape, x.dtype) for k, x in batch.items() if k != "mask"}
  crops = {"second", "small"} & spec.keys()
  assert (name in ("self_distillation", "lejepa")) == bool(crops)
  assert arrays == {
    k: (one.shape, one.dtype) for k, one in spec.items() if k not in crops
  }

  # What a step minimises is what an evaluation reports.

  @jax.jit
  def loss_of(params, batch):
    images, targets = objective.prepare(batch, jax.random.key(0))

    def apply(images, **variables):
      return model.apply({"params": params, **variables}, images)

    context = StepContext(frozen={"teacher": teacher_params})
    return objective.loss(apply, images, targets, context).value

  inputs, _ = objective.prepare(batch, jax.random.key(0))
  images = jax.tree.leaves(inputs)[0]
  np.testing.assert_array_equal(objective.inputs(batch), images)
  specs = model.inputs(stream.preprocessing.image_shape)
  for array, one in zip(*map(jax.tree.leaves, (inputs, specs)), strict=True):
    assert array.shape == (B, *one.shape[1:])
  # Pairs are compared with each other, so those to skip are left out before.
  rows = slice(B - 2 if given.text_setup is not None else B)
  step_batch = {key: np.asarray(array)[rows] for key, array in batch.items()}
  loss = np.asarray(loss_of(params, step_batch))[: B - 2].mean()
  assert found["eval/loss"] == pytest.approx(loss, rel=1e-5)
  counts = found["eval/examples"], found["eval/skipped_images"]
  assert counts == (B - 2, 2)

  # Its metrics are measured, and put into words.
  keys = {f"eval/{metric.key}" for metric in given.scores.metrics}
  assert keys <= found.keys() | {f"eval/{objective.metric}"} | UNMEASURED
  score = f"eval/{given.scores.best}"
  assert score in found
  assert given.scores.metric.higher_is_better and found[score] <= 1
  assert type(choose.by_metrics(found)) is type(given)
  shown = {key for chart in given.scores.curves for key in chart.curves}
  assert {score, f"train/{objective.metric}"} <= shown
  assert given.scores.headline(found)
  said = given.scores.metric.format.format(found[score])
  assert given.scores.metric.text(found).endswith(said)
  assert given.scores.ahead(0.5, 0.5) == "" != given.scores.ahead(0.5, 0.25)
  for chart in outcome.charts():
    figure_of_chart(chart)
  for _, (columns, rows) in outcome.tables():
    assert {len(columns)} == {*map(len, rows)}

  # A checkpoint's description gives the task back.
  told = choose.record(given) | given.chosen_facts(found)
  told = json.loads(json.dumps(told))
  own = settings(**TASKS[name])
  told["config"] = to_dict(own)
  saved = choose.saved(told, own.loss)
  assert saved == given.with_facts(told)
  assert saved.facts() == given.facts()
  assert choose.record(saved) == choose.record(given)

  assert (given.answers is None) == (name in SILENT - OF_PIXELS)
  if name not in SILENT:
    _check_answers(given, model, params, batch, outcome, tmp_path, stream)


def _check_answers(given, model, params, batch, outcome, tmp_path, stream):
  """Answers as JSON and as lines are those of the CSV file."""
  rows = rows_of(outcome, tmp_path, stream.source)
  assert len(rows) == 1 + B - 2
  x = batch["image"] / np.float32(127.5) - 1
  logits = jax.jit(model.apply)({"params": params}, x)
  arrays = jax.device_get(given.answers.outputs(logits, 7))
  for row in (dict(zip(rows[0], row, strict=True)) for row in rows[1:]):
    k = int(row["file"].removesuffix(".png"))
    one = {key: value[k] for key, value in arrays.items()}
    answer = Prediction(
      row["file"], **{key: tuple(x.tolist()) for key, x in one.items()}
    )
    told = json.loads(json.dumps(given.answers.as_json(answer, NAMES)))
    lines = given.answers.lines(answer, NAMES)
    assert len(lines) == 7 and given.answers.text(one, NAMES)
    for name, value in told.get("values", {}).items():
      assert float(row[f"{name}_predicted"]) == pytest.approx(value, rel=1e-4)
    first = told.get("predictions", [None])[0]
    if first and "answer" in row:
      assert first["class"] == row["answer"]
      expected = pytest.approx(float(row["probability"]), rel=1e-4)
      assert first["probability"] == expected
    elif first:
      expected = pytest.approx(float(row[first["class"]]), rel=1e-4)
      assert first["probability"] == expected
    if first:
      assert f"{first['probability']:.2%}" in lines[0]
      assert (
        len(given.answers.as_json(answer, NAMES, top=2)["predictions"]) >= 2
      )


# A value of each key that some task refuses.
REFUSED = {
  "loss.kind": "sigmoid",
  "loss.label_smoothing": 0.1,
  "loss.mixup_alpha": 0.2,
  "loss.cutmix_alpha": 1.0,
  "loss.class_weights": "1,2",
  "model.num_classes": 3,
  "model.head_bias": -7.0,
  "eval_per_class": True,
  "data.task": "multilabel",
  "lora.rank": 2,
  "eval_pictures": 1,
  "distill.form": "deit",
  "distill.kind": "hard",
  "distill.temperature": 3.0,
  "distill.weight": 0.25,
  "distill.teacher": "teacher",
  "fewshot.shots": 5,
  "transfer.keep_head": True,
  "transfer.probe_head": True,
  "train_transform.randaugment_layers": 2,
  "fewshot.neighbours": 20,
}


@pytest.mark.parametrize(
  "name, key", [(n, key) for n in TASKS for key in task(**TASKS[n]).refuses]
)
def test_keys_that_say_nothing_for_a_task_are_refused(name, key):
  default = flat(to_dict(Settings()))[key]
  changes = TASKS[name] | {key: REFUSED[key]}
  kind = f"applies to classes, and data.task={name!r} has none"
  switched_on = {*SECTIONS} - {*NAMED}
  if name == "segmentation":
    kind = f"does not fit masks, and data.task={name!r} has them as labels"
  elif name == "dense_regression":
    kind = "does not fit numbers of pixels, and "
    kind += f"data.task={name!r} has them as labels"
  elif name in switched_on:
    first = dataclasses.fields(ALL_TASKS[name].settings())[0].name
    value = TASKS[name][f"{name}__{first}"]
    kind = (
      f"applies to labels, and {name}.{first}={value!r} trains without labels"
    )
  message = f"{key}={REFUSED[key]!r} {kind}: set it to {default!r}."
  with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
    task(**changes)


UNLABELLED = {"data.root": "photos", "data.labels": False}


@pytest.mark.parametrize(
  "name, changes, message",
  [
    ("regression", {"loss.kind": "sigmoid"}, "does not fit data.task"),
    ("multilabel", {"loss.kind": "mse"}, "takes sigmoid: leave it out"),
    ("classification", {"loss.kind": "mse"}, "softmax or sigmoid: leave it"),
    (
      "masked",
      UNLABELLED | {"fewshot.shots": 5, "data.labels_file": None},
      "fewshot.shots=5 needs labels: set data.labels=True for",
    ),
    (
      "classification",
      UNLABELLED | {"data.labels_file": None},
      "no classes to train on: leave it out, or set masked.rate or auto",
    ),
  ],
)
def test_losses_and_labels_that_do_not_fit_are_refused(name, changes, message):
  with pytest.raises(ValueError, match=re.escape(message)):
    task(**TASKS[name] | changes)


@pytest.mark.parametrize(
  "name, kind",
  [
    ("classification", "softmax"),
    ("sigmoid", "sigmoid"),
    ("multilabel", "sigmoid"),
    ("regression", "mse"),
  ],
)
def test_the_task_sets_the_loss(name, kind):
  assert task(**TASKS[name]).loss.kind == kind
  assert choose.answering(kind).loss.kind == kind


@every_task
def test_few_shots_may_have_data_of_their_own(name):
  task(**TASKS[name], fewshot__shots=5, fewshot__data__name="digits")


def test_splits_that_have_no_score_are_refused():
  several, numbers = (
    task(data__task=name) for name in ("multilabel", "regression")
  )
  with pytest.raises(ValueError, match="no image of made up has a label, so"):
    several.check_evaluation(Split([[0, 0], [0, 0]]))
  same = Split([[1.0, 2], [2.0, 2]])
  with pytest.raises(ValueError, match="b is the same in all images of made"):
    numbers.check_evaluation(same)
  splits = Splits(Split([[1.0, 2], [2.0, 3]]), same, None, "", [])
  given = settings(data__task="regression", batch_size=2)
  with pytest.raises(ValueError, match="b is the same in all images of made"):
    _fit_task(numbers, given, splits)
  several.check_evaluation(Split([[0, 0], [0, 1]]))
  numbers.check_evaluation(Split([[1.0, 2], [2.0, 3]]))


def test_an_unknown_task_is_refused():
  with pytest.raises(ValueError, match="is unknown .* choose one of classifi"):
    choose.task_class("detection")
  with pytest.raises(ValueError, match="is no subclass of vit_jax.tasks.task"):
    choose.task_class("vit_jax.tasks.outcome:Stream")
  saved, plain = {"task": "mine.py:Own", "config": {}}, LossSettings()
  with pytest.raises(choose.OwnTaskError, match="a class of your own: give it"):
    choose.saved(saved, plain)
  with pytest.raises(ValueError, match="the run's task is mine.py:Own"):
    choose.saved(saved, plain, "regression")
  with pytest.raises(ValueError, match="run's task is classification."):
    choose.saved({"config": {}}, plain, "regression")


@pytest.mark.parametrize(
  "name", some_slow(TASKS, ["classification", "pairs", "segmentation"])
)
def test_best_opens_the_checkpoint_that_the_closing_line_names(tmp_path, name):
  own = task(**TASKS[name])
  description = {
    "config": to_dict(settings(**TASKS[name])),
    "model": to_fields(make_vit("Ti/4", num_classes=7, num_layers=1)),
    "class_names": [*NAMES],
    **choose.record(own),
  }
  # By each metric of another task, and by its other ones, the newest is best.
  metrics = {
    f"eval/{metric.key}"
    for record in ALL_TASKS.values()
    for metric in record.task_class().scores.metrics
  }
  good, late = dict.fromkeys(metrics, 0.1), dict.fromkeys(metrics, 0.9)
  key = own.scores.key
  rows = {10: good | {key: 0.5}, 20: late | {key: 0.25}}
  workdir = str(tmp_path / "run")
  with contextlib.closing(Checkpoints(workdir, keys=(key,))) as saved:
    for step, row in rows.items():
      state = TrainState(jnp.int32(step), {"a": np.ones(1)}, None)
      assert saved.save(state, step, description, row) is None
    saved.wait()
    assert saved.best_step == 10
  loaded, _ = open_run_checkpoint(workdir, best=True)
  assert loaded.step == 10
  assert open_run_checkpoint(workdir)[0].step == 20
