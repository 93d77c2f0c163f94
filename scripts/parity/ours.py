"""Runs a row of the comparison by this package, as a run would.

The settings are those of a configuration file, read by `run.settings`, and the
step is that of `run.plan.Plan`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.traverse_util import flatten_dict, unflatten_dict

from scripts.parity import inputs as given_inputs
from scripts.parity.inputs import Arrays, Inputs
from vit_jax.run import build
from vit_jax.run.plan import Plan, absent_splits
from vit_jax.run.settings import Settings
from vit_jax.runtime.settings import replaced
from vit_jax.training import sharding
from vit_jax.training.optimizer import make_optimizer, map_paths
from vit_jax.training.state import Extras

CLASSES = 6
EXAMPLES = 32  # Of an epoch.
PATCHES = 4  # Whose answers are compared, if the model has one for each.
CLASS_NAMES = tuple("abcdef")


@dataclasses.dataclass(frozen=True)
class Setup:
  """What a row is run with, which a fault may replace.

  Attributes:
    extras: LoRA's base or a teacher.
    theirs: The arrays of these, by the reference's names.
  """

  settings: Settings
  model: Any
  extras: Extras = Extras()
  theirs: Arrays = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Trajectory:
  """What is compared; arrays are by our path, and then by step.

  Attributes:
    loss: The loss of each of the steps that were taken, (T,) if all were.
    rate: The learning rate of each array at each step, (T,); empty if training
      ended early.
    decay: The share of each array that weight decay takes at each step, (T,);
      empty likewise.
    params, averaged: All arrays after some of the steps.
    logits: Those of the probe's images after the same steps.
  """

  loss: np.ndarray
  rate: dict[str, np.ndarray]
  decay: dict[str, np.ndarray]
  params: dict[int, Arrays]
  averaged: dict[int, Arrays]
  logits: dict[int, np.ndarray]


def flat(tree: Any) -> Arrays:
  """Arrays by path."""
  found = flatten_dict(nn.unbox(tree), sep="/")
  return {k: np.asarray(v) for k, v in found.items()}


def planned(setup: Setup, steps: int) -> Plan:
  """The plan of a run of so many steps."""
  length = {"total_steps": steps, "total_epochs": 0.0, "total_examples": 0}
  settings = replaced(setup.settings, length)
  task = build.task_of(settings)
  return Plan(
    settings=settings,
    task=task,
    mesh=sharding.make_mesh(devices=jax.devices()[:1]),
    splits=absent_splits(task, CLASSES, EXAMPLES),
    start=None,
    model=setup.model,
    extras=setup.extras,
  )


def trained_shapes(setup: Setup, steps: int) -> dict[str, tuple[int, ...]]:
  """The shapes of the arrays that are trained."""
  init = planned(setup, steps).init
  params = jax.eval_shape(init, jax.random.key(0)).params
  found: Any = flatten_dict(nn.unbox(params), sep="/")
  return {path: x.shape for path, x in found.items()}


def drawn(setup: Setup, steps: int, batch: int) -> list[Any]:
  """The calls of `bernoulli` in a step, each (p, shape)."""
  plan = planned(setup, steps)
  init, train_step = plan.init, plan.train_step
  state = jax.eval_shape(lambda key: nn.unbox(init(key)), jax.random.key(0))
  size = (batch, given_inputs.SIDE, given_inputs.SIDE, given_inputs.CHANNELS)
  shapes = {
    "image": jax.ShapeDtypeStruct(size, jnp.uint8),
    "label": jax.ShapeDtypeStruct((batch,), jnp.int32),
  }
  found: list[Any] = []

  def step(state: Any, batch: Any) -> Any:
    with given_inputs.given([], jnp.full(4, 0.5)) as calls:
      result = train_step(state, batch, *setup.extras.frozen_params)
    found.extend(calls)
    return result

  jax.eval_shape(step, state, shapes)
  return [(float(p), shape) for p, shape in found]


def run(
  setup: Setup,
  inputs: Inputs,
  marks: tuple[int, ...],
  more: Arrays | None = None,
  answer: Callable[[Any], Any] | None = None,
) -> Trajectory:
  """Trains up to the last of `marks`, and keeps the arrays after these steps.

  Args:
    setup, inputs: Of the row.
    marks: The numbers of the steps; without any, nothing is trained.
    more: Further arrays of the batches, (T, B, ...) each.
    answer: Makes the logits of the parameters; by default those of the probe.
  """
  T = len(inputs.images)
  plan = planned(setup, T)
  init, train_step = plan.init, plan.train_step

  @jax.jit
  def first(params: Any) -> Any:
    state = nn.unbox(init(jax.random.key(0)))
    averaged = None if state.averaged_params is None else params
    return state.replace(params=params, averaged_params=averaged)

  @jax.jit
  def step(state: Any, batch: Any, uniforms: Any, mixing: Any) -> Any:
    with given_inputs.given(uniforms, mixing):
      return train_step(state, batch, *setup.extras.frozen_params)

  @jax.jit
  def logits(params: Any) -> Any:
    extras = setup.extras
    whole = extras.merged_params(params, *(extras.frozen_params or (None,)))
    found = setup.model.apply({"params": whole}, jnp.asarray(inputs.probe))
    # Of a model that answers for each patch, the first few are enough.
    return found[:, :PATCHES] if found.ndim == 3 else found

  logits = jax.jit(answer) if answer else logits
  start = unflatten_dict(inputs.params, sep="/")
  state: Any = first(start) if marks else None
  losses, params, averaged, answers = [], {}, {}, {}
  for t in range(max(marks, default=0)):
    batch = {"image": inputs.images[t], "label": inputs.labels[t]}
    batch |= {name: array[t] for name, array in (more or {}).items()}
    draws = [u[t] for u in inputs.uniforms]
    state, metrics = step(state, batch, draws, inputs.mixing[t])
    losses.append(metrics["loss"])
    if t + 1 in marks:
      params[t + 1] = flat(state.params)
      answers[t + 1] = np.asarray(logits(state.params))
      if state.averaged_params is not None:
        averaged[t + 1] = flat(state.averaged_params)
  rate, decay = rates(plan, inputs.params, marks)
  loss = np.asarray(jax.device_get(losses), np.float64)
  return Trajectory(loss, rate, decay, params, averaged, answers)


def rates(
  plan: Plan, params: Arrays, marks: tuple[int, ...]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
  """The learning rate and the decay of each array, as the optimizer has them.

  None are measured if training ends early, with the last of `marks`.

  They are measured: an update whose direction is known, from arrays of zeros,
  is as long as the learning rate. From constant arrays, it has a part along
  these, which is the decay. The direction is that of the same optimizer with a
  rate of 1.
  """
  settings, steps, tx = plan.settings, plan.lengths.total, plan.optimizer
  if marks and max(marks) < steps:
    return {}, {}
  plain = dataclasses.replace(
    settings.optimizer,
    layer_decay=1.0,
    weight_decay=0.0,
    final_weight_decay=None,
    patches_lr=1.0,
  )
  one = make_optimizer(
    plain,
    optax.constant_schedule(1.0),
    is_trainable=plan.is_trainable,
    parts=plan.parts,
    total_steps=steps,
  )
  tree = unflatten_dict(params, sep="/")
  # As far as the settings say, decay is then as large as the direction.
  size = 1 / (settings.optimizer.weight_decay or 1.0)
  zeros, ones = (
    jax.tree.map(lambda x, v=v: np.full_like(x, v), tree) for v in (0.0, size)
  )
  pair = np.array([1, -1], np.float32)
  signs = jax.tree.map(lambda x: np.resize(pair, x.size).reshape(x.shape), tree)

  def at(step: Any, tx: Any, params: Any, signs: Any) -> Any:
    def counted(path: Any, leaf: Any) -> Any:
      name = jax.tree_util.keystr(path[-1:], simple=True)
      return step if name == "count" else leaf

    state = jax.tree_util.tree_map_with_path(counted, tx.init(params))
    return tx.update(signs, state, params)[0]

  def both(_: str, *updates: Any) -> Any:
    # Two elements, since the sum of many is less exact.
    core, bare, full = (x.ravel()[:2] for x in updates)
    rate = bare[0] / core[0]
    if settings.optimizer.kind != "lamb":
      return rate, (bare[0] - full[0]) / size
    along, across = full[0] - full[1], full[0] + full[1]
    share = across / jnp.where(along, along, 1)
    return rate, -share * core[0] / size * rate

  @jax.jit
  def measured(step: Any, signs: Any, zeros: Any, ones: Any) -> Any:
    pairs = (one, zeros), (tx, zeros), (tx, ones)
    updates = (at(step, *pair, signs) for pair in pairs)
    return map_paths(both, *updates)

  each = [measured(t, signs, zeros, ones) for t in range(steps)]
  found = jax.tree.map(lambda *x: np.stack(jax.device_get(x)), *each)
  leaf: Callable[..., Any] = functools.partial(
    jax.tree.map, is_leaf=lambda x: isinstance(x, tuple)
  )
  rate, decay = (flat(leaf(lambda x, i=i: x[i], found)) for i in (0, 1))
  return rate, decay
