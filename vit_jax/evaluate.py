"""Evaluates a run's checkpoint, which says itself how.

python -m vit_jax.evaluate --workdir runs/digits
"""

from absl import flags

from vit_jax.runtime import command, hosts

_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Folder of the run.", required=True
)
_PER_CLASS = flags.DEFINE_bool("per_class", False, "Also each class's top-1.")
command.define_choice()
hosts.define_flags()


def main(_: list[str]) -> None:
  # Imported here because data workers import this module, and need no models.
  from vit_jax.evaluation.evaluation import evaluate_checkpoint

  hosts.join_flags()
  evaluate_checkpoint(
    _WORKDIR.value, per_class=_PER_CLASS.value, **command.choice()
  )


if __name__ == "__main__":
  command.run(main)
