"""Trains the rows of a study one after another, and compares them.

vit_jax study studies/positions --workdir runs/positions
vit_jax study FILE --workdir DIR --index 3 --set data.data_dir=PATH

FILE lists configurations in `ROWS`. Each row is a run of its own,
`train --config FILE:ROW --workdir WORKDIR/ROW`, in a process of its own.
Finished rows are skipped, and an unfinished one is resumed. WORKDIR/study.csv
has the last metrics of each finished row, and the study's figures show them.
FILE may also be the configuration of a single run, such as
finetune:b16_i21k,cifar10.
"""

from absl import flags

from vit_jax.runtime import command


def define_flags() -> None:
  flags.DEFINE_string("workdir", None, "Folder of the study.", required=True)
  flags.DEFINE_integer(
    "index", None, "Run this row alone; the first is 1.", lower_bound=1
  )
  flags.DEFINE_multi_string(
    "set", [], "KEY=VALUE of the configuration, for every row; repeatable."
  )
  flags.DEFINE_bool(
    "select",
    False,
    "Choose each row's learning rate on a held-out share of its training "
    "images, then train on all of them.",
  )


def main(arguments: list[str]) -> int:
  """Runs the rows of FILE; returns the exit code of `run_study`."""
  from vit_jax.run.experiments.study import run_study

  options = command.values("workdir", "index", "select")
  return run_study(arguments[0], changes=flags.FLAGS.set, **options)


if __name__ == "__main__":
  command.run(main, takes="FILE", define=define_flags, resumes=True)
