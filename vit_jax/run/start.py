"""Makes the first state of a run: restored, or new with pretrained weights."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from jaxtyping import Array, Float

from vit_jax.models.model import Inputs, represent
from vit_jax.models.parts import HEAD
from vit_jax.run import build
from vit_jax.run.plan import Plan
from vit_jax.run.settings import read_saved
from vit_jax.run.train_loop import due
from vit_jax.runtime.display import Display
from vit_jax.runtime.printable import say
from vit_jax.runtime.settings import to_dict
from vit_jax.tasks.outcome import Stream
from vit_jax.tasks.scores import kept_folds
from vit_jax.training import sharding
from vit_jax.training.inputs import mirror
from vit_jax.training.state import TrainState, draw, with_params
from vit_jax.workdir.checkpoint import Checkpoints
from vit_jax.workdir.checkpoint_reader import DamagedError, again_if_deleted
from vit_jax.workdir.description import changes, check_changes, check_same_run
from vit_jax.workdir.records import metrics_so_far

# A head is no longer the probe that it started from if its weights move further
# than this share of their root mean square.
_MOST_MOVED = 0.05

# Beginnings of keys that are read before the first step alone.
_READ_AT_THE_START = ("pretrained", "transfer.", "model.head_bias")

# For the annotations alone: only runs that need these modules import them.
if TYPE_CHECKING:
  from vit_jax.pretrained.loaded import Loaded
  from vit_jax.tasks.probes.linear_probe import Probe


def first_state(
  plan: Plan,
  checkpoints: Checkpoints,
  display: Display,
  allow_changes: bool = False,
) -> tuple[TrainState, int]:
  """Returns (state, step) of the newest intact checkpoint.

  Without a checkpoint, they are a fresh state and 0. Raises ValueError if no
  checkpoint is intact, or the run must not go on from it; `allow_changes`
  permits a checkpoint of other settings or data.
  """
  if not checkpoints.all_steps:
    return fresh_state(plan), 0
  return _newest_intact(plan, checkpoints, display, allow_changes)


def _newest_intact(
  plan: Plan, checkpoints: Checkpoints, display: Display, allow_changes: bool
) -> tuple[TrainState, int]:
  """Restores the newest checkpoint that is intact; sets newer ones aside.

  Returns its state and step. Raises ValueError if none is intact, or as
  `restore_state` does.
  """
  damaged: dict[int, DamagedError] = {}
  for step in reversed(checkpoints.all_steps):
    try:
      state_and_step = restore_state(plan, checkpoints, step, allow_changes)
    except DamagedError as error:
      damaged[step] = error
      continue
    for other, error in damaged.items():
      display.note(f"{error} It was moved to {checkpoints.set_aside(other)}.")
    display.note(
      f"Resuming from the checkpoint of step {step:,}."
      if step < plan.lengths.total
      else _completion(plan, checkpoints, step)
    )
    if allow_changes and step < plan.lengths.total:
      saved = checkpoints.describe(step)
      lines = (
        _what_differs(plan, saved, step),
        _higher_rate(plan, saved, step),
      )
      for line in filter(None, lines):
        display.note(line)
    return state_and_step
  raise ValueError(
    f"{next(iter(damaged.values()))} No older one is intact either: choose "
    "another --workdir to start over."
  )


def _descriptions(
  plan: Plan, saved: Mapping[str, Any], step: int
) -> tuple[dict[str, Any], dict[str, Any]]:
  """The saved description, and that of the run as it is now.

  The first has the keys that an older version's description lacks.
  """
  complete = {**saved, "config": to_dict(read_saved(saved["config"]))}
  return complete, plan.description(step)


def _what_differs(plan: Plan, saved: Mapping[str, Any], step: int) -> str:
  """A line on what differs from the checkpoint; "" if nothing does."""
  changed = changes(*_descriptions(plan, saved, step))
  early = [key for key in changed if key.startswith(_READ_AT_THE_START)]
  late = "; ".join(changed[key] for key in changed if key not in early)
  line = f"Going on with changes: {late}." if late else ""
  if early:
    idle = f"No effect on a run that has begun: {', '.join(early)}."
    line = f"{line} {idle}".lstrip()
  return line


def _higher_rate(plan: Plan, saved: Mapping[str, Any], step: int) -> str:
  """A line if changed settings more than double the learning rate; else ""."""
  old_settings = read_saved(saved["config"])
  before: Any = dataclasses.replace(plan, settings=old_settings).schedule
  after: Any = plan.schedule
  if after(step) <= 2 * before(step):
    return ""
  return (
    f"The learning rate goes on at {float(after(step)):.2e}, and was "
    f"{float(before(step - 1)):.2e}: its schedule is now that of a run of "
    f"{plan.lengths.total:,} steps. --lr (lr= in Python) sets its peak."
  )


def _completion(plan: Plan, checkpoints: Checkpoints, step: int) -> str:
  """A line on a complete run: its result, and how to train anew."""
  past = metrics_so_far(checkpoints.folder)
  measured: dict[str, Any] = kept_folds(past)
  for row in past:
    measured |= row if row["step"] == step else {}
  verdict = plan.task.scores.verdict(measured)
  shown = str(verdict) or (plan.score.text(measured) or "It was not measured")
  lengths = plan.lengths
  if plan.score.key not in measured and due(
    step, lengths.eval_every, lengths.total
  ):
    shown = "It stopped before it was evaluated, which follows"
  return (
    f"The run is complete: {step:,} steps are done. {shown.rstrip('.')}. "
    "To train anew, give another workdir."
  )


def restore_state(
  plan: Plan, checkpoints: Checkpoints, step: int, allow_changes: bool
) -> tuple[TrainState, int]:
  """Restores the state at `step`; returns it and the next batch's number.

  Raises ValueError if the run must not go on from it, or it is an average of
  runs, and DamagedError if it is damaged.
  """
  saved = checkpoints.describe(step)
  if "merged" in saved:
    raise ValueError(
      f"{checkpoints.folder} is an average of runs, without the optimizer's "
      "state to go on from: give its folder to --pretrained of another run."
    )
  complete, now = _descriptions(plan, saved, step)
  folder = str(checkpoints.folder)
  if allow_changes:
    check_changes(complete, now, folder)
  else:
    check_same_run(complete, now, folder, plan.task.labels)
  scanned = saved["model"].get("scan", False)
  state = checkpoints.restore(step, _start(plan, scanned)[1])
  return _in_layout(plan, state, scanned), saved["data_iterator"]["next_batch"]


def fresh_state(plan: Plan) -> TrainState:
  """Makes the state of step 0, with pre-trained weights if there are any.

  With `transfer.probe_head`, the head is that of a linear probe, and the
  probe's metrics go to `plan.evaluation.folds`. Raises ValueError as
  `build.start_leaves` and `probe_head` do.
  """
  if plan.start is None:
    return _draw_missing(plan, plan.init, plan.shapes)
  init, shapes = _start(plan, scanned=False)
  starts = iter([plan.start])

  def transferred() -> TrainState:
    start = next(starts, None) or build.open_start(plan.settings, plan.task)
    return with_params(shapes, transferred_leaves(plan, start))

  # With LoRA, the base was read before, and the head must be of the same step.
  if plan.settings.lora.rank:
    state = transferred()
  else:
    state = again_if_deleted(transferred, say)
  state = _in_layout(plan, _draw_missing(plan, init, state), scanned=False)
  if not plan.settings.transfer.probe_head:
    return state
  probe = probe_head(plan, state.params)
  head = probe.head()
  if folds := plan.task.score_folds(probe.folds, probe.judged):
    trains_layers = plan.settings.optimizer.freeze_layers >= 0
    of_start = trains_layers or moves_head(plan, head["head/kernel"])
    plan.evaluation.folds = folds.metrics(of_start=of_start)
  return with_params(state, head.items())


def moves_head(plan: Plan, kernel: np.ndarray) -> bool:
  """Whether training may move the head far from the probe that it starts as.

  A step of Adam changes a weight by about the learning rate at most. The peak
  rate times the steps is compared with a share of the size of the weights.
  """
  furthest = plan.settings.optimizer.peak_lr * plan.lengths.total
  return bool(furthest > _MOST_MOVED * np.sqrt(np.mean(np.square(kernel))))


def _draw_missing(plan: Plan, init: Callable, state: TrainState) -> TrainState:
  """Draws the arrays for which the state has only shapes."""
  leaves, structure = jax.tree.flatten(state)
  shapes = [
    leaf if isinstance(leaf, jax.ShapeDtypeStruct) else None for leaf in leaves
  ]
  drawn = iter(draw(init, jax.random.key(plan.settings.seed), shapes))
  return structure.unflatten(
    leaf if shape is None else next(drawn)
    for leaf, shape in zip(leaves, shapes, strict=True)
  )


def transferred_leaves(
  plan: Plan, loaded: "Loaded"
) -> Iterator[tuple[str, np.ndarray]]:
  """The parameters of the state that come from a checkpoint, by path."""
  from vit_jax.pretrained.naming import say_left_out

  # A user may expect the checkpoint's mask token or decoder to be read.
  if _has_own_parts(plan):
    say_left_out(loaded.origin.source, [*loaded.unread])
  leaves = build.start_leaves(
    loaded,
    plan.model,
    plan.preprocessing,
    plan.settings.transfer.interpolation,
    keep_head=plan.settings.transfer.keep_head or plan.task.keeps_parts,
  )
  rank = plan.settings.lora.rank  # With LoRA, the rest is in `plan.extras`.
  parts = plan.parts
  return (x for x in leaves if not rank or parts.is_trained_beside_lora(x[0]))


def _has_own_parts(plan: Plan) -> bool:
  """Whether the task has parts other than heads, such as a decoder."""
  paths = flatten_dict(plan.param_shapes, sep="/")
  parts = map(plan.parts.part, paths)
  return any(part.own_task and part.place != HEAD for part in parts)


def probe_head(plan: Plan, params: Any) -> "Probe":
  """The probe of `tasks.probes.linear_probe` that the head starts from.

  The training images are prepared as in an evaluation; if training mirrors
  images, the probe is fitted to mirrored ones as well. `params` are those of
  the state. Raises ValueError if the model has two heads, or there are too few
  images.
  """
  from vit_jax.tasks.probes import whole_set
  from vit_jax.tasks.probes.linear_probe import Classes

  model, settings = plan.model, plan.settings
  if model.distilled:
    raise ValueError(
      "transfer.probe_head=True fits one head, and the model has two: leave it "
      "out."
    )

  def views(params: Any, x: Inputs) -> Float[Array, "B ... V R"]:
    """The R features of each of V views: images, and mirrored ones."""
    images = [x]
    if settings.train_transform.flip:
      images.append(mirror(x, plan.preprocessing.channels))
    return jnp.stack([represent(model, params, x) for x in images], axis=-2)

  count = len(plan.source)
  if jax.process_index() == 0:
    say(f"Fitting a linear probe on {count:,} images ...")
  preprocessing = plan.preprocessing
  read = whole_set.make_represent(views, plan.mesh, preprocessing)
  rows = min(settings.batch_size, count)
  loader = build.open_loader(settings, preprocessing)
  stream = Stream(plan.source, plan.mesh, preprocessing, loader, rows)
  with contextlib.closing(stream):
    batches = read(plan.extras.merge(params), stream, "fitting the head")
    images = whole_set.Readable(batches)
    groups = getattr(plan.source, "groups", None)
    kind = plan.task.head_probe or Classes(model.num_classes)
    return whole_set.fit(images, kind, count, groups)


def _start(plan: Plan, scanned: bool) -> tuple[Callable, TrainState]:
  """Returns `init` and the state's shapes, for scanned or unrolled blocks."""
  if scanned == plan.model.scan:
    return plan.init, plan.shapes
  other = dataclasses.replace(plan, model=plan.model.clone(scan=scanned))
  return other.init, other.shapes


def _in_layout(plan: Plan, state: TrainState, scanned: bool) -> TrainState:
  """The state with its blocks stacked if the plan's model scans them.

  `scanned` says whether they are stacked in `state`.
  """
  if scanned == plan.model.scan:
    return state
  change = plan.parts.unstack if scanned else plan.parts.stack
  shardings = sharding.shardings_of(plan.shapes)
  return jax.jit(change, out_shardings=shardings)(state)
