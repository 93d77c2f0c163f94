"""Makes the state that a run starts from.

It is the state of the newest checkpoint, or a fresh one, whose weights may come
from a pre-trained model.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import flax.linen as nn
import jax
import numpy as np

from vit_jax.models import scan
from vit_jax.run.plan import Plan
from vit_jax.run.settings import read_saved
from vit_jax.runtime.display import Display
from vit_jax.runtime.settings import to_dict
from vit_jax.training import sharding
from vit_jax.training.optimizer import HEADS
from vit_jax.training.state import TrainState, with_params
from vit_jax.workdir.checkpoint import Checkpoints
from vit_jax.workdir.description import check_same_run
from vit_jax.workdir.read_errors import DamagedError

# Imported only by the runs that need it.
if TYPE_CHECKING:
  from vit_jax.pretrained.loaded import Loaded


def first_state(
  plan: Plan,
  checkpoints: Checkpoints,
  display: Display,
  allow_changes: bool = False,
) -> tuple[TrainState, int]:
  """Returns (state, step) of the newest intact checkpoint, or a fresh one."""
  if not checkpoints.all_steps:
    return fresh_state(plan), 0
  return _newest(plan, checkpoints, display, allow_changes)


def _newest(
  plan: Plan, checkpoints: Checkpoints, display: Display, allow_changes: bool
) -> tuple[TrainState, int]:
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
      f"Resuming from the checkpoint of step {step:,}."
      if step < plan.lengths.total
      else f"The run is complete: {step:,} steps are done."
    )
    return found
  raise ValueError(
    f"{next(iter(damaged.values()))} No older one is intact either: choose "
    "another --workdir to start over."
  )


def _restored(
  plan: Plan, checkpoints: Checkpoints, step: int, allow_changes: bool
) -> tuple[TrainState, int]:
  """Restores the state at `step`; returns it and the next batch's number."""
  saved = checkpoints.describe(step)
  if not allow_changes:
    # Adds the keys that an older version's description lacks.
    known = {**saved, "config": to_dict(read_saved(saved["config"]))}
    check_same_run(known, plan.description(step), str(checkpoints.folder))
  scanned = saved["model"].get("scan", False)
  state = checkpoints.restore(step, _start(plan, scanned)[1])
  return _in_layout(plan, state, scanned), saved["data_iterator"]["next_batch"]


def fresh_state(plan: Plan) -> TrainState:
  """Makes the state of step 0, with pre-trained weights if there are any."""
  if plan.start is None:
    return _drawn(plan, plan.init, plan.shapes)
  state = _drawn(plan, *_start(plan, scanned=False))
  state = with_params(state, _transferred(plan, plan.start))
  return _in_layout(plan, state, scanned=False)


def _drawn(plan: Plan, init: Callable, shapes: TrainState) -> TrainState:
  make = jax.jit(
    lambda key: nn.unbox(init(key)), out_shardings=sharding.shardings_of(shapes)
  )
  return make(jax.random.key(plan.settings.seed))


def _transferred(
  plan: Plan, loaded: "Loaded"
) -> Iterator[tuple[str, np.ndarray]]:
  """The parameters of the state that come from a checkpoint, by path."""
  from vit_jax.pretrained import transfer

  leaves = transfer.leaves(
    loaded,
    plan.model.clone(scan=False) if plan.model.scan else plan.model,
    plan.preprocessing.image_size,
    plan.settings.transfer.interpolation,
    channels=plan.preprocessing.channels,
    keep_head=plan.settings.transfer.keep_head,
  )
  rank = plan.settings.lora.rank  # With LoRA, the rest is in `plan.extras`.
  return (x for x in leaves if not rank or x[0].startswith(HEADS))


def _start(plan: Plan, scanned: bool) -> tuple[Callable, TrainState]:
  """Returns `init` and the state's shapes, for scanned or unrolled blocks."""
  if scanned == plan.model.scan:
    return plan.init, plan.shapes
  from vit_jax.run.build import train_functions

  model = plan.model.clone(scan=scanned)
  parts = plan.task, plan.extras, plan.lengths.total, len(plan.source)
  init, _ = train_functions(plan.settings, model, *parts)
  return init, sharding.array_shapes(init, plan.mesh)


def _in_layout(plan: Plan, state: TrainState, scanned: bool) -> TrainState:
  """Stacks or unstacks the blocks' parameters, as the plan needs them."""
  if scanned == plan.model.scan:
    return state
  change = scan.unstack if scanned else scan.stack
  shardings = sharding.shardings_of(plan.shapes)
  return jax.jit(change, out_shardings=shardings)(state)
