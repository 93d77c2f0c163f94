"""Evaluates a run: on its split, few-shot, and in pictures."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from flax.traverse_util import unflatten_dict
from jax.sharding import Mesh

from vit_jax.data.example import Source
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading.sources import Splits, open_splits
from vit_jax.models import Model
from vit_jax.run import build
from vit_jax.run.settings import Settings
from vit_jax.runtime.display import Split, Track
from vit_jax.tasks.finite import NotFiniteError
from vit_jax.tasks.metrics import Evaluator
from vit_jax.tasks.outcome import Stream
from vit_jax.tasks.scores import PROBES, SINCE_START, Score, judged
from vit_jax.tasks.task import Task

ProbeMetrics = Callable[[Any, Track], dict[str, Any]]
"""A function from parameters and a progress display to metrics by key."""


def open_stream(
  settings: Settings,
  task: Task,
  mesh: Mesh,
  preprocessing: Preprocessing,
  source: Source,
) -> Stream:
  """Opens the batches of a split to evaluate on."""
  loader = build.open_loader(settings, preprocessing)
  rows = settings.eval_batch_size or settings.batch_size
  transform = task.eval_transform(preprocessing)
  return Stream(source, mesh, preprocessing, loader, rows, transform)


@dataclasses.dataclass(eq=False)
class RunEvaluation:
  """Everything that is measured at an evaluation of a run.

  The settings are resolved, the task has its facts, and the stream is that of
  the evaluation split. After a call, `chance` is the score of giving one answer
  for all examples, if the task knows it, and `warnings` are lines on what went
  wrong in the evaluation or in a probe. `folds` are the metrics of the linear
  probe that the head started from, if there was one. `probe_splits` are the
  data of the probes.
  """

  settings: Settings
  task: Task
  model: Model
  stream: Stream
  splits: Splits
  chance: float | None = dataclasses.field(default=None, init=False)
  warnings: list[str] = dataclasses.field(default_factory=list, init=False)
  folds: dict[str, Any] = dataclasses.field(default_factory=dict, init=False)
  probe_splits: Splits = dataclasses.field(init=False)

  def __post_init__(self):
    """Makes the functions that measure the split, the probes and pictures.

    Raises ValueError if the data or the installed libraries do not allow the
    probes or the pictures that the settings ask for.
    """
    mesh, preprocessing = self.stream.mesh, self.stream.preprocessing
    measure = self.task.measure(self.model, self.stream)
    self._evaluator = Evaluator(measure, self.stream)
    self._pictures = None
    settings, self.probe_splits = probe_data(self.settings, self.splits)
    self._probes = make_probes(
      settings=settings,
      task=self.task,
      model=self.model,
      mesh=mesh,
      preprocessing=preprocessing,
      splits=self.probe_splits,
    )
    if self.settings.eval_pictures:
      from vit_jax.inspection.eval_pictures import make_pictures

      self._pictures = make_pictures(
        task=self.task,
        model=self.model,
        mesh=mesh,
        preprocessing=preprocessing,
        source=self.splits.eval,
        count=self.settings.eval_pictures,
      )

  @property
  def probe(self) -> Score | None:
    """The score of the features by the first probe; None without probes."""
    scores = (*PROBES, SINCE_START)
    return next((s for s in scores if s.split in self._probes), None)

  def __call__(
    self, params: Any, track: Track, plain_params: Any = None
  ) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the metrics of the parameters, and the pictures by name.

    If `params` are an average, `plain_params` are the parameters themselves,
    whose score is added.
    """
    detail = self._pictures is not None
    outcome = self._evaluator(params, track, detail=detail)
    self.chance = outcome.chance
    self.warnings = [*outcome.broken, *outcome.warnings]
    metrics, pictures = outcome.metrics, {}
    if self.settings.eval_per_class:
      metrics |= outcome.by_class()
    if plain_params is not None:
      key = self.task.scores.key
      plain = self._evaluator(plain_params, track).metrics
      metrics[f"{key}_not_averaged"] = plain[key]
    if self._pictures is not None:
      pictures = self._pictures(params, outcome)
    for measure in self._probes.values():
      try:
        metrics |= measure(params, track)
      except NotFiniteError as error:  # Training may recover.
        self.warnings.append(str(error))
    return metrics | judged(metrics) | self.folds, pictures


def has_labels(settings: Settings) -> bool:
  """Whether the images of the probes have labels."""
  data, probe_data = settings.data, settings.fewshot.data
  return bool(
    probe_data.name or probe_data.photographs or not data.root or data.labels
  )


def make_probes(
  settings: Settings,
  task: Task,
  model: Model,
  mesh: Mesh,
  preprocessing: Preprocessing,
  splits: Splits,
) -> dict[Split, ProbeMetrics]:
  """Makes the few-shot and the k-NN evaluation, as far as the run has them.

  `settings` and `splits` come from `probe_data`.
  """
  return {
    split: make(settings, task, model, mesh, preprocessing, splits)
    for split, make in _makers(settings).items()
  }


def _makers(settings: Settings) -> dict[Split, Callable[..., ProbeMetrics]]:
  """The functions that make the probes which the settings ask for, by split."""
  few_shot = settings.fewshot
  makers: dict[Split, Callable[..., ProbeMetrics]] = {}
  if few_shot.shots:
    makers[Split.FEW_SHOT] = make_few_shot
  if few_shot.neighbours and has_labels(settings):
    makers[Split.NEIGHBOURS] = make_neighbours
  elif few_shot.neighbours and settings.pretrained:
    makers[Split.START] = make_kept_neighbours
  return makers


def _reading(
  settings: Settings, preprocessing: Preprocessing
) -> dict[str, Any]:
  """The keywords of every probe that say how features are computed."""
  return {
    "loader": build.open_loader(settings, preprocessing),
    "batch_size": settings.eval_batch_size or settings.batch_size,
    "pre_logits": settings.fewshot.pre_logits,
  }


def make_kept_neighbours(
  settings: Settings,
  task: Task,
  model: Model,
  mesh: Mesh,
  preprocessing: Preprocessing,
  splits: Splits,
) -> ProbeMetrics:
  """Makes the comparison with the published weights that a run began with.

  It measures how many of an image's nearest neighbours are the same by both.
  """
  from vit_jax.tasks.probes.start import KeptNeighbours

  def start() -> tuple[Model, Any]:
    """The probed model and the parameters of the published weights."""
    plain: Any = model.clone(scan=False) if model.scan else model
    loaded = build.open_start(settings, task)
    method = settings.transfer.interpolation
    leaves = build.start_leaves(loaded, plain, preprocessing, method)
    params = unflatten_dict(dict(leaves), sep="/")
    return task.probed(plain)[""], jax.device_put(params)

  return KeptNeighbours(
    task.probed(model)[""],
    mesh,
    splits.eval,
    preprocessing,
    start=start,
    k=settings.fewshot.neighbours,
    most=settings.fewshot.most_images,
    **_reading(settings, preprocessing),
  )


def make_neighbours(
  settings: Settings,
  task: Task,
  model: Model,
  mesh: Mesh,
  preprocessing: Preprocessing,
  splits: Splits,
) -> ProbeMetrics:
  """Makes the k-NN evaluation of a run, on the data of the settings.

  It measures the task's main model, whose metrics have no suffix.
  """
  from vit_jax.tasks.probes.neighbours import Neighbours

  return Neighbours(
    task.probed(model)[""],
    mesh,
    splits.train,
    splits.eval,
    preprocessing,
    k=settings.fewshot.neighbours,
    most=settings.fewshot.most_images,
    **_reading(settings, preprocessing),
  )


def probe_data(settings: Settings, splits: Splits) -> tuple[Settings, Splits]:
  """The settings and the splits of the probes' data, if a run has probes.

  A run without probes gets both back unchanged. If `fewshot.data` has no name,
  root or dir, the run's own two splits are used; if it has no `data_dir`, the
  run's is used.
  """
  own_data = settings.fewshot.data
  if not (own_data.name or own_data.photographs) or not _makers(settings):
    return settings, splits
  data_dir = own_data.data_dir or settings.data.data_dir
  data = dataclasses.replace(own_data, data_dir=data_dir)
  settings = dataclasses.replace(settings, data=data)
  return settings, open_splits(settings.data)


def make_few_shot(
  settings: Settings,
  task: Task,
  model: Model,
  mesh: Mesh,
  preprocessing: Preprocessing,
  splits: Splits,
) -> ProbeMetrics:
  """Makes the few-shot evaluation of a run, on the data of the settings.

  If the task names several models to probe, all but the first add only their
  top-1.
  """
  from vit_jax.tasks.probes.few_shot import FewShot

  measures = {
    suffix: FewShot(
      probed,
      mesh,
      splits.train,
      splits.eval,
      preprocessing,
      shots=settings.fewshot.shots,
      seeds=settings.fewshot.seeds,
      **_reading(settings, preprocessing),
    )
    for suffix, probed in task.probed(model).items()
  }

  def measure(params: Any, track: Track) -> dict[str, Any]:
    """All metrics of the first model, and the top-1 of each of the others."""
    all_metrics: dict[str, Any] = {}
    top1 = Split.FEW_SHOT.key("top1")
    for suffix, few_shot in measures.items():
      metrics = few_shot(params, track)
      all_metrics |= {f"{top1}{suffix}": metrics[top1]} if suffix else metrics
    return all_metrics

  return measure
