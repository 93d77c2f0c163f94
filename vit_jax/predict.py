"""Predicts the classes of image files with any checkpoint.

vit_jax predict runs/my_photos holiday --out answers.csv
vit_jax predict b16_augreg_i1k_224 cat.jpg --top 5

CHECKPOINT is a workdir, a file or a folder of published weights, an address, or
a name that `vit_jax convert --list` shows. IMAGE is a file, a folder,
which is searched recursively, a table such as new.csv, for the images that it
names, or a quoted pattern such as "photos/**/*.jpg".
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
from typing import TYPE_CHECKING, Any, TextIO

from absl import flags

from vit_jax.runtime import command
from vit_jax.runtime.printable import counted, fit, say

if TYPE_CHECKING:
  from vit_jax.inference.answers import Lines
  from vit_jax.inference.feature_file import FeatureFile
  from vit_jax.inference.predictor import Prediction
  from vit_jax.inference.text_head import TextHead
  from vit_jax.pretrained.loaded import Loaded
  from vit_jax.tasks.answers import Answers
  from vit_jax.tasks.task import Task


def define_flags() -> None:
  flags.DEFINE_integer(
    "top", 3, "Number of classes to show for each image.", lower_bound=1
  )
  flags.DEFINE_string(
    "out",
    None,
    "CSV or .jsonl file for one row per image, not a table.",
  )
  flags.DEFINE_bool(
    "json", False, "Print one JSON object per image instead of a table."
  )
  flags.DEFINE_string(
    "features", None, "An .npz file to write the images' features to."
  )
  flags.DEFINE_list(
    "layers",
    [],
    "Write maps of the patches' tokens after layers, as 3,6,9.",
  )
  flags.DEFINE_bool(
    "tokens", False, "Write all tokens of these layers, not maps of patches."
  )
  flags.DEFINE_string(
    "head",
    None,
    "An .npz file of texts' embeddings, for zero-shot classes.",
  )
  flags.DEFINE_multi_string(
    "texts",
    [],
    "Zero-shot classes, CLASS,CLASS or a file with one per line. Repeat the "
    "flag for texts that hold a comma.",
  )
  flags.DEFINE_multi_string(
    "template",
    [],
    'Text around these names, such as "a drawing of a {}."; several are '
    'averaged. By default "a photo of a {}.".',
  )
  flags.DEFINE_string(
    "save_head", None, "An .npz file to write these classes to, for --head."
  )
  flags.DEFINE_string(
    "masks",
    None,
    "Folder for the class or the number of each pixel.",
  )
  flags.DEFINE_integer(
    "short_side",
    None,
    "Shorter side of the images whose windows --masks reads.",
    lower_bound=1,
  )
  flags.DEFINE_integer(
    "batch_size", 32, "Number of images to predict at once.", lower_bound=1
  )
  command.define_overrides()


def main(arguments: list[str]) -> int:
  masks, side = flags.FLAGS.masks, flags.FLAGS.short_side
  if masks or side:
    _check_masks(masks)
    return mark_files(
      arguments[0],
      arguments[1:],
      masks,
      short_side=side,
      **command.overrides(),
    )
  return predict_files(
    arguments[0],
    arguments[1:],
    as_json=flags.FLAGS.json,
    layers=_layers(flags.FLAGS.layers),
    templates=tuple(flags.FLAGS.template),
    **command.values("top", "out", "features", "tokens", "batch_size"),
    texts=tuple(flags.FLAGS.texts),
    **command.values("head", "save_head"),
    **command.overrides(),
  )


def predict_files(
  checkpoint: str,
  files: str | os.PathLike[str] | list[str],
  *,
  top: int = 3,
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
  """Prints predictions for image files; returns the exit code.

  The arguments are those of the command. Raises ValueError if no name matches
  an image, or the model has no classes and no features are asked for, and
  OSError if a file cannot be written.
  """
  # Imported here so that --help answers at once.
  from vit_jax.data.reading.image_files import find_images, say_missing
  from vit_jax.inference import answers
  from vit_jax.inference.predictor import predict
  from vit_jax.tasks.answers import answers_of

  texts = [texts] if isinstance(texts, str) else texts
  _check_flags(features, layers, tokens, as_json, out)
  path, kind = _output(out) if out else (None, "")
  missing = say_missing(files)
  outcomes: list[str] = []
  with _collecting(features, layers) as rows:
    text_head = _text_head(
      checkpoint, head, texts, templates, save_head, overrides
    )
    options = {**overrides, "reads_patches": bool(layers)}
    loaded = _open(checkpoint, bool(text_head or features), options)
    task, names, outputs = _outputs(loaded, text_head)
    given = answers_of(task)
    if not text_head and loaded.model.num_classes:
      _say_trained_on(loaded, files)
    batches = predict(
      loaded.model,
      loaded.params,
      find_images(files),
      preprocessing=loaded.preprocessing,
      task=task,
      # Any label may reach the threshold.
      top=top if given.given_from is None else outputs,
      batch_size=batch_size,
      features=rows is not None,
      layers=layers,
      tokens=tokens,
      text_head=text_head,
    )
    if given.legend and not as_json:
      say(given.legend)
    if path is None:
      to_lines = answers.json_lines if as_json else answers.table
      lines = to_lines(given, names, top)
      code = _report(batches, lines, rows, whole=as_json)
    else:
      batches, images = _tracked(batches, files, batch_size)
      to_rows = _file_lines(kind, given, names, top, outputs)
      to_counted = functools.partial(
        answers.count_classes, to_rows, given, names, top
      )
      code = _write_counted(path, batches, to_counted, rows, images)
      outcomes.append(f"{counted(images, 'row')} to {out}")
  if rows is not None and not as_json:  # JSON is for programs.
    outcomes.append(f"features {rows.shape} to {features}")
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

  The arguments are those of the command. Raises ValueError if no name matches
  an image, or the checkpoint is no run of segmentation, and OSError if a file
  cannot be written.
  """
  from vit_jax.data.reading.image_files import find_images, say_missing
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
  given = loaded.task.answers
  mark = given and given.marker(loaded.model, preprocessing, short_side)
  if mark is None or given is None:
    raise ValueError(
      f"{checkpoint} was trained on the task {loaded.task.name}: --masks is "
      "for a run with data.task=segmentation or dense_regression."
    )
  kind = given.pixel_files(loaded.class_names)
  images = [*find_images(files)]
  _say_trained_on(loaded, files)
  count, unreadable, lines = write_masks(
    functools.partial(mark, loaded.held),
    images,
    folder,
    preprocessing.spec,
    kind,
    lambda files: Display().track(files, "marking", len(files)),
  )
  for line in lines:
    say(line, sys.stdout)
  _say_written([f"{counted(count, kind.one)} and overlays to {masks}"])
  return 1 if missing or unreadable else 0


def _say_trained_on(loaded: "Loaded", files: Any) -> None:
  from vit_jax.pretrained import trained_on

  run = loaded.description
  if line := trained_on.overlap_of_answers(run, loaded.task.labels, files):
    say(line)
  if line := trained_on.digits_advice(run, loaded.preprocessing, files):
    say(line)


def _check_masks(masks: str | None) -> None:
  """Raises ValueError if a flag needs `masks`, or says nothing with them."""
  if masks is None:
    raise ValueError("--short_side needs --masks, which is not given.")
  others = ("out", "json", "features", "layers", "tokens", "head", "texts")
  others += ("template", "save_head", "top")
  if name := command.first_given(*others):
    raise ValueError(
      f"--{name} has no effect with --masks, which writes masks and overlays "
      "alone: drop one."
    )


def _write_counted(
  path: pathlib.Path,
  batches: Any,
  to_lines: Callable[[collections.Counter[Any]], Any],
  rows: Any,
  images: int,
) -> int:
  """Writes a file of answers, and prints how many each class has."""
  counts: collections.Counter[Any] = collections.Counter()
  code = _write(path, batches, to_lines(counts), rows)
  _print_counts(counts, images)
  return code


def _collecting(
  features: str | None, layers: tuple[int, ...]
) -> contextlib.AbstractContextManager[Any]:
  """The file of features that is written, or None in its place."""
  from vit_jax.inference.feature_file import feature_file

  if not features:
    return contextlib.nullcontext()
  return feature_file(features, layers)


def _say_written(outcomes: Sequence[str]) -> None:
  if outcomes:
    say(f"Wrote {' and '.join(outcomes)}.", sys.stdout)


def _output(out: str) -> tuple[pathlib.Path, str]:
  """The file to write, and the format that its ending stands for."""
  from vit_jax.runtime.files import CSV, output_file

  tables = CSV | {"JSON Lines": (".jsonl", ".ndjson")}
  return output_file(out, tables)


def _tracked(
  batches: Iterable[Any], files: Any, batch_size: int
) -> tuple[Iterable[Any], int]:
  """The batches, whose progress is shown, and the number of images."""
  from vit_jax.data.reading.image_files import find_images
  from vit_jax.runtime.display import Display

  images = sum(1 for _ in find_images(files))
  steps = -(-images // batch_size)
  return Display().track(batches, "predicting", steps), images


def _print_counts(counts: collections.Counter[str], images: int) -> None:
  for name, n in counts.most_common():
    say(f"{n:7,} {n / images:6.1%}  {name}", sys.stdout)


def _check_flags(
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


def _file_lines(
  kind: str, given: "Answers", names: Sequence[str], top: int, outputs: int
) -> "Lines":
  """Formats predictions as rows of a CSV or JSON Lines file."""
  from vit_jax.inference import answers

  if kind == "CSV":
    return answers.csv_lines(given, names, top, outputs)
  return answers.json_lines(given, names, top)


def _text_head(
  checkpoint: str,
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
  checkpoint: str, needs_none: bool, overrides: dict[str, Any]
) -> "Loaded":
  """The model; ValueError if it has no classes, and `needs_none` is false."""
  from vit_jax.pretrained.load import open_checkpoint
  from vit_jax.pretrained.loaded import Loaded

  loaded = open_checkpoint(checkpoint, hold=Loaded.read_params, **overrides)
  for note in loaded.notes:
    say(note)
  if not (loaded.model.num_classes or needs_none):
    ways = ["--features=FILE.npz to write its features"]
    if loaded.step is None:  # Nobody knows what tower was beside it.
      ways += ["--texts=FILE.txt, or =CLASS,CLASS, if it has a text tower"]
      ways += ["--head=FILE.npz with embeddings of texts"]
    elif asked_by := loaded.task.asked_by:
      ways.insert(0, asked_by)
    raise ValueError(
      f"{checkpoint} has no classes to choose from: give {', or '.join(ways)}."
    )
  return loaded


def _outputs(
  loaded: "Loaded", text_head: "TextHead | None"
) -> "tuple[Task, Sequence[str], int]":
  """The task, the names of the classes or targets, and their number.

  A model without outputs has no classes to name, whatever its run trained.
  """
  from vit_jax.tasks.choose import answering

  if text_head:
    return answering(text_head.loss), text_head.names, len(text_head.names)
  if not loaded.model.num_classes:
    return answering("softmax"), (), 0
  return loaded.task, loaded.class_names, loaded.model.num_classes


def _layers(texts: list[str]) -> tuple[int, ...]:
  """The numbers of --layers; raises ValueError for other texts."""
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
    return _report(batches, lines, features, text)


def _report(
  batches: Iterable[list["Prediction"]],
  lines: "Lines",
  features: "FeatureFile | None",
  to: TextIO | None = None,
  whole: bool = False,
) -> int:
  """Prints and writes predictions as they come; returns the exit code.

  With `whole`, the lines are not wrapped on a terminal.
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


if __name__ == "__main__":
  command.run(main, takes="CHECKPOINT IMAGE...", define=define_flags)
