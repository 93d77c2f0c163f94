"""Writes the first and the last lines that a run prints."""

import shlex
from collections.abc import Sequence
from typing import Any

import jax
from flax.traverse_util import flatten_dict
from rich.cells import cell_len

from vit_jax.evaluation.confusion import Tally
from vit_jax.models.flops import forward_gflops
from vit_jax.models.partitioning import for_tpu
from vit_jax.run.build import trained_paths, warmup_steps
from vit_jax.run.plan import Plan
from vit_jax.runtime.display import Display, clock, evaluation_text, table_lines
from vit_jax.training.lora import chosen
from vit_jax.workdir.goodput import shares

_MISTAKES = 10  # Number of mistakes to list for many classes.


def header(plan: Plan, workdir: str) -> list[tuple[str, str]]:
  """The name and value of each line of the header."""
  settings, source = plan.settings, plan.source
  device = jax.devices()[0]
  size = plan.preprocessing.image_size
  params = sum(x.size for x in jax.tree.leaves(plan.adaptation.param_shapes))
  shape = plan.preprocessing.image_shape
  gflops = forward_gflops(plan.model, plan.adaptation.param_shapes, shape)
  epochs = plan.total * settings.batch_size / len(source)
  axes = " x ".join(f"{n} {axis}" for axis, n in plan.mesh.shape.items())
  devices = f"{jax.device_count()} x {device.device_kind}"
  name = settings.model.variant or f"from {settings.pretrained}"
  model = f"{name}, {params:,} parameters"
  if (trained := _trained(plan)) < params:
    model = f"{name}, {trained:,} trained / {params:,} parameters"
  steps = f"{plan.total:,} steps of {settings.batch_size} images"
  rows = [
    ("devices", f"{devices}, mesh {axes}"),
    (
      "model",
      f"{model}, {gflops:.3g} GFLOP per image of {size[0]} x {size[1]}",
    ),
    ("data", plan.splits.found),
    ("run", f"{steps} ({epochs:,.1f} epochs), to {workdir}"),
  ]
  if plan.settings.lora.rank:
    rows.append(("LoRA", _lora(plan)))
  if plan.adaptation.teacher is not None:
    rows.append(("teacher", _teacher(plan)))
  if plan.preprocessing.cut_from:
    rows.append(("images", str(plan.preprocessing)))
  if for_tpu() and not getattr(plan.model, "has_tpu_attention", True):
    plain = "without our form for TPUs, which only the paper's attention has"
    rows.append(("attention", plain))
  wanted = settings.optimizer.warmup.in_steps(settings.batch_size, len(source))
  warmup = warmup_steps(settings, plan.total, len(source))
  if warmup < wanted:
    said = f"shortened from {wanted:,} to {warmup:,} steps, as the run is short"
    rows.append(("warm-up", said))
  return rows


def _trained(plan: Plan) -> int:
  """The number of values that are trained."""
  params: dict[str, Any] = flatten_dict(plan.shapes.params, sep="/")
  trained = trained_paths(plan.settings, plan.model)
  return sum(
    x.size for path, x in params.items() if trained is None or trained(path)
  )


def _lora(plan: Plan) -> str:
  settings, base = plan.settings.lora, plan.adaptation.sources["base"]
  kernels = chosen(
    settings, flatten_dict(plan.adaptation.param_shapes, sep="/")
  )
  return (
    f"rank {settings.rank}, alpha {settings.alpha:g}, on {len(kernels)} "
    f"kernels of {base['source']}, which every use of this run needs"
  )


def _teacher(plan: Plan) -> str:
  """The teacher and its images; says if its classes are taken on trust."""
  teacher, record = plan.adaptation.teacher, plan.adaptation.sources["teacher"]
  assert teacher is not None
  text = (
    f"{record['source']}, on images of {'{} x {}'.format(*teacher.image_size)}"
  )
  if not teacher.model.origin.class_names:
    text += "; it names no classes, and theirs are taken to be the data's"
  return text


def closing(
  evaluated: dict[str, Any],
  seconds: float,
  workdir: str | None,
  tested: dict[str, Any] | None = None,
  spent: dict[str, float] | None = None,
) -> str:
  """The last lines.

  Args:
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
    lines.append(f"Last evaluation: {evaluation_text(evaluated)}.")
  if tested is not None:
    found = {k.replace("test/", "eval/"): v for k, v in tested.items()}
    lines.append(
      f"Test split, with the best checkpoint (step {tested['test/step']:,}): "
      f"{evaluation_text(found)}."
    )
  if workdir is not None:
    lines.append(
      "Evaluate its checkpoint with: "
      f"python -m vit_jax.evaluate {shlex.quote(workdir)}"
    )
  return "\n".join(lines)


def show_classes(display: Display, tally: Tally, names: Sequence[str]) -> None:
  """Shows the scores of each class, and which classes are confused."""
  scores = tally.class_scores()
  columns = ("class", "examples", "precision", "recall", "F1")
  rows = [
    [
      names[k],
      f"{score.examples:,}",
      *(f"{x:.2%}" for x in (score.precision, score.recall, score.f1)),
    ]
    for k, score in scores.items()
  ]
  display.note("")
  display.table(columns, rows)
  display.note("")
  for line in _confusion(tally, [*scores], names, display.width):
    display.note(line)


def _confusion(
  tally: Tally, classes: list[int], names: Sequence[str], width: int
) -> list[str]:
  """The confusion matrix, or the commonest mistakes if it is too wide."""
  if len(classes) <= width // 3:  # Two spaces and a digit for each.
    rows = [["label \\ answer", *(names[k] for k in classes)]]
    for k, counts in zip(classes, tally.confusion(classes), strict=True):
      rows.append([names[k], *map(str, counts)])
    lines = table_lines(rows)
    if max(map(cell_len, lines)) <= width:
      return lines
  scores = tally.class_scores()
  return [
    f"{names[label]} is taken for {names[answer]}: "
    f"{count:,} of {scores[label].examples:,}"
    for label, answer, count in tally.most_confused(_MISTAKES)
  ]
