"""Trains a model: sets up, restores, loops and closes."""

import contextlib
import functools
import time
from typing import Any

import jax

from vit_jax.run import outputs
from vit_jax.run.plan import Plan, make_plan
from vit_jax.run.saved import test_run
from vit_jax.run.settings import Settings
from vit_jax.run.start import first_state
from vit_jax.run.steps import Steps
from vit_jax.run.summary import closing, header
from vit_jax.runtime.display import Display
from vit_jax.runtime.signals import Notice
from vit_jax.runtime.watchdog import Watchdog
from vit_jax.training.state import TrainState
from vit_jax.workdir import bucket
from vit_jax.workdir.checkpoint import Checkpoints, is_run
from vit_jax.workdir.goodput import Stopwatch
from vit_jax.workdir.lock import sole_writer
from vit_jax.workdir.metrics import Meter
from vit_jax.workdir.starts import record_start


def train(
  settings: Settings, workdir: str, *, allow_changes: bool = False
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

  Raises:
    ValueError: if the settings or the data do not fit, before anything is
      compiled; if an image cannot be read and `loader.on_unreadable` is "stop".
    Interrupted: if the process was told to stop, after the state is saved.
    FloatingPointError: after `max_skipped_steps` consecutive non-finite steps;
      the last finite state is saved, and the steps are written to a file.
    OSError: if the last checkpoint could not be saved.
  """
  spent = Stopwatch()
  bucket.check(workdir, writes=True)
  # The plan of a new run comes first: if it fails, no folder is left behind.
  plan = None if is_run(workdir) else make_plan(settings)
  display = Display(active=jax.process_index() == 0)
  with contextlib.ExitStack() as stack:
    run, state, first = _set_up(
      stack, settings, workdir, plan, display, spent, allow_changes
    )
    start = time.perf_counter()
    spent.set_up()
    with run.watchdog.watching():
      state, evaluated = run(state, first)
    saved = None if run.checkpoints.latest_step is None else workdir
    tested = _test(run, state, saved) if evaluated else None
  display.note(
    closing(
      evaluated,
      time.perf_counter() - start,
      saved,
      tested,
      outputs.goodput(run.checkpoints.folder, spent.row()),
    )
  )
  return state, evaluated


def _set_up(
  stack: contextlib.ExitStack,
  settings: Settings,
  workdir: str,
  plan: Plan | None,
  display: Display,
  spent: Stopwatch,
  allow_changes: bool,
) -> tuple[Steps, TrainState, int]:
  """Opens everything that `stack` will close; the loop, the state, its step."""
  stack.push(functools.partial(outputs.say_interrupted, display))
  notice = stack.enter_context(Notice().awaited())
  with notice.waiting():
    check_lock = stack.enter_context(sole_writer(workdir, display.note))
  # Closed after the checkpoints, which a slow network must not keep waiting.
  writers = stack.enter_context(contextlib.ExitStack())
  checkpoints = Checkpoints(workdir, settings.keep_last)
  stack.callback(checkpoints.close)
  if plan is None:
    newest = checkpoints.newest_description()
    plan = make_plan(settings, newest and newest[1])
  stack.callback(plan.evaluator.close)
  log = stack.enter_context(outputs.log_file(checkpoints, display))
  display.copy_to(log)
  display.header(header(plan, workdir))
  for note in (*plan.splits.doubts, *checkpoints.notes):
    display.note(note)
  fresh = checkpoints.latest_step is None
  with spent.on("starting" if fresh else "restoring"):
    state, first = first_state(plan, checkpoints, display, allow_changes)
  with outputs.optional_write(display, "starts.jsonl"):
    record_start(checkpoints.folder, first)
  writer = outputs.open_writer(plan, checkpoints, first, display)
  writers.push(functools.partial(outputs.close_writer, writer, display))
  batches = plan.open_batches(first)
  stack.callback(batches.close)
  if plan.eval_every and first < plan.total:
    plan.evaluator.start()
  stack.callback(outputs.list_unreadable, plan, batches, checkpoints, display)
  stack.callback(display.stop)
  stacks = checkpoints.folder / f"stacks_{jax.process_index()}.txt"
  run = Steps(
    plan=plan,
    batches=batches,
    writer=writer,
    display=display,
    checkpoints=checkpoints,
    notice=notice,
    check_lock=check_lock,
    watchdog=Watchdog(plan.settings.hang_factor, stacks),
    spent=spent,
    meter=Meter(settings.batch_size, plan.log_every),
  )
  return run, state, first


def _test(
  run: Steps, state: TrainState, saved: str | None
) -> dict[str, Any] | None:
  """The metrics of the test split, which are written too; None without one."""
  if run.plan.splits.test is None:
    return None
  tested = None
  run.checkpoints.wait()
  with outputs.optional_write(run.display, "the metrics of the test split"):
    tested = test_run(run.plan, state, saved)
    run.writer.write(int(state.step), tested)
  return tested
