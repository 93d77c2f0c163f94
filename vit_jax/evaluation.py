"""The evaluation of a checkpoint from nothing but its folder."""

import contextlib
from typing import Any

import jax
import ml_collections
from jax.sharding import Mesh

from vit_jax import experiment, sharding
from vit_jax.checkpoint import open_run
from vit_jax.display import Display, evaluation_text
from vit_jax.models import from_fields
from vit_jax.train_step import make_params_init


def evaluate_checkpoint(
  workdir: str,
  *,
  step: int | None = None,
  best: bool = False,
  per_class: bool = False,
  data_dir: str | None = None,
  root: str | None = None,
) -> dict[str, Any]:
  """Evaluates a checkpoint on its run's eval split and shows the result.

  Args:
    workdir: Folder of the run.
    step: Of the checkpoint; by default the newest.
    best: Take the one that was best in top-1 instead.
    per_class: Also each class's accuracy.
    data_dir: Where the TFDS data set is now, if not where it was.
    root: Where the folder of images is now, if not where it was.

  Raises:
    ValueError: if the folder holds no checkpoint, or not that one.
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
    if source.class_names != class_names:
      only = experiment.classes_in_one(source.class_names, class_names)
      raise ValueError(
        f"the checkpoint knows {len(class_names)} classes and the data has "
        f"{len(source.class_names)}, not the same: evaluate on the data of the "
        f"run; in one of them only: {only}."
      )
    model = from_fields(description["model"])
    mesh = _mesh(config)
    init = make_params_init(model, (*experiment.image_size(config), 3))
    shapes = experiment.array_shapes(init, mesh)
    averaged = bool(config.ema_decay)
    params = checkpoints.restore_params(step, shapes, averaged=averaged)
    evaluation = experiment.Evaluation(config, model, mesh, source)
    stack.callback(evaluation.close)
    metrics = evaluation(params, class_names if per_class else ())
  _show(metrics, step, source.name)
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
