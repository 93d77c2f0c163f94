"""A checkpoint's evaluation, from nothing but the folder of its run."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import ml_collections
from jax.sharding import Mesh

from vit_jax import data, experiment, sharding
from vit_jax.checkpoint import open_run
from vit_jax.display import Display, evaluation_text
from vit_jax.models import ResNet, Vit, from_fields
from vit_jax.train_step import make_params_init


@dataclasses.dataclass(frozen=True)
class SavedRun:
  """A checkpoint of a run, with all that evaluating it takes.

  Attributes:
    step: Of the checkpoint.
    config: Of the run.
    class_names: That it was trained on.
    source: The eval split.
    model: As it was trained.
    params: Of the checkpoint, averaged if the run averages them.
    evaluation: Of parameters, over the split.
  """

  step: int
  config: ml_collections.ConfigDict
  class_names: tuple[str, ...]
  source: data.Source
  model: Vit | ResNet
  params: Any
  evaluation: experiment.Evaluation


@contextlib.contextmanager
def opened(
  workdir: str,
  *,
  step: int | None = None,
  best: bool = False,
  data_dir: str | None = None,
  root: str | None = None,
) -> Iterator[SavedRun]:
  """Opens a checkpoint and the data that its run is evaluated on.

  Args:
    workdir: Folder of the run.
    step: Of the checkpoint; by default the newest.
    best: Take the one that was best in top-1 instead.
    data_dir: Where the TFDS data set is now, if not where it was.
    root: Where the folder of images is now, if not where it was.

  Raises:
    ValueError: if the folder holds no checkpoint, or not that one, or the data
      are not there, or not those of the run.
  """
  with contextlib.ExitStack() as stack:
    checkpoints = open_run(workdir)
    stack.callback(checkpoints.close)
    step = checkpoints.choose(step, best)
    description = checkpoints.describe(step)
    config = ml_collections.ConfigDict(description["config"])
    for key, value in (("data_dir", data_dir), ("root", root)):
      if value is not None:
        config.data[key] = value
    class_names = tuple(description["class_names"])
    source = experiment.open_source(config, "eval")
    experiment.check_same_classes(
      class_names, "the checkpoint", source.class_names, "the evaluation split"
    )
    model = from_fields(description["model"])
    mesh = _mesh(config)
    init = make_params_init(model, (*experiment.image_size(config), 3))
    shapes = experiment.array_shapes(init, mesh)
    averaged = bool(config.ema_decay)
    params = checkpoints.restore_params(step, shapes, averaged=averaged)
    evaluation = experiment.Evaluation(config, model, mesh, source)
    stack.callback(evaluation.close)
    yield SavedRun(step, config, class_names, source, model, params, evaluation)


def evaluate_checkpoint(
  workdir: str, *, per_class: bool = False, **options: Any
) -> dict[str, Any]:
  """Evaluates a checkpoint on its run's eval split and shows the result.

  Args:
    workdir: Folder of the run.
    per_class: Also each class's accuracy.
    **options: As of `opened`, which says what it raises.
  """
  with opened(workdir, **options) as run:
    metrics = run.evaluation(run.params, run.class_names if per_class else ())
  _show(metrics, run.step, run.source.name)
  return metrics


def _mesh(config: ml_collections.ConfigDict) -> Mesh:
  """The run's mesh, or on another number of devices, data-parallel."""
  try:
    return sharding.make_mesh(**config.mesh)
  except ValueError:
    return sharding.make_mesh()


def _show(metrics: dict[str, Any], step: int, name: str) -> None:
  display = Display(active=jax.process_index() == 0)
  display.note(f"step {step:,} on {name}: {evaluation_text(metrics)}")
  for class_name, top1 in metrics.get("eval/top1_by_class", {}).items():
    display.note(f"{class_name:>20}  {top1:.2%}")
