"""Evaluates a run's checkpoint, which says itself how.

python -m vit_jax.evaluate --workdir runs/digits
"""

from absl import flags

from vit_jax import command, hosts

_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Folder of the run.", required=True
)
_STEP = flags.DEFINE_integer("step", None, "Checkpoint; the newest by default.")
_BEST = flags.DEFINE_bool("best", False, "Take the checkpoint best in top-1.")
_PER_CLASS = flags.DEFINE_bool("per_class", False, "Also each class's top-1.")
_DATA_DIR = flags.DEFINE_string(
  "data_dir", None, "Where TFDS data sets are now, if they have moved."
)
_ROOT = flags.DEFINE_string("root", None, "Where the folder of images is now.")
hosts.define_flags()


def main(_: list[str]) -> None:
  # Imported here because data workers import this module, and need no models.
  from vit_jax.evaluation import evaluate_checkpoint

  hosts.join_flags()
  evaluate_checkpoint(
    _WORKDIR.value,
    step=_STEP.value,
    best=_BEST.value,
    per_class=_PER_CLASS.value,
    data_dir=_DATA_DIR.value,
    root=_ROOT.value,
  )


if __name__ == "__main__":
  command.run(main)
