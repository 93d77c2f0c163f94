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

  A key keeps its saved value if it is in `_KEPT` and None now, or if it has its
  default now and had that of an older version in the run. An old `mesh.fsdp`
  that does not divide the devices is not kept. `saved` is the description of
  the run.
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

  A line says so if the batch gets smaller. If no smaller batch splits over the
  devices, or only one with fewer than `train_transform.repeats` examples, the
  settings stay as they are, and a later check refuses them.
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
  """The paths in `settings.data` by field: absolute, except for addresses."""
  places = {}
  for key in ("root", "dir", "data_dir", "labels_file", "eval_labels_file"):
    if path := getattr(settings.data, key):
      if "file" in key:
        from vit_jax.data.reading.label_file import locate

        path = locate(settings.data, path)
      path = os.path.expanduser(path)
      places[key] = path if "://" in path else os.path.abspath(path)
  return places
