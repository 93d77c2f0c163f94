"""Opens a finished or running run from its folder, and evaluates it."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from vit_jax.data.example import Source
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading.sources import check_same_classes, open_source
from vit_jax.evaluation.answer_list import AnswerList, write_outputs
from vit_jax.evaluation.confusion import Tally
from vit_jax.evaluation.eval_step import Answers
from vit_jax.evaluation.evaluator import Evaluator
from vit_jax.evaluation.targets import TargetEvaluator
from vit_jax.inference.predictor import class_name
from vit_jax.models import ResNet, Vit, from_fields
from vit_jax.pretrained.load import open_pretrained
from vit_jax.run.evaluators import make_evaluator, make_mesh
from vit_jax.run.plan import Plan
from vit_jax.run.settings import Settings, read_saved
from vit_jax.run.summary import show_classes
from vit_jax.runtime.atomic_file import local_file
from vit_jax.runtime.display import Display, evaluation_text
from vit_jax.training import sharding
from vit_jax.training.state import TrainState, make_params_init
from vit_jax.workdir import description as descriptions
from vit_jax.workdir.checkpoint import open_run


@dataclasses.dataclass(frozen=True)
class SavedRun:
  """A checkpoint of a run, with everything that is needed to evaluate it.

  Attributes:
    settings: The run's settings, with the data's current location.
    class_names: Names of the classes that the model was trained on.
    source: The split to evaluate on.
    model: The model, as it was trained.
    params: The checkpoint's parameters, averaged if the run averages them.
    notes: Lines on what was damaged in the workdir and skipped.
  """

  step: int
  settings: Settings
  class_names: tuple[str, ...]
  source: Source
  model: Vit | ResNet
  preprocessing: Preprocessing
  params: Any
  notes: tuple[str, ...]
  evaluator: Evaluator


@contextlib.contextmanager
def opened(
  workdir: str,
  *,
  step: int | None = None,
  best: bool = False,
  data_dir: str | None = None,
  root: str | None = None,
  test: bool = False,
) -> Iterator[SavedRun]:
  """Opens a checkpoint and the data that its run is evaluated on.

  Args:
    step: The checkpoint's step; by default the newest.
    best: Whether to take the checkpoint with the best top-1 instead.
    data_dir: The folder where TFDS data sets are now, if they have moved.
    root: The place of the folder of images or of packed images now, if it has
      moved.
    test: Whether to take a folder's test split, not the one of evaluation.

  Raises:
    ValueError: if the folder does not hold the checkpoint, or the data are
      missing or are not those of the run.
  """
  with contextlib.ExitStack() as stack:
    checkpoints = open_run(workdir)
    stack.callback(checkpoints.close)
    step = checkpoints.choose(step, best)
    description = checkpoints.describe(step)
    settings = read_saved(description["config"])
    folder = "dir" if settings.data.dir else "root"
    moved = {"data_dir": data_dir, folder: root}
    where = {k: v for k, v in moved.items() if v is not None}
    settings = dataclasses.replace(
      settings, data=dataclasses.replace(settings.data, **where)
    )
    class_names = tuple(description["class_names"])
    source = open_source("test" if test else "eval", settings.data)
    check_same_classes(
      class_names, "the checkpoint", source.class_names, "the evaluation split"
    )
    model = from_fields(description["model"])
    if "base" in description:  # LoRA's, with which it is read unstacked.
      model = model.clone(scan=False) if isinstance(model, Vit) else model
    preprocessing = descriptions.preprocessing(description)
    mesh = _mesh(settings)
    init = make_params_init(model, preprocessing.image_shape)
    shapes = sharding.array_shapes(init, mesh)
    targets = {**description.get("targets", {})}
    if "base" in description:
      params = open_pretrained(workdir, step=step).params(shapes)
      params = _standardised(params, targets)
    else:
      params = checkpoints.restore_params(
        step, shapes, averaged=descriptions.averages(description)
      )
    if test or "threshold" in description:  # Never chosen on the test split.
      targets["threshold"] = description.get("threshold", 0.5)
    parts = settings, model, mesh, preprocessing, source
    evaluator = make_evaluator(*parts, targets)
    stack.callback(evaluator.close)
    yield SavedRun(
      step=step,
      settings=settings,
      class_names=class_names,
      source=source,
      model=model,
      preprocessing=preprocessing,
      params=params,
      notes=tuple(checkpoints.notes),
      evaluator=evaluator,
    )


def _standardised(params: Any, targets: Mapping[str, Any]) -> Any:
  """Parameters whose head was put into the unit of numbers, as trained."""
  if "std" not in targets:
    return params
  mean, std = (np.array(targets[k], np.float32) for k in ("mean", "std"))
  head = params["head"]
  head = {
    "kernel": head["kernel"] / std[None],
    "bias": (head["bias"] - mean) / std,
  }
  return {**params, "head": head}


def evaluate_checkpoint(
  workdir: str,
  *,
  per_class: bool = False,
  out: str | None = None,
  **options: Any,
) -> dict[str, Any]:
  """Evaluates a checkpoint on its run's evaluation split; prints the result.

  Args:
    per_class: Whether to show the scores of each class as well, and which
      classes are confused.
    out: A CSV file to write the answer to every example to.
    **options: Keywords of `opened`, which raises the errors.

  Returns:
    The metrics `eval/...` of `Evaluator`.
  """
  path = local_file(out) if out is not None else None
  tally, answers = Tally(), AnswerList()

  def observe(batch: Answers) -> None:
    tally.add(batch)
    if path is not None:
      answers.add(batch)

  first = jax.process_index() == 0
  display = Display(active=first)
  with opened(workdir, **options) as run:
    rate = run.settings.masked.rate
    if rate and (per_class or path is not None):
      raise ValueError(
        f"{workdir} was trained with masked.rate={rate} and predicts patches, "
        "not classes: leave out --per_class and --out."
      )
    names = [
      class_name(run.class_names, k) for k in range(run.model.num_classes)
    ]
    if isinstance(run.evaluator, TargetEvaluator):
      return _evaluate_targets(run, run.evaluator, per_class, path, display)
    metrics = run.evaluator(
      run.params, run.class_names if per_class else (), observe, display.track
    )
    if path is not None and first:
      answers.write(path, run.source, names)
  _say(
    run, metrics, display, "" if rate else f"  macro-F1 {tally.macro_f1():.2%}"
  )
  if tally.unanswered:
    display.note(f"The model answers NaN to {tally.unanswered:,} examples.")
  if per_class:
    show_classes(display, tally, names)
  if path is not None:
    display.note(f"Wrote {path}, with the highest loss first.")
  return metrics


def _evaluate_targets(
  run: SavedRun,
  evaluator: TargetEvaluator,
  per_class: bool,
  path: pathlib.Path | None,
  display: Display,
) -> dict[str, Any]:
  """Evaluates a run on several labels or on numbers, as others are."""
  found = evaluator.outputs(run.params, display.track)
  metrics = evaluator.metrics(found, per_class)
  _say(run, metrics, display)
  if per_class:
    display.table(*evaluator.table(found))
  if path is not None and jax.process_index() == 0:
    write_outputs(path, run.source, found, metrics.get("eval/threshold"))
    display.note(f"Wrote {path}, with the highest loss first.")
  return metrics


def _say(
  run: SavedRun, metrics: dict[str, Any], display: Display, more: str = ""
) -> None:
  for note in run.notes:
    display.note(note)
  shown = evaluation_text(metrics) + more
  display.note(f"step {run.step:,} on {run.source.name}: {shown}")


def test_run(
  plan: Plan, state: TrainState, workdir: str | None
) -> dict[str, Any]:
  """Evaluates a run that has ended on the test split, with its best checkpoint.

  Args:
    state: The last state, which is evaluated if there is no checkpoint.
    workdir: The run's folder; None if it has no checkpoint.

  Returns:
    The step evaluated, `test/step`, and the metrics, `test/...`.
  """
  data = plan.settings.data
  with contextlib.ExitStack() as stack:
    if workdir is None:
      test, step = plan.splits.test, int(state.step)
      params = plan.adaptation.whole(state.eval_params)
      assert test is not None
      evaluator = make_evaluator(
        plan.settings,
        plan.model,
        plan.mesh,
        plan.preprocessing,
        test,
        {**plan.targets, "threshold": 0.5},
      )
      stack.callback(evaluator.close)
    else:
      run = stack.enter_context(
        opened(
          workdir,
          best=True,
          data_dir=data.data_dir,
          root=data.dir or data.root,
          test=True,
        )
      )
      step, params, evaluator = run.step, run.params, run.evaluator
    metrics = evaluator(params)
  found = {k.replace("eval/", "test/"): v for k, v in metrics.items()}
  return {"test/step": step, **found}


def _mesh(settings: Settings) -> Mesh:
  """The run's mesh; a data-parallel one if it does not fit these devices."""
  try:
    return make_mesh(settings)
  except ValueError:
    return sharding.make_mesh()
