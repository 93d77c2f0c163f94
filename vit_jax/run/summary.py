"""Writes the first and the last lines of a run, and the table of layers."""

import itertools
import shlex
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict

from vit_jax.data.example import evenly_spread
from vit_jax.data.preprocessing import band_places
from vit_jax.data.reading.labels import NONE, SINGLE
from vit_jax.models.partitioning import for_tpu
from vit_jax.models.paths import within
from vit_jax.models.variants import describe
from vit_jax.run import fastest
from vit_jax.run.no_effect import keys_without_effect
from vit_jax.run.plan import Plan, make_plan
from vit_jax.run.settings import Settings
from vit_jax.run.trained import adapted_kernels, trained_filter
from vit_jax.runtime import hints
from vit_jax.runtime.display import (
  Display,
  Split,
  clock,
  evaluation_text,
  move_split,
)
from vit_jax.runtime.meter import shares
from vit_jax.runtime.printable import counted
from vit_jax.tasks import intervals
from vit_jax.tasks.choose import is_own
from vit_jax.tasks.scores import MOST_CHANGED, PROBES
from vit_jax.training.step import share_of_start

COLUMNS = ("layer", "input", "output", "parameters", "trained")
# A line warns if the first parameters have a larger share than this in their
# average.
_MOST_OF_START = 0.1
# The deepest paths with a row: those of blocks and their parts, such as
# "block_0/msa", not those of the dense layers in the parts.
_DEPTH = 2


def header(
  plan: Plan, workdir: str, *, is_new: bool = True
) -> list[tuple[str, str]]:
  """The name and value of each line of a run's header.

  A line with the name "" continues the one above. `is_new` is false for a run
  that is resumed.
  """
  settings, total = plan.settings, plan.lengths.total
  examples = len(plan.source)
  images = plan.preprocessing
  gflops = plan.operations.forward
  epochs = total * settings.batch_size / examples
  axes = " x ".join(f"{n} {axis}" for axis, n in plan.mesh.shape.items())
  devices = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
  size = f"of {images.patches or '{} x {}'.format(*images.image_size)}"
  if (programs := len(plan.step_shapes)) > 1:
    size = f"on average; the step is compiled for {programs} sizes of crops"
  steps = f"{counted(total, 'step')} of {counted(settings.batch_size, 'image')}"
  rows = [
    ("devices", f"{devices}, mesh {axes}"),
    ("model", f"{_model(plan)}, {gflops:.3g} GFLOP per image {size}"),
    ("data", plan.splits.found),
    ("run", f"{steps} ({epochs:,.1f} epochs), to {workdir}"),
  ]
  rows += _about_training(plan, is_new)
  if settings.lora.rank:
    rows.append(("LoRA", _lora(plan)))
  if unseen := _unseen_bands(plan):
    rows.append(("bands", unseen))
  if plan.extras.teacher is not None:
    rows.append(("teacher", _teacher(plan)))
  rows += _about_images(plan)
  if settings.data.sampling == "classes":
    rows.append(("sampling", _evenly(plan)))
  if resized := _resized(plan):
    rows.append(("images", resized))
  rows += _for_chips(plan)
  if not _has_rate(plan):
    text = "0 at every step, so no weight will change: set --lr"
    rows.append(("learning rate", text))
  if warmup := _warmup(plan):
    rows.append(("warm-up", warmup))
  if average := _average(plan):
    rows.append(("average", average))
  if not plan.lengths.save_every:
    text = "none, so no weights will be left: set save_every_epochs or _steps"
    rows.append(("checkpoints", text))
  if is_new:
    names = itertools.chain(["unused"], itertools.repeat(""))
    rows += zip(names, keys_without_effect(plan), strict=False)
  return rows


def _about_training(plan: Plan, is_new: bool) -> list[tuple[str, str]]:
  """Names and texts of lines on what is trained, and from which start.

  `is_new` is as in `header`.
  """
  if plan.settings.pretrained:
    rows = [("training", _trained_part(plan))]
    if quicker := _frozen_image_tower(plan):
      rows.append(("", quicker))
    return rows
  if plan.settings.optimizer.freeze_layers:
    what = f"{_trained_part(plan)}; the other layers keep their random weights"
    return [("training", f"{what}: give published ones by --pretrained")]
  if is_new and (better := _better_command(plan)):
    count = len(plan.source)
    why = f"with {count:,} images, published weights are the better start:"
    return [("training", f"from scratch; {why}"), ("", better)]
  return []


def _about_images(plan: Plan) -> list[tuple[str, str]]:
  """The name and the text of a line on how images are changed for training.

  The transform's method `about` gives the text. The list is empty if there is
  no such method, or no text.
  """
  transform: Any = plan.train_transform
  # A transform that adds texts holds that of the images.
  if not hasattr(transform, "about"):
    transform = getattr(transform, "images", None)
  about = getattr(transform, "about", None)
  text = about(plan.source) if about else ""
  return [(getattr(transform, "topic", "crops"), text)] if text else []


def _for_chips(plan: Plan) -> list[tuple[str, str]]:
  """Names and texts of lines on what was chosen for the chips.

  The lines are on the settings and on the form of attention.
  """
  settings, model = plan.settings, plan.model
  fast = ""
  if for_tpu():
    fast = fastest.fastest_line(settings, plan.task, model, jax.devices())
  form = model.attention_form(plan.preprocessing.image_size)
  return [(k, v) for k, v in (("settings", fast), ("attention", form)) if v]


def _resized(plan: Plan) -> str:
  """How images are resized, in words; "" if that is as the checkpoint does."""
  images = plan.preprocessing
  if images.patches is not None:
    return _any_size(plan)
  if images.cut_from:
    return str(images)
  if not plan.start:
    return ""
  if patches := plan.start.preprocessing.patches:
    tokens = patches.tokens
    why = f"data.tokens={tokens} would keep the proportions, as the checkpoint"
    return f"{images}; {why} does"
  own = plan.start.preprocessing
  if str(own) == str(images):
    return ""
  return f"{images}; the checkpoint's own are {own} (--config.eval_transform)"


def _has_rate(plan: Plan) -> bool:
  """Whether a step of the run has a learning rate other than 0."""
  if plan.settings.optimizer.peak_lr:
    return True
  total = plan.length.total_steps
  return any(map(plan.schedule, evenly_spread(min(total, 10), total)))


def _warmup(plan: Plan) -> str:
  """How long the warm-up is, in words, if it is short or half of the run."""
  settings = plan.settings
  warmup = plan.warmup_steps
  full = settings.optimizer.warmup.in_steps(
    settings.batch_size, len(plan.source)
  )
  if warmup < full:
    return f"shortened from {full:,} to {warmup:,} steps, as the run is short"
  total = plan.length.total_steps
  if 2 * warmup <= total:
    return ""
  shorter = f"--config.optimizer.warmup_steps={total // 10} takes a tenth"
  return f"{warmup:,} of {total:,} steps; {shorter}"


def _any_size(plan: Plan) -> str:
  """How images are resized, and the share of the padding, in words."""
  from vit_jax.data.transforming.patches import padding, some_shapes

  patches = plan.preprocessing.patches
  assert patches is not None
  shapes = some_shapes(plan.source)
  if plan.packing is None:
    share = padding(patches, shapes)
    return f"{plan.preprocessing}; {share:.1%} of the patches are padding"
  rows, seed = plan.settings.rows, plan.settings.seed
  found = plan.packing.padding(patches, shapes, rows, seed)
  text = (
    f"{plan.preprocessing}, and packed into rows of {plan.packing}; "
    f"{found.share:.1%} of the patches are padding, and {found.alone:.1%} "
    "would be with a row for each image"
  )
  if found.crowded:
    text += f"; {found.crowded:.0%} of the rows are too full for all images, "
    text += "so their larger images are shown with fewer patches"
  return text


def _model(plan: Plan) -> str:
  """The model, its number of parameters, and how many of them are trained."""
  settings = plan.settings
  params = sum(x.size for x in jax.tree.leaves(plan.param_shapes))
  trained = _count_trained(plan)
  of = f"trains {trained:,} of " if trained < params else ""
  name = describe(plan.model.trunk)
  if settings.pretrained:
    name += f" from {settings.pretrained}"
  return f"{name}, {of}{params:,} parameters"


def _evenly(plan: Plan) -> str:
  """How often images of the rarest class are shown, in words."""
  shown: Any = plan.shown
  return (
    f"all classes equally often: an image of the rarest, {shown.rarest}, "
    f"comes {shown.repeats_of_rarest:.3g} times as often as one of the "
    "commonest"
  )


def _trained_part(plan: Plan) -> str:
  """Which part of the pretrained model the run trains, in words."""
  settings = plan.settings
  layers = settings.optimizer.freeze_layers
  parts = plan.task.trained
  if settings.lora.rank:
    parts = "LoRA's matrices and the head"
  elif layers < 0:
    parts = "the head alone"
  elif layers:
    parts = f"all but the first {f'{layers} layers' if layers > 1 else 'layer'}"
  if settings.transfer.probe_head:
    parts += "; the head starts from a linear probe of the images"
  elif settings.transfer.keep_head or plan.task.keeps_parts:
    parts += "; the head is kept"
  elif plan.task.answers is not None:
    parts += "; the head is new"
    old, names = plan.start, plan.source.class_names
    may_keep = "transfer.keep_head" not in plan.task.refuses
    if old and names and old.class_names == names and may_keep:
      parts += " (--config.transfer.keep_head keeps that of these classes)"
  return parts


def _frozen_image_tower(plan: Plan) -> str:
  """The advice to freeze the image tower, if there are few pairs; else ""."""
  settings = plan.settings
  count = len(plan.source)
  how = settings.objective_section("pairs").image
  if settings.data.task != "pairs" or how != "trained":
    return ""
  from vit_jax.run import few_images

  if count >= few_images.FEW:
    return ""
  return (
    f"{count:,} images are few: --config.pairs.image=frozen trains the text "
    "tower alone, which takes a third of the work in the image tower"
  )


def _better_command(plan: Plan) -> str | None:
  """The command for few photographs in a folder; None for all other data."""
  data, task = plan.settings.data, plan.task
  is_folder = data.root and not data.labels_file
  if (
    not is_folder
    or is_own(task)
    or task.labels not in (SINGLE, NONE)
    or plan.preprocessing.channels != 3
    or plan.settings.distill.teacher
  ):
    return None
  # Imported here, as it reads the list of known weights.
  from vit_jax.run import few_images

  count = len(plan.source)
  root = data.root or ""
  if task.labels is NONE:
    enough = few_images.ENOUGH
    command = hints.command_to_continue(root)
  else:
    enough = few_images.FEW
    command = few_images.better_command(root)
  if count >= enough:
    return None
  return f"{command}  (downloads {few_images.download_size()})"


def _count_trained(plan: Plan) -> int:
  """The number of parameters that are trained.

  With LoRA, these are all parameters of the state that the task does not
  freeze.
  """
  params: dict[str, Any] = flatten_dict(plan.shapes.params, sep="/")
  frozen = plan.task.is_frozen
  trained = {path: x for path, x in params.items() if not frozen(path)}
  if not plan.settings.lora.rank:
    is_trained = trained_filter(plan, params)
    trained = {path: x for path, x in trained.items() if is_trained(path)}
  return sum(x.size for x in trained.values())


def _lora(plan: Plan) -> str:
  """LoRA's settings, the number of its kernels and its base, in words."""
  settings = plan.settings.lora
  base = plan.extras.sources["base"]
  shapes = flatten_dict(plan.param_shapes, sep="/")
  kernels = adapted_kernels(plan, shapes)
  return (
    f"rank {settings.rank}, alpha {settings.alpha:g}, on {len(kernels)} "
    f"kernels of {base['source']}; every use of this run needs these weights"
  )


def _unseen_bands(plan: Plan) -> str:
  """A warning on bands whose weights begin at 0 and stay there; else ""."""
  start, bands = plan.start, plan.preprocessing.bands
  if start is None or not bands or plan.model.channel_tokens:
    return ""
  old = start.preprocessing
  places = band_places(bands, old.channels, old.bands) or range(len(bands))
  new = [name for name, at in zip(bands, places, strict=True) if at is None]
  with_lora = plan.settings.lora.rank > 0
  if not new or not (with_lora or plan.settings.optimizer.freeze_layers):
    return ""
  advice = "--config.optimizer.freeze_layers=0 trains all layers"
  if with_lora:
    shapes = flatten_dict(plan.param_shapes, sep="/")
    if any(map(plan.parts.reads_pixels, adapted_kernels(plan, shapes))):
      return ""
    advice = "--config.lora.kernels='(msa|mlp|patches)/' adapts it as well"
  return (
    f"the model does not see {', '.join(new)}: their weights begin at 0, and "
    f"the first kernel is not trained; {advice}"
  )


def _average(plan: Plan) -> str | None:
  """A warning on the average of the parameters; None if nothing is wrong."""
  settings, total = plan.settings, plan.lengths.total
  decay = settings.ema_decay
  share = share_of_start(plan.objective, decay, settings.ema_warmup, total)
  if share < _MOST_OF_START:
    return None
  return (
    f"with ema_decay={decay:g}, the averaged parameters of this run are still "
    f"{share:.0%} those that it starts from: train longer, or set a lower "
    "ema_decay"
  )


def _teacher(plan: Plan) -> str:
  """The source of the teacher, and what the task says of it."""
  teacher = plan.extras.teacher
  source = plan.extras.sources["teacher"]["source"]
  assert teacher is not None
  about = plan.task.about_teacher(teacher, plan.model, plan.preprocessing)
  return f"{source}, {about}"


def closing(
  plan: Plan,
  evaluated: dict[str, Any],
  seconds: float,
  workdir: str | None,
  tested: dict[str, Any] | None = None,
  spent: dict[str, float] | None = None,
  best: tuple[int, str] | None = None,
  began: Mapping[str, Any] = MappingProxyType({}),
  *,
  diverged: bool = False,
) -> str:
  """The lines that end a run.

  Args:
    evaluated: The last evaluation, which is shown already; empty if there was
      none.
    seconds: How long the loop of this start took.
    workdir: The run's folder; None if no checkpoint was saved.
    tested: The metrics of the test split, if the run has one.
    spent: Seconds on each kind of work since the first start, if known.
    best: Step and score of the best checkpoint, if it is not the last.
    began: The metrics before the first step.
    diverged: Whether the training diverged.
  """
  ended = "Ended" if diverged else "Done"
  lines, metrics = [f"{ended} in {clock(seconds)}."], plan.task.scores.metrics
  if spent is not None:
    parts = ", ".join(f"{share:.1%} {what}" for what, share in shares(spent))
    lines.append(f"Of {clock(sum(spent.values()))} in all: {parts}.")
  if not diverged:
    lines += _judgement(plan, evaluated)
    lines += _since_start(plan, began, evaluated)
  if best is not None:
    lines.append("Best checkpoint: step {:,} with {}.".format(*best))
  if tested is not None:
    found = move_split(tested, Split.TEST, Split.EVAL)
    shown = evaluation_text(found, metrics)
    shown += plan.task.scores.verdict(found).aside
    best_step = tested[Split.TEST.key("step")]
    lines.append(
      f"Test split, with the best checkpoint (step {best_step:,}): {shown}."
    )
  if workdir is not None:
    options = [shlex.quote(workdir)]
    if best is not None:
      options.append("--best")
    report = " ".join(["vit_jax report", *options])
    if is_own(plan.task):  # A checkpoint cannot import the task's file.
      options.append(f"--task={shlex.quote(plan.settings.data.task)}")
    evaluate = " ".join(["vit_jax evaluate", *options])
    lines.append(f"Evaluate its checkpoint with: {evaluate}")
    if not is_own(plan.task):
      lines.append(f"See its {plan.task.reported} with: {report}")
    data, is_best = plan.settings.data.root, best is not None
    lines += plan.task.advice(workdir, data, evaluated, best=is_best)
  return "\n".join(lines)


def _judgement(plan: Plan, evaluated: dict[str, Any]) -> list[str]:
  """Lines on how far the score can be trusted, and whether it may be chance."""
  verdict = plan.task.scores.verdict(evaluated)
  if not verdict.count:
    return [verdict.undefined] if verdict.undefined else []
  metric = verdict.metric
  lines = [str(verdict)] if str(verdict) else []
  if metric.by_example and verdict.few:
    return lines
  score = evaluated[plan.task.scores.key]
  count = verdict.count
  seen = plan.lengths.total * plan.settings.batch_size
  if seen >= len(plan.source) and _learned_nothing(plan, score, count):
    if lines == [verdict.below_zero]:  # The next line says it with advice.
      lines = []
    lines.append(_at_chance(plan, metric.text(evaluated), score))
  return lines


def _since_start(
  plan: Plan, began: Mapping[str, Any], evaluated: Mapping[str, Any]
) -> list[str]:
  """Lines that compare the features with those that the run began with."""
  changes, fallen = [], []
  for score in PROBES:
    name = score.metric.label
    before, now = (row.get(score.key) for row in (began, evaluated))
    if before is None or now is None:
      continue
    changes.append(f"{name} {before:.1%} at the start and {now:.1%} now")
    if now < before:
      fallen.append(name)
  if not changes:
    return _kept_neighbours(plan, evaluated)
  lines = [f"Features: {', '.join(changes)}."]
  if fallen:
    lines.append(
      f"By {' and '.join(fallen)} they are worse than those that the run began "
      f"with: use {plan.settings.pretrained} as it is, or train with a lower "
      "optimizer.peak_lr or with lora.rank=8."
    )
  return lines


def _kept_neighbours(plan: Plan, evaluated: Mapping[str, Any]) -> list[str]:
  """Lines on how much the features have changed, where no labels judge them."""
  kept = evaluated.get(Split.START.key("kept"))
  if kept is None:
    return []
  count = evaluated[Split.START.key("neighbours")]
  line = (
    f"Features: {kept:.1%} of the {count} nearest neighbours of an image are "
    "those of the start; no labels tell whether the new ones are better."
  )
  lines = [line]
  if kept < MOST_CHANGED:
    lines.append(
      f"Fewer than {MOST_CHANGED:.0%} are kept, so the features have changed "
      "much, and may be worse: use the best checkpoint, "
      f"{plan.settings.pretrained} as it is, or train with a lower "
      "optimizer.peak_lr or with lora.rank=8."
    )
  return lines


def _learned_nothing(plan: Plan, score: float, count: int) -> bool:
  """Whether a score may be that of giving one answer for all examples."""
  chance = plan.evaluation.chance
  if chance is None or not 0 <= chance < 1:
    return False
  if not plan.task.scores.metric.of_examples:
    return score <= chance
  return intervals.may_be_chance(score, chance, count)


def _at_chance(plan: Plan, said: str | None, score: float) -> str:
  """A line on a run that seems to have learned nothing.

  `said` is the score in words.
  """
  chance = plan.evaluation.chance
  assert chance is not None
  how, so = "no", "nothing was learned"
  if score > chance:
    how, so = "hardly", "that may be chance"
  advice = (
    "Train longer, or with the learning rate that vit_jax find_lr suggests."
  )
  if plan.settings.transfer.probe_head:
    each = " of each class" if plan.task.labels.are_classes else ""
    advice = f"Give more images{each}, or another encoder."
  elif plan.settings.data.labels_file:
    names = plan.source.class_names
    line = plan.task.labels.numbers_warning(names, len(plan.source))
    advice = line[:1].upper() + line[1:] or advice
  shown = plan.task.scores.metric.format.format(chance)
  return (
    f"{said} is {how} better than one answer for all images ({shown}): {so}. "
    f"{advice}"
  )


def show_layers(settings: Settings, may_lower_batch: bool = False) -> None:
  """Prints the table of the layers of the model that `train` would make."""
  display = Display(active=jax.process_index() == 0)
  plan = make_plan(settings, may_lower_batch=may_lower_batch)
  display.table(COLUMNS, layer_rows(plan))


def layer_rows(plan: Plan) -> list[list[str]]:
  """A row for each layer, in the order of the forward pass, under `COLUMNS`.

  Shapes are those of a batch of one image. Parameters outside of any layer,
  such as the class token, have rows of their own, which come first. The last
  row has the number of all parameters.
  """
  inputs = plan.model.inputs(plan.preprocessing.image_shape)
  calls = _calls(plan.model, inputs)
  stored: dict[str, Any] = flatten_dict(plan.param_shapes, sep="/")
  sizes = {path: shape.size for path, shape in stored.items()}
  alone = [path for path in sizes if "/" not in path]
  trained = trained_filter(plan, stored)
  rows = []
  for path in (*alone, *calls):
    paths_below = [p for p in sizes if within(p, path)]
    count = sum(sizes[p] for p in paths_below)
    flags = [trained(p) for p in paths_below]
    share = "yes" if all(flags) else "in part" if any(flags) else "no"
    shapes = calls.get(path, ("", ""))
    rows.append([path, *shapes, f"{count:,}", share if paths_below else ""])
  rows.append(["all", "", "", f"{sum(sizes.values()):,}", ""])
  return rows


def _shapes(arrays: Any) -> str:
  """The shape of an array, or of each array of a tree."""
  return ", ".join(str(jnp.shape(leaf)) for leaf in jax.tree.leaves(arrays))


def _calls(model: nn.Module, inputs: Any) -> dict[str, tuple[str, str]]:
  """The shapes of input and output of each layer, by its path."""
  calls: dict[str, tuple[str, str]] = {}

  def watch(call: Any, args: tuple, kwargs: dict, context: Any) -> Any:
    """Calls a method of a module, and notes the shapes if it is a layer."""
    # Other methods may be called on modules that are not bound, without a path.
    if context.method_name != "__call__":
      return call(*args, **kwargs)
    path = context.module.path
    if not 0 < len(path) <= _DEPTH:
      return call(*args, **kwargs)
    name = "/".join(path)
    calls.setdefault(name, ("", ""))  # Its row precedes the layers inside it.
    result = call(*args, **kwargs)
    first = _shapes(args[0]) if args else ""
    calls[name] = first, _shapes(result)
    return result

  with nn.intercept_methods(watch):
    jax.eval_shape(model.init, jax.random.key(0), inputs)
  return calls
