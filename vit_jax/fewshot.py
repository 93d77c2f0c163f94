"""Few-shot accuracy of a checkpoint: a linear probe of a few images a class.

python -m vit_jax.fewshot runs/cifar10 --config.data.root=photographs --shots 5

CHECKPOINT is a workdir, a file of weights or a published name, as
`load_pretrained` takes them. Images are preprocessed as the checkpoint says,
unless --image_size=64, --mean=... or --std=... say otherwise.
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
  flags.DEFINE_integer("shots", 5, "Training images a class.")
  flags.DEFINE_integer("seeds", 3, "How many draws, from seed 0 on.")
  flags.DEFINE_bool("json", False, "Print one JSON object.")
  command.define_overrides()


def main(arguments: list[str]) -> None:
  # Imported here because data workers import this module, and need no models.
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
    display=None if options.json else display,
    **command.overrides(),
  )
  show = _json if options.json else _text
  display.note(show(outcome, options.shots))


def _text(outcome: "Outcome", shots: int) -> str:
  """A line a seed, and one for all of them."""
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
