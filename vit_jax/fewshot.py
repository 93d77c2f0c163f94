"""Measures the accuracy of a probe on a checkpoint's representations.

vit_jax fewshot runs/my_photos more_photos --shots=5
vit_jax fewshot hf_s14_dinov2 my_photos --probe=knn

The default is a linear probe on a few images per class. knn (k nearest
neighbours) and linear use the whole training split, and segment is a linear
probe of the class of each pixel.

DATA is a folder of images, a file of labels, or a configuration such as digits,
for its data set; --config.data.KEY=VALUE names other data. CHECKPOINT is a
workdir, a file or a folder of published weights, an address, or a name that
`vit_jax convert --list` shows. Images are preprocessed as the checkpoint
requires, unless flags such as --image_size=64 override it.
"""

import dataclasses
import functools
import json
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from absl import flags

from vit_jax.runtime import callable_module, command, hints
from vit_jax.runtime.checks import checked
from vit_jax.runtime.shown import is_loaded, path_of_run
from vit_jax.tasks import probes

if TYPE_CHECKING:
  from vit_jax.pretrained.loaded import Loaded
  from vit_jax.runtime.display import Display
  from vit_jax.tasks.probes import few_shot
  from vit_jax.tasks.probes.segmentation import Segmentation
  from vit_jax.tasks.probes.whole_set import Score

PROBES = (*probes.PROBES, "segment")
# The options that have an effect on each probe.
_OPTIONS = {
  "few_shot": ("shots", "seeds", "pre_logits"),
  "knn": ("neighbours", "pre_logits"),
  "linear": ("pre_logits",),
  "segment": (),
}
_ALL_OPTIONS = {name for names in _OPTIONS.values() for name in names}


def define_flags() -> None:
  from vit_jax.run.flags import define_config_keys
  from vit_jax.run.settings import ProbeSettings

  define_config_keys(ProbeSettings)
  flags.DEFINE_enum(
    "probe",
    PROBES[0],
    PROBES,
    "few_shot trains on --shots images per class; knn and linear take all "
    "training images; segment is a linear probe for the class of each pixel, "
    "on a folder of images and masks.",
  )
  flags.DEFINE_integer(
    "neighbours", 20, "Number of nearest training images that vote in knn."
  )
  flags.DEFINE_integer("shots", 5, "Number of training images per class.")
  flags.DEFINE_integer(
    "seeds",
    3,
    "Number of random draws of the --shots images, with seeds 0, 1, ...",
  )
  flags.DEFINE_bool(
    "pre_logits",
    True,
    "Probe the output of the representation layer, if the checkpoint has one.",
  )
  flags.DEFINE_bool("json", False, "Print one JSON object instead of a table.")
  command.define_overrides()


def main(arguments: list[str]) -> None:
  """Runs a probe and prints its scores.

  Raises ValueError if DATA and a key of the configuration name the same thing.
  """
  # Imported here because data workers import this module and need no models.
  import jax

  from vit_jax.run.experiments import probe
  from vit_jax.run.flags import (
    DATA_PLACES,
    config_settings,
    data_keys,
    is_given,
  )
  from vit_jax.run.settings import ProbeSettings
  from vit_jax.runtime.display import Display

  options = flags.FLAGS
  display = Display(active=jax.process_index() == 0)
  _check_options(options.probe, filter(command.is_given, _ALL_OPTIONS))
  measure: Any = probe.probe_segmentation
  if options.probe != "segment":
    measure = functools.partial(probe.probe_checkpoint, probe=options.probe)
  data = data_keys(arguments[1], sets=True) if arguments[1:] else {}
  # A flag replaces what a configuration says about its data, but not the data.
  places = [f"data.{place}" for place in DATA_PLACES]
  data = {k: v for k, v in data.items() if k in places or not is_given(k)}
  result: Any = measure(
    arguments[0],
    config_settings(ProbeSettings, data),
    display=None if options.json else display,
    **command.values(*_OPTIONS[options.probe]),
    **command.overrides(),
  )
  details: dict[str, Any] = {"probe": options.probe}
  if options.probe == "knn":
    details["neighbours"] = options.neighbours
  if options.probe == "few_shot":
    details["shots"] = options.shots
    details |= {"top1": result.top1, "top1_std": result.top1_std}
  if options.json:
    row = {**details, **dataclasses.asdict(result)}
    return display.note(json.dumps(row), whole=True)
  if options.probe == "segment":
    show_segmentation(display, result)
  elif options.probe == "few_shot":
    for line in few_shot_lines(result, options.shots):
      display.note(line)
  else:
    display.note(score_line(options.probe, result, options.neighbours))


def _check_options(probe: str, given: Iterable[str]) -> None:
  """Raises ValueError for an option that only has an effect on other probes."""
  others = sorted({*given} & _ALL_OPTIONS - {*_OPTIONS[probe]})
  if others:
    own = ", ".join(_OPTIONS[probe]) or "none"
    raise ValueError(
      f"{' and '.join(others)} would have no effect on the probe {probe}, "
      f"whose options are {own}: leave out what is not among them."
    )


@hints.accepts(
  'vit_jax.fewshot(loaded, folder, probe="knn")',
  same=hints.ours_by_other_names(
    {"neighbours": "neighbors n_neighbors", "shots": "num_shots n_shots"}
  ),
)
def fewshot(
  checkpoint: "str | os.PathLike[str] | Loaded",
  data: str | os.PathLike[str],
  *,
  probe: str = PROBES[0],
  **options: Any,
) -> "few_shot.Outcome | Score | Segmentation":
  """Scores a checkpoint's representations, as `vit_jax fewshot` does::

    vit_jax.fewshot("hf_s14_dinov2", "my_photos", shots=5).top1

  Args:
    checkpoint: As `load_pretrained` takes it, or what it or `vit_jax.train`
      returned.
    data: A folder of images, a file of labels, or "digits".
    probe: "few_shot" trains on `shots` images of each class; "knn" and "linear"
      take all training images; "segment" is for a folder of images and masks.
    **options: `shots` and `seeds` of few_shot; `neighbours` of knn, which may
      be called `k`; `pre_logits` of all but segment. If the checkpoint is a
      name or a path, keywords of `load_pretrained`, too.

  Returns:
    The accuracy, `top1`, or `mean_iou` of "segment", and what it was measured
    on.

  Raises:
    TypeError: if the loaded model is given after the data.
    ValueError: if the data and the checkpoint do not fit, or an option is
      wrong.
  """
  from vit_jax.run.experiments import probe as probes_of
  from vit_jax.run.flags import data_keys
  from vit_jax.run.settings import ProbeSettings, base_config, read

  checked("probe", str, probe, choices=PROBES)
  if probe == "knn" and "k" in options and "neighbours" not in options:
    options["neighbours"] = options.pop("k")  # Its name in the literature.
  _check_options(probe, options)
  if is_loaded(data):
    raise TypeError(
      "the data are a loaded model, which goes in front: "
      "vit_jax.fewshot(loaded, folder)."
    )
  config = base_config(ProbeSettings)
  keys = data_keys(os.path.expanduser(os.fspath(data)), sets=True)
  config.update_from_flattened_dict(keys)
  if callable_module.is_script():  # Worker processes would rerun it.
    config.loader.num_workers = 0
  loaded: Any = checkpoint
  source = loaded if is_loaded(loaded) else path_of_run(loaded)
  measure: Any = probes_of.probe_segmentation
  if probe != "segment":
    measure = probes_of.probe_checkpoint
    options["probe"] = probe
  return measure(source, read(config, ProbeSettings), **options)


def show_segmentation(display: "Display", score: "Segmentation") -> None:
  """Shows the IoU of each class, by its name, and a line on all of them."""
  rows = [
    (name, "absent" if iou is None else f"{iou:.2%}")
    for name, iou in zip(score.class_names, score.iou, strict=True)
  ]
  display.table(("class", "IoU"), rows)
  display.note(
    f"mean IoU {score.mean_iou:.2%}  pixels right {score.pixels_right:.2%}  "
    f"({score.examples:,} examples; a linear probe, L2 {score.l2:.2g}, of "
    f"{score.train_examples:,} training images{_unreadable(score)})"
    f"{score.verdict.aside}"
  )


def score_line(probe: str, score: "Score", neighbours: int) -> str:
  """The result of a probe that uses the whole training split."""
  method = f"the {neighbours} nearest"
  if score.l2 is not None:
    method = f"a linear probe, L2 {score.l2:.2g},"
  return (
    f"{probe:<9}top-1 {score.top1:.2%}  ({score.examples:,} examples; {method} "
    f"of {score.train_examples:,} training images{_unreadable(score)})"
    f"{score.verdict.aside}"
  )


def few_shot_lines(outcome: "few_shot.Outcome", shots: int) -> list[str]:
  """The result of each draw of the shots, and their mean."""
  draws = [
    f"seed {draw.seed:<4}top-1 {draw.top1:.2%}  L2 {draw.l2:g}"
    for draw in outcome.draws
  ]
  name = f"{shots}-shot"
  deviation = ""
  if outcome.top1_std is not None:
    deviation = f" +- {outcome.top1_std:.2%}"
  mean = (
    f"{name:<9}top-1 {outcome.top1:.2%}{deviation}  ({outcome.examples:,} "
    f"examples{_unreadable(outcome)}){outcome.verdict.aside}"
  )
  return [*draws, mean]


def _unreadable(result: Any) -> str:
  """The end of a line on a result whose splits have unreadable images."""
  skipped = result.skipped_images
  return f", {skipped:,} unreadable images skipped" if skipped else ""


if __name__ == "__main__":
  command.run(main, takes="CHECKPOINT [DATA]", define=define_flags)
else:
  callable_module.make_callable(__name__, fewshot)
