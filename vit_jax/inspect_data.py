"""Looks through a folder of images before one trains on it.

vit_jax inspect_data my_photos
vit_jax inspect_data my_photos --model=CHECKPOINT --issues=issues.csv

ROOT is a folder, as in `--config.data.root` of a training run, or a file of
labels. Every file is read. The command prints the splits and what was ignored,
what the labels are, by --config.data.task (the images of each class or label,
the range of each number, the share of pixels of each class of masks), sizes,
files that are unreadable or odd, and pictures that are there more than once,
within a class, in several splits or under several labels. It compares pixels,
so a picture that was resized or compressed anew counts as another. If a file
has captions and no classes, it prints how many there are and how long they are.

A batch of augmented training images is drawn to --out. The exit code is 1 if a
file is unreadable.

With --model, likely label errors of all splits are listed: linear probes of the
checkpoint's representations answer each image without having seen it (confident
learning, arXiv:1911.00068). They go to the CSV file --issues, and a picture of
the same name beside it shows the images. CHECKPOINT is what `vit_jax predict`
takes; an encoder that was not trained on these labels is best.
"""

from absl import flags

from vit_jax.runtime import command


def define_flags() -> None:
  from vit_jax.inspection.settings import InspectSettings
  from vit_jax.run.flags import define_config_keys

  define_config_keys(InspectSettings)
  flags.DEFINE_string("out", "augmented.png", "Picture to write.")
  flags.DEFINE_string("model", None, "Checkpoint to find label errors with.")
  flags.DEFINE_string(
    "issues",
    None,
    "CSV file to write likely label errors to, with --model; issues.csv by "
    "default.",
  )
  flags.DEFINE_string(
    "probabilities",
    None,
    "An .npz file to write all images' out-of-fold probabilities to, with "
    "--model.",
  )
  command.define_overrides()


def main(arguments: list[str]) -> int:
  """Looks through ROOT; returns the exit code, 1 if a file is unreadable."""
  from vit_jax.inspection.data_sheet import inspect_folder
  from vit_jax.inspection.settings import InspectSettings
  from vit_jax.run.flags import config_settings, data_keys, is_given

  settings = config_settings(InspectSettings, data_keys(arguments[0]))
  names = ("out", "model", "issues", "probabilities")
  return inspect_folder(
    arguments[0],
    settings,
    task_is_given=is_given("data.task"),
    **command.values(*names),
    **command.overrides(),
  )


if __name__ == "__main__":
  command.run(main, takes="ROOT", define=define_flags)
