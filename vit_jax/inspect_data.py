"""Looks through a folder of images before one trains on it.

vit_jax inspect_data my_photos
vit_jax inspect_data my_photos --config.train_transform.crop=pad

ROOT is what `--config.data.root` of a training run would be, or a file of
labels. Every file is read. The command prints the splits and what was ignored,
the number of images of each class, their sizes, files that are unreadable or
odd, and pictures that are there more than once, within a class, in several
splits or under several labels. It compares pixels, so a picture that was
resized or compressed anew counts as another.

A batch of augmented training images is drawn to --out. The exit code is 1 if a
file is unreadable.
"""

from absl import flags

from vit_jax.runtime import command


def define_flags() -> None:
  from vit_jax.inspection.settings import InspectSettings
  from vit_jax.run.flags import define_config_keys

  define_config_keys(InspectSettings)
  flags.DEFINE_string("out", "augmented.png", "Picture to write.")


def main(arguments: list[str]) -> int:
  from vit_jax.inspection.data_sheet import inspect_folder
  from vit_jax.inspection.settings import InspectSettings
  from vit_jax.run.flags import config_settings

  settings = config_settings(InspectSettings)
  return inspect_folder(arguments[0], settings, flags.FLAGS.out)


if __name__ == "__main__":
  command.run(main, takes="ROOT", define=define_flags)
