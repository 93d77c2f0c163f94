"""Writes a report on one or several runs as a single HTML file.

vit_jax report runs/my_photos
vit_jax report runs/small runs/large --out both.html

The file needs no network. It shows the training curves, the configuration and
the command that repeats the run. The checkpoint is evaluated again for the
accuracy of each class, the confusion matrix, the calibration, examples with
their attention rollout, and figures of the embeddings. Several runs are
compared. By default the file is report.html in the workdir; for several
workdirs, or an address such as gs://bucket/run, it is in the current folder.
"""

from absl import flags

from vit_jax.runtime import command


def define_flags() -> None:
  flags.DEFINE_string("out", None, "File to write; report.html by default.")
  command.define_choice()


def main(arguments: list[str]) -> int:
  """Writes a report on the runs; returns the exit code."""
  # Imported here because data workers import this module and need no models.
  from vit_jax.report.write import report_files

  return report_files(arguments, out=flags.FLAGS.out, **command.choice())


if __name__ == "__main__":
  command.run(main, takes="WORKDIR [WORKDIR...]", define=define_flags)
