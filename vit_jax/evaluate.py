"""Evaluates a run's checkpoint on the evaluation split of its data.

python -m vit_jax.evaluate --workdir=runs/digits

The checkpoint's description holds the data, the preprocessing and the model.
"""

from absl import flags

from vit_jax.runtime import command, hosts


def define_flags() -> None:
  flags.DEFINE_string("workdir", None, "Folder of the run.", required=True)
  flags.DEFINE_bool("per_class", False, "Show the top-1 of each class as well.")
  command.define_choice()
  hosts.define_flags()


def main(_: list[str]) -> None:
  # Imported here because data workers import this module and need no models.
  from vit_jax.run.saved import evaluate_checkpoint

  options = flags.FLAGS
  hosts.join_flags()
  evaluate_checkpoint(
    options.workdir, per_class=options.per_class, **command.choice()
  )


if __name__ == "__main__":
  command.run(main, define=define_flags)
