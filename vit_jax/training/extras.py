"""What a run uses but does not train: LoRA's base, a teacher, or nothing."""

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Optional

import jax
from jaxtyping import Array

from vit_jax.training.objective import Objective
from vit_jax.training.settings import LoraSettings

# Imported only by the runs that need it.
if TYPE_CHECKING:
  from vit_jax.training.distillation import Teacher

Init = Callable[[Array], Any]


@dataclasses.dataclass(frozen=True)
class Extras:
  """A transformation of a run's initialisation, objective and parameters.

  A plain run has none of it, and each method returns what it was given.

  Attributes:
    lora: With a rank, the state holds LoRA's products and the heads alone.
    teacher: A teacher whose answers are learned as well.
    frozen_params: The train step's arguments after state and batch: a
      dictionary with the trees `base` and `teacher`, as far as the run has
      them, or none. No checkpoint holds them.
    sources: A record of where each of them came from, for the description.
    param_shapes: Shapes and shardings of all parameters of the model; only
      LoRA needs them.
  """

  lora: LoraSettings = LoraSettings()
  teacher: Optional["Teacher"] = None
  frozen_params: tuple[dict[str, Any], ...] = ()
  sources: dict[str, Any] = dataclasses.field(default_factory=dict)
  param_shapes: Any = None

  def init(self, params_init: Init) -> Init:
    """Initialises the parameters that are trained."""
    if not self.lora.rank:
      return params_init
    from vit_jax.training.lora import trained_init

    return trained_init(params_init, self.lora)

  def objective(self, objective: Any) -> Objective:
    """The objective, which learns the teacher's answers too."""
    if self.teacher is None:
      return objective
    from vit_jax.training.distillation import Distilled

    return Distilled(objective, self.teacher)

  def merged_params(self, params: Any, frozen_params: Any) -> Any:
    """All parameters of the model, from those that are trained.

    Args:
      params: Those of a state.
      frozen_params: The element of `frozen_params`, inside a compiled function.
    """
    if not self.lora.rank:
      return params
    from vit_jax.training.lora import merged

    return merged(self.lora, frozen_params["base"], params)

  def merge(self, params: Any) -> Any:
    """Does so on the devices, between two steps."""
    if not self.lora.rank:
      return params
    return self._merge(params, *self.frozen_params)

  @functools.cached_property
  def _merge(self) -> Callable[..., Any]:
    shardings = jax.tree.map(lambda x: x.sharding, self.param_shapes)
    return jax.jit(self.merged_params, out_shardings=shardings)
