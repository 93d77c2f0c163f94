"""Takes the steps of a run, with the periodic work between them."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from vit_jax.evaluation.confusion import Tally
from vit_jax.run.outputs import optional_write, report_skipped
from vit_jax.run.plan import Plan
from vit_jax.runtime.display import Display
from vit_jax.runtime.signals import Interrupted, Notice
from vit_jax.runtime.watchdog import Watchdog
from vit_jax.training import sharding
from vit_jax.training.state import TrainState
from vit_jax.workdir.checkpoint import Checkpoints
from vit_jax.workdir.goodput import Stopwatch
from vit_jax.workdir.metrics import Meter, MetricWriter, read_rows
from vit_jax.workdir.scores import SCORES, score_of
from vit_jax.workdir.tracer import Tracer

_BATCHES_AHEAD = 2  # Batches sent to the device while another is in use.
# Steps after a start before the trace begins; all is compiled by then.
_FIRST_TRACED = 10


def stalled(scores: Sequence[float], patience: int) -> bool:
  """Whether the last `patience` scores are no better than those before.

  With a patience of 0, they never stall.
  """
  rest = len(scores) - patience
  return 0 < patience < len(scores) and max(scores[rest:]) <= max(scores[:rest])


def _past_evaluations(
  checkpoints: Checkpoints, first: int
) -> list[dict[str, Any]]:
  """The rows of `metrics.jsonl` with the evaluations up to a step."""
  try:
    rows = read_rows(checkpoints.folder / "metrics.jsonl")
  except OSError:
    return []
  return [r for r in rows if r["step"] <= first and r.keys() & {*SCORES}]


def due(step: int, every: int, last: int) -> bool:
  """Whether work done every `every` steps is due at `step`; 0 means never."""
  return every > 0 and (step % every == 0 or step == last)


@dataclasses.dataclass(frozen=True)
class Steps:
  """The loop over the steps, with the periodic work between them."""

  plan: Plan
  batches: Iterator[dict]
  writer: MetricWriter
  display: Display
  checkpoints: Checkpoints
  notice: Notice
  check_lock: Callable[[], None]
  watchdog: Watchdog
  spent: Stopwatch
  meter: Meter

  def __call__(
    self, state: TrainState, first: int
  ) -> tuple[TrainState, dict[str, Any]]:
    """Runs the steps after `first`; returns the state and last evaluation."""
    plan, settings = self.plan, self.plan.settings
    batch_sharding = sharding.batch_sharding(plan.mesh)
    train_step = sharding.jit_train_step(
      plan.train_step, plan.shapes, plan.mesh, *plan.adaptation.fixed
    )
    on_device = sharding.to_device(
      self._read_batches(), batch_sharding, _BATCHES_AHEAD
    )
    evaluated: dict[str, Any] = {}
    begin = first + _FIRST_TRACED
    profile = str(self.checkpoints.folder / "profile")
    tracer = Tracer(profile, begin, settings.profile_steps, plan.total)
    past = _past_evaluations(self.checkpoints, first)
    scores = [score for row in past if (score := score_of(row)) is not None]
    missed = first not in {row["step"] for row in past}
    if first and missed and due(first, plan.eval_every, plan.total):
      # The run was stopped between this step and its evaluation.
      evaluated = self._evaluate(first, state)
      scores.append(score_of(evaluated))
    patience = settings.early_stop_evaluations
    if first == plan.total or stalled(scores, patience):
      self._say_early(first)
      return state, evaluated
    epoch_steps = len(plan.source) / settings.batch_size
    self.display.start(first, plan.total, epoch_steps)
    for step in range(first + 1, plan.total + 1):
      with self._profile_write():
        tracer.before(step)
      with self._saved_if_told(state, step - 1), self.spent.on("data"):
        batch = next(on_device)
      state, metrics = train_step(state, batch, *plan.adaptation.fixed)
      with self._profile_write():
        tracer.after(step, metrics)
      self.meter.add(step, metrics)
      self.watchdog.step()
      if step == first + 1:
        self.spent.set_up()
      self.display.step(step)
      if due(step, plan.log_every, plan.total):
        self._log(step, self.meter.read())
      elif step == first + 1:  # Shows that training has begun, and from where.
        values = jax.device_get(metrics)
        self.display.report(step, {f"train/{k}": values[k] for k in values})
      with self._saved_if_told(state, step):
        if self.notice.reached(step):
          raise Interrupted
      broken = 0 < settings.max_skipped_steps <= len(self.meter.skipped)
      evaluate = due(step, plan.eval_every, plan.total) and not broken
      if evaluate:
        evaluated = self._evaluate(step, state)
        scores.append(score_of(evaluated))
      stop = evaluate and stalled(scores, patience)
      if broken or stop or due(step, plan.save_every, plan.total):
        self._save(state, step, evaluated if evaluate else None)
      if broken:
        raise FloatingPointError(
          report_skipped(
            plan, self.checkpoints, self.display, self.meter.skipped
          )
        )
      if stop:
        self._say_early(step)
        break
    return state, evaluated

  def _say_early(self, step: int) -> None:
    if step < self.plan.total:
      patience = self.plan.settings.early_stop_evaluations
      self.display.note(
        f"Stopped early at step {step:,}: {patience} evaluations without a "
        "better score."
      )

  def _read_batches(self) -> Iterator[dict]:
    """The host's batches; waiting for one is given up if told to stop."""
    while True:
      with self.notice.waiting():
        batch = next(self.batches)
      yield batch

  @contextlib.contextmanager
  def _saved_if_told(self, state: TrainState, step: int) -> Iterator[None]:
    """If told to stop inside, saves this step, the last that is complete."""
    try:
      yield
    except Interrupted:
      if step and step != self.checkpoints.latest_step:
        self._save(state, step, None)
      saved = f"step {step:,} is saved" if step else "no step was taken"
      raise self.notice.interrupted(f"told to stop; {saved}") from None

  def _log(self, step: int, row: dict[str, Any]) -> None:
    """Writes and shows the metrics of training or of an evaluation."""
    with self._metrics_write(step):
      self.writer.write(step, row | self.spent.row())
    trained = "train/loss" in row
    (self.display.report if trained else self.display.evaluation)(step, row)

  @contextlib.contextmanager
  def _aside(self, kind: str) -> Iterator[None]:
    """Does work of this kind that is not part of a step."""
    with self.meter.paused(), self.watchdog.paused(), self.spent.on(kind):
      yield

  def _evaluate(self, step: int, state: TrainState) -> dict[str, Any]:
    """Evaluates, writes and shows the metrics; a stop gives it up."""
    with (
      self._saved_if_told(state, step),
      self.notice.waiting(),
      self._aside("evaluating"),
    ):
      metrics = self._metrics(step, state)
    self._log(step, metrics)
    return metrics

  def _metrics(self, step: int, state: TrainState) -> dict[str, Any]:
    plan, tally = self.plan, Tally()
    params = plan.adaptation.whole(state.eval_params)
    metrics = plan.evaluator(
      params,
      plan.source.class_names if plan.settings.eval_per_class else (),
      tally.add if plan.pictures is not None else None,
      self.display.track,
    )
    if state.averaged_params is not None:
      plain = plan.evaluator(
        plan.adaptation.whole(state.params), track=self.display.track
      )
      for key in plain.keys() & SCORES:
        metrics[f"{key}_not_averaged"] = plain[key]
    if plan.pictures is not None:
      drawn = plan.pictures(params, tally)
      with self._metrics_write(step):
        self.writer.write_images(step, drawn)
    if plan.few_shot is not None:
      metrics |= plan.few_shot(params, self.display.track)
    return metrics

  def _metrics_write(self, step: int) -> contextlib.AbstractContextManager:
    what = f"step {step:,}: the metrics"
    return optional_write(self.display, what, "; the run goes on")

  def _profile_write(self) -> contextlib.AbstractContextManager:
    return optional_write(self.display, "the profile", "; the run goes on")

  def _save(
    self, state: TrainState, step: int, scores: dict[str, Any] | None
  ) -> None:
    """Saves a checkpoint; if this fails, the run continues to the next one."""
    self.check_lock()
    description = self.plan.description(step)
    if scores and "eval/threshold" in scores:
      description["threshold"] = scores["eval/threshold"]
    with self._aside("saving"):
      problem = self.checkpoints.save(state, step, description, scores)
    if problem:
      self.display.note(f"step {step:,}: {problem}; the run goes on.")
