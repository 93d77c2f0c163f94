"""The state that a run starts from: a checkpoint's, a fresh one, or weights."""

from collections.abc import Callable

import flax.linen as nn
import jax

from vit_jax.models import scan
from vit_jax.run import build
from vit_jax.run.plan import Plan
from vit_jax.run.settings import read_saved
from vit_jax.runtime.display import Display
from vit_jax.runtime.settings import to_dict
from vit_jax.training import sharding
from vit_jax.training.state import TrainState, with_params
from vit_jax.workdir.checkpoint import Checkpoints, DamagedError
from vit_jax.workdir.description import check_same_run


def first_state(
  plan: Plan,
  checkpoints: Checkpoints,
  display: Display,
  allow_changes: bool = False,
) -> tuple[TrainState, int]:
  """The newest good checkpoint's state and step, or a fresh one and 0."""
  damaged: dict[int, DamagedError] = {}
  for step in reversed(checkpoints.all_steps):
    try:
      found = _restored(plan, checkpoints, step, allow_changes)
    except DamagedError as error:
      damaged[step] = error
      continue
    for other, error in damaged.items():
      display.note(f"{error} It is now {checkpoints.set_aside(other)}.")
    display.note(
      f"Going on from the checkpoint of step {step:,}."
      if step < plan.total
      else f"The run is complete: {step:,} steps are done."
    )
    return found
  if damaged:
    raise ValueError(
      f"{next(iter(damaged.values()))} No older one is good either: choose "
      "another --workdir to start over."
    )
  return fresh_state(plan), 0


def _restored(
  plan: Plan, checkpoints: Checkpoints, step: int, allow_changes: bool
) -> tuple[TrainState, int]:
  """The state at `step`, laid out as planned, and the number of its batch."""
  saved = checkpoints.describe(step)
  if not allow_changes:
    # An older version's description lacks keys, which have old defaults.
    known = {**saved, "config": to_dict(read_saved(saved["config"]))}
    check_same_run(known, plan.description(step), str(checkpoints.folder))
  scanned = saved["model"].get("scan", False)
  state = checkpoints.restore(step, _start(plan, scanned)[1])
  return _in_layout(plan, state, scanned), saved["data_iterator"]["next_batch"]


def fresh_state(plan: Plan) -> TrainState:
  """The state that the run begins with."""
  pretrained = plan.start
  scanned = plan.scanned and pretrained is None
  init, shapes = _start(plan, scanned)
  make = jax.jit(
    lambda key: nn.unbox(init(key)), out_shardings=sharding.shardings_of(shapes)
  )
  state = make(jax.random.key(plan.settings.seed))
  if pretrained is not None:
    from vit_jax.pretrained import transfer

    leaves = transfer.leaves(
      pretrained,
      plan.model.clone(scan=False) if plan.scanned else plan.model,
      plan.preprocessing.image_size,
      plan.settings.transfer.interpolation,
      keep_head=plan.settings.transfer.keep_head,
    )
    state = with_params(state, leaves)
  return _in_layout(plan, state, scanned)


def _start(plan: Plan, scanned: bool) -> tuple[Callable, TrainState]:
  """`init` of the state and its shapes, with scanned or unrolled blocks."""
  if scanned == plan.scanned:
    return plan.init, plan.shapes
  model = plan.model.clone(scan=scanned)
  init, _ = build.train_functions(
    plan.settings, model, plan.total, len(plan.source)
  )
  return init, sharding.array_shapes(init, plan.mesh)


def _in_layout(plan: Plan, state: TrainState, scanned: bool) -> TrainState:
  """The state with its blocks as the plan wants them."""
  if scanned == plan.scanned:
    return state
  change = scan.unstack if scanned else scan.stack
  shardings = sharding.shardings_of(plan.shapes)
  return jax.jit(change, out_shardings=shardings)(state)
