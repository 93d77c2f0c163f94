"""Replays steps of a run, and compares them with its digests.

vit_jax verify runs/digits
vit_jax verify runs/digits --steps 400:420

A run writes digests of batches, losses and parameters to digests.jsonl, every
`digest_every` steps. The steps are computed again from the checkpoint before
them, or from the seed. The exit code is 1 if a digest differs.
"""

from absl import flags

from vit_jax.runtime import command, hosts


def define_flags() -> None:
  flags.DEFINE_string(
    "steps", None, "First and last step to repeat, such as 400:420."
  )
  says = (
    "Trust the checkpoint: import classes and open addresses that it alone "
    "names."
  )
  flags.DEFINE_bool("trust", False, says)
  flags.DEFINE_string("root", None, "Where the images or packed data are now.")
  flags.DEFINE_string("data_dir", None, "Where the TFDS data sets are now.")
  hosts.define_flags()


def main(arguments: list[str]) -> int:
  """Replays steps of a run; returns the exit code, 1 if a digest differs."""
  # Imported here because data workers import this module and need no models.
  from vit_jax.run.experiments.replay import verify

  hosts.join_flags()
  options = command.values("steps", "trust", "root", "data_dir")
  return int(not verify(arguments[0], **options))


if __name__ == "__main__":
  command.run(main, takes="WORKDIR", define=define_flags)
