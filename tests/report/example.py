"""Made-up measurements, a short run's configuration, and a parser of pages."""

import html.parser

import numpy as np

from configs import image_folder
from vit_jax.report.dataset import Dataset, Sizes
from vit_jax.report.measure import (
  ExampleGroup,
  Measured,
  RunFacts,
  ShownExample,
)
from vit_jax.tasks.classification.confusion import ConfusionMatrix
from vit_jax.tasks.classification.eval_step import Predictions
from vit_jax.tasks.classification.task import (
  ClassificationOutcome,
  ClassificationTask,
)

NAMES = ("<b>cat</b>", "dog & co", "$\\alpha$")
CONFUSION = np.array([[5, 1, 0], [2, 3, 0], [0, 0, 4]])


class Page(html.parser.HTMLParser):
  """Parses a page into its tags, links, images and the text of its cells."""

  TOLD = ("td", "th", "h1", "h2", "code", "dt", "dd", "p", "figcaption")

  def __init__(self, text):
    super().__init__()
    self.cells, self.images, self.links, self.tags = [], [], [], []
    self.best = 0
    self.inside = False
    self.feed(text)

  def handle_starttag(self, tag, attributes):
    given = dict(attributes)
    self.tags.append(tag)
    if tag == "td" and "best" in (given.get("class") or "").split():
      self.best += 1
    if tag == "img":
      self.images.append(given)
    if tag in self.TOLD:
      self.cells.append((tag, []))
      self.inside = True
    self.links += [v for k, v in attributes if k in ("src", "href")]

  def handle_endtag(self, tag):
    self.inside = self.inside and tag not in self.TOLD

  def handle_data(self, data):
    if self.inside:
      self.cells[-1][1].append(data)

  def texts(self, *tags):
    return ["".join(text).strip() for tag, text in self.cells if tag in tags]


def measured():
  """Measurements of made-up answers whose confusion is `CONFUSION`."""
  label, answer = (
    np.repeat(where.ravel(), CONFUSION.ravel()) for where in np.indices((3, 3))
  )
  rng = np.random.default_rng(0)
  probability = np.float32(rng.uniform(0.4, 1, len(label)))
  loss = -np.log(np.where(label == answer, probability, 1 - probability))
  counted = np.ones(len(label), bool)
  confusion = ConfusionMatrix.of(
    Predictions(label, answer, probability, np.float32(loss), counted)
  )
  totals = {"count": np.zeros(3, np.float32), "unanswered": 0}
  outcome = ClassificationOutcome({}, totals, NAMES, confusion)
  photo = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
  rollout = np.zeros((4, 4), np.float32)
  rollout[0, 3] = 1
  groups = [
    ExampleGroup(
      kind.title,
      kind.text,
      [
        ShownExample(f"test/{e.index}.jpg", e, photo, rollout)
        for e in kind.examples
      ],
    )
    for kind in outcome.telling()
  ]
  metrics = {"eval/top1": 12 / 15, "eval/top5": 1.0, "eval/loss": 0.5}
  metrics |= {"eval/examples": 15, "eval/skipped_images": 0}
  return Measured(
    step=20,
    data_name="pets",
    num_parameters=1234,
    task=ClassificationTask(),
    outcome=outcome,
    metrics=metrics,
    class_names=NAMES,
    groups=groups,
    filters=rng.random((3, 2, 2, 3)),
    positions=rng.random((2, 2, 2, 2)),
    dataset=Dataset(
      train=Sizes(80, [(8, 9), (640, 480), (10, 10)], [1000, 3000, 5000]),
      evaluation=Sizes(15, [], [74]),
      counts=np.array([50, 20, 10]),
      augmented=[(photo, 0), (photo, 2)],
    ),
  )


def facts(workdir, measured, **config):
  """The facts of a made-up run with these measurements, or without any."""
  start = {
    "step": 0,
    "time": "2026-01-02T03:04:05+00:00",
    "command": f"python -m vit_jax.train --workdir '{workdir}'",
    "devices": "8 x TPU v5e",
    "hosts": 2,
    "cores": 4,
    "system": "Linux x86_64",
    "python": "3.12.1",
    "packages": {"jax": "0.10.2", "vit_jax": None},
  }
  rows = [
    {
      "step": s,
      "train/loss": 1 / s,
      "train/top1": s / 10,
      "train/images_per_second": 100.0 * s,
    }
    for s in (1, 2, 4)
  ]
  problem = None if measured else "it has gone."
  config = {"seed": 0, **config}
  task = measured and measured.task
  return RunFacts(workdir, rows, [start], config, task, measured, problem)


def config_of(root):
  """The configuration of a short run on the photographs."""
  config = image_folder.get_config()
  config.data.root = str(root)
  config.update(batch_size=8, image_size=(32, 32), total_epochs=0.0)
  config.update(total_steps=8, log_every_epochs=0.0, log_every_steps=2)
  config.update(eval_every_epochs=2.0, save_every_epochs=2.0)
  config.optimizer.update(warmup_epochs=0.0)
  config.model.update(num_layers=1, hidden_size=16, mlp_size=32)
  config.loader.num_workers = 0
  return config
