"""A configuration, checked, and all that it stands for."""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import jax
import ml_collections
from jax.sharding import Mesh

from vit_jax import data
from vit_jax.config import resolve_steps
from vit_jax.data import splits
from vit_jax.evaluation import few_shot as probing
from vit_jax.evaluation.evaluation import Evaluation
from vit_jax.evaluation.few_shot import FewShot
from vit_jax.inspection.eval_pictures import EvalPictures
from vit_jax.models import ResNet, Vit, from_fields, to_fields
from vit_jax.pretrained.load import Pretrained, run_origin
from vit_jax.run import config_check, experiment
from vit_jax.training import sharding
from vit_jax.training.train_step import TrainState


@dataclasses.dataclass(frozen=True)
class Plan:
  """A configuration, checked, with all that it stands for; nothing compiled.

  `shapes` is the state's shapes, types and shardings; the durations are steps.
  """

  config: ml_collections.ConfigDict
  mesh: Mesh
  source: data.Source
  model: Vit | ResNet
  pretrained: Pretrained | None
  evaluation: Evaluation
  few_shot: FewShot | None
  pictures: EvalPictures | None
  init: Callable[[jax.Array], TrainState]
  train_step: Callable
  open_batches: Callable[[int], data.BatchIterator]
  shapes: TrainState
  total: int
  log_every: int
  eval_every: int
  save_every: int

  @property
  def scanned(self) -> bool:
    """Whether the parameters of all blocks are stacked."""
    return getattr(self.model, "scan", False)

  def description(self, step: int) -> dict[str, Any]:
    """What the checkpoint of a step says of itself, as JSON."""
    config = self.config.to_dict()
    for place in ("root", "data_dir"):
      if config["data"][place]:
        path = os.path.expanduser(config["data"][place])
        absolute = path if "://" in path else os.path.abspath(path)
        config["data"][place] = absolute
    return {
      "config": config,
      "model": to_fields(self.model),
      "class_names": list(self.source.class_names),
      "train_examples": len(self.source),
      # The stream of batches is a function of these two alone.
      "data_iterator": {"seed": self.config.seed, "next_batch": step},
    }


def make_plan(
  config: ml_collections.ConfigDict, saved: dict[str, Any] | None = None
) -> Plan:
  """Opens the data and builds everything the run needs.

  Args:
    config: Of the run.
    saved: The description of the checkpoint that the run goes on from, which
      stands in for the one that it started from.

  Raises:
    ValueError: if the configuration or the data do not fit together.
  """
  config_check.check(config)
  mesh = sharding.make_mesh(**config.mesh)
  parts = config.accumulation_steps
  sharding.check_batch("batch_size", config.batch_size, mesh, parts)
  source, eval_source = _open_sources(config)

  def steps(name: str) -> int:
    return resolve_steps(config, name, config.batch_size, len(source))

  total = steps("total")
  if not total:
    raise ValueError(
      "the run has no length: set total_steps, total_epochs or total_examples."
    )
  # What may have to be downloaded comes when nothing else can be wrong.
  pretrained = None
  if saved is None:
    pretrained = experiment.open_pretrained(config)
    origin = pretrained.origin if pretrained else None
    model = experiment.build_model(config, source.class_names, pretrained)
  else:
    origin = run_origin(saved)
    model = experiment.with_execution(from_fields(saved["model"]), config)
  config = experiment.resolved(config, origin)
  init, train_step = experiment.train_functions(
    config, model, total, len(source)
  )
  return Plan(
    config=config,
    mesh=mesh,
    source=source,
    model=model,
    pretrained=pretrained,
    evaluation=Evaluation(config, model, mesh, eval_source),
    few_shot=probing.periodic(config, model, mesh, source, eval_source),
    pictures=EvalPictures(config, model, mesh, eval_source)
    if config.eval_pictures
    else None,
    init=init,
    train_step=train_step,
    open_batches=splits.train_batches(config, source),
    shapes=experiment.array_shapes(init, mesh),
    total=total,
    log_every=steps("log_every"),
    eval_every=steps("eval_every"),
    save_every=steps("save_every"),
  )


def _open_sources(
  config: ml_collections.ConfigDict,
) -> tuple[data.Source, data.Source]:
  """The training and the evaluation split, which fit together and the run."""
  source = splits.open_source(config, "train")
  eval_source = splits.open_source(config, "eval")
  splits.check_same_classes(
    source.class_names,
    "the training split",
    eval_source.class_names,
    "the evaluation split",
  )
  splits.check_data(config, source)
  return source, eval_source
