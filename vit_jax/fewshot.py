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
from vit_jax.tasks import probes

if TYPE_CHECKING:
  from vit_jax.runtime.display import Display
  from vit_jax.tasks.probes.few_shot import Outcome
  from vit_jax.tasks.probes.segmentation import Segmentation
  from vit_jax.tasks.probes.whole_set import Score

PROBES = (*probes.PROBES, "segment")


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

  from vit_jax.run.experiments import probe
  from vit_jax.run.flags import config_settings
  from vit_jax.run.settings import ProbeSettings
  from vit_jax.runtime.display import Display

  options = flags.FLAGS
  display = Display(active=jax.process_index() == 0)
  measure, show = probe.probe_checkpoint, _show_score
  names = ["probe", "neighbours", "shots", "seeds", "pre_logits"]
  if options.probe == "segment":
    measure, show = probe.probe_segmentation, _show_segmentation
    names = []
  found: Any = measure(
    arguments[0],
    config_settings(ProbeSettings),
    display=None if options.json else display,
    **command.values(*names),
    **command.overrides(),
  )
  details: dict[str, Any] = {"probe": options.probe}
  if options.probe == "knn":
    details["neighbours"] = options.neighbours
  if options.probe == "few_shot":
    show, shots = _show_few_shot, options.shots
    details |= {"shots": shots, "top1": found.top1, "top1_std": found.top1_std}
  if options.json:
    return display.note(json.dumps({**details, **dataclasses.asdict(found)}))
  skipped = found.skipped_images
  unreadable = f", {skipped:,} unreadable images skipped" if skipped else ""
  return show(display, found, unreadable)


def _show_segmentation(
  display: "Display", found: "Segmentation", unreadable: str
) -> None:
  rows = [
    (f"{k}", "absent" if iou is None else f"{iou:.2%}")
    for k, iou in enumerate(found.iou)
  ]
  display.table(("class", "IoU"), rows)
  display.note(
    f"mean IoU {found.mean_iou:.2%}  pixels right {found.pixels_right:.2%}  "
    f"({found.examples:,} examples; a linear probe, L2 {found.l2:.2g}, of "
    f"{found.train_examples:,} training images{unreadable})"
  )


def _show_score(display: "Display", score: "Score", unreadable: str) -> None:
  how = f"the {flags.FLAGS.neighbours} nearest"
  if score.l2 is not None:
    how = f"a linear probe, L2 {score.l2:.2g},"
  display.note(
    f"{flags.FLAGS.probe:<9}top-1 {score.top1:.2%}  ({score.examples:,} "
    f"examples; {how} of {score.train_examples:,} training images{unreadable})"
  )


def _show_few_shot(
  display: "Display", outcome: "Outcome", unreadable: str
) -> None:
  for draw in outcome.draws:
    display.note(f"seed {draw.seed:<4}top-1 {draw.top1:.2%}  L2 {draw.l2:g}")
  spread, name = outcome.top1_std, f"{flags.FLAGS.shots}-shot"
  deviation = "" if spread is None else f" +- {spread:.2%}"
  display.note(
    f"{name:<9}top-1 {outcome.top1:.2%}{deviation}  "
    f"({outcome.examples:,} examples{unreadable})"
  )


if __name__ == "__main__":
  command.run(main, takes="CHECKPOINT", define=define_flags)
