"""Trains a model: sets up, makes or restores the state, loops and closes."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax
import numpy as np
from etils import epath

from vit_jax.models import scan
from vit_jax.run import build, outputs
from vit_jax.run.divergence import ADVICE, DivergedError
from vit_jax.run.plan import Plan, make_plan
from vit_jax.run.settings import Settings, read_saved
from vit_jax.run.summary import closing, header
from vit_jax.run.train_loop import OnStep, TrainLoop
from vit_jax.runtime.display import Display
from vit_jax.runtime.settings import to_dict
from vit_jax.runtime.stops import StopSignal, Watchdog
from vit_jax.training import sharding
from vit_jax.training.optimizer import HEADS
from vit_jax.training.state import TrainState, with_params
from vit_jax.workdir import bucket
from vit_jax.workdir.checkpoint import Checkpoints, is_run
from vit_jax.workdir.description import check_same_run
from vit_jax.workdir.lock import sole_writer
from vit_jax.workdir.meter import Stopwatch
from vit_jax.workdir.metrics import read_metrics
from vit_jax.workdir.read_errors import DamagedError

# Imported only by the runs that need it.
if TYPE_CHECKING:
  from vit_jax.pretrained.loaded import Loaded


def train(
  settings: Settings,
  workdir: str,
  *,
  allow_changes: bool = False,
  on_step: Sequence[OnStep] = (),
) -> tuple[TrainState, dict[str, Any]]:
  """Trains a model and returns the last state and the last evaluation.

  All output goes to `workdir`: checkpoints, `metrics.jsonl`, `starts.jsonl`
  and TensorBoard files. If it holds checkpoints of these settings, the run is
  resumed.

  Args:
    settings: The run's settings, from `run.settings.read(config)`.
    workdir: The run's folder, local or in a bucket, as in gs://bucket/run.
    allow_changes: Whether a checkpoint of other settings or data may be
      resumed.
    on_step: Functions to call after each step, see `train_loop.OnStep`.

  Raises:
    ValueError: if the settings or the data do not fit, before anything is
      compiled; if an image cannot be read and `loader.on_unreadable` is "stop".
    Interrupted: if the process was told to stop, after the state is saved.
    FloatingPointError: after `max_skipped_steps` consecutive non-finite steps;
      the last finite state is saved, and the steps are written to a file.
    DivergedError: at the end of a run that has diverged; it is saved as any
      other.
    OSError: if the last checkpoint could not be saved.
  """
  spent = Stopwatch()
  bucket.check(workdir, writes=True)
  # The plan of a new run comes first: if it fails, no folder is left behind.
  plan = None if is_run(workdir) else make_plan(settings)
  display = Display(active=jax.process_index() == 0)
  with contextlib.ExitStack() as stack:
    stack.push(functools.partial(outputs.say_interrupted, display))
    signal = stack.enter_context(StopSignal().awaited())
    with signal.waiting():
      check_lock = stack.enter_context(sole_writer(workdir, display.note))
    stacks = f"{workdir.rstrip('/')}/stacks_{jax.process_index()}.txt"
    watchdog = Watchdog(settings.hang_factor, epath.Path(stacks).expanduser())
    stack.enter_context(watchdog.watching())
    # Closed after the checkpoints, which a slow network must not keep waiting.
    writers = stack.enter_context(contextlib.ExitStack())
    score = f"eval/{build.task_of(settings).score}"
    checkpoints = Checkpoints(workdir, settings.keep_last, keys=[score])
    stack.callback(checkpoints.close)
    if plan is None:
      newest = checkpoints.newest_description()
      plan = make_plan(settings, newest and newest[1])
    stack.callback(plan.evaluation.stream.close)
    display.copy_to(stack.enter_context(outputs.log_file(checkpoints, display)))
    display.header(header(plan, workdir))
    for note in (*plan.splits.warnings, *checkpoints.notes):
      display.note(note)
    fresh = checkpoints.latest_step is None
    with spent.on("starting" if fresh else "restoring"):
      state, first = first_state(plan, checkpoints, display, allow_changes)
    out = outputs.open_outputs(plan, checkpoints, display, spent, first)
    writers.push(out.close)
    batches = plan.open_batches(first)
    stack.callback(batches.close)
    if plan.lengths.eval_every and first < plan.lengths.total:
      plan.evaluation.stream.start()
    stack.callback(out.list_unreadable, plan, batches)
    stack.callback(display.stop)
    start = time.perf_counter()
    spent.set_up()
    with watchdog.stepping():
      guards = signal, watchdog, check_lock
      loop = TrainLoop(plan, batches, out, *guards, on_step)
      state, evaluated = loop(state, first)
    saved = None if checkpoints.latest_step is None else workdir
    tested, best = None, _best(plan, checkpoints)
    if evaluated and plan.splits.test is not None:
      tested = _test(plan, out, state, saved)
  seconds, kinds = time.perf_counter() - start, out.time_spent()
  results = evaluated, seconds, saved, tested, kinds, best
  display.note(closing(plan, *results, diverged=bool(loop.diverged)))
  if loop.diverged:
    raise DivergedError(f"the run has diverged: {loop.diverged}. {ADVICE}")
  return state, evaluated


def _best(plan: Plan, checkpoints: Checkpoints) -> tuple[int, str] | None:
  """Step and score of the best checkpoint; None if it is the last one."""
  checkpoints.wait()
  step, metric = checkpoints.best_step, plan.task.score_metric
  if step in (None, checkpoints.latest_step):
    return None
  texts = []
  with contextlib.suppress(OSError):
    rows = read_metrics(checkpoints.folder).rows
    texts = [metric.text(row) for row in rows if row["step"] == step]
  return step, next(filter(None, reversed(texts)), f"the best {metric.label}")


def _test(
  plan: Plan, out: outputs.Outputs, state: TrainState, saved: str | None
) -> dict[str, Any] | None:
  """The metrics of the test split, written too; None if that failed."""
  from vit_jax.run.saved import test_run

  tested = None
  out.checkpoints.wait()
  with outputs.optional_write(out.display, "the metrics of the test split"):
    tested = test_run(plan, state, saved)
    out.writer.write(int(state.step), tested)
  return tested


def first_state(
  plan: Plan,
  checkpoints: Checkpoints,
  display: Display,
  allow_changes: bool = False,
) -> tuple[TrainState, int]:
  """Returns (state, step) of the newest intact checkpoint, or a fresh one."""
  if not checkpoints.all_steps:
    return fresh_state(plan), 0
  damaged: dict[int, DamagedError] = {}
  for step in reversed(checkpoints.all_steps):
    try:
      found = restored(plan, checkpoints, step, allow_changes)
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


def restored(
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
  state = _in_layout(plan, state, scanned=False)
  if not plan.settings.transfer.probe_head:
    return state
  from vit_jax.run.probe_head import head

  return with_params(state, head(plan, state.params).items())


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
  model = plan.model.clone(scan=scanned)
  parts = plan.task, plan.extras, plan.lengths.total, len(plan.source)
  init, _ = build.train_functions(plan.settings, model, *parts)
  return init, sharding.array_shapes(init, plan.mesh)


def _in_layout(plan: Plan, state: TrainState, scanned: bool) -> TrainState:
  if scanned == plan.model.scan:
    return state
  change = scan.unstack if scanned else scan.stack
  shardings = sharding.shardings_of(plan.shapes)
  return jax.jit(change, out_shardings=shardings)(state)
