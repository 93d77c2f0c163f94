"""Reports on runs: one HTML file of what they learned, and how.

python -m vit_jax.report WORKDIR... [--out=report.html] [--step=N | --best]
  [--root=DIR] [--data_dir=DIR]

The file needs no network. It shows curves, the configuration and the command
that repeats the run; and of the checkpoint, evaluated anew, accuracy by class,
confusion, calibration, telling examples with their attention rollout, and what
the embeddings have learned. Several runs are compared. By default it goes to
report.html in the workdir; of several, or of an address such as gs://bucket/run,
in the current folder.
"""

from absl import flags

from vit_jax.runtime import command


def define_flags() -> None:
  flags.DEFINE_string("out", None, "The file to write; report.html by default.")
  command.define_choice()


def main(arguments: list[str]) -> int:
  # Imported here because data workers import this module, and need no models.
  from vit_jax.report.write import report_files

  return report_files(arguments, out=flags.FLAGS.out, **command.choice())


if __name__ == "__main__":
  command.run(main, takes="WORKDIR [WORKDIR...]", define=define_flags)
