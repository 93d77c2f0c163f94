"""Evaluates a run's checkpoint on the evaluation split of its data.

vit_jax evaluate runs/digits --per_class --out predictions.csv
vit_jax evaluate runs/my_photos new_photos

The checkpoint's description holds the data, the preprocessing and the model.
FOLDER has other class folders, or images with masks or numbers for each pixel,
as the run's data have. It may also be another file of labels, whose images are
in --root, beside the file, or where the run's images are. All of FOLDER is
evaluated unless it has splits; then only its val or test split is.
With --suite, WORKDIR is any checkpoint with ImageNet's classes, and a table has
its scores on ImageNet-ReaL, V2, Sketch, A, R, C and ObjectNet, and few-shot on
other data sets. The test sets are read from --root or from TFDS; those that are
absent are listed.
"""

import os
from typing import TYPE_CHECKING, Any

from absl import flags

from vit_jax.runtime import callable_module, command, hints, hosts
from vit_jax.runtime.callable_module import without_workers
from vit_jax.runtime.shown import is_loaded, path_of_run

if TYPE_CHECKING:
  from vit_jax.pretrained.loaded import Loaded


def define_flags() -> None:
  flags.DEFINE_string(
    "workdir", None, "Folder of the run, in place of the argument WORKDIR."
  )
  flags.DEFINE_bool(
    "per_class",
    False,
    "Show precision, recall and F1 of each class and the confusion matrix.",
  )
  flags.DEFINE_bool(
    "calibrate",
    False,
    "Fit the temperature of the probabilities, and keep it in the run's folder "
    "for predict, convert and export.",
  )
  flags.DEFINE_bool(
    "test",
    False,
    "Evaluate on the test split of the run's folder or file of labels, not on "
    "its evaluation split.",
  )
  flags.DEFINE_string(
    "out",
    None,
    "CSV file to write with the answer for every example, the highest loss "
    "first.",
  )
  flags.DEFINE_flag(  # A flag whose value may be left out.
    flags.Flag(
      flags.ArgumentParser(),
      flags.ArgumentSerializer(),
      "suite",
      None,
      "Score a model with ImageNet's classes on the test sets that "
      "--suite=NAME,NAME names, or on all of them.",
      boolean=True,
    )
  )
  command.define_choice()
  hosts.define_flags()


def main(arguments: list[str]) -> None:
  """Evaluates a run.

  Raises ValueError unless a run is given, or for flags that exclude each other.
  """
  # Imported here because data workers import this module and need no models.
  from vit_jax.run.saved import calibrate_checkpoint, evaluate_checkpoint

  options = flags.FLAGS
  folders = [*filter(None, [options.workdir]), *arguments]
  if not 1 <= len(folders) <= 2:
    raise ValueError(
      "give the folder of a run, as in vit_jax evaluate runs/digits, and "
      "after it, if you want other images than those of the run, the folder "
      "of these."
    )
  other_data = {"folder": folders[1]} if folders[1:] else {}
  runs_suite = options.suite not in (None, "false")
  if other_data and (options.calibrate or runs_suite):
    says = (
      "--suite: leave it out, or give the folder of the test sets as --root."
      if runs_suite
      else "--calibrate, which takes the run's own images: leave it out."
    )
    raise ValueError(f"{folders[1]!r} is not for {says}")
  if runs_suite:
    return _run_suite(folders[0])
  hosts.join_flags()
  if options.calibrate:
    command.refuse_beside("calibrate", "test", "per_class", "out")
    calibrate_checkpoint(folders[0], **command.choice())
    return
  evaluate_checkpoint(
    folders[0],
    per_class=options.per_class,
    test=options.test,
    out=options.out,
    **other_data,
    **command.choice(),
  )


def _run_suite(checkpoint: str) -> None:
  """Runs the test sets of --suite; raises ValueError as `run_suite` does."""
  from vit_jax.run.experiments.suite import NAMES, run_suite

  options = flags.FLAGS
  command.refuse_beside("suite", "best", "test", "per_class", "calibrate")
  # It would run on each host by itself, as it does not join them.
  command.refuse_beside("suite", *hosts.FLAG_NAMES)
  names = NAMES if options.suite == "true" else options.suite.split(",")
  run_suite(checkpoint, names, out=options.out, **command.choice())


@hints.accepts("vit_jax.evaluate(run, per_class=True)")
def evaluate(
  run: "str | os.PathLike[str] | Loaded",
  folder: str | os.PathLike[str] | None = None,
  *,
  test: bool = False,
  per_class: bool = False,
  out: str | os.PathLike[str] | None = None,
  **options: Any,
) -> dict[str, Any]:
  """Evaluates a run's checkpoint, as `vit_jax evaluate` does::

    run = vit_jax.train("my_photos")
    vit_jax.evaluate(run, per_class=True)["eval/top1"]

  Args:
    run: The run's folder, what `vit_jax.train` returned, or what
      `load_pretrained` returned for a run.
    folder: Other class folders, such as "new_photos", other images with masks,
      or another file of labels, to take in place of the run's evaluation split:
      all their images, or their val or test split if they have splits.
    test: Whether to evaluate on the test split of the run's own data instead.
    per_class: Whether to print precision, recall and F1 of each class as well.
    out: CSV file for the answer to every example, the highest loss first.
    **options: `step`, or `best=True` for the checkpoint with the best score;
      `root` or `data_dir` if the data have moved; `num_workers`, by default 0
      in a script, which prepares batches in a thread.

  Returns:
    The metrics of the task by their keys, such as "eval/top1", or "accuracy".

  Raises:
    ValueError: if the folder holds no run, its data are missing, or `per_class`
      or `out` is given and the task gives no answer for an image.
  """
  from vit_jax.run.measured import Metrics
  from vit_jax.run.saved import evaluate_checkpoint

  loaded: Any = run
  # Only a `Loaded` can tell whether its model is as the run saved it.
  if is_loaded(run):
    options |= {"test": test, "per_class": per_class, "out": out}
    return loaded.evaluate(folder, **options)
  if folder is not None:
    options["folder"] = os.fspath(folder)
  options = without_workers(options)
  return Metrics(
    evaluate_checkpoint(
      path_of_run(run), test=test, per_class=per_class, out=out, **options
    )
  )


if __name__ == "__main__":
  command.run(main, takes="[WORKDIR] [FOLDER]", define=define_flags)
else:
  callable_module.make_callable(__name__, evaluate)
