"""Finds a learning rate for a configuration by a range test.

vit_jax find_lr my_photos
vit_jax find_lr --config digits --steps 200 --out lr

A fresh model is trained for a few steps while the learning rate rises
(arXiv:1506.01186). The curve of the loss is written to lr_range.csv and
lr_range.png, and the rate at which it falls fastest is suggested.
"""

from absl import flags

from vit_jax.runtime import command


def define_flags() -> None:
  from vit_jax.run.flags import define_config_file, expand

  define_config_file()
  flags.DEFINE_string("out", ".", "Folder to write to.")
  flags.DEFINE_integer("steps", 100, "Number of steps.")
  flags.DEFINE_float("lowest", 1e-6, "Learning rate of the first step.")
  flags.DEFINE_float("highest", 1.0, "Learning rate of the last step.")
  expand()


def main(_: list[str]) -> None:
  # Imported here because data workers import this module and need no models.
  from vit_jax.run.experiments.lr_range import find_lr
  from vit_jax.run.flags import config_settings, is_given

  options = command.values("out", "steps", "lowest", "highest")
  may_lower_batch = not is_given("batch_size")
  find_lr(config_settings(), may_lower_batch=may_lower_batch, **options)


if __name__ == "__main__":
  command.run(main, define=define_flags)
