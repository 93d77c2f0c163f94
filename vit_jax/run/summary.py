"""Writes the first and the last lines that a run prints."""

import shlex
from collections.abc import Sequence
from typing import Any

import jax
from flax.traverse_util import flatten_dict

from vit_jax.models.grid import forward_gflops
from vit_jax.models.partitioning import for_tpu
from vit_jax.run.build import warmup_steps
from vit_jax.run.plan import Plan
from vit_jax.runtime.display import Metric, clock, evaluation_text
from vit_jax.training.optimizer import trainable_filter
from vit_jax.workdir.meter import shares


def header(plan: Plan, workdir: str) -> list[tuple[str, str]]:
  """The name and value of each line of the header."""
  settings, total = plan.settings, plan.lengths.total
  examples, height_width = len(plan.source), plan.preprocessing.image_size
  shape = plan.preprocessing.image_shape
  gflops = forward_gflops(plan.model, plan.param_shapes, shape)
  epochs = total * settings.batch_size / examples
  axes = " x ".join(f"{n} {axis}" for axis, n in plan.mesh.shape.items())
  devices = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
  size = "{} x {}".format(*height_width)
  steps = f"{total:,} steps of {settings.batch_size} images"
  rows = [
    ("devices", f"{devices}, mesh {axes}"),
    ("model", f"{_model(plan)}, {gflops:.3g} GFLOP per image of {size}"),
    ("data", plan.splits.found),
    ("run", f"{steps} ({epochs:,.1f} epochs), to {workdir}"),
  ]
  if settings.lora.rank:
    rows.append(("LoRA", _lora(plan)))
  if plan.extras.teacher is not None:
    rows.append(("teacher", _teacher(plan)))
  if plan.preprocessing.cut_from:
    rows.append(("images", str(plan.preprocessing)))
  if for_tpu() and not getattr(plan.model, "has_tpu_attention", True):
    plain = "without our form for TPUs, which only the paper's attention has"
    rows.append(("attention", plain))
  wanted = settings.optimizer.warmup.in_steps(settings.batch_size, examples)
  if (warmup := warmup_steps(settings, total, examples)) < wanted:
    said = f"shortened from {wanted:,} to {warmup:,} steps, as the run is short"
    rows.append(("warm-up", said))
  return rows


def _model(plan: Plan) -> str:
  settings = plan.settings
  params = sum(x.size for x in jax.tree.leaves(plan.param_shapes))
  trained = f"{params:,}"
  if settings.lora.rank or settings.optimizer.freeze_layers:
    trained = f"{_trained(plan):,} trained / {params:,}"
  name = settings.model.variant or f"from {settings.pretrained}"
  return f"{name}, {trained} parameters"


def _trained(plan: Plan) -> int:
  """The number of values that are trained."""
  params: dict[str, Any] = flatten_dict(plan.shapes.params, sep="/")
  frozen, model = plan.settings.optimizer.freeze_layers, plan.model
  trained = trainable_filter(frozen, model.num_layers, model.scan)
  return sum(
    x.size for path, x in params.items() if trained is None or trained(path)
  )


def _lora(plan: Plan) -> str:
  settings, base = plan.settings.lora, plan.extras.sources["base"]
  from vit_jax.training.lora import chosen

  kernels = chosen(settings, flatten_dict(plan.param_shapes, sep="/"))
  return (
    f"rank {settings.rank}, alpha {settings.alpha:g}, on {len(kernels)} "
    f"kernels of {base['source']}, which every use of this run needs"
  )


def _teacher(plan: Plan) -> str:
  """The teacher and its images; says if its classes are taken on trust."""
  teacher, record = plan.extras.teacher, plan.extras.sources["teacher"]
  assert teacher is not None
  text = (
    f"{record['source']}, on images of {'{} x {}'.format(*teacher.image_size)}"
  )
  if not teacher.model.origin.class_names:
    text += "; it names no classes, and theirs are taken to be the data's"
  return text


def closing(
  metrics: Sequence[Metric],
  evaluated: dict[str, Any],
  seconds: float,
  workdir: str | None,
  tested: dict[str, Any] | None = None,
  spent: dict[str, float] | None = None,
) -> str:
  """The last lines.

  Args:
    metrics: The metrics of the task.
    evaluated: The last evaluation; empty if there was none.
    workdir: The run's folder; None if no checkpoint was saved.
    tested: The metrics of the test split, if the run has one.
    spent: Seconds on each kind of work since the first start, if known.
  """
  lines = [f"Done in {clock(seconds)}."]
  if spent is not None:
    parts = ", ".join(f"{share:.1%} {what}" for what, share in shares(spent))
    lines.append(f"Of {clock(sum(spent.values()))} in all: {parts}.")
  if evaluated:
    lines.append(f"Last evaluation: {evaluation_text(evaluated, metrics)}.")
  if tested is not None:
    found = {k.replace("test/", "eval/"): v for k, v in tested.items()}
    lines.append(
      f"Test split, with the best checkpoint (step {tested['test/step']:,}): "
      f"{evaluation_text(found, metrics)}."
    )
  if workdir is not None:
    command = f"python -m vit_jax.evaluate {shlex.quote(workdir)}"
    lines.append(f"Evaluate its checkpoint with: {command}")
  return "\n".join(lines)
