"""Trains a model: sets up, begins or resumes, loops and closes."""

import contextlib
import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from etils import epath

from vit_jax.data.batching.workers import BatchIterator
from vit_jax.run import build, outputs
from vit_jax.run.plan import Plan, make_plan
from vit_jax.run.settings import Settings
from vit_jax.run.start import first_state
from vit_jax.run.summary import closing, header
from vit_jax.run.train_loop import OnStep, TrainLoop
from vit_jax.runtime.display import Display
from vit_jax.runtime.meter import ADVICE, DivergedError, Stopwatch
from vit_jax.runtime.stops import StopSignal, Watchdog
from vit_jax.training import memory, sharding
from vit_jax.training.state import TrainState
from vit_jax.workdir import bucket, orbax_files
from vit_jax.workdir.checkpoint import Checkpoints, is_run, latest_described
from vit_jax.workdir.lock import sole_writer
from vit_jax.workdir.records import metrics_so_far


def train(
  settings: Settings,
  workdir: str,
  *,
  allow_changes: bool = False,
  may_lower_batch: bool = False,
  on_step: Sequence[OnStep] = (),
) -> tuple[TrainState, dict[str, Any]]:
  """Trains a model and returns the last state and the last evaluation.

  The evaluation is its metrics by key, {} if there was none in this start.
  All output goes to `workdir`: checkpoints, `metrics.jsonl`, `starts.jsonl`,
  `log.txt` and TensorBoard files. If it holds checkpoints of these settings,
  the run is resumed.

  Args:
    settings: The run's settings, from `run.settings.read(config)`.
    workdir: The run's folder, local or in a bucket, as in gs://bucket/run.
    allow_changes: Whether a checkpoint of other settings or data may be
      resumed.
    may_lower_batch: Whether a batch that is larger than the training split
      is made smaller; otherwise it is refused.
    on_step: Functions to call after each step, see `train_loop.OnStep`.

  Raises:
    ValueError: if the settings or the data do not fit, before anything is
      compiled; if an image cannot be read and `loader.on_unreadable` is "stop".
    Interrupted: if the process was told to stop, after the state is saved.
    FloatingPointError: after `max_skipped_steps` consecutive non-finite steps;
      the last finite state is saved, and the steps are written to a file.
    DivergedError: at the end of a run that has diverged; it is saved as any
      other.
    OSError: if the last checkpoint could not be saved, or another run has taken
      the folder over.
  """
  spent = Stopwatch()
  bucket.check(workdir, writes=True)
  if not is_run(workdir):
    build.check_workdir(settings, workdir)
  display = Display(active=jax.process_index() == 0)
  with contextlib.ExitStack() as stack:
    stack.push(functools.partial(outputs.say_interrupted, display))
    signal = stack.enter_context(StopSignal().recording())
    with signal.waiting():
      check_lock = stack.enter_context(sole_writer(workdir, display.note))
      described = latest_described(workdir)
      saved = next(iter(described.values()), None)
      plan = make_plan(settings, saved, may_lower_batch=may_lower_batch)
    watchdog = _watchdog(settings, workdir)
    stack.enter_context(watchdog.watching())
    # Closed after the checkpoints, so that a slow network does not delay these.
    writers = stack.enter_context(contextlib.ExitStack())
    checkpoints = _open_run(plan, workdir, described, display, stack)
    newest = checkpoints.latest_step
    kind = "starting" if newest is None else "restoring"
    with step_compiled(plan, newest) as step:
      _show_header(plan, workdir, checkpoints, display)
      orbax_files.load_library()
      with spent.on(kind):
        state, first = first_state(plan, checkpoints, display, allow_changes)
      out = outputs.open_outputs(plan, checkpoints, display, spent, first)
      writers.push(out.close)
      batches = _open_batches(plan, first, out, stack)
    if step is not None:
      _check_memory(plan, step.programs, display)
    stack.callback(display.stop)
    start = time.perf_counter()
    spent.set_up()
    with watchdog.stepping():
      loop = TrainLoop(
        plan=plan,
        batches=batches,
        outputs=out,
        signal=signal,
        watchdog=watchdog,
        check_lock=check_lock,
        on_step=on_step,
      )
      state, evaluated = loop(state, first)
    saved = None if checkpoints.latest_step is None else workdir
    best, began = _best_and_first(plan, checkpoints)
    tested = _test(plan, out, state, saved) if evaluated else None
  seconds = time.perf_counter() - start
  # A start that takes no step has nothing to add to the times that were shown.
  kinds = out.time_spent() if int(state.step) > first else None
  results = evaluated, seconds, saved, tested, kinds, best, began
  display.note(closing(plan, *results, diverged=bool(loop.diverged)))
  if loop.diverged:
    raise DivergedError(f"the run has diverged: {loop.diverged}. {ADVICE}")
  return state, evaluated


def _watchdog(settings: Settings, workdir: str) -> Watchdog:
  """The watchdog of a run, with a file for the stacks of this process."""
  stacks = f"{workdir.rstrip('/')}/stacks_{jax.process_index()}.txt"
  return Watchdog(settings.hang_factor, epath.Path(stacks).expanduser())


def _open_run(
  plan: Plan,
  workdir: str,
  described: Mapping[int, dict[str, Any]],
  display: Display,
  stack: contextlib.ExitStack,
) -> Checkpoints:
  """Opens a run's checkpoints and log.

  `described` has the descriptions that were read for the plan. `stack` closes
  all that is opened.
  """
  keep_last, score = plan.settings.keep_last, plan.score.key
  checkpoints = Checkpoints(
    workdir, keep_last, keys=[score], described=described
  )
  stack.callback(checkpoints.close)
  stack.callback(plan.evaluation.stream.close)
  display.copy_to(stack.enter_context(outputs.log_file(checkpoints, display)))
  return checkpoints


def _show_header(
  plan: Plan, workdir: str, checkpoints: Checkpoints, display: Display
) -> None:
  """Shows the header of a run, and what is to be noted at its start.

  The operations in it take another trace of the model.
  """
  is_new = checkpoints.latest_step is None
  display.header(header(plan, workdir, is_new=is_new))
  warnings = plan.splits.warnings_for(plan.preprocessing.spec)
  for note in (*warnings, *checkpoints.notes):
    display.note(note)


def step_compiled(
  plan: Plan, newest: int | None
) -> contextlib.AbstractContextManager[sharding.Compiling | None]:
  """A context that compiles the train step while the work inside it is done.

  It is compiled for every shape that a batch may have. The context yields what
  is being compiled, or None if no step is left to take.

  `newest` is the step of the newest checkpoint, if there is one.
  """
  if newest == plan.lengths.total:
    return contextlib.nullcontext()
  return sharding.compile_meanwhile(plan.jitted_step, *plan.step_shapes)


def _check_memory(
  plan: Plan, programs: Sequence[Any], display: Display
) -> None:
  """Prints a line if the free memory is too little for the compiled step.

  Of several programs, the line is on the one that needs the most. A program
  that did not compile is left out; calling it raises the error.
  """
  devices = plan.mesh.local_devices
  every = [memory.find_shortage(program, devices) for program in programs]
  if found := [shortage for shortage in every if shortage is not None]:
    lacking = max(found)  # By the bytes that are needed.
    unit = sharding.batch_shards(plan.mesh) * plan.settings.parts
    may_recompute = getattr(plan.model.trunk, "remat", "") == "none"
    size = plan.settings.batch_size
    display.note(
      memory.shortage_warning(lacking, size, unit, recomputes=may_recompute)
    )


def _open_batches(
  plan: Plan, first: int, out: outputs.Outputs, stack: contextlib.ExitStack
) -> BatchIterator:
  """Opens the training batches after step `first`, for `stack` to close.

  When `stack` closes, a line names the images that could not be read.
  """
  batches = plan.open_batches(first)
  stack.callback(batches.close)
  stack.callback(out.list_unreadable, plan, batches)
  return batches


def _best_and_first(
  plan: Plan, checkpoints: Checkpoints
) -> tuple[tuple[int, str] | None, dict[str, Any]]:
  """The step and score of the best checkpoint, and the metrics of step 0.

  The first result is None if the best checkpoint is the last one, or there is
  none. The second is empty if nothing was measured before the first step.
  """
  checkpoints.wait()
  rows = metrics_so_far(checkpoints.folder)
  first = next((dict(row) for row in rows if not row["step"]), {})
  step, score = checkpoints.best_step, plan.score
  if step in (None, checkpoints.latest_step):
    return None, first
  texts = [score.text(row) for row in rows if row["step"] == step]
  label = score.metric.label
  text = next(filter(None, reversed(texts)), f"the best {label}")
  return (step, text), first


def _test(
  plan: Plan, out: outputs.Outputs, state: TrainState, saved: str | None
) -> dict[str, Any] | None:
  """Measures and writes the metrics of the test split.

  The result is None if the run has no test split, or a file cannot be read. If
  reading or writing fails, a line says so.
  """
  if plan.splits.test is None:
    return None
  # Imported here because it reads every format of checkpoints.
  from vit_jax.run.saved import test_run

  tested = None
  out.checkpoints.wait()
  with outputs.optional_write(out.display, "the metrics of the test split"):
    tested = test_run(plan, state, saved)
    out.writer.write(int(state.step), tested)
  return tested
