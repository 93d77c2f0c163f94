"""The evaluation of parameters, and of a checkpoint by its folder alone."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import ml_collections
from jax.sharding import Mesh

from vit_jax import data
from vit_jax.data import splits
from vit_jax.evaluation.eval_step import (
  Answers,
  class_accuracy,
  make_eval_step,
  summary,
  total_over,
)
from vit_jax.models import ResNet, Vit, from_fields
from vit_jax.run import experiment
from vit_jax.runtime.display import Display, evaluation_text
from vit_jax.training import sharding
from vit_jax.training.train_step import make_params_init
from vit_jax.workdir.checkpoint import open_run


class Evaluation:
  """Evaluates parameters on the eval split, as often as asked.

  `close` ends its worker processes.
  """

  def __init__(
    self,
    config: ml_collections.ConfigDict,
    model: nn.Module,
    mesh: Mesh,
    source: data.Source,
  ):
    batch_size = splits.eval_batch_size(config, mesh)
    self._batches = splits.eval_batches(config, source, batch_size)
    eval_step = make_eval_step(
      model, **config.normalization, loss=config.loss.kind
    )
    self._batch_sharding = sharding.batch_sharding(mesh)
    whole = sharding.replicated(mesh)
    self._step = jax.jit(
      sharding.on_mesh(eval_step, mesh),
      in_shardings=(whole, None, None),
      out_shardings=whole,
    )
    self._num_classes = model.num_classes

  def start(self) -> None:
    """Starts the worker processes, so that the first call need not wait."""
    self._batches.start()

  def __call__(
    self,
    params: Any,
    class_names: tuple[str, ...] = (),
    observe: Callable[[Answers], None] | None = None,
  ) -> dict[str, Any]:
    """Metrics `eval/...` over every example of the split, each counted once.

    With class names also the accuracy of each, as `eval/top1_by_class`.
    `observe` gets the answers to every batch, over all hosts.
    """
    batches = sharding.to_device(self._batches, self._batch_sharding, ahead=2)
    totals = total_over(self._step, params, batches, self._num_classes, observe)
    metrics: dict[str, Any] = {
      f"eval/{key}": value for key, value in summary(totals).items()
    }
    if class_names:
      metrics["eval/top1_by_class"] = class_accuracy(totals, class_names)
    return metrics

  def close(self) -> None:
    """Ends the worker processes."""
    self._batches.close()


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
  evaluation: Evaluation


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
    source = splits.open_source(config, "eval")
    splits.check_same_classes(
      class_names, "the checkpoint", source.class_names, "the evaluation split"
    )
    model = from_fields(description["model"])
    mesh = _mesh(config)
    init = make_params_init(model, (*experiment.image_size(config), 3))
    shapes = experiment.array_shapes(init, mesh)
    averaged = bool(config.ema_decay)
    params = checkpoints.restore_params(step, shapes, averaged=averaged)
    evaluation = Evaluation(config, model, mesh, source)
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
