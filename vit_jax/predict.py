"""Predicts the classes of image files with any checkpoint.

vit_jax predict runs/my_photos holiday --out answers.csv
vit_jax predict b16_augreg_i1k_224 cat.jpg --top 5

CHECKPOINT is a workdir, a file or a folder of published weights, an address, or
a name that `vit_jax convert --list` shows. IMAGE is a file, a folder, which is
searched recursively, a table such as new.csv, for the images that it names, or
a quoted pattern such as "photos/**/*.jpg".
With --out, the answers go to a CSV file, or to JSON Lines if it ends in .jsonl,
and the number of images of each class is shown. The exit code is 1 if a name
matches no image or an image cannot be read; all others are predicted. It is 2
if no name matches an image.
"""

import collections
import contextlib
import functools
import io
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from absl import flags

from vit_jax.runtime import aliases, callable_module, command, hints
from vit_jax.runtime.printable import counted, fit, say

_TOP = 3
# For a flag, those that have no effect beside it.
_BESIDE = {
  "masks": (
    "out",
    "json",
    "features",
    "layers",
    "tokens",
    "head",
    "texts",
    "template",
    "save_head",
    "top",
    "batch_size",
  )
}

if TYPE_CHECKING:
  from vit_jax.inference.answers import Lines
  from vit_jax.inference.feature_file import FeatureFile
  from vit_jax.inference.predictor import Prediction
  from vit_jax.inference.reading import Pictures
  from vit_jax.inference.text_head import TextHead
  from vit_jax.pretrained.loaded import Loaded
  from vit_jax.tasks.answers import Answers
  from vit_jax.tasks.task import Task


def define_flags() -> None:
  flags.DEFINE_integer(
    "top", _TOP, "Number of classes to show for each image.", lower_bound=1
  )
  flags.DEFINE_string(
    "out",
    None,
    "CSV or .jsonl file to write, one row per image.",
  )
  flags.DEFINE_bool(
    "json", False, "Print one JSON object per image instead of a table."
  )
  flags.DEFINE_string(
    "root",
    None,
    "Folder of a table's images, if it is not the table's own.",
  )
  flags.DEFINE_string(
    "features", None, "An .npz file to write the images' features to."
  )
  flags.DEFINE_list(
    "layers",
    [],
    "Layers whose patch maps --features writes, such as 3,6,9.",
  )
  flags.DEFINE_bool(
    "tokens",
    False,
    "Let --features write all tokens of the --layers.",
  )
  flags.DEFINE_string(
    "head",
    None,
    "An .npz file of texts' embeddings, for zero-shot classes.",
  )
  flags.DEFINE_multi_string(
    "texts",
    [],
    "Zero-shot: CLASS,CLASS, or a file with one class per line.\n"
    "Repeat the flag for texts that hold a comma.",
  )
  flags.DEFINE_multi_string(
    "template",
    [],
    'Text around the names of --texts, such as "a drawing of a {}."; several '
    'are averaged. By default "a photo of a {}.".',
  )
  flags.DEFINE_string(
    "save_head",
    None,
    "An .npz file to keep vectors of --texts in, for --head.",
  )
  flags.DEFINE_string(
    "masks",
    None,
    "Folder to write masks to, of each pixel's class or number.",
  )
  flags.DEFINE_integer(
    "short_side",
    None,
    "Shorter side to which images are resized before --masks reads overlapping "
    "windows of them.",
    lower_bound=1,
  )
  flags.DEFINE_integer(
    "batch_size", 32, "Number of images to predict at once.", lower_bound=1
  )
  command.define_overrides()


def main(arguments: list[str]) -> int:
  """Predicts, or writes masks if --masks is given; returns the exit code."""
  from vit_jax.data.reading.named_images import with_root

  masks = flags.FLAGS.masks
  checkpoint, *files = arguments
  if flags.FLAGS.root:
    files = with_root(files, flags.FLAGS.root)
  if masks:
    return mark_files(
      checkpoint,
      files,
      masks,
      short_side=flags.FLAGS.short_side,
      **command.overrides(),
    )
  return predict_files(
    checkpoint,
    files,
    as_json=flags.FLAGS.json,
    layers=_layers(flags.FLAGS.layers),
    templates=tuple(flags.FLAGS.template),
    texts=tuple(flags.FLAGS.texts),
    top=flags.FLAGS.top if command.is_given("top") else None,
    **command.values("out", "features", "tokens", "batch_size"),
    **command.values("head", "save_head"),
    **command.overrides(),
  )


def predict_files(
  checkpoint: str,
  files: str | os.PathLike[str] | list[str],
  *,
  top: int | None = None,
  as_json: bool = False,
  out: str | None = None,
  features: str | None = None,
  layers: tuple[int, ...] = (),
  tokens: bool = False,
  head: str | None = None,
  texts: str | Sequence[str] = (),
  templates: tuple[str, ...] = (),
  save_head: str | None = None,
  batch_size: int = 32,
  **overrides: Any,
) -> int:
  """Prints or writes predictions for image files; returns the exit code.

  The code is 1 if an image is missing or cannot be read. The arguments are
  those of the command. Raises ValueError if no name matches an image, options
  exclude each other, or the model has no classes and no features are asked for,
  and OSError if a file cannot be written.
  """
  # Imported here so that --help answers at once.
  from vit_jax.data.reading.named_images import find_images, say_missing
  from vit_jax.inference.predictor import predict
  from vit_jax.runtime.files import check_apart

  texts = [texts] if isinstance(texts, str) else texts
  _check_flags(
    features=features, layers=layers, tokens=tokens, as_json=as_json, out=out
  )
  path, kind = _output_file(out) if out else (None, "")
  names = [files] if isinstance(files, str | os.PathLike) else files
  check_apart((path, features, save_head), (*names, head, *texts))
  missing = say_missing(files)
  outcomes: list[str] = []
  with _open_features(features, layers) as rows:
    text_head = _text_head(
      checkpoint,
      head=head,
      texts=texts,
      templates=templates,
      save_head=save_head,
      overrides=overrides,
    )
    options = {**overrides, "reads_patches": bool(layers)}
    needs_classes = not (text_head or features)
    loaded = _open(checkpoint, options, needs_classes=needs_classes)
    outputs = _outputs(loaded, text_head)
    top = outputs.number_shown(top, checkpoint)
    if text_head or loaded.model.num_classes:
      _say_trained_on(loaded, files)
    batches = predict(
      loaded.model,
      loaded.params,
      find_images(files),
      preprocessing=loaded.preprocessing,
      task=outputs.task,
      # Any label may reach the threshold.
      top=top if outputs.answers.given_from is None else outputs.number,
      batch_size=batch_size,
      features=rows is not None,
      layers=layers,
      tokens=tokens,
      text_head=text_head,
    )
    if outputs.answers.legend and not as_json:
      say(outputs.answers.legend)
    if path is None:
      lines = outputs.screen_lines(top, as_json=as_json)
      code = _report(batches, lines, rows, whole=as_json)
    else:
      batches, images = _track(batches, files, batch_size)
      lines_of = functools.partial(outputs.counted_lines, kind, top)
      code = _write_counted(path, batches, lines_of, rows, images)
      outcomes.append(f"{counted(images, 'row')} to {out}")
  if rows is not None and not as_json:  # JSON is for programs.
    outcomes.append(f"{rows} to {features}")
  _say_written(outcomes)
  return 1 if missing else code


def mark_files(
  checkpoint: str,
  files: str | os.PathLike[str] | list[str],
  masks: str,
  *,
  short_side: int | None = None,
  **overrides: Any,
) -> int:
  """Writes masks and overlays of image files; returns the exit code.

  The code is 1 if an image is missing or cannot be read. The arguments are
  those of the command. Raises ValueError if no name matches an image, or the
  checkpoint is no run of segmentation or dense regression, and OSError if a
  file cannot be written.
  """
  from vit_jax.data.reading.named_images import find_images, say_missing
  from vit_jax.inference.mask_files import write_masks
  from vit_jax.pretrained.load import open_checkpoint
  from vit_jax.runtime.display import Display
  from vit_jax.runtime.files import output_folder

  folder = str(output_folder(masks))
  missing = say_missing(files)
  loaded = open_checkpoint(
    checkpoint,
    hold=lambda loaded: loaded.params_on(),
    as_trained=True,
    **overrides,
  )
  for note in loaded.notes:
    say(note)
  preprocessing = loaded.preprocessing
  task_answers = loaded.task.answers
  mark = None
  if task_answers is not None:
    mark = task_answers.marker(loaded.model, preprocessing, short_side)
  if task_answers is None or mark is None:
    raise ValueError(
      f"{checkpoint} was trained on the task {loaded.task.name}: --masks is "
      "for a run with data.task=segmentation or dense_regression."
    )
  pixel_files = task_answers.pixel_files(loaded.class_names)
  images = [*find_images(files)]
  _say_trained_on(loaded, files)
  count, unreadable, lines = write_masks(
    functools.partial(mark, loaded.held),
    images,
    folder,
    preprocessing.spec,
    pixel_files,
    lambda paths: Display().track(paths, "marking", len(paths)),
    preprocessing.bands,
  )
  for line in lines:
    say(line, sys.stdout)
  overlays = "overlay" if count == 1 else "overlays"
  _say_written([f"{counted(count, pixel_files.one)} and {overlays} to {masks}"])
  return 1 if missing or unreadable else 0


def _say_trained_on(loaded: "Loaded", files: Any) -> None:
  """Says if a run was trained on some of the images, or they suit it badly."""
  from vit_jax.pretrained import trained_on

  run = loaded.description
  if line := trained_on.overlap_of_answers(run, loaded.task.labels, files):
    say(line)
  if line := trained_on.digits_advice(run, loaded.preprocessing, files):
    say(line)


def _write_counted(
  path: pathlib.Path,
  batches: Iterable[list["Prediction"]],
  to_lines: Callable[[collections.Counter[str]], "Lines"],
  features: "FeatureFile | None",
  images: int,
) -> int:
  """Writes a file of answers, and prints the number of images of each class.

  `to_lines` is a function from the counts, which it fills, to a function from
  predictions to lines. Returns the exit code.
  """
  counts: collections.Counter[str] = collections.Counter()
  code = _write(path, batches, to_lines(counts), features)
  _print_counts(counts, images)
  return code


def _open_features(
  features: str | None, layers: tuple[int, ...]
) -> "contextlib.AbstractContextManager[FeatureFile | None]":
  """A context that yields the file of features to write.

  It yields None if no file is named.
  """
  from vit_jax.inference.feature_file import feature_file

  if not features:
    return contextlib.nullcontext()
  return feature_file(features, layers)


def _say_written(outcomes: Sequence[str]) -> None:
  """Prints a line on what was written, if anything was."""
  if outcomes:
    say(f"Wrote {' and '.join(outcomes)}.", sys.stdout)


def _output_file(out: str) -> tuple[pathlib.Path, str]:
  """The file to write, and its format; raises ValueError for other endings."""
  from vit_jax.runtime.files import CSV, output_file

  tables = CSV | {"JSON Lines": (".jsonl", ".ndjson")}
  return output_file(out, tables)


def _track(
  batches: Iterable[list["Prediction"]], files: Any, batch_size: int
) -> tuple[Iterable[list["Prediction"]], int]:
  """The batches, with a progress bar, and the number of images."""
  from vit_jax.data.reading.named_images import find_images
  from vit_jax.runtime.display import Display

  images = sum(1 for _ in find_images(files))
  steps = -(-images // batch_size)
  return Display().track(batches, "predicting", steps), images


def _print_counts(counts: collections.Counter[str], images: int) -> None:
  """Prints the number and the share of the images of each class."""
  for name, n in counts.most_common():
    say(f"{n:7,} {n / images:6.1%}  {name}", sys.stdout)


def _check_flags(
  *,
  features: str | None,
  layers: tuple[int, ...],
  tokens: bool,
  as_json: bool,
  out: str | None,
) -> None:
  """Raises ValueError if a flag needs or excludes another one."""
  if layers and not features:
    raise ValueError("--layers needs --features, which is not given.")
  if tokens and not layers:
    raise ValueError("--tokens needs --layers, which is not given.")
  if as_json and out:
    raise ValueError("--json prints the answers that --out writes: drop one.")


def _text_head(
  checkpoint: str,
  *,
  head: str | None,
  texts: Sequence[str],
  templates: tuple[str, ...],
  save_head: str | None,
  overrides: dict[str, Any],
) -> "TextHead | None":
  """The head of zero-shot classes, if they are asked for.

  Raises ValueError if they are asked for twice, or the checkpoint has no text
  tower, and OSError if a file cannot be read or written.
  """
  from vit_jax.inference import text_head

  if head and texts:
    raise ValueError("--head and --texts both name the classes: drop one.")
  if not texts:
    for flag, value in (("--template", templates), ("--save_head", save_head)):
      if value:
        raise ValueError(f"{flag} needs --texts, which is not given.")
    return text_head.read_text_head(head) if head else None
  from vit_jax.pretrained.load import load_text, run_choice
  from vit_jax.pretrained.text import TEMPLATES

  names, are_whole = text_head.names_of(texts)
  templates = templates or ((text_head.AS_IT_IS,) if are_whole else TEMPLATES)
  for line in text_head.lines_on_texts(texts, names, templates):
    say(line)
  text_encoder = load_text(checkpoint, **run_choice(overrides))
  classes = text_encoder.head(names, templates)
  if save_head:
    text_head.save_text_head(save_head, classes)
  return classes


def _open(
  checkpoint: str, overrides: dict[str, Any], *, needs_classes: bool
) -> "Loaded":
  """Opens a checkpoint, and prints the notes on it.

  Raises ValueError if the model `needs_classes`, and has none.
  """
  from vit_jax.pretrained.load import open_checkpoint
  from vit_jax.pretrained.loaded import Loaded

  loaded = open_checkpoint(checkpoint, hold=Loaded.read_params, **overrides)
  for note in loaded.notes:
    say(note)
  if needs_classes and not loaded.model.num_classes:
    ways = ["--features=FILE.npz to write its features"]
    if loaded.step is None:  # Published weights may have a text tower.
      ways += ["--texts=FILE.txt, or =CLASS,CLASS, if it has a text tower"]
      ways += ["--head=FILE.npz with embeddings of texts"]
    elif asked_by := loaded.task.asked_by:
      ways.insert(0, asked_by)
    raise ValueError(
      f"{checkpoint} has no classes to choose from: give {', or '.join(ways)}."
    )
  return loaded


class _Outputs(NamedTuple):
  """The meaning of a model's outputs.

  Attributes:
    task: The task that they answer.
    answers: The answers of that task.
    names: The names of the classes or targets, as far as they are known.
    number: The number of outputs.
  """

  task: "Task"
  answers: "Answers"
  names: Sequence[str]
  number: int

  def number_shown(self, top: int | None, checkpoint: str) -> int:
    """How many classes to show: `top`, or the default.

    Raises ValueError if it is given and the checkpoint has no classes.
    """
    if top is None:
      return _TOP
    if not (self.answers.are_ranked and self.number):
      raise ValueError(
        f"--top={top} is for classes, and {checkpoint} gives none: leave it "
        "out."
      )
    return top

  def screen_lines(self, top: int, *, as_json: bool) -> "Lines":
    """Returns a function that formats predictions for the screen."""
    from vit_jax.inference import answers

    to_lines = answers.json_lines if as_json else answers.table
    return to_lines(self.answers, self.names, top)

  def counted_lines(
    self, kind: str, top: int, counts: collections.Counter[str]
  ) -> "Lines":
    """Returns a function that formats predictions as rows of a file.

    The file is CSV or JSON Lines, by `kind`. The function also counts the
    images of each class in `counts`.
    """
    from vit_jax.inference import answers

    if kind == "CSV":
      rows = answers.csv_lines(self.answers, self.names, top, self.number)
    else:
      rows = answers.json_lines(self.answers, self.names, top)
    return answers.count_classes(rows, self.answers, self.names, top, counts)


def _outputs(loaded: "Loaded", text_head: "TextHead | None") -> _Outputs:
  """The meaning of the outputs of a model, or of its head of texts.

  A model without outputs has no classes to name, whatever its run trained.
  Raises ValueError if the task gives no answer for an image.
  """
  from vit_jax.tasks.answers import answers_of
  from vit_jax.tasks.choose import answering

  task: Task
  if text_head:
    task = answering(text_head.loss)
    names = text_head.names
    number = len(names)
  elif not loaded.model.num_classes:
    task = answering("softmax")
    names = ()
    number = 0
  else:
    task = loaded.task
    names = loaded.class_names
    number = loaded.model.num_classes
  return _Outputs(task, answers_of(task), names, number)


def _layers(texts: list[str]) -> tuple[int, ...]:
  """The layers that --layers gives; raises ValueError if one is no number."""
  try:
    return tuple(map(int, texts))
  except ValueError:
    raise ValueError(
      f"--layers={','.join(texts)}: give numbers of layers, such as 3,6,9,12."
    ) from None


def _write(
  path: pathlib.Path,
  batches: Iterable[list["Prediction"]],
  lines: "Lines",
  features: "FeatureFile | None",
) -> int:
  """Writes predictions to a file as they come; returns the exit code."""
  from vit_jax.runtime.files import replacing

  with replacing(path) as file, io.TextIOWrapper(file, "utf-8") as text:
    return _report(batches, lines, features, to=text)


def _report(
  batches: Iterable[list["Prediction"]],
  lines: "Lines",
  features: "FeatureFile | None",
  *,
  to: TextIO | None = None,
  whole: bool = False,
) -> int:
  """Writes predictions and features as they come; returns the exit code.

  `lines` makes the lines of a batch. They go to the file `to`, by default to
  stdout, where they are wrapped for a terminal unless they have to stay
  `whole`. Errors go to stderr.
  """
  stream = to or sys.stdout
  count = unreadable = 0
  for batch in batches:
    count += len(batch)
    for prediction in batch:
      if prediction.error is not None:
        unreadable += 1
        say(f"{prediction.image}: {prediction.error}")
      elif features is not None and prediction.features is not None:
        features.add(prediction.image, prediction.features)
    try:
      texts = [f"{line}\n" for line in lines(batch)]
      stream.writelines(texts if whole else (fit(t, stream) for t in texts))
      stream.flush()
    except BrokenPipeError:  # The reader, such as `head`, has closed the pipe.
      os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
      if features is None:
        break
  if unreadable:
    say(f"{unreadable:,} of {counted(count, 'image')} could not be read.")
  return 1 if unreadable else 0


@hints.accepts("vit_jax.predict(loaded, images, top=3)")
def predict(
  model: "str | os.PathLike[str] | Loaded", images: "Pictures", **options: Any
) -> "list[Prediction]":
  """Predicts the classes of images, as `loaded.predict(images)` does::

    vit_jax.predict("runs/my_photos", "cat.jpg")

  Args:
    model: As `load_pretrained` takes it, or what it or `vit_jax.train`
      returned.
    images: A path, a folder, a Pillow image, an array, uint8 (H, W, 3), or a
      list of these.
    **options: Those of `loaded.predict`, such as `top` and `texts`.

  Returns:
    A list with a prediction for each image, in their order.

  Raises:
    TypeError: if the model is none of these, such as a module without its
      preprocessing.
    ValueError: as `loaded.predict` does.
  """
  return aliases.of_loaded("predict")(model, images, **options)


if __name__ == "__main__":
  command.run(
    main,
    takes="CHECKPOINT IMAGE...",
    define=define_flags,
    beside=_BESIDE,
    needs={"short_side": "masks"},
  )
else:
  callable_module.make_callable(__name__, predict)
