"""Writes a report on finished runs as one HTML file.

python -m vit_jax.report WORKDIR... [--out=report.html] [--step=N | --best]
  [--root=DIR] [--data_dir=DIR]

The file needs no network. It shows the run's curves, its configuration and the
command that repeats it. It also evaluates the checkpoint again, and shows the
accuracy by class, the confusion matrix, the calibration, telling examples with
their attention rollout, and the learned embeddings. Several runs are compared.
The report of a single local run is written to report.html in its workdir. That
of several runs, or of an address such as gs://bucket/run, is written to the
current folder.
"""

from absl import flags

from vit_jax.runtime import command


def define_flags() -> None:
  flags.DEFINE_string("out", None, "The file to write; report.html by default.")
  command.define_choice()


def main(arguments: list[str]) -> int:
  # Imported here, as data workers import this module but need no models.
  from vit_jax.report.write import report_files

  return report_files(arguments, out=flags.FLAGS.out, **command.choice())


if __name__ == "__main__":
  command.run(main, takes="WORKDIR [WORKDIR...]", define=define_flags)
