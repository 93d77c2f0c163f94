"""Averages the weights of runs, or mixes those of a start and a run.

vit_jax merge runs/seed_0 runs/seed_1 runs/seed_2 --out runs/soup --greedy
vit_jax merge runs/start runs/tuned --out runs/between --walk

The runs were trained from the same weights (model soups, arXiv:2203.05482);
with --greedy, a run joins the average only if the score on the evaluation split
does not fall. --walk tries eleven mixtures of two runs (WiSE-FT,
arXiv:2109.01903). OUT is written as a run with one checkpoint, which every
other command takes.
"""

from absl import flags

from vit_jax.runtime import command


def define_flags() -> None:
  flags.DEFINE_string(
    "out", None, "New folder to write the average to.", required=True
  )
  flags.DEFINE_bool(
    "greedy", False, "Leave out runs that lower the score of the average."
  )
  flags.DEFINE_bool(
    "walk",
    False,
    "Interpolate between the weights of two runs, a start and one trained from "
    "it, and write the best of eleven mixtures.",
  )
  command.define_choice()


def main(arguments: list[str]) -> None:
  """Averages runs; raises ValueError as `merge` does, or if a step is given."""
  # Imported here so that --help answers at once.
  from vit_jax.run.experiments.average import merge

  options = command.choice()
  if "step" in options:
    raise ValueError(
      "--step names a checkpoint of a single run, and several are averaged: "
      "leave it out, or give --best."
    )
  chosen = command.values("out", "greedy", "walk")
  merge(arguments, **chosen, **options)


if __name__ == "__main__":
  command.run(main, takes="RUN...", define=define_flags)
