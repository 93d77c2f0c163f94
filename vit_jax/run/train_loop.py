"""Takes the steps of a run, with the periodic work between them."""

import collections
import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from vit_jax.run.outputs import (
  Outputs,
  jit_digest,
  optional_write,
  report_skipped,
)
from vit_jax.run.plan import Plan
from vit_jax.runtime.display import Split
from vit_jax.runtime.meter import RECENT, why_diverged
from vit_jax.runtime.stops import Interrupted, StopSignal, Watchdog
from vit_jax.tasks.scores import kept_folds
from vit_jax.training import sharding
from vit_jax.training.state import TrainState
from vit_jax.workdir.records import metrics_so_far

_BATCHES_AHEAD = 2  # Batches sent to the device while another is in use.
FIRST_TRACED = 10
"""The step of a start with which a trace begins; by then all is compiled."""

_JUDGED = ("loss", "skipped_steps")  # Metrics that show a divergence.
# The metric of the last step that says that the run has diverged.
_DIVERGED = Split.TRAIN.key("diverged")

OnStep = Callable[[int, TrainState, dict[str, Any]], None]
"""A function to call after a step, with its number, the state and its metrics.

Both are on the devices. The next step donates the state's arrays, so they must
not be used after the call."""


Scores = dict[str, Any] | None
"""The metrics of an evaluation, if there was one."""


def stalled(scores: Sequence[float], patience: int) -> bool:
  """Whether the last `patience` scores are no better than those before.

  With a patience of 0, they never stall.
  """
  if not 0 < patience < len(scores):
    return False
  return max(scores[-patience:]) <= max(scores[:-patience])


def due(step: int, every: int, last: int) -> bool:
  """Whether work done every `every` steps is due at `step`; 0 means never."""
  return every > 0 and (step % every == 0 or step == last)


@dataclasses.dataclass(eq=False)
class TrainLoop:
  """The loop over the steps, with the periodic work between them.

  `batches` are those of this host, beginning with the first one to use. Once
  the loop has ended, `diverged` says how the run diverged, or is None.
  """

  plan: Plan
  batches: Iterator[dict]
  outputs: Outputs
  signal: StopSignal  # Records SIGTERM and Ctrl-C.
  watchdog: Watchdog  # Ends the process if a step hangs.
  check_lock: Callable[[], None]  # Raises OSError if another run took over.
  on_step: Sequence[OnStep] = ()

  def __post_init__(self):
    """Tells the display how long the run is; reads no batch yet."""
    plan = self.plan
    self._evaluated: dict[str, Any] = {}  # The last evaluation.
    self._scores: list[float] = []
    self.diverged: str | None = None
    self._first_loss: Any = None
    self._recent = collections.deque[dict[str, jax.Array]](maxlen=RECENT)
    self._train_step = plan.jitted_step
    epoch_steps = len(plan.source) / plan.settings.batch_size
    self.outputs.display.expect(
      plan.lengths.total, epoch_steps, plan.task.scores.metrics
    )
    self._digests = collections.deque[tuple[int, dict[str, jax.Array]]]()
    rows = sharding.batch_sharding(plan.mesh)
    self._on_device = sharding.to_device(self._read(), rows, _BATCHES_AHEAD)

  def __call__(
    self, state: TrainState, first: int
  ) -> tuple[TrainState, dict[str, Any]]:
    """Runs the steps after `first`; returns the state and last evaluation.

    The evaluation is its metrics by key, {} if there was none in this start.
    Raises Interrupted if the run is told to stop, and FloatingPointError after
    `max_skipped_steps` consecutive non-finite steps; the state is then saved.
    """
    if first and self._is_over(state, first):
      return state, self._evaluated
    if not first and self.plan.may_spoil_features:
      self._evaluate_start(state)
    self._first_step = first + 1
    if self.plan.settings.profile_steps:
      self._train_step = self._with_trace(first)
    if self.plan.settings.digest_every:
      self._train_step = self._with_digests(first)
    self.outputs.display.start(first)
    for step in range(first + 1, self.plan.lengths.total + 1):
      with self._saved_if_told(state, step - 1), self.outputs.spent.on("data"):
        batch = next(self._on_device)
      state, metrics = self._take_step(state, batch, step)
      self._log_if_due(step, metrics)
      if self.signal.reached(step):
        raise self._save_for_stop(state, step)
      most = self.plan.settings.max_skipped_steps
      broken = 0 < most <= len(self.outputs.meter.skipped)
      scores = None if broken else self._evaluate_if_due(state, step)
      over = scores is not None and self._has_stalled()
      every, last = self.plan.lengths.save_every, self.plan.lengths.total
      if broken or over or due(step, every, last):
        self._save(state, step, scores)
      for call in self.on_step:
        call(step, state, metrics)
      if broken:
        raise FloatingPointError(report_skipped(self.plan, self.outputs))
      if over:
        self._say_early(step)
        break
    self._write_digests()
    self._judge(state)
    return state, self._evaluated

  def _evaluate_start(self, state: TrainState) -> None:
    """Evaluates and saves the weights that the run starts from, as step 0.

    They are published weights, which may be better than those after training.
    Does nothing if an earlier start has measured them.
    """
    past = metrics_so_far(self.outputs.checkpoints.folder)
    if all(row["step"] for row in past):
      self._save(state, 0, self._evaluate(state, 0))

  def _is_over(self, state: TrainState, first: int) -> bool:
    """Reads what earlier starts measured; returns whether no step is left.

    If the run was stopped before the evaluation of step `first`, this is done
    now.
    """
    plan, key = self.plan, self.plan.score.key
    past = metrics_so_far(self.outputs.checkpoints.folder)
    past = [row for row in past if 0 < row["step"] <= first]
    plan.evaluation.folds = kept_folds(past)
    loss = Split.TRAIN.key("loss")
    losses = (row[loss] for row in past if loss in row)
    self._first_loss = next(losses, None)
    diverged = any(_DIVERGED in row for row in past if row["step"] == first)
    past = [row for row in past if key in row]
    self._scores = [row[key] for row in past if row[key] is not None]
    if first not in {row["step"] for row in past}:
      # The run was stopped between this step and its evaluation.
      self._evaluate_if_due(state, first)
    over = first == plan.lengths.total or self._has_stalled()
    if over:
      self._say_early(first)
      self.diverged = "it did so in an earlier start" if diverged else None
    return over

  def _judge(self, state: TrainState) -> None:
    """Judges by the losses of the last steps whether the run diverged.

    Sets `diverged` to the reason or None, and marks a run that diverged.
    """
    first, last = jax.device_get((self._first_loss, [*self._recent]))
    self.diverged = why_diverged(
      [float(metrics["loss"]) for metrics in last],
      [bool(metrics["skipped_steps"]) for metrics in last],
      None if first is None else float(first),
    )
    if self.diverged:
      self.outputs.write(int(state.step), {_DIVERGED: 1})

  def _with_trace(self, first: int) -> Callable:
    """The train step, with a trace of some of the steps after `first`."""
    from vit_jax.run.tracer import Tracer

    plan, take_step = self.plan, self._train_step
    steps = itertools.count(first + 1)
    profile = str(self.outputs.checkpoints.folder / "profile")
    tracer = Tracer(
      profile,
      begin=first + FIRST_TRACED,
      steps=plan.settings.profile_steps,
      last=plan.lengths.total,
    )

    def traced(*args: Any) -> tuple[TrainState, dict[str, jax.Array]]:
      """Takes the next step; begins or ends the trace where that is due."""
      step = next(steps)
      self._trace(tracer.before, step)
      state, metrics = take_step(*args)
      self._trace(tracer.after, step, metrics)
      return state, metrics

    return traced

  def _with_digests(self, first: int) -> Callable:
    """The train step, with digests of some of the steps after `first`."""
    plan, take_step = self.plan, self._train_step
    steps = itertools.count(first + 1)
    digest = jit_digest(plan)

    def digested(
      state: TrainState, batch: Any, *frozen: Any
    ) -> tuple[TrainState, dict[str, jax.Array]]:
      """Takes the next step; keeps a digest to be written if one is due."""
      step = next(steps)
      state, metrics = take_step(state, batch, *frozen)
      if due(step, plan.settings.digest_every, plan.lengths.total):
        self._write_digests(step - 2)  # The meter has waited for these steps.
        state, row = digest(state, batch, metrics)
        self._digests.append((step, row))
      return state, metrics

    return digested

  def _read(self) -> Iterator[dict]:
    """The host's batches; a stop signal ends the wait for one."""
    while True:
      with self.signal.waiting():
        batch = next(self.batches)
      yield batch

  def _take_step(
    self, state: TrainState, batch: dict[str, jax.Array], step: int
  ) -> tuple[TrainState, dict[str, jax.Array]]:
    """Starts a train step, once few enough earlier ones are under way.

    Returns the state after it and its metrics, which may still be computed.
    """
    frozen = self.plan.extras.frozen_params
    self.outputs.meter.wait(sharding.steps_ahead())
    state, metrics = self._train_step(state, batch, *frozen)
    self.outputs.meter.add(step, metrics)
    self._recent.append({key: metrics[key] for key in _JUDGED})
    if step == 1:
      self._first_loss = metrics["loss"]
    self.watchdog.step()
    if step == self._first_step:
      self.outputs.spent.set_up()
      if self.plan.lengths.eval_every:
        # Started earlier, the workers would delay this step.
        self.plan.evaluation.stream.start()
    self.outputs.display.step(step)
    return state, metrics

  def _log_if_due(self, step: int, metrics: dict[str, jax.Array]) -> None:
    """Logs means where they are due, and shows the first step's metrics."""
    lengths, out = self.plan.lengths, self.outputs
    if due(step, lengths.log_every, lengths.total):
      self._log(step)
    elif step == self._first_step:  # Shows that training has begun.
      values = jax.device_get(metrics)
      out.display.report(step, Split.TRAIN.keyed(values), early=True)

  def _log(self, step: int) -> None:
    """Writes and shows the means over the steps since the last such row."""
    row = self.outputs.meter.read()
    self.outputs.write(step, row)
    self.outputs.display.report(step, row)

  def _evaluate_if_due(self, state: TrainState, step: int) -> Scores:
    """Evaluates if that is due, and keeps the score for stopping early.

    Returns the metrics, or None if no evaluation is due.
    """
    plan, lengths = self.plan, self.plan.lengths
    if not due(step, lengths.eval_every, lengths.total):
      return None
    metrics = self._evaluate(state, step)
    self._scores.append(metrics[plan.score.key])
    return metrics

  def _evaluate(self, state: TrainState, step: int) -> dict[str, Any]:
    """Evaluates, writes and shows the metrics; a stop signal aborts it."""
    plan, out = self.plan, self.outputs
    with (
      self._saved_if_told(state, step),
      self.signal.waiting(),
      self._time_apart("evaluating"),
    ):
      params = plan.extras.merge(state.eval_params)
      plain = None
      if state.averaged_params is not None:
        plain = plan.extras.merge(state.params)
      metrics, pictures = plan.evaluation(params, out.display.track, plain)
    if pictures:
      out.write_images(step, pictures)
    out.write(step, metrics)
    out.display.evaluation(step, metrics)
    for line in plan.evaluation.warnings:
      out.display.note(line)
    self._evaluated = metrics
    return metrics

  def _has_stalled(self) -> bool:
    """Whether the run stops early, as its score no longer gets better."""
    return stalled(self._scores, self.plan.settings.early_stop_evaluations)

  def _save(self, state: TrainState, step: int, scores: Scores) -> None:
    """Saves a checkpoint; if this fails, the run continues to the next one.

    Raises OSError if another run has taken the folder over.
    """
    self.check_lock()
    description = self.plan.description(step)
    description |= self.plan.task.chosen_facts(scores or {})
    with self._time_apart("saving"):
      problem = self.outputs.checkpoints.save(state, step, description, scores)
    if problem:
      self.outputs.display.note(f"step {step:,}: {problem}; the run goes on.")

  @contextlib.contextmanager
  def _saved_if_told(self, state: TrainState, step: int) -> Iterator[None]:
    """If a stop signal comes inside, saves `step`, the last complete one.

    Interrupted is then raised.
    """
    try:
      yield
    except Interrupted:
      raise self._save_for_stop(state, step) from None

  def _save_for_stop(self, state: TrainState, step: int) -> Interrupted:
    """Saves the step at which the run is told to stop; returns the error."""
    if step and step != self.outputs.checkpoints.latest_step:
      self._save(state, step, None)
    if self.outputs.meter.has_unread:
      self._log(step)  # The next start knows nothing of these steps.
    folds = self.plan.evaluation.folds
    if step and folds and not self._evaluated:  # No row has the folds yet.
      self.outputs.write(step, folds)
    saved = f"step {step:,} is saved" if step else "no step was taken"
    return self.signal.make_error(f"told to stop; {saved}")

  @contextlib.contextmanager
  def _time_apart(self, kind: str) -> Iterator[None]:
    """Counts the time inside for a kind of work, and not for the steps.

    Writes the digests before the work.
    """
    out, watchdog = self.outputs, self.watchdog
    with out.meter.paused(), watchdog.paused(), out.spent.on(kind):
      self._write_digests()
      yield

  def _write_digests(self, last: float = math.inf) -> None:
    """Writes the digests up to a step, by default all; waits for them."""
    out = self.outputs
    while self._digests and self._digests[0][0] <= last:
      step, sums = self._digests.popleft()
      row = {k: v.item() for k, v in jax.device_get(sums).items()}
      with optional_write(out.display, "the digests", "; the run goes on"):
        out.writer.write_digests(step, row)

  def _trace(self, write: Callable, *of_step: Any) -> None:
    """Calls a method of the tracer; if it cannot write, a line says so."""
    with optional_write(
      self.outputs.display, "the profile", "; the run goes on"
    ):
      write(*of_step)

  def _say_early(self, step: int) -> None:
    """Prints a line if the run ended before its last step."""
    patience = self.plan.settings.early_stop_evaluations
    if step < self.plan.lengths.total:
      why = f"{patience} evaluations without a better score."
      self.outputs.display.note(f"Stopped early at step {step:,}: {why}")
