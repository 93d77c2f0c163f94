"""Measures what a probe of a checkpoint's representations gets right.

python -m vit_jax.fewshot CHECKPOINT --config.data.root=photographs --shots=5
python -m vit_jax.fewshot CHECKPOINT --config.data.root=photographs --probe=knn

The probe is linear, on a few images per class; or, on the whole training split,
it is linear or takes the k nearest neighbours; or a linear one names the class
of each pixel.

CHECKPOINT is a workdir, a file or a folder of published weights, an address, or
a name that `python -m vit_jax.convert --list` shows. Images are preprocessed as
the checkpoint requires, unless flags such as --image_size=64 override it.
"""

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from absl import flags

from vit_jax.runtime import command

if TYPE_CHECKING:
  from vit_jax.evaluation.few_shot import Outcome
  from vit_jax.evaluation.whole_set import Score
  from vit_jax.runtime.display import Display

# Written out, so that --help does not load JAX; a test compares the names.
PROBES = ("few_shot", "knn", "linear", "segment")


def define_flags() -> None:
  from vit_jax.run.flags import define_config_keys
  from vit_jax.run.settings import ProbeSettings

  define_config_keys(ProbeSettings)
  flags.DEFINE_enum(
    "probe",
    PROBES[0],
    PROBES,
    "few_shot takes --shots images per class, knn and linear take all; segment "
    "names the class of each pixel, of a folder of images and masks.",
  )
  flags.DEFINE_integer(
    "neighbours", 20, "Number of nearest training images that vote in knn."
  )
  flags.DEFINE_integer("shots", 5, "Number of training images per class.")
  flags.DEFINE_integer(
    "seeds", 3, "Number of random draws of these images, with seeds 0, 1, ..."
  )
  flags.DEFINE_bool(
    "pre_logits",
    True,
    "Probe the output of the representation layer, if the checkpoint has one.",
  )
  flags.DEFINE_bool("json", False, "Print one JSON object instead of a table.")
  command.define_overrides()


def main(arguments: list[str]) -> None:
  # Imported here because data workers import this module and need no models.
  import jax

  from vit_jax.evaluation.few_shot import Outcome
  from vit_jax.run.experiments.probe import probe_checkpoint
  from vit_jax.run.flags import config_settings
  from vit_jax.run.settings import ProbeSettings
  from vit_jax.runtime.display import Display

  options = flags.FLAGS
  display = Display(active=jax.process_index() == 0)
  if options.probe == "segment":
    return _segment(arguments[0], display)
  outcome = probe_checkpoint(
    arguments[0],
    config_settings(ProbeSettings),
    **command.values("probe", "neighbours", "shots", "seeds", "pre_logits"),
    display=None if options.json else display,
    **command.overrides(),
  )
  details: dict[str, Any] = {"probe": options.probe}
  if options.probe == "knn":
    details["neighbours"] = options.neighbours
  if isinstance(outcome, Outcome):
    top1, top1_std = outcome.top1, outcome.top1_std
    details |= {"shots": options.shots, "top1": top1, "top1_std": top1_std}
  if options.json:
    display.note(json.dumps({**details, **dataclasses.asdict(outcome)}))
  elif isinstance(outcome, Outcome):
    display.note(_few_shot_text(outcome, options.shots))
  else:
    display.note(_score_text(outcome, details))


def _segment(checkpoint: str, display: "Display") -> None:
  from vit_jax.run.experiments.segmentation_probe import probe_segmentation
  from vit_jax.run.flags import config_settings
  from vit_jax.run.settings import ProbeSettings

  as_json = flags.FLAGS.json
  found = probe_segmentation(
    checkpoint,
    config_settings(ProbeSettings),
    None if as_json else display,
    **command.overrides(),
  )
  if as_json:
    told = {"probe": "segment", **dataclasses.asdict(found)}
    return display.note(json.dumps(told))
  display.table(
    ("class", "IoU"),
    [
      (f"{k}", "absent" if iou is None else f"{iou:.2%}")
      for k, iou in enumerate(found.iou)
    ],
  )
  skipped = found.skipped_images
  unreadable = f", {skipped:,} unreadable images skipped" if skipped else ""
  display.note(
    f"mean IoU {found.mean_iou:.2%}  pixels right {found.pixels_right:.2%}  "
    f"({found.examples:,} examples; a linear probe, L2 {found.l2:.2g}, of "
    f"{found.train_examples:,} training images{unreadable})"
  )


def _score_text(score: "Score", details: dict[str, Any]) -> str:
  """The result of a probe on the whole training split, in a line."""
  if score.l2 is None:
    how = f"the {details['neighbours']} nearest"
  else:
    how = f"a linear probe, L2 {score.l2:.2g},"
  skipped = score.skipped_images
  unreadable = f", {skipped:,} unreadable images skipped" if skipped else ""
  return (
    f"{details['probe']:<9}top-1 {score.top1:.2%}  ({score.examples:,} "
    f"examples; {how} of {score.train_examples:,} training images{unreadable})"
  )


def _few_shot_text(outcome: "Outcome", shots: int) -> str:
  """The outcome as one line per seed, and one for their mean."""
  lines = [
    f"seed {draw.seed:<4}top-1 {draw.top1:.2%}  L2 {draw.l2:g}"
    for draw in outcome.draws
  ]
  spread = outcome.top1_std
  deviation = "" if spread is None else f" +- {spread:.2%}"
  skipped = outcome.skipped_images
  unreadable = f", {skipped:,} unreadable images skipped" if skipped else ""
  name = f"{shots}-shot"
  lines.append(
    f"{name:<9}top-1 {outcome.top1:.2%}{deviation}  "
    f"({outcome.examples:,} examples{unreadable})"
  )
  return "\n".join(lines)


if __name__ == "__main__":
  command.run(main, takes="CHECKPOINT", define=define_flags)
