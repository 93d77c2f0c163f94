"""Trains a Vision Transformer.

vit_jax train my_photos --epochs 20 --lr 3e-4
vit_jax train my_photos --pretrained hf_s14_dinov2
vit_jax train --config digits --workdir runs/digits

DATA is a folder of images or a file of labels, to train on with
configs/image_folder.py, or a configuration. The workdir is then runs/NAME. With
--pretrained, which names published weights or a run, it is trained on with
configs/finetune.py, by the number of images, in runs/NAME_WEIGHTS. Any key of
the configuration can be overridden, as in --config.optimizer.weight_decay=0.1.

The same command resumes a run that was stopped from its newest checkpoint; the
result is bit for bit the same as without the stop. Ctrl-C and SIGTERM save the
step under way first.
"""

from absl import flags

from vit_jax.runtime import command, hosts, restarts


def define_flags() -> None:
  from vit_jax.run.flags import define_config_file, expand

  flags.DEFINE_string(
    "workdir", None, "Folder of the run; runs/DATA if left out."
  )
  define_config_file()
  # A missing configuration, for which DATA suffices, is told first.
  flags.mark_flag_as_required("workdir")
  flags.DEFINE_bool(
    "allow_changes",
    False,
    "Resume even if the configuration or the data have changed.",
  )
  flags.DEFINE_integer(
    "restarts",
    0,
    "Restart after a crash, at most so many times without a new checkpoint.",
    lower_bound=0,
  )
  flags.DEFINE_bool(
    "summary", False, "Print a table of the model's layers, and do not train."
  )
  hosts.define_flags()
  expand(workdir=True)


def main(_: list[str]) -> int | None:
  # Imported here because data workers import this module and need no models.
  from vit_jax.run.flags import config_settings, is_given
  from vit_jax.run.loop import train
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
    with hosts.lost_peers():
      train(
        settings,
        options.workdir,
        allow_changes=options.allow_changes,
        may_lower_batch=may_lower_batch,
      )
  except Interrupted as stopped:
    leave(stopped.exit_code)
  return None


if __name__ == "__main__":
  command.run(main, define=define_flags, resumes=True)
