"""Which parameters of a model a run trains."""

from collections.abc import Callable, Mapping
from typing import Any

from vit_jax.run.plan import Plan
from vit_jax.training.optimizer import trainable_filter


def trained_filter(
  plan: Plan, shapes: Mapping[str, Any]
) -> Callable[[str], bool]:
  """A function that tells whether the parameter at a path is trained.

  `shapes` has the shapes of all parameters by path.
  """
  settings, model, parts = plan.settings, plan.model, plan.parts
  if settings.lora.rank:
    adapted = adapted_kernels(plan, shapes)
    beside = parts.is_trained_beside_lora
    return lambda path: path in adapted or beside(path)
  frozen = settings.optimizer.freeze_layers
  only = trainable_filter(frozen, parts, model.scan) or (lambda path: True)
  still = plan.task.is_frozen
  return lambda path: only(path) and not still(path)


def adapted_kernels(plan: Plan, shapes: Mapping[str, Any]) -> list[str]:
  """The paths of the kernels that products of LoRA's matrices are added to.

  `shapes` has the shapes of all parameters by path.
  """
  from vit_jax.training import lora

  return lora.chosen_kernels(plan.settings.lora, shapes, plan.parts)
