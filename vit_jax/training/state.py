"""The state of a training run, its start, and what it uses but never trains."""

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.extend.core import Literal, jaxpr_as_fun
from jax.interpreters.partial_eval import dce_jaxpr
from jaxtyping import Array, Int

from vit_jax.models.model import input_shapes
from vit_jax.models.parts import Parts
from vit_jax.runtime import hints
from vit_jax.runtime.checks import COUNT, checked
from vit_jax.runtime.printable import quoted, say_once
from vit_jax.runtime.shown import is_loaded
from vit_jax.training.losses import Objective
from vit_jax.training.settings import LoraSettings

# Only runs with a teacher need this module when they run.
if TYPE_CHECKING:
  from vit_jax.training.distillation import Teacher

Init = Callable[[Array], Any]
_IMAGE_SIZE = 224  # The size that `init_params` assumes.


@struct.dataclass
class TrainState:
  """Everything that changes during training and that a checkpoint saves.

  `averaged_params` is the Polyak average of `params`, or None if it is off.
  `objective_state` is that of `losses.Objective.init`, or None.
  """

  step: Int[Array, ""]
  params: Any
  opt_state: Any
  averaged_params: Any = None
  objective_state: Any = None

  @classmethod
  @hints.accepts(
    "vit_jax.TrainState.create(params=params, tx=tx)",
    same=dict.fromkeys(("optimizer", "opt", "optim"), "tx"),
  )
  def create(
    cls,
    params: Any,
    tx: optax.GradientTransformation,
    *,
    apply_fn: Callable[..., Any] | None = None,
  ) -> "TrainState":
    """The state before the first step of an optimizer.

    Args:
      params: The model's parameters, or `{"params": ...}`, which `model.init`
        returns.
      tx: The optimizer.
      apply_fn: The function that a state of Flax calls. A line says that it is
        not kept, as `make_train_step` takes the model itself.

    Raises:
      TypeError: if `params` is a model, loaded or not, or `tx` is no optimizer.
    """
    check_optimizer(tx)
    if isinstance(params, nn.Module):
      raise TypeError(
        "params is a model: give its parameters, "
        "vit_jax.init_params(model, jax.random.key(0), 224)."
      )
    if is_loaded(params):
      raise TypeError("params is a loaded model: give loaded.params.")
    if apply_fn is not None:
      say_once(
        "This state does not keep apply_fn: the model goes to "
        "vit_jax.make_train_step(model, tx)."
      )
    if isinstance(params, Mapping) and set(params) == {"params"}:
      params = params["params"]
    return cls(jnp.zeros((), jnp.int32), params, tx.init(params))

  def __getattr__(self, name: str) -> Any:
    """Raises AttributeError, with what to use for an attribute of Flax's."""
    raise hints.attribute_error(self, name, "state", "a state has")

  @property
  def eval_params(self) -> Any:
    """The parameters to evaluate: the averaged ones, if there are any."""
    averaged = self.averaged_params
    return self.params if averaged is None else averaged


def check_optimizer(tx: Any) -> None:
  """Raises TypeError for anything but an optimizer, such as a name."""
  if not (hasattr(tx, "init") and hasattr(tx, "update")):
    raise TypeError(
      f"tx is of type {type(tx).__name__}: give an optimizer of optax in its "
      "place, such as optax.adamw(1e-3)."
    )


@dataclasses.dataclass(frozen=True)
class Extras:
  """LoRA's base and a teacher, which a run uses but does not train.

  Its methods transform the run's initialisation and parameters. In a plain run,
  each returns what it was given.

  Attributes:
    lora: With a rank, the state holds LoRA's products and the heads alone.
    frozen_params: The train step's arguments after state and batch: one
      dictionary with the trees `base` and `teacher`, as far as the run has
      them; () if it has neither. No checkpoint holds them.
    sources: A record of where each of these trees came from, for the
      description of the run.
    param_shapes: Shapes and shardings of all parameters of the model; only
      LoRA needs them.
    parts: The model's parts, for LoRA; by default as `lora.trained_init` has
      them.
  """

  lora: LoraSettings = LoraSettings()
  teacher: Optional["Teacher"] = None
  frozen_params: tuple[dict[str, Any], ...] = ()
  sources: dict[str, Any] = dataclasses.field(default_factory=dict)
  param_shapes: Any = None
  parts: Parts | None = None

  def init(self, params_init: Init) -> Init:
    """The function that draws the trained parameters, from `params_init`.

    `params_init` draws all parameters of the model.
    """
    if not self.lora.rank:
      return params_init
    from vit_jax.training import lora

    return lora.trained_init(params_init, self.lora, self.parts)

  def with_teacher(self, task: Any) -> Any:
    """A task with the teacher and its parameters, if there is one."""
    if self.teacher is None:
      return task
    return task.with_teacher(self.teacher, self.frozen_params[0]["teacher"])

  def merged_params(self, params: Any, frozen_params: Any) -> Any:
    """All parameters of the model, from the trained ones.

    `frozen_params` is the dictionary in the field of that name, which a
    compiled function takes as an argument; None if the field is empty.
    """
    if not self.lora.rank:
      return params
    from vit_jax.training import lora

    return lora.merge(self.lora, frozen_params["base"], params)

  def merge(self, params: Any) -> Any:
    """`merged_params` on the devices, outside a compiled step."""
    if not self.lora.rank:
      return params
    return self._merge(params, *self.frozen_params)

  @functools.cached_property
  def _merge(self) -> Callable[..., Any]:
    """`merged_params`, compiled for the devices of the run."""
    shardings = jax.tree.map(lambda x: x.sharding, self.param_shapes)
    return jax.jit(self.merged_params, out_shardings=shardings)


def make_params_init(
  model: nn.Module, image_shape: tuple[int, int, int]
) -> Callable[[Array], Any]:
  """Returns a function from a random key to the model's parameters.

  The model says what it takes for an image of (H, W, C). The parameters are
  boxed with their logical axes; `nn.unbox` unboxes them.
  """
  inputs = input_shapes(model, image_shape)

  def init(key: Array) -> Any:
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), inputs)
    return model.init(key, zeros)["params"]

  return init


def count_params(params: Any) -> int:
  """The number of parameters of a tree of arrays, boxed or not.

  A state, a loaded model, a run, or a name or a path of a model may stand in
  place of its parameters. Raises TypeError for a model without them, and for
  anything else that holds no arrays.

  >>> import jax.numpy as jnp
  >>> from vit_jax.training.state import count_params
  >>> count_params({"kernel": jnp.zeros((3, 5)), "bias": jnp.zeros(5)})
  20
  """
  if isinstance(params, nn.Module):
    raise TypeError(
      "a model holds no parameters: give vit_jax.init_params(model, "
      "jax.random.key(0), 224), or those that you have."
    )
  if isinstance(params, str | os.PathLike):
    from vit_jax.runtime.aliases import loaded_from  # No run needs it.

    return loaded_from(params, "num_params").num_params
  if hasattr(params, "num_params"):  # A loaded model.
    return params.num_params
  params = getattr(params, "params", params)  # Those of a state.
  if isinstance(params, Mapping) and "params" in params:
    params = params["params"]
  leaves = jax.tree.leaves(params)
  if not leaves or not all(hasattr(leaf, "shape") for leaf in leaves):
    raise TypeError(
      f"{quoted(params)} holds no parameters: give a tree of arrays, as "
      "vit_jax.init_params returns, a state, or a loaded model."
    )
  return sum(math.prod(leaf.shape) for leaf in leaves)


@hints.accepts(
  "vit_jax.init_params(model, jax.random.key(0), 224)",
  same=hints.ours_by_other_names(
    {
      "key": "rng rngs seed prng_key",
      "image_size": "size img_size input_shape shape",
    }
  ),
)
def init_params(
  model: nn.Module,
  key: Any = None,
  image_size: Any = None,
  channels: int = 3,
) -> Any:
  """Draws a model's first parameters, as plain arrays.

  Args:
    model: The model.
    key: A key of JAX, or a whole number, its seed, which needs an `image_size`
      beside it. By default it is `jax.random.key(0)`.
    image_size: Height and width of the images, one number for both, or images
      or their shape, (B, H, W, C) or (H, W, C). By default it is 224, which a
      line says.
    channels: Channels of the images, if `image_size` does not have them.

  Raises:
    ValueError: if `model` is no model, `key` no key of JAX, or `image_size` no
      size, or images do not split into patches.

  >>> import jax
  >>> import vit_jax
  >>> model = vit_jax.Vit(
  ...   num_classes=2,
  ...   patch_size=8,
  ...   hidden_size=16,
  ...   num_layers=1,
  ...   mlp_size=32,
  ...   num_heads=2,
  ... )
  >>> params = vit_jax.init_params(model, jax.random.key(0), image_size=16)
  >>> params["head"]["kernel"].shape
  (16, 2)
  """
  if not isinstance(model, nn.Module):
    raise ValueError(
      f"model={quoted(model)} is no model: give vit_jax.make_vit(variant)."
    )
  if key is None:
    key = 0
  elif isinstance(key, int) and image_size is None:
    raise ValueError(
      f"key={quoted(key)} is no key of JAX, and may be a seed or a size: give "
      "both, as in init_params(model, jax.random.key(0), 224)."
    )
  key = jax.random.key(key) if isinstance(key, int) else key
  if not isinstance(key, jax.Array | np.ndarray) or key.ndim > 1:
    raise ValueError(
      f"key={quoted(key)} is no key of JAX: give jax.random.key(0), as in "
      "init_params(model, jax.random.key(0), 224)."
    )
  key = jnp.asarray(key)
  if not is_key(key):
    key = jax.random.wrap_key_data(key)
  init = jax.jit(make_params_init(model, _image_shape(image_size, channels)))
  shapes, structure = jax.tree.flatten(nn.unbox(jax.eval_shape(init, key)))
  return structure.unflatten(draw(init, key, shapes))


def _image_shape(image_size: Any, channels: int) -> tuple[int, int, int]:
  """The shape (H, W, C) of images whose size is given as to `init_params`.

  The size is a side, a height and a width, a shape, or an array with one; None
  takes `_IMAGE_SIZE`, and a line says so. Raises ValueError for anything else.
  """
  if image_size is None:
    image_size = _IMAGE_SIZE
    say_once(
      f"No size of images was given: {_IMAGE_SIZE} x {_IMAGE_SIZE} is assumed, "
      "and image_size=... sets another."
    )
  shape = getattr(image_size, "shape", image_size)
  if isinstance(shape, int):
    shape = shape, shape
  if not isinstance(shape, tuple | list) or not 2 <= len(shape) <= 4:
    raise ValueError(
      f"image_size={quoted(image_size)} is no size: give the side of the "
      "images, such as 224, their height and width, or images (B, H, W, C)."
    )
  if len(shape) == 2:
    shape = *shape, checked("channels", int, channels, COUNT)
  height, width, depth = shape[-3:]
  return int(height), int(width), int(depth)


def make_init(
  model: nn.Module,
  tx: optax.GradientTransformation,
  image_shape: tuple[int, int, int],
  ema_decay: float = 0.0,
  extras: Extras = Extras(),
  objective: Objective | None = None,
) -> Callable[[Array], TrainState]:
  """Returns a function from a random key to the first state.

  The state's parameters are boxed, as those of `make_params_init` are. With
  LoRA, they are those of `lora.trained_init`. `objective_state` is what
  `objective.init` returns.
  """
  params_init = extras.init(make_params_init(model, image_shape))

  def init(key: Array) -> TrainState:
    params = params_init(key)
    return TrainState(
      step=jnp.zeros((), jnp.int32),
      params=params,
      opt_state=tx.init(params),
      averaged_params=jax.tree.map(jnp.copy, params) if ema_decay else None,
      objective_state=objective.init() if objective else None,
    )

  return init


def with_params(
  state: TrainState, leaves: Iterable[tuple[str, np.ndarray]]
) -> TrainState:
  """Replaces parameters of a state, and starts their average from them.

  The parameters and their average may be mere shapes with shardings. `leaves`
  yields (path, whole array) for each parameter to replace. The arrays are read
  one at a time, and each device keeps its part.
  """
  params: dict[str, Any] = flatten_dict(state.params, sep="/")
  averaged: dict[str, Any] | None = None
  if state.averaged_params is not None:
    averaged = flatten_dict(state.averaged_params, sep="/")
  for path, array in leaves:
    old = params[path]
    params[path] = jax.make_array_from_callback(
      old.shape,
      old.sharding,
      lambda part, array=array, dtype=old.dtype: array[part].astype(dtype),
    )
    if averaged is not None:
      averaged[path] = jnp.copy(params[path])
  whole_average = None
  if averaged is not None:
    whole_average = unflatten_dict(averaged, sep="/")
  return dataclasses.replace(
    state,
    params=unflatten_dict(params, sep="/"),
    averaged_params=whole_average,
  )


def draw(
  init: Any, key: jax.Array, shapes: Sequence[jax.ShapeDtypeStruct | None]
) -> list[jax.Array]:
  """Makes the arrays that `init` draws from a random key.

  Arrays that are drawn alike, such as the kernels of all layers, share a small
  program. Their bits are those of `init`, whose own program has each draw as
  often as there are layers: that of a ViT of 12 layers compiles for five times
  as long. Each device draws its part of an array.

  Args:
    init: A jitted function of a key.
    key: The key, as of `jax.random.key`.
    shapes: The shape and the sharding of each leaf of what `init` returns; None
      for those that are not needed.

  Returns:
    The arrays whose shapes are given, in their order.
  """
  is_needed = [shape is not None for shape in shapes]
  layouts = [shape.sharding for shape in shapes if shape is not None]
  program = _Program(init.trace(key).jaxpr, is_needed, key)
  drawn: dict[Any, jax.Array] = {}
  arrays = []
  for output, layout in zip(program.outputs, layouts, strict=True):
    asked = id(output), layout
    if asked in drawn:  # An average starts as a copy of the parameters.
      arrays.append(jnp.copy(drawn[asked]))
      continue
    part, values = program.part([output])
    (drawn[asked],) = _jitted(part, layout)(*values)
    arrays.append(drawn[asked])
  return arrays


class _Program:
  """The program of a function of a key, without what is not needed.

  Attributes:
    outputs: Its variables that are needed. Copies are taken for the originals.
  """

  def __init__(self, closed: Any, is_needed: list[bool], key: jax.Array):
    self._closed = closed
    self._jaxpr, _ = dce_jaxpr(closed.jaxpr, is_needed, instantiate=True)
    self._makers = {
      variable: (place, eqn)
      for place, eqn in enumerate(self._jaxpr.eqns)
      for variable in eqn.outvars
    }
    inputs = (*self._jaxpr.constvars, *self._jaxpr.invars)
    self._known = dict(zip(inputs, (*closed.consts, key), strict=True))
    self.outputs = [*map(self._original, self._jaxpr.outvars)]
    # Each array has a key of its own, which is computed first.
    keys = [v for v in self._makers if is_key(v.aval)]
    part, values = self.part(keys)
    self._known |= zip(keys, part(*values), strict=True)

  def _original(self, variable: Any) -> Any:
    """Returns the variable of which this one is a copy, or itself."""
    if isinstance(variable, Literal) or variable in self._known:
      return variable
    _, eqn = self._makers[variable]
    if eqn.primitive.name != "copy":
      return variable
    return self._original(eqn.invars[0])

  def part(self, outputs: Sequence[Any]) -> tuple["_Part", list[Any]]:
    """The part that computes these, and its inputs, which are known."""
    eqns, inputs, left = {}, {}, [*outputs]
    while left:
      variable = left.pop()
      if isinstance(variable, Literal):
        continue
      if variable in self._known:
        inputs[variable] = self._known[variable]
        continue
      place, eqn = self._makers[variable]
      if place not in eqns:
        eqns[place] = eqn
        left.extend(eqn.invars)
    jaxpr = self._jaxpr.replace(
      constvars=[],
      invars=[*inputs],
      outvars=[*outputs],
      eqns=[eqns[place] for place in sorted(eqns)],
      debug_info=self._jaxpr.debug_info.with_unknown_names(),
    )
    closed = self._closed.replace(jaxpr=jaxpr, consts=[])
    return _Part(str(jaxpr), closed), [*inputs.values()]


def is_key(array: Any) -> bool:
  """Whether an array, or its description, has keys as of `jax.random.key`."""
  return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


@dataclasses.dataclass(frozen=True)
class _Part:
  """A part of a program. It equals another one that computes the same."""

  text: str
  closed: Any = dataclasses.field(compare=False)

  def __call__(self, *values: Any) -> list[jax.Array]:
    return jaxpr_as_fun(self.closed)(*values)


@functools.lru_cache(maxsize=256)
def _jitted(part: _Part, layout: Any) -> Callable[..., list[jax.Array]]:
  """The part as a jitted function, whose results have this layout."""
  return jax.jit(part.__call__, out_shardings=layout)
