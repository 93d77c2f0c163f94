"""Settings that a run takes from its data or keeps from its beginning."""

import dataclasses
import math
import os
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from vit_jax.data.example import Source, sides
from vit_jax.run import fastest
from vit_jax.run.settings import Settings, read_saved
from vit_jax.runtime.printable import say
from vit_jax.runtime.settings import flat, replaced, to_dict
from vit_jax.training import sharding

# Keys that a resumed run takes from its beginning if they are None.
_KEPT = (
  "data.eval_split",
  "data.label_separator",
  "data.held_out_by",
  "data.held_out_below",
  "fewshot.data.held_out_by",
  "fewshot.data.held_out_below",
  *fastest.KEYS,
)


def as_begun(settings: Settings, saved: Mapping[str, Any]) -> Settings:
  """The settings of a resumed run: some keys keep the value that was saved.

  A key that the command does not set keeps it if its default has changed since
  the run began, or if it is in `_KEPT`. `saved` is the run's description.
  """
  old, before, default, now = (
    flat(to_dict(s))
    for s in (read_saved(saved["config"]), read_saved({}), Settings(), settings)
  )
  # `before` has the defaults of older versions, and `default` those of now.
  old_values = {
    key: before[key]
    for key in old
    if now[key] == default[key] and old[key] == before[key]
  }
  open_keys = [key for key in _KEPT if now[key] is None]
  old_values |= {key: old[key] for key in open_keys}
  if jax.device_count() % max(1, old_values.get("mesh.fsdp") or 1):
    del old_values["mesh.fsdp"]  # The old value does not fit these devices.
  return replaced(settings, old_values)


def with_sides(settings: Settings, train: Source) -> Settings:
  """The settings with the rule by which images were held out of `train`.

  The run keeps the rule, so that it holds the same images out when resumed.
  """
  return dataclasses.replace(
    settings, data=dataclasses.replace(settings.data, **sides(train))
  )


def with_lower_batch(settings: Settings, mesh: Mesh, train: Source) -> Settings:
  """The settings, with a batch that is no larger than the training split.

  If no such batch splits over the devices, or holds all `repeats` of an image,
  the settings stay as they are, and a later check refuses them.
  """
  size = settings.batch_size
  shards = sharding.batch_shards(mesh) * settings.parts
  unit = math.lcm(shards, jax.process_count())
  unit *= settings.data.images_per_row
  lower = len(train) // unit * unit
  if size <= len(train) or lower < max(1, settings.train_transform.repeats):
    return settings
  if jax.process_index() == 0:
    say(
      f"{train.name} has {len(train)} training examples: taking "
      f"batch_size={lower} in place of {size}."
    )
  return dataclasses.replace(settings, batch_size=lower)


def absolute_places(settings: Settings) -> dict[str, str]:
  """The paths of the data by key, made absolute unless they are addresses."""
  places = {}
  for key in ("root", "dir", "data_dir", "labels_file", "eval_labels_file"):
    if path := getattr(settings.data, key):
      if "file" in key:
        from vit_jax.data.reading.label_file import locate

        path = locate(settings.data, path)
      path = os.path.expanduser(path)
      places[key] = path if "://" in path else os.path.abspath(path)
  return places
