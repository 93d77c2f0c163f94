"""Measures few-shot accuracy, by a linear probe on a few images per class.

python -m vit_jax.fewshot CHECKPOINT --config.data.root=photographs --shots=5

CHECKPOINT is a workdir, a file or a folder of published weights, an address, or
a name that `python -m vit_jax.convert --list` shows. Images are preprocessed as
the checkpoint requires, unless flags such as --image_size=64 override it.
"""

import dataclasses
import json
from typing import TYPE_CHECKING

from absl import flags

from vit_jax.runtime import command

if TYPE_CHECKING:
  from vit_jax.evaluation.few_shot import Outcome


def define_flags() -> None:
  from vit_jax.run.flags import define_config_keys
  from vit_jax.run.settings import ProbeSettings

  define_config_keys(ProbeSettings)
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

  from vit_jax.run.flags import config_settings
  from vit_jax.run.probe import probe_checkpoint
  from vit_jax.run.settings import ProbeSettings
  from vit_jax.runtime.display import Display

  options = flags.FLAGS
  display = Display(active=jax.process_index() == 0)
  outcome = probe_checkpoint(
    arguments[0],
    config_settings(ProbeSettings),
    shots=options.shots,
    seeds=options.seeds,
    pre_logits=options.pre_logits,
    display=None if options.json else display,
    **command.overrides(),
  )
  show = _json if options.json else _text
  display.note(show(outcome, options.shots))


def _text(outcome: "Outcome", shots: int) -> str:
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


def _json(outcome: "Outcome", shots: int) -> str:
  found = dataclasses.asdict(outcome)
  return json.dumps(
    {
      "shots": shots,
      "top1": outcome.top1,
      "top1_std": outcome.top1_std,
      **found,
    }
  )


if __name__ == "__main__":
  command.run(main, takes="CHECKPOINT", define=define_flags)
