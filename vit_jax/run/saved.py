"""Opens a finished or running run from its folder, and evaluates it."""

import contextlib
import dataclasses
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from etils import epath
from jax.sharding import Mesh

from vit_jax.data.example import NoTestSplitError, Source
from vit_jax.data.reading import other_table
from vit_jax.data.reading.label_file import locate
from vit_jax.data.reading.labels import NONE, SINGLE, Labels
from vit_jax.data.reading.places import place_of
from vit_jax.data.reading.sources import (
  channel_warnings,
  check_same_classes,
  looked_at,
  open_source,
  open_whole,
)
from vit_jax.data.settings import LABEL_FILES, DataSettings
from vit_jax.pretrained import trained_on
from vit_jax.pretrained.load import open_checkpoint
from vit_jax.pretrained.loaded import Loaded
from vit_jax.pretrained.locate import check_trusted
from vit_jax.run.evaluation import open_stream
from vit_jax.run.plan import Plan
from vit_jax.run.settings import Settings, read_saved
from vit_jax.runtime import hints
from vit_jax.runtime.display import Display, Split, evaluation_text, move_split
from vit_jax.runtime.files import CSV, check_apart, output_file
from vit_jax.runtime.printable import counted, first_of, printable
from vit_jax.runtime.settings import replaced
from vit_jax.tasks.answers import calibrator_of
from vit_jax.tasks.metrics import Evaluator
from vit_jax.tasks.outcome import Stream
from vit_jax.tasks.scores import kept_folds
from vit_jax.tasks.task import Task
from vit_jax.training import sharding
from vit_jax.training.state import TrainState
from vit_jax.workdir import calibration
from vit_jax.workdir.records import metrics_so_far


@dataclasses.dataclass(frozen=True)
class SavedRun:
  """A checkpoint of a run, with everything that is needed to evaluate it.

  Attributes:
    loaded: The checkpoint, with the model as it was trained.
    task: The run's task, with the facts of its labels.
    settings: The run's settings, with the data's current location.
    params: The checkpoint's parameters, averaged if the run averages them.
    source: The split to evaluate on.
    stream: The batches of `source`.
    evaluator: Evaluates parameters on `source`.
    notes: Lines on what a reader of the scores should know about the data.
  """

  loaded: Loaded
  task: Task
  settings: Settings
  source: Source
  params: Any
  stream: Stream
  evaluator: Evaluator
  notes: Sequence[str]


@hints.accepts('vit_jax.evaluate("runs/my_photos", best=True)')
@contextlib.contextmanager
def open_saved_run(
  workdir: str,
  *,
  step: int | None = None,
  best: bool = False,
  task: Any = None,
  base: str | None = None,
  data_dir: str | None = None,
  root: str | None = None,
  test: bool = False,
  folder: str | None = None,
  num_workers: int | None = None,
) -> Iterator[SavedRun]:
  """Opens a checkpoint and the data that its run is evaluated on.

  Raises ValueError if the folder does not hold the checkpoint, or the data are
  missing, are not those of the run, or are at an address that only the run's
  checkpoint names.

  Args:
    step, best, task, base: As in `open_checkpoint`.
    data_dir: The folder where TFDS data sets are now, if they have moved.
    root: The place of the folder of images or of packed images now, if it has
      moved.
    test: Whether to take the test split, not the evaluation split.
    folder: Other data to evaluate on: class folders, images with masks or
      numbers of pixels, images alone for a task without labels, or a file of
      labels. Without splits, all images are taken. The images of a file are in
      `root`, beside the file, or where those of the run are.
    num_workers: Worker processes that prepare batches, 0 for a thread; by
      default those of the run.
  """
  loaded = open_checkpoint(
    workdir,
    hold=lambda loaded: loaded.params_on(_mesh(loaded)),
    as_trained=True,
    step=step,
    best=best,
    task=task,
    base=base,
  )
  description: Any = loaded.description
  settings = settings_here(description["config"], data_dir, root)
  if num_workers is not None:
    settings = replaced(settings, {"loader.num_workers": num_workers})
  if folder is not None:
    settings = _with_other_data(settings, loaded.task, folder, test, root)
  data = settings.data
  fitted = loaded.task.for_test() if test else loaded.task
  places = {"root": root, "data_dir": data_dir}
  _check_place(data, fitted.labels, workdir, places, is_own=folder is None)
  if settings.distill.teacher and fitted.answers is None:
    # The run learned the teacher's features, and is measured by them.
    fitted = _with_teacher(fitted, settings, loaded, base)
  names = tuple(description["class_names"])
  if folder is None:
    source = _open_own(data, fitted.labels, test)
  else:
    source = _open_whole(data, fitted.labels, names, workdir)
  notes = []
  if folder is None and root is not None:
    notes += _notes_on_images(workdir, loaded, data, source)
  notes += channel_warnings(looked_at(source), loaded.preprocessing.spec)
  if folder is not None and fitted.labels.are_classes:
    notes += _notes_on_classes(source)
  _check_class_names(names, source, fitted.labels, data, is_own=folder is None)
  stream = open_stream(
    settings, fitted, _mesh(loaded), loaded.preprocessing, source
  )
  with contextlib.closing(stream):
    measure = fitted.measure(loaded.model, stream)
    yield SavedRun(
      loaded=loaded,
      task=fitted,
      settings=settings,
      source=source,
      params=loaded.held,
      stream=stream,
      evaluator=Evaluator(measure, stream),
      notes=notes,
    )


def evaluate_checkpoint(
  workdir: str,
  *,
  per_class: bool = False,
  out: str | os.PathLike[str] | None = None,
  **options,
) -> dict[str, Any]:
  """Evaluates a checkpoint of a run; prints the result.

  The data are the run's evaluation split, unless `options` choose its test
  split or another folder. Returns the metrics of the task by their keys.

  Args:
    per_class: Whether to show the scores of each class as well, and which
      classes are confused.
    out: A CSV file to write the answer to every example to.
    **options: Keywords of `open_saved_run`, which raises the errors.

  Raises:
    ValueError: also if `per_class` or `out` is given and the task gives no
      answer for an image, or `out` cannot be such a file.
  """
  path = None if out is None else output_file(out, CSV)[0]
  check_apart([path], [options.get("folder")])
  first = jax.process_index() == 0
  display = Display(active=first)
  with open_saved_run(workdir, **options) as run:
    if run.task.answers is None and (per_class or path is not None):
      raise ValueError(
        f"{workdir} was trained on the task {run.task.name}, which gives no "
        "answer for an image by itself: leave out --per_class and --out."
      )
    outcome = run.evaluator(
      run.params, display.track, detail=True, examples=path is not None
    )
    metrics = outcome.metrics
    if per_class:
      metrics |= outcome.by_class() | outcome.confusions()
    if path is not None and first:
      outcome.write(path, run.source)
  shown = evaluation_text(metrics, run.task.scores.metrics) + outcome.remark
  shown = f"step {run.loaded.step:,} on {run.source.name}: {shown}"
  known, advice = "", ""
  if options.get("folder") is None:  # The folds are of the run's own data.
    metrics |= kept_folds(metrics_so_far(epath.Path(workdir).expanduser()))
  elif first:
    files: Any = run.source
    about = run.loaded.description
    known = trained_on.overlap_of_score(about, run.task.labels, files.files())
    looks = run.loaded.preprocessing
    advice = trained_on.digits_advice(about, looks, files.files())
  verdict = str(run.task.scores.verdict(metrics, known))
  read: Any = getattr(run.source, "notes", ())
  notes = *run.loaded.notes, *read, *run.notes
  for note in (*notes, shown, verdict, advice, *outcome.remarks):
    if note:
      display.note(note)
  if per_class:
    outcome.show(display)
  if path is not None:
    display.note(f"Wrote {path}, with the highest loss first.")
  return metrics


def calibrate_checkpoint(workdir: str, **options) -> tuple[float, ...]:
  """Fits a checkpoint's temperatures, prints what they change, and keeps them.

  They are fitted on one half of the evaluation split, and measured on the
  other. `predict`, `convert`, `export` and `evaluate` use them from then on.
  Returns one temperature for all classes, or one for each label.

  Args:
    **options: Keywords of `open_saved_run`, which raises the errors.

  Raises:
    ValueError: if the task gives no probabilities, there are too few examples
      to fit a temperature, or it would make the loss of the other half higher.
    OSError: if they cannot be kept in the folder.
  """
  first = jax.process_index() == 0
  display = Display(active=first)
  with open_saved_run(workdir, **options) as run:
    for note in run.notes:
      display.note(note)
    task: Any = run.task.in_unit()
    loaded: Any = run.loaded
    calibrate = calibrator_of(task, loaded.model, run.stream)
    fitted = calibrate(run.params, display.track)
    facts = task.calibration_facts(fitted)
  names = run.source.class_names
  for note in (*loaded.notes, *fitted.lines(names)):
    display.note(note)
  fitted.check()
  if first:
    path = calibration.record(workdir, loaded.step, loaded.description, **facts)
    display.note(f"Wrote {path}. predict, convert, export and evaluate use it.")
  return fitted.temperature


def test_run(
  plan: Plan, state: TrainState, workdir: str | None
) -> dict[str, Any]:
  """Evaluates the best checkpoint of an ended run on the test split.

  Returns the step evaluated, `test/step`, and the metrics, `test/...`. The
  last `state` is evaluated if `workdir` is None, as there is no checkpoint.
  """
  model = plan.model
  step = int(state.step)
  task = plan.task
  if workdir is None:
    params = plan.extras.merge(state.eval_params)
  else:
    loaded = open_checkpoint(
      workdir,
      as_trained=True,
      best=True,
      task=type(task),
      base=plan.settings.pretrained if plan.settings.lora.rank else None,
    )
    model, step, task = loaded.model, loaded.step, loaded.task
    params = loaded.params_on(plan.mesh)
  assert plan.splits.test is not None
  stream = open_stream(
    plan.settings, task, plan.mesh, plan.preprocessing, plan.splits.test
  )
  task = plan.extras.with_teacher(task.for_test())
  with contextlib.closing(stream):
    evaluator = Evaluator(task.measure(model, stream), stream)
    metrics = evaluator(params).metrics
  tested = move_split(metrics, Split.EVAL, Split.TEST)
  return {Split.TEST.key("step"): step, **tested}


def _check_place(
  data: DataSettings,
  labels: Labels,
  workdir: str,
  places: Mapping[str, str | None],
  *,
  is_own: bool,
) -> None:
  """Raises ValueError unless the place of the data is known and trusted.

  `places` has those that the user gives, by their flags. The run's own data
  also have to be where they were, unless the user gives a place.
  """
  for flag, place in prepared_place(data).items():
    if places[flag] is None:
      check_trusted(place, "the data of this run", flag, workdir)
  if is_own and places["root"] is None:
    check_is_here(data)
  if not (data.photographs or data.name or labels.reader):
    raise ValueError(
      f"{workdir} records no data: name the folder, as in --root=DIR."
    )


def _check_class_names(
  names: tuple[str, ...],
  source: Source,
  labels: Labels,
  data: DataSettings,
  *,
  is_own: bool,
) -> None:
  """Raises ValueError if data have other class names than the checkpoint.

  `names` are those of the checkpoint, and `is_own` tells whether the data are
  the run's own.
  """
  why = ""
  if not is_own or (data.root and not data.labels_file):
    why = labels.about_other_names(names, new=not is_own)
  check_same_classes(
    names,
    "the checkpoint",
    source.class_names,
    "the evaluation split",
    why,
    labels,
  )


def _open_own(data: DataSettings, labels: Labels, test: bool) -> Source:
  """The test split of the run's own data if `test`, else its evaluation split.

  Raises ValueError as `open_source` does; if there is no test split, the
  message says what to leave out.
  """
  try:
    return open_source("test" if test else "eval", data, labels)
  except NoTestSplitError as error:
    own = "leave out --test, to evaluate on the images that were held out"
    raise ValueError(error.text(own)) from None


def _open_whole(
  data: DataSettings, labels: Labels, names: tuple[str, ...], workdir: str
) -> Source:
  """All images of another folder or file of labels.

  Raises ValueError as the functions that open them do; for a folder of images
  without labels, the message has the command by which the run answers them.
  """
  if data.labels_file:
    return other_table.open_whole(data, labels, names)
  # Imported here, since a run on data without files does not need it.
  from vit_jax.data.reading.image_folder import UnlabelledError

  try:
    return open_whole(data, labels, names)
  except UnlabelledError as error:
    raise error.with_run(workdir) from None


def _notes_on_classes(source: Any) -> list[str]:
  """A line on the classes without images in other data; [] if there are none.

  The source has a `labels` method, as those of folders and tables have.
  """
  there = {*source.labels(range(len(source))).tolist()}
  names = source.class_names
  absent = [printable(name) for i, name in enumerate(names) if i not in there]
  if not absent:
    return []
  line = (
    f"{len(absent):,} of {counted(len(names), 'class', 'classes')} without "
    f"images in {source.name}: {first_of(absent, 5)}."
  )
  return [line]


def _notes_on_images(
  workdir: str, loaded: Loaded, data: DataSettings, source: Source
) -> list[str]:
  """A line if a folder that is given as the run's own holds other images.

  The number of training images tells that; if it is the same, there is no line.
  `source` is the split that is evaluated.
  """
  description: Any = loaded.description
  trained = description.get("train_examples")
  if trained is None or not data.root or data.labels_file:
    return []
  try:
    count = len(open_source("train", data, loaded.task.labels))
  except ValueError:  # The folder may hold only the split to evaluate.
    return []
  if count == trained:
    return []
  command = shlex.join(["vit_jax", "evaluate", workdir, data.root])
  note = (
    f"{data.root} has {counted(count, 'training image')} and the run had "
    f"{trained:,}, so it holds other images than the run's folder did. The "
    f"score is of the {len(source):,} of {source.name}; all images of a folder "
    f"that is new to the run are evaluated by: {command}"
  )
  return [note]


def _with_teacher(
  task: Task, settings: Settings, loaded: Loaded, source: str | None
) -> Task:
  """The task with the teacher of the run.

  `source` is where the teacher is now; None takes the place that was recorded.
  """
  from vit_jax.run.extras import with_teacher

  if source is None:
    check_trusted(
      settings.distill.teacher or "", "the teacher of this run", "base"
    )
  else:
    settings = replaced(settings, {"distill.teacher": source})
  description: Any = loaded.description
  return with_teacher(task, settings, description, _mesh(loaded))


def _with_other_data(
  settings: Settings, task: Task, other: str, test: bool, root: str | None
) -> Settings:
  """The settings with other images as the data: a file of labels, or a folder.

  Raises ValueError if they cannot have the labels of the run, or the test split
  is asked for as well.
  """
  place = place_of(os.path.expanduser(other))
  is_file = place is not None and place.is_file
  if place is None and other.lower().endswith(LABEL_FILES):
    raise ValueError(
      f"there is no file {other!r}; a relative path begins in {os.getcwd()!r}."
    )
  if place is None and os.path.isfile(os.path.expanduser(other)):
    raise ValueError(
      f"{other!r} is a file, and neither a folder of class folders nor a file "
      f"of labels (it ends in {', '.join(LABEL_FILES)}). A picture is answered "
      "by: vit_jax predict RUN PICTURE"
    )
  if test:
    instead = (
      "" if is_file else f", or give --root={other} in place of the folder"
    )
    raise ValueError(
      "--test takes the test split of the run's own data: leave it "
      f"out{instead}."
    )
  if is_file:
    data = _with_labels_file(
      settings.data, task, os.path.expanduser(other), root
    )
  else:
    if root is not None:
      raise ValueError(
        f"--root={root} is the place of the run's own images, and {other} is "
        "evaluated in their place: leave out one of the two."
      )
    data = _with_folder(settings.data, task, other)
  return dataclasses.replace(settings, data=data)


def _with_labels_file(
  data: DataSettings, task: Task, file: str, root: str | None
) -> DataSettings:
  """The settings of the data with another file of labels.

  Its images are found by `other_table.with_file`. A run on other data than a
  file of labels has no columns and splits for it, so those keys are left at
  their defaults. Raises ValueError if the task does not read such files.
  """
  if task.labels.reader or not (task.labels.are_used and data.labels):
    raise ValueError(
      f"{file} is a file of labels, and this run is of the task {task.name}: "
      "evaluate it on a folder, by --root=DIR."
    )
  own: Any = data
  if not data.labels_file:
    own = type(own)(labels_file=file, task=own.task, root=own.root)
  return other_table.with_file(own, file, root)


def _with_folder(data: DataSettings, task: Task, folder: str) -> DataSettings:
  """The settings of the data with another folder in place of the run's.

  The folder has what the run's data have: classes, masks or numbers of pixels,
  or images alone for a task without labels. Raises ValueError if the run's data
  are none of these, or `folder` is the name of its data set.
  """
  if task.labels.reader and not data.labels_file:
    return dataclasses.replace(data, root=os.path.expanduser(folder))
  if task.labels is NONE and data.root:
    data_settings: Any = type(data)
    return data_settings(root=os.path.expanduser(folder), labels=data.labels)
  if task.labels is not SINGLE or task.answers is None or not data.labels:
    instead = (
      f"give --root={folder}, which takes the val split of that folder, or "
      "holds out a part of it"
    )
    if data.labels_file:
      instead = f"give a file of labels such as its own, instead of {folder}"
    raise ValueError(
      "a folder of other images can be given for runs on folders of classes, "
      "of masks or of images without labels, and this run is of the task "
      f"{task.name}: {instead}."
    )
  root = os.path.expanduser(folder)
  if not os.path.isdir(root) and folder == data.name:
    raise ValueError(
      f"{folder} is the data set of the run, and no folder: without a folder, "
      "the run is evaluated on this data set, so leave it out."
    )
  return type(data)(root=root)


def _mesh(loaded: Loaded) -> Mesh:
  """The run's mesh, or a data-parallel one if that does not fit here."""
  description: Any = loaded.description
  return sharding.make_mesh(**vars(settings_here(description["config"]).mesh))


def prepared_place(data: DataSettings) -> dict[str, str]:
  """The folder or address of prepared data, by the flag that replaces it.

  It is empty if the data are images, or TFDS keeps them in its own folder.
  """
  if data.dir:
    return {"root": data.dir}
  return {"data_dir": data.data_dir} if data.data_dir and not data.root else {}


def check_is_here(data: DataSettings) -> None:
  """Raises ValueError if the folder or the table of a run is not there."""
  place = data.root or ""
  if place and not os.path.isdir(place):
    hint = hints.hint_for_path(place)
    raise ValueError(
      f"the run's images were in {place}, which is not a folder here: "
      "--root=DIR (root= in Python) takes them from where they are now, with "
      f"the same images held out{f'; {hint}' if hint else '.'}"
    )
  for file in filter(None, (data.labels_file, data.eval_labels_file)):
    try:
      locate(data, file)
    except ValueError:
      raise ValueError(
        f"the run's labels were in {file}, which is not a file here: vit_jax "
        "evaluate RUN FILE takes another file, and --root=DIR (root= in "
        "Python) a folder with a file of that name beside the images."
      ) from None


def settings_here(
  config: Any, data_dir: str | None = None, root: str | None = None
) -> Settings:
  """A run's settings, with its data where they are now.

  Its mesh is a data-parallel one if the run's does not fit these devices.
  Raises ValueError for a `data_dir` if the data are none of TFDS.
  """
  settings = read_saved(config)
  if data_dir is not None and not settings.data.name:
    raise ValueError(
      f"--data_dir={data_dir} is the folder of data sets of TFDS, and the run "
      "has other data: leave it out, or give their place as --root=DIR."
    )
  folder = "dir" if settings.data.dir else "root"
  moved = {"data.data_dir": data_dir, f"data.{folder}": root}
  changes: dict[str, Any] = {k: v for k, v in moved.items() if v is not None}
  try:
    sharding.make_mesh(**vars(settings.mesh))
  except ValueError:
    changes |= {"mesh.data": -1, "mesh.fsdp": 1, "mesh.tensor": 1}
  return replaced(settings, changes)
