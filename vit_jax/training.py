"""The training run: data, state, loop, and what is written on the way."""

import contextlib
import dataclasses
import functools
import json
import os
import shlex
import time
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import ml_collections
from jax.sharding import Mesh

from vit_jax import config_check, data, experiment, probing, sharding
from vit_jax.checkpoint import (
  Checkpoints,
  DamagedError,
  latest_description,
)
from vit_jax.config import resolve_steps
from vit_jax.description import check_same_run
from vit_jax.display import Display, clock, evaluation_text
from vit_jax.interruption import Interrupted, Notice
from vit_jax.lock import sole_writer
from vit_jax.metrics import Meter, MetricWriter, Tracer
from vit_jax.models import ResNet, Vit, from_fields, layers, to_fields
from vit_jax.pretrained import transfer
from vit_jax.pretrained.load import Pretrained, run_origin
from vit_jax.probing import FewShot
from vit_jax.train_step import TrainState, with_params

_BATCHES_AHEAD = 2  # On their way to the device while one is used.
_REPORTED = ("loss", "gradient_norm", "learning_rate")
_FIRST_TRACED = 10  # Of a start; by then nothing is compiled any more.


@dataclasses.dataclass(frozen=True)
class Plan:
  """A configuration, checked, with all that it stands for; nothing compiled.

  `shapes` is the state's shapes, types and shardings; the durations are steps.
  """

  config: ml_collections.ConfigDict
  mesh: Mesh
  source: data.Source
  model: Vit | ResNet
  pretrained: Pretrained | None
  evaluation: experiment.Evaluation
  few_shot: FewShot | None
  init: Callable[[jax.Array], TrainState]
  train_step: Callable
  open_batches: Callable[[int], data.BatchIterator]
  shapes: TrainState
  total: int
  log_every: int
  eval_every: int
  save_every: int

  @property
  def scanned(self) -> bool:
    """Whether the parameters of all blocks are stacked."""
    return getattr(self.model, "scan", False)


def make_plan(
  config: ml_collections.ConfigDict, saved: dict[str, Any] | None = None
) -> Plan:
  """Opens the data and builds everything the run needs.

  Args:
    config: Of the run.
    saved: The description of the checkpoint that the run goes on from, which
      stands in for the one that it started from.

  Raises:
    ValueError: if the configuration or the data do not fit together.
  """
  config_check.check(config)
  mesh = sharding.make_mesh(**config.mesh)
  parts = config.accumulation_steps
  sharding.check_batch("batch_size", config.batch_size, mesh, parts)
  source = experiment.open_source(config, "train")
  eval_source = experiment.open_source(config, "eval")
  if source.class_names != eval_source.class_names:
    only = experiment.classes_in_one(
      source.class_names, eval_source.class_names
    )
    raise ValueError(
      f"the training split has {len(source.class_names)} classes and the "
      f"evaluation split {len(eval_source.class_names)}, and they must be the "
      f"same; in one of them only: {only}."
    )
  experiment.check_data(config, source)

  def steps(name: str) -> int:
    return resolve_steps(config, name, config.batch_size, len(source))

  total = steps("total")
  if not total:
    raise ValueError(
      "the run has no length: set total_steps, total_epochs or total_examples."
    )
  # What may have to be downloaded comes when nothing else can be wrong.
  pretrained = None
  if saved is None:
    pretrained = experiment.open_pretrained(config)
    origin = pretrained.origin if pretrained else None
    model = experiment.build_model(config, source.class_names, pretrained)
  else:
    origin = run_origin(saved)
    model = experiment.with_execution(from_fields(saved["model"]), config)
  config = experiment.resolved(config, origin)
  init, train_step = experiment.train_functions(
    config, model, total, len(source)
  )
  return Plan(
    config=config,
    mesh=mesh,
    source=source,
    model=model,
    pretrained=pretrained,
    evaluation=experiment.Evaluation(config, model, mesh, eval_source),
    few_shot=probing.periodic(config, model, mesh, source, eval_source),
    init=init,
    train_step=train_step,
    open_batches=experiment.train_batches(config, source),
    shapes=experiment.array_shapes(init, mesh),
    total=total,
    log_every=steps("log_every"),
    eval_every=steps("eval_every"),
    save_every=steps("save_every"),
  )


def train(
  config: ml_collections.ConfigDict,
  workdir: str,
  *,
  allow_changes: bool = False,
) -> tuple[TrainState, dict[str, Any]]:
  """Trains as configured and returns the last state and evaluation.

  Everything goes to `workdir`: checkpoints, `metrics.jsonl`, TensorBoard
  scalars. A workdir that holds checkpoints of this configuration is gone on
  with.

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
    checkpoints = Checkpoints(workdir, config.keep_last)
    stack.callback(checkpoints.close)
    display.header(_header(plan, workdir))
    state, first = _first_state(plan, checkpoints, display, allow_changes)
    writer = MetricWriter(checkpoints.folder, first)
    stack.callback(writer.close)
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
      tracer.before(step)
      state, metrics = train_step(state, next(on_device))
      tracer.after(step, metrics)
      meter.add(step, metrics)
      self.display.step(step)
      if due(step, plan.log_every, plan.total):
        row = meter.read()
        self._write(step, row)
        self.display.report(step, row)
      told = self.notice.reached(step)
      broken = 0 < config.max_skipped_steps <= len(meter.skipped)
      evaluate = due(step, plan.eval_every, plan.total) and not (told or broken)
      if evaluate:
        with meter.paused():
          evaluated = self._evaluate(state)
        self._write(step, evaluated)
        self.display.evaluation(step, evaluated)
      if told or broken or due(step, plan.save_every, plan.total):
        with meter.paused():
          self._save(state, step, evaluated if evaluate else None)
      if told:
        raise Interrupted(f"told to stop; step {step:,} is saved")
      if broken:
        raise FloatingPointError(self._report_skipped(meter.skipped))
    return state, evaluated

  def _evaluate(self, state: TrainState) -> dict[str, Any]:
    plan = self.plan
    metrics = plan.evaluation(
      state.eval_params,
      plan.source.class_names if plan.config.eval_per_class else (),
    )
    if plan.few_shot is not None:
      metrics |= plan.few_shot(state.eval_params)
    return metrics

  def _write(self, step: int, row: dict[str, Any]) -> None:
    """Writes a row of metrics; for want of it no run need stop."""
    try:
      self.writer.write(step, row)
    except OSError as error:
      self.display.note(
        f"step {step:,}: the metrics could not be written ({error}); the run "
        "goes on."
      )

  def _save(
    self, state: TrainState, step: int, scores: dict[str, Any] | None
  ) -> None:
    """Saves a checkpoint; where that fails, the next may succeed."""
    description = _description(self.plan, step)
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


def _first_state(
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
  return _fresh(plan), 0


def _restored(
  plan: Plan, checkpoints: Checkpoints, step: int, allow_changes: bool
) -> tuple[TrainState, int]:
  """The state at `step`, laid out as planned, and the number of its batch."""
  saved = checkpoints.describe(step)
  if not allow_changes:
    check_same_run(saved, _description(plan, step), str(checkpoints.folder))
  scanned = saved["model"].get("scan", False)
  state = checkpoints.restore(step, _start(plan, scanned)[1])
  return _in_layout(plan, state, scanned), saved["data_iterator"]["next_batch"]


def _fresh(plan: Plan) -> TrainState:
  """The state that the run begins with."""
  pretrained = plan.pretrained
  scanned = plan.scanned and pretrained is None
  init, shapes = _start(plan, scanned)
  make = jax.jit(
    lambda key: nn.unbox(init(key)), out_shardings=sharding.shardings_of(shapes)
  )
  state = make(jax.random.key(plan.config.seed))
  if pretrained is not None:
    leaves = transfer.leaves(
      pretrained,
      plan.model.clone(scan=False) if plan.scanned else plan.model,
      experiment.image_size(plan.config),
      plan.config.transfer.interpolation,
      keep_head=plan.config.transfer.keep_head,
    )
    state = with_params(state, leaves)
  return _in_layout(plan, state, scanned)


def _start(plan: Plan, scanned: bool) -> tuple[Callable, TrainState]:
  """`init` of the state and its shapes, with scanned or unrolled blocks."""
  if scanned == plan.scanned:
    return plan.init, plan.shapes
  model = plan.model.clone(scan=scanned)
  init, _ = experiment.train_functions(
    plan.config, model, plan.total, len(plan.source)
  )
  return init, experiment.array_shapes(init, plan.mesh)


def _in_layout(plan: Plan, state: TrainState, scanned: bool) -> TrainState:
  """The state with its blocks as the plan wants them."""
  if scanned == plan.scanned:
    return state
  change = layers.unstack if scanned else layers.stack
  shardings = sharding.shardings_of(plan.shapes)
  return jax.jit(change, out_shardings=shardings)(state)


def _description(plan: Plan, step: int) -> dict[str, Any]:
  """What a checkpoint says of itself, as JSON."""
  config = plan.config.to_dict()
  for place in ("root", "data_dir"):
    if config["data"][place]:
      path = os.path.expanduser(config["data"][place])
      absolute = path if "://" in path else os.path.abspath(path)
      config["data"][place] = absolute
  return {
    "config": config,
    "model": to_fields(plan.model),
    "class_names": list(plan.source.class_names),
    "train_examples": len(plan.source),
    # The stream of batches is a function of these two alone.
    "data_iterator": {"seed": plan.config.seed, "next_batch": step},
  }


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
