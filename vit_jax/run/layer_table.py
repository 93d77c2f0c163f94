"""The table of a model's layers, which `train --summary` prints."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict

from vit_jax.run.plan import Plan, make_plan
from vit_jax.run.settings import Settings
from vit_jax.runtime.display import Display
from vit_jax.training.lora import chosen
from vit_jax.training.optimizer import HEADS, trainable_filter

COLUMNS = ("layer", "input", "output", "parameters", "trained")
_DEPTH = 2  # A block and its parts, but not the dense layers in these.


def show_layers(settings: Settings) -> None:
  """Prints the table of the model that these settings make."""
  display = Display(active=jax.process_index() == 0)
  display.table(COLUMNS, layer_rows(make_plan(settings)))


def layer_rows(plan: Plan) -> list[list[str]]:
  """A row for each layer, in the order of the forward pass, and their sum.

  Shapes are those of a batch of one image. Parameters outside of any layer,
  such as the class token, have rows of their own.
  """
  image = jnp.zeros((1, *plan.preprocessing.image_shape))
  calls = _calls(plan.model, image)
  stored: dict[str, Any] = flatten_dict(plan.param_shapes, sep="/")
  sizes = {path: shape.size for path, shape in stored.items()}
  alone = [path for path in sizes if "/" not in path]
  trained = _trained(plan, stored)
  rows = []
  for path in (*alone, *calls):
    own = [p for p in sizes if p == path or p.startswith(f"{path}/")]
    count = sum(sizes[p] for p in own)
    kept = [trained(p) for p in own]
    share = "yes" if all(kept) else "in part" if any(kept) else "no"
    shapes = calls.get(path, ("", ""))
    rows.append([path, *shapes, f"{count:,}", share if own else ""])
  rows.append(["all", "", "", f"{sum(sizes.values()):,}", ""])
  return rows


def _trained(plan: Plan, shapes: Any) -> Callable[[str], bool]:
  """Whether a parameter is trained, or with LoRA adapted."""
  if plan.settings.lora.rank:
    adapted = chosen(plan.settings.lora, shapes)
    return lambda path: path in adapted or path.startswith(HEADS)
  frozen, model = plan.settings.optimizer.freeze_layers, plan.model
  return trainable_filter(frozen, model.num_layers, model.scan) or (
    lambda path: True
  )


def _calls(model: nn.Module, image: jax.Array) -> dict[str, tuple[str, str]]:
  """The shapes of input and output of each layer, by its path."""
  calls: dict[str, tuple[str, str]] = {}

  def watch(call: Any, args: tuple, kwargs: dict, context: Any) -> Any:
    path = context.module.path
    if context.method_name != "__call__" or not 0 < len(path) <= _DEPTH:
      return call(*args, **kwargs)
    name = "/".join(path)
    calls.setdefault(name, ("", ""))  # Before the layers inside it.
    result = call(*args, **kwargs)
    first = str(jnp.shape(args[0])) if args else ""
    calls[name] = first, str(jnp.shape(result))
    return result

  with nn.intercept_methods(watch):
    jax.eval_shape(model.init, jax.random.key(0), image)
  return calls
