"""Makes what evaluates a run: on its split, few-shot, and in pictures."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Optional

import jax
from jax.sharding import Mesh

from vit_jax.data.batching.loader import Loader, make_loader
from vit_jax.data.example import Source
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading.sources import open_splits
from vit_jax.evaluation.evaluator import Evaluator
from vit_jax.models import ResNet, Vit
from vit_jax.models.masked_vit import MaskedVit, trunk
from vit_jax.run import build
from vit_jax.run.masked import make_masking
from vit_jax.run.settings import ProbeSettings, Settings
from vit_jax.run.task import make_objective
from vit_jax.runtime.display import Track
from vit_jax.training import sharding
from vit_jax.training.objectives import Numbers, SeveralLabels

# Imported only by the runs that need them.
if TYPE_CHECKING:
  from vit_jax.evaluation.few_shot import FewShot
  from vit_jax.inspection.eval_pictures import Pictures

FewShotMetrics = Callable[[Any, Track], dict[str, Any]]


def make_mesh(settings: Settings | ProbeSettings) -> Mesh:
  """Makes the mesh that the settings ask for.

  Raises:
    ValueError: if the devices do not fit it.
  """
  mesh = settings.mesh
  return sharding.make_mesh(mesh.data, mesh.fsdp, mesh.tensor)


def open_loader(
  settings: Settings | ProbeSettings, preprocessing: Preprocessing
) -> Loader:
  """Makes the data loader of this host."""
  return make_loader(
    settings.loader,
    photographs=settings.data.photographs,
    image_size=preprocessing.image_size,
    process_index=jax.process_index(),
    process_count=jax.process_count(),
  )


def make_evaluator(
  settings: Settings,
  model: Vit | ResNet,
  mesh: Mesh,
  preprocessing: Preprocessing,
  eval_source: Source,
  targets: Mapping[str, Any],
) -> Evaluator:
  """Makes the evaluation of a run on its evaluation split.

  Args:
    targets: Facts about the labels, from `task.targets_of`; with `threshold`,
      that is used for several labels, and else the best is chosen.
  """
  options: dict[str, Any] = dict(
    loader=open_loader(settings, preprocessing),
    batch_size=build.eval_batch_size(settings),
    loss=settings.loss.kind,
  )
  parts = model, mesh, eval_source, preprocessing
  if masking := make_masking(settings, model):
    assert isinstance(model, MaskedVit)
    from vit_jax.evaluation.masked import MaskedEvaluator

    return MaskedEvaluator(
      model, mesh, eval_source, preprocessing, masking, **options
    )
  objective = make_objective(settings, model.num_classes, targets)
  if isinstance(objective, SeveralLabels | Numbers):
    from vit_jax.evaluation.targets import TargetEvaluator

    return TargetEvaluator(
      *parts, objective, targets.get("threshold"), **options
    )
  return Evaluator(*parts, **options)


def make_few_shot(
  settings: Settings,
  model: Vit | ResNet,
  mesh: Mesh,
  preprocessing: Preprocessing,
  source: Source,
  eval_source: Source,
) -> FewShotMetrics | None:
  """Makes the few-shot evaluation of a run, or None if `fewshot.shots` is 0.

  If `fewshot.data` has neither a name nor a root, the run's own two splits are
  used; if it has no `data_dir`, the run's is used. In a run on masked patches
  the probe sees the mean of the patches; that of the class token, which the
  loss never reads, is measured beside it.
  """
  few_shot = settings.fewshot
  if not few_shot.shots:
    return None
  from vit_jax.evaluation.few_shot import FewShot

  if few_shot.data.name or few_shot.data.photographs:
    where = few_shot.data.data_dir or settings.data.data_dir
    settings = dataclasses.replace(
      settings, data=dataclasses.replace(few_shot.data, data_dir=where)
    )
    splits = open_splits(settings.data)
    source, eval_source = splits.train, splits.eval

  def make(model: Vit | ResNet) -> FewShot:
    return FewShot(
      model,
      mesh,
      source,
      eval_source,
      preprocessing,
      loader=open_loader(settings, preprocessing),
      batch_size=build.eval_batch_size(settings),
      shots=few_shot.shots,
      seeds=few_shot.seeds,
      pre_logits=few_shot.pre_logits,
    )

  if isinstance(model, MaskedVit) and model.pooling == "token":
    return _with_class_token(make(model), make(trunk(model)))
  return make(model)


def _with_class_token(patches: "FewShot", token: "FewShot") -> FewShotMetrics:
  """Both evaluations, of which the second adds only its top-1."""

  def measure(params: Any, track: Track) -> dict[str, Any]:
    beside = token(params, track)["fewshot/top1"]
    return {**patches(params, track), "fewshot/top1_class_token": beside}

  return measure


def make_pictures(
  settings: Settings,
  model: Vit | ResNet,
  mesh: Mesh,
  preprocessing: Preprocessing,
  eval_source: Source,
  targets: Mapping[str, Any],
) -> Optional["Pictures"]:
  count, parts = settings.eval_pictures, (mesh, eval_source, preprocessing)
  if not count:
    return None
  if masking := make_masking(settings, model):
    from vit_jax.inspection import masked_pictures

    assert isinstance(model, MaskedVit)
    return masked_pictures.make_pictures(model, *parts, masking, count)
  from vit_jax.inspection import eval_pictures

  loss = settings.loss.kind
  return eval_pictures.make_pictures(
    model, *parts, loss=loss, count=count, targets=targets
  )
