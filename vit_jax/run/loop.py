"""The training run: the loop over the steps, and what is written on the way."""

import contextlib
import dataclasses
import functools
import json
import shlex
import time
from collections.abc import Iterator
from typing import Any

import jax
import ml_collections

from vit_jax import data
from vit_jax.evaluation.confusion import Tally
from vit_jax.run import experiment
from vit_jax.run.plan import Plan, make_plan
from vit_jax.run.start import first_state
from vit_jax.runtime.display import Display, clock, evaluation_text
from vit_jax.runtime.signals import Interrupted, Notice
from vit_jax.training import sharding
from vit_jax.training.train_step import TrainState
from vit_jax.workdir.checkpoint import Checkpoints, latest_description
from vit_jax.workdir.lock import sole_writer
from vit_jax.workdir.metrics import Meter, MetricWriter, Tracer
from vit_jax.workdir.starts import record_start
from vit_jax.workdir.wandb_log import WandbLog

_BATCHES_AHEAD = 2  # On their way to the device while one is used.
_REPORTED = ("loss", "gradient_norm", "learning_rate")
_FIRST_TRACED = 10  # Of a start; by then nothing is compiled any more.


def train(
  config: ml_collections.ConfigDict,
  workdir: str,
  *,
  allow_changes: bool = False,
) -> tuple[TrainState, dict[str, Any]]:
  """Trains as configured and returns the last state and evaluation.

  Everything goes to `workdir`: checkpoints, `metrics.jsonl`, `starts.jsonl`,
  TensorBoard files. A workdir that holds checkpoints of this configuration is
  gone on with.

  Args:
    config: Of the run.
    workdir: Its folder, local or such as gs://bucket/run.
    allow_changes: Whether to go on from a checkpoint of another configuration
      or other data.

  Raises:
    ValueError: if the configuration or the data do not fit, before anything is
      compiled; if an image cannot be read and `loader.on_unreadable` is "stop".
    Interrupted: if the process was told to stop; the state is saved.
    FloatingPointError: if `max_skipped_steps` in a row were not finite; the
      last state that was is saved, and what went wrong is written beside.
    OSError: if the last checkpoint could not be saved.
  """
  saved = latest_description(workdir)
  plan = make_plan(config, saved)
  display = Display(active=jax.process_index() == 0)
  with contextlib.ExitStack() as stack:
    stack.push(functools.partial(_say_interrupted, display))
    stack.callback(plan.evaluation.close)
    stack.enter_context(sole_writer(workdir))
    notice = stack.enter_context(Notice().awaited())
    # Closed after the checkpoints, which a slow network must not keep waiting.
    writers = stack.enter_context(contextlib.ExitStack())
    checkpoints = Checkpoints(workdir, config.keep_last)
    stack.callback(checkpoints.close)
    display.header(_header(plan, workdir))
    for note in checkpoints.notes:
      display.note(note)
    state, first = first_state(plan, checkpoints, display, allow_changes)
    with _optional_write(display, "starts.jsonl"):
      record_start(checkpoints.folder, first)
    writer = _open_writer(plan, checkpoints, first, display)
    writers.push(functools.partial(_close_writer, writer, display))
    batches = plan.open_batches(first)
    stack.callback(batches.close)
    if plan.eval_every and first < plan.total:
      plan.evaluation.start()
    stack.callback(display.stop)
    run = _Run(plan, batches, writer, display, checkpoints, notice)
    start = time.perf_counter()
    state, evaluated = run(state, first)
    saved = checkpoints.latest_step is not None
  seconds = time.perf_counter() - start
  display.note(_closing(evaluated, seconds, workdir if saved else None))
  return state, evaluated


def _say_interrupted(display: Display, kind: Any, error: Any, _: Any) -> None:
  """The last line of a run that was told to stop, once all is saved."""
  if kind is Interrupted:
    display.note(f"{error}; the same command goes on.")


def _open_writer(
  plan: Plan, checkpoints: Checkpoints, first: int, display: Display
) -> MetricWriter:
  folder, project = checkpoints.folder, plan.config.wandb_project
  wandb_log = None
  if project and jax.process_index() == 0:
    wandb_log = WandbLog(folder, project, plan.config.to_dict())
    display.header([("wandb", wandb_log.place)])
  writer = MetricWriter(folder, first, wandb_log)
  for note in writer.notes:
    display.note(note)
  return writer


def _close_writer(
  writer: MetricWriter, display: Display, kind: Any, *_: Any
) -> None:
  """Whatever becomes of the metrics, the run ends as it would have."""
  with _optional_write(display, "the last metrics"):
    writer.close(failed=kind is not None)


@contextlib.contextmanager
def _optional_write(
  display: Display, what: str, then: str = ""
) -> Iterator[None]:
  """Says that something could not be written; no run need stop for it."""
  try:
    yield
  except OSError as error:
    display.note(f"{what} could not be written ({error}){then}.")


def due(step: int, every: int, last: int) -> bool:
  """Whether work repeated every `every` steps falls on `step`; 0 is never."""
  return every > 0 and (step % every == 0 or step == last)


@dataclasses.dataclass(frozen=True)
class _Run:
  """The loop over the steps, with all that is done between them."""

  plan: Plan
  batches: Iterator[dict]
  writer: MetricWriter
  display: Display
  checkpoints: Checkpoints
  notice: Notice

  def __call__(
    self, state: TrainState, first: int
  ) -> tuple[TrainState, dict[str, Any]]:
    """Steps `first` + 1 to the last; returns the state and last evaluation."""
    plan, config = self.plan, self.plan.config
    batch_sharding = sharding.batch_sharding(plan.mesh)
    train_step = sharding.jit_train_step(
      plan.train_step, plan.shapes, plan.mesh
    )
    on_device = sharding.to_device(self.batches, batch_sharding, _BATCHES_AHEAD)
    meter = Meter(config.batch_size, plan.log_every)
    evaluated: dict[str, Any] = {}
    begin = first + _FIRST_TRACED
    profile = str(self.checkpoints.folder / "profile")
    tracer = Tracer(profile, begin, config.profile_steps, plan.total)
    self.display.start(first, plan.total)
    for step in range(first + 1, plan.total + 1):
      with self._profile_write():
        tracer.before(step)
      state, metrics = train_step(state, next(on_device))
      with self._profile_write():
        tracer.after(step, metrics)
      meter.add(step, metrics)
      self.display.step(step)
      if due(step, plan.log_every, plan.total):
        row = meter.read()
        with self._metrics_write(step):
          self.writer.write(step, row)
        self.display.report(step, row)
      told = self.notice.reached(step)
      broken = 0 < config.max_skipped_steps <= len(meter.skipped)
      evaluate = due(step, plan.eval_every, plan.total) and not (told or broken)
      if evaluate:
        with meter.paused():
          evaluated = self._evaluate(step, state)
        with self._metrics_write(step):
          self.writer.write(step, evaluated)
        self.display.evaluation(step, evaluated)
      if told or broken or due(step, plan.save_every, plan.total):
        with meter.paused():
          self._save(state, step, evaluated if evaluate else None)
      if told:
        raise Interrupted(f"told to stop; step {step:,} is saved")
      if broken:
        raise FloatingPointError(self._report_skipped(meter.skipped))
    return state, evaluated

  def _evaluate(self, step: int, state: TrainState) -> dict[str, Any]:
    plan, params, tally = self.plan, state.eval_params, Tally()
    metrics = plan.evaluation(
      params,
      plan.source.class_names if plan.config.eval_per_class else (),
      tally.add if plan.pictures is not None else None,
    )
    if plan.pictures is not None:
      drawn = plan.pictures(params, tally)
      with self._metrics_write(step):
        self.writer.write_images(step, drawn)
    if plan.few_shot is not None:
      metrics |= plan.few_shot(params)
    return metrics

  def _metrics_write(self, step: int) -> contextlib.AbstractContextManager:
    what = f"step {step:,}: the metrics"
    return _optional_write(self.display, what, "; the run goes on")

  def _profile_write(self) -> contextlib.AbstractContextManager:
    return _optional_write(self.display, "the profile", "; the run goes on")

  def _save(
    self, state: TrainState, step: int, scores: dict[str, Any] | None
  ) -> None:
    """Saves a checkpoint; where that fails, the next may succeed."""
    description = self.plan.description(step)
    if problem := self.checkpoints.save(state, step, description, scores):
      self.display.note(f"step {step:,}: {problem}; the run goes on.")

  def _report_skipped(self, skipped: list[tuple[int, Any]]) -> str:
    """Writes down the steps that were not finite; returns what to say."""
    plan, folder = self.plan, self.checkpoints.folder
    rows = [
      {
        "step": step,
        **{key: str(metrics[key]) for key in _REPORTED},
        "images": data.batch_ids(
          plan.source, plan.config.batch_size, plan.config.seed, step - 1
        ),
      }
      for step, metrics in skipped
    ]
    path = folder / "not_finite.json"
    if jax.process_index() == 0:
      path.write_text(json.dumps(rows, indent=1))
    last = rows[-1]
    return (
      f"the loss or its gradient was not finite in {len(rows)} steps in a row, "
      f"up to {last['step']:,}, at a learning rate of {last['learning_rate']}: "
      f"none was applied, and the state before them is saved; {path} names the "
      "images. Try a smaller optimizer.peak_lr, more warmup, or clip_norm."
    )


def _header(plan: Plan, workdir: str) -> list[tuple[str, str]]:
  config, source = plan.config, plan.source
  device = jax.devices()[0]
  size = experiment.image_size(config)
  params = sum(x.size for x in jax.tree.leaves(plan.shapes.params))
  gflops = experiment.forward_gflops(plan.model, plan.shapes.params, size)
  epochs = plan.total * config.batch_size / len(source)
  axes = " x ".join(f"{n} {axis}" for axis, n in plan.mesh.shape.items())
  devices = f"{jax.device_count()} x {device.device_kind}"
  name = config.model.variant or f"from {config.pretrained}"
  model = f"{name}, {params:,} parameters"
  examples = f"{len(source):,} training examples"
  classes = f"{len(source.class_names):,} classes"
  steps = f"{plan.total:,} steps of {config.batch_size} images"
  return [
    ("devices", f"{devices}, mesh {axes}"),
    ("model", f"{model}, {gflops:.3g} GFLOP an image of {size[0]} x {size[1]}"),
    ("data", f"{source.name}, {examples}, {classes}"),
    ("run", f"{steps} ({epochs:,.1f} epochs), to {workdir}"),
  ]


def _closing(
  evaluated: dict[str, Any], seconds: float, workdir: str | None
) -> str:
  """The last lines; `workdir` is None where no checkpoint was saved."""
  lines = [f"Done in {clock(seconds)}."]
  if evaluated:
    lines.append(f"Last evaluation: {evaluation_text(evaluated)}.")
  if workdir is not None:
    lines.append(
      "Evaluate its checkpoint with: "
      f"python -m vit_jax.evaluate --workdir {shlex.quote(workdir)}"
    )
  return "\n".join(lines)
