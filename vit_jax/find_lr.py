"""Finds a learning rate for a configuration by a range test.

vit_jax find_lr my_photos
vit_jax find_lr --config digits --steps 200 --out lr

A fresh model is trained for a few steps while the learning rate rises
(arXiv:1506.01186). The curve of the loss is written to lr_range.csv and
lr_range.png, and the rate at which it falls fastest is suggested.
"""

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from absl import flags

from vit_jax.runtime import callable_module, command, hints

if TYPE_CHECKING:
  from vit_jax.run.experiments.lr_range import Found
  from vit_jax.run.in_python import Config


def define_flags() -> None:
  """Defines the flags, and expands the command line.

  In `sys.argv`, the argument DATA and short flags, such as --epochs, become
  --config and --config.KEY. Raises ValueError as `flags.expanded` does.
  """
  from vit_jax.run.flags import (
    check_range_test,
    define_config_file,
    expanded,
    key_and_value,
  )

  define_config_file()
  flags.DEFINE_string("out", ".", "Folder to write to.")
  flags.DEFINE_integer("steps", 100, "Number of steps.")
  flags.DEFINE_float("lowest", 1e-6, "Learning rate of the first step.")
  flags.DEFINE_float("highest", 1.0, "Learning rate of the last step.")
  words = sys.argv[1:]
  check_range_test(key_and_value(w)[0] for w in words if w.startswith("-"))
  sys.argv[1:] = expanded(words)


def main(_: list[str]) -> None:
  """Runs the range test with the settings of the flags."""
  # Imported here because data workers import this module and need no models.
  from vit_jax.run.experiments.lr_range import find_lr
  from vit_jax.run.flags import config_settings, is_given

  options = command.values("out", "steps", "lowest", "highest")
  may_lower_batch = not is_given("batch_size")
  find_lr(config_settings(), may_lower_batch=may_lower_batch, **options)


@hints.accepts('vit_jax.find_lr("my_photos")', keys="settings")
def find_lr(
  data: str | os.PathLike[str] | None = None,
  *,
  config: "Config | None" = None,
  pretrained: str | os.PathLike[str] | None = None,
  out: str = ".",
  steps: int = 100,
  lowest: float = 1e-6,
  highest: float = 1.0,
  settings: Mapping[str, Any] | None = None,
  **keywords: Any,
) -> "Found":
  """Finds a learning rate by a range test, as `vit_jax find_lr` does::

    found = vit_jax.find_lr("my_photos")
    vit_jax.train("my_photos", lr=found.suggested)

  Args:
    data, config, pretrained, settings, **keywords: As in `vit_jax.train`, but
      for `lr` and `epochs`.
    out: Folder for lr_range.csv and lr_range.png.
    steps: Number of steps.
    lowest: Learning rate of the first step.
    highest: Learning rate of the last step.

  Returns:
    The rates, the losses, and the rate `suggested`; a notebook shows the chart.

  Raises:
    ValueError: if the settings, the data or the range are invalid, or the loss
      diverges at once.
  """
  from vit_jax.run import in_python

  return in_python.find_lr(
    data,
    config=config,
    pretrained=pretrained,
    settings={**(settings or {}), **keywords},
    out=out,
    steps=steps,
    lowest=lowest,
    highest=highest,
  )


if __name__ == "__main__":
  command.run(main, define=define_flags)
else:
  callable_module.make_callable(__name__, find_lr)
