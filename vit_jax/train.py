"""Trains a Vision Transformer.

vit_jax train my_photos --epochs 20 --lr 3e-4
vit_jax train my_photos --pretrained hf_s14_dinov2

DATA is a folder of images or a file of labels, whose labels choose the
configuration, or a configuration. The workdir is then runs/NAME. Classes are
learned with configs/image_folder.py. With --pretrained, which names published
weights or a run, these are fine-tuned with configs/finetune.py, or its variant
for few images, in runs/NAME_WEIGHTS. Any key of the configuration can be
overridden, as in --config.optimizer.weight_decay=0.1.

The same command resumes a run that was stopped from its newest checkpoint; the
result is bit for bit the same as without the stop. Ctrl-C and SIGTERM save the
step under way first.
"""

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from absl import flags

from vit_jax.runtime import callable_module, command, hints, hosts, restarts

if TYPE_CHECKING:
  from vit_jax.pretrained.loaded import Loaded
  from vit_jax.run.in_python import Config, FinishedRun


def define_flags() -> None:
  """Defines the flags, and expands the command line.

  In `sys.argv`, the argument DATA and short flags, such as --epochs, become
  --config and --config.KEY. Raises ValueError as `flags.expanded` does.
  """
  from vit_jax.run.flags import define_config_file, expanded

  flags.DEFINE_string(
    "workdir",
    None,
    "Folder of the run; by default a folder in runs/ named after DATA.",
  )
  define_config_file()
  # Marked after it, so that a missing configuration is reported first: DATA
  # stands for both.
  flags.mark_flag_as_required("workdir")
  flags.DEFINE_bool(
    "allow_changes",
    False,
    "Resume even if the configuration or the data have changed.",
  )
  flags.DEFINE_integer(
    "restarts",
    0,
    "Restart after a crash, at most this many times in a row without a new "
    "checkpoint; 0 never restarts.",
    lower_bound=0,
  )
  flags.DEFINE_bool(
    "summary", False, "Print a table of the model's layers, and do not train."
  )
  hosts.define_flags()
  sys.argv[1:] = expanded(sys.argv[1:], workdir=True)


def main(_: list[str]) -> int | None:
  """Trains, or prints the layers; returns the exit code, None for 0.

  With --restarts, it trains in another process, and returns its exit code.
  """
  # Imported here because data workers import this module and need no models.
  from vit_jax.run import loop
  from vit_jax.run.flags import config_settings, is_given
  from vit_jax.run.summary import show_layers
  from vit_jax.runtime.stops import Interrupted, leave

  options = flags.FLAGS
  if options.restarts:
    return restarts.supervise(
      options.restarts, lambda: restarts.newest_step(options.workdir)
    )
  settings = config_settings()
  may_lower_batch = not is_given("batch_size")
  hosts.join_flags()
  if options.summary:
    show_layers(settings, may_lower_batch)
    return None
  try:
    with hosts.detect_lost_peers():
      loop.train(
        settings,
        options.workdir,
        allow_changes=options.allow_changes,
        may_lower_batch=may_lower_batch,
      )
  except Interrupted as stopped:
    leave(stopped.exit_code)
  return None


@hints.accepts(
  'vit_jax.train("my_photos", WEIGHTS)',
  same={
    **dict.fromkeys(("dataset", "folder", "data_dir", "train_data"), "data"),
    **dict.fromkeys(("weights", "checkpoint", "init_from"), "pretrained"),
    **dict.fromkeys(("output_dir", "out_dir", "save_dir", "out"), "workdir"),
  },
  keys="settings",
)
def train(
  data: str | os.PathLike[str] | None = None,
  pretrained: "str | os.PathLike[str] | Loaded | None" = None,
  *,
  config: "Config | None" = None,
  workdir: str | os.PathLike[str] | None = None,
  allow_changes: bool = False,
  settings: Mapping[str, Any] | None = None,
  **keywords: Any,
) -> "FinishedRun":
  """Trains a model on a folder of images, as `vit_jax train` does.

  The same call resumes a run that was stopped::

    run = vit_jax.train("my_photos", epochs=20, lr=3e-4)
    run.predict("holiday.jpg")

  Args:
    data: A folder of images, a file of labels, or a configuration, as a file, a
      name or what `vit_jax.config.load_config` returned.
    pretrained: Weights to start from; anything that `load_pretrained` reads,
      or what it returned.
    config: The configuration, in place of the one that suits the data.
    workdir: The run's folder; by default `runs/NAME`.
    allow_changes: Whether to resume even if the settings or the data have
      changed.
    settings: Values of the configuration by their dotted keys, such as
      `{"optimizer.weight_decay": 0.1}`.
    **keywords: Further such values: `epochs`, `batch_size`, `lr`, `image_size`,
      `task`, such as "regression", `freeze_backbone`, keys without a dot, the
      last parts of keys, such as `weight_decay`, and sections, as in
      `optimizer={"kind": "sgd"}`, or `optimizer="sgd"`, `model="S/16"` and
      `loss="sigmoid"` for short.

  Returns:
    The run, with its folder, its last metrics and their `history`,
    `predict(images)`, `evaluate(folder)`, and `load()` for its model.

  Raises:
    ValueError: if the settings or the data do not fit, before anything is
      compiled, or an image cannot be read.
    Interrupted: if the process was told to stop, after the state is saved.
    FloatingPointError: if the loss is not finite for `max_skipped_steps`
      consecutive steps, or the run has diverged.
    OSError: if the last checkpoint could not be saved.

  Example:

  >>> import tempfile
  >>> import vit_jax
  >>> folder = tempfile.mkdtemp()
  >>> run = vit_jax.train(config="digits", workdir=folder, total_steps=2)
  devices ...
  >>> run.step
  2
  """
  from vit_jax.run.in_python import start

  return start(
    data,
    config=config,
    workdir=workdir,
    pretrained=pretrained,
    settings={**(settings or {}), **keywords},
    allow_changes=allow_changes,
  )


if __name__ == "__main__":
  command.run(
    main,
    define=define_flags,
    resumes=True,
    beside={"summary": ("allow_changes", "restarts")},
  )
else:
  callable_module.make_callable(__name__, train)
