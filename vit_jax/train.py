"""Trains a Vision Transformer.

python -m vit_jax.train --config configs/digits.py --workdir runs/digits

Any key of the configuration can be overridden, as in
--config.optimizer.peak_lr=3e-4. Started again on the same workdir, the run goes
on from its newest checkpoint and ends, to the last bit, where it would have
ended without the stop.
"""

from absl import flags
from ml_collections import config_flags

from vit_jax.runtime import command, hosts

_CONFIG = config_flags.DEFINE_config_file(
  "config", None, "Configuration file, with :argument if it takes one."
)
_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Folder of the run.", required=True
)
_ALLOW_CHANGES = flags.DEFINE_bool(
  "allow_changes",
  False,
  "Go on from a checkpoint of another configuration or other data.",
)
flags.mark_flag_as_required("config")
hosts.define_flags()


def main(_: list[str]) -> int | None:
  # Imported here because data workers import this module, and need no models.
  from vit_jax.run.loop import train
  from vit_jax.runtime.signals import EXIT_CODE, Interrupted

  hosts.join_flags()
  try:
    train(_CONFIG.value, _WORKDIR.value, allow_changes=_ALLOW_CHANGES.value)
  except Interrupted:
    return EXIT_CODE
  return None


if __name__ == "__main__":
  command.run(main, resumes=True)
