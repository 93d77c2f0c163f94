"""Few-shot accuracy of a checkpoint: a linear probe of a few images a class.

python -m vit_jax.fewshot runs/cifar10 --config.data.root=photographs --shots 5

CHECKPOINT is a workdir, a file of weights or a published name, as
`load_pretrained` takes them. Images are given to it as its origin says, unless
--image_size=64, --mean=... or --std=... say otherwise.
"""

import dataclasses
import json
import re
import sys
from typing import TYPE_CHECKING

import ml_collections
from absl import flags
from ml_collections import config_flags

from vit_jax.config import base_config, leaf_keys
from vit_jax.runtime import command

if TYPE_CHECKING:
  from vit_jax.evaluation.few_shot import Outcome

_SECTIONS = ("data", "loader", "eval_transform", "mesh")


def probe_config() -> ml_collections.ConfigDict:
  """The keys of `base_config` that matter here."""
  base = base_config()
  c = ml_collections.ConfigDict({name: base[name] for name in _SECTIONS})
  c.transfer = dict(interpolation=base.transfer.interpolation)
  c.batch_size = base.batch_size
  c.eval_batch_size = base.eval_batch_size
  return c.lock()


def _without_unknown_keys(argv: list[str]) -> list[str]:
  """The command line that the flag below may see.

  Where no file is to be read it looks for overrides as soon as it is defined,
  and an unknown key raises where no one can catch it. Left out, such a key is
  an unknown flag to absl, which says so in a line.
  """
  known = set(leaf_keys(probe_config()))

  def is_known(argument: str) -> bool:
    found = re.match(r"--?(?:no)?config\.([^=[]*)", argument)
    return found is None or found[1] in known

  return [argument for argument in argv if is_known(argument)]


_CONFIG = config_flags.DEFINE_config_dict(
  "config", probe_config(), sys_argv=_without_unknown_keys(sys.argv)
)
_SHOTS = flags.DEFINE_integer("shots", 5, "Training images a class.")
_SEEDS = flags.DEFINE_integer("seeds", 3, "Draws, from seed 0 on.")
_JSON = flags.DEFINE_bool("json", False, "Print one JSON object.")


def main(arguments: list[str]) -> None:
  # Imported here because data workers import this module, and need no models.
  import jax

  from vit_jax.run.probe_checkpoint import probe_checkpoint
  from vit_jax.runtime.display import Display

  display = Display(active=jax.process_index() == 0)
  outcome = probe_checkpoint(
    arguments[0],
    _CONFIG.value,
    shots=_SHOTS.value,
    seeds=_SEEDS.value,
    display=None if _JSON.value else display,
    **command.overrides(),
  )
  display.note(_json(outcome) if _JSON.value else _text(outcome))


def _text(outcome: "Outcome") -> str:
  """A line a seed, and one for all of them."""
  lines = [
    f"seed {draw.seed:<4}top-1 {draw.top1:.2%}  L2 {draw.l2:g}"
    for draw in outcome.draws
  ]
  spread = outcome.top1_std
  deviation = "" if spread is None else f" +- {spread:.2%}"
  skipped = outcome.skipped_images
  unreadable = f", {skipped:,} unreadable images skipped" if skipped else ""
  name = f"{_SHOTS.value}-shot"
  lines.append(
    f"{name:<9}top-1 {outcome.top1:.2%}{deviation}  "
    f"({outcome.examples:,} examples{unreadable})"
  )
  return "\n".join(lines)


def _json(outcome: "Outcome") -> str:
  found = dataclasses.asdict(outcome)
  return json.dumps(
    {
      "shots": _SHOTS.value,
      "top1": outcome.top1,
      "top1_std": outcome.top1_std,
      **found,
    }
  )


if __name__ == "__main__":
  command.define_overrides()
  command.run(main, takes="CHECKPOINT")
