"""Evaluation of parameters on a split, with every example counted once."""

from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
from jax.sharding import Mesh

from vit_jax.data.batching.loader import Loader
from vit_jax.data.example import Source
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.evaluation.eval_step import (
  Answers,
  class_accuracy,
  make_eval_step,
  summary,
  total_over,
)
from vit_jax.runtime import hosts
from vit_jax.runtime.display import Track, untracked
from vit_jax.training import sharding

_BATCHES_AHEAD = 2  # Batches sent to the device while one is evaluated.


class Evaluator:
  """Evaluates parameters on a split; one evaluator may be called many times.

  `close` ends its worker processes.

  Args:
    source: The split to evaluate on.
    batch_size: Examples per step, rounded up to split over the mesh.
    loss: The loss to report, one of `training.settings.LOSSES`.
  """

  def __init__(
    self,
    model: nn.Module,
    mesh: Mesh,
    source: Source,
    preprocessing: Preprocessing,
    *,
    loader: Loader,
    batch_size: int,
    loss: str = "softmax",
  ):
    self._batches = loader.evaluate(
      source,
      preprocessing.transform(),
      sharding.padded_batch_size(batch_size, mesh),
    )
    eval_step = make_eval_step(model, **preprocessing.normalization, loss=loss)
    self._batch_sharding = sharding.batch_sharding(mesh)
    whole = sharding.replicated(mesh)
    self._step = hosts.together(
      jax.jit(
        sharding.on_mesh(eval_step, mesh),
        in_shardings=(whole, None, None),
        out_shardings=whole,
      )
    )
    self._num_classes = model.num_classes

  @property
  def unreadable(self) -> dict[str, None]:
    """Unreadable images that were skipped, as in `BatchIterator`."""
    return self._batches.unreadable

  def start(self) -> None:
    """Starts the worker processes, so that the first call need not wait."""
    self._batches.start()

  def __call__(
    self,
    params: Any,
    class_names: tuple[str, ...] = (),
    observe: Callable[[Answers], None] | None = None,
    track: Track = untracked,
  ) -> dict[str, Any]:
    """Returns the metrics `eval/...` over every example of the split.

    Args:
      class_names: If given, each class's accuracy is added as
        `eval/top1_by_class`.
      observe: Called with the answers to each batch, gathered from all hosts.
    """
    batches = track(self.on_device(), "evaluating", len(self._batches))
    totals = total_over(self._step, params, batches, self._num_classes, observe)
    metrics: dict[str, Any] = {
      f"eval/{key}": value for key, value in summary(totals).items()
    }
    if class_names:
      metrics["eval/top1_by_class"] = class_accuracy(totals, class_names)
    return metrics

  def on_device(self) -> Iterator[dict[str, jax.Array]]:
    """The batches of one pass, on the devices."""
    return sharding.to_device(
      self._batches, self._batch_sharding, _BATCHES_AHEAD
    )

  def close(self) -> None:
    """Ends the worker processes."""
    self._batches.close()
