"""The data of a run: its splits, and batches of them for this host."""

import os
from collections.abc import Callable
from typing import Any, Literal

import jax
import ml_collections
from jax.sharding import Mesh

from vit_jax import data
from vit_jax.data.pipeline import EvalPasses
from vit_jax.data.transforms import EvalTransform
from vit_jax.run import experiment
from vit_jax.training import sharding

_SMALL_IMAGE = 64 * 64  # Pixels; below, starting processes costs more.
_MOST_WORKERS = 16


def open_source(
  config: ml_collections.ConfigDict, split: Literal["train", "eval"]
) -> data.Source:
  """The data set's "train" or "eval" split; a root goes before a name."""
  options = config.data.to_dict()
  if options["root"]:
    options["name"] = None
  elif not options["name"]:
    raise ValueError(
      "the configuration names no data: give --config.data.root=FOLDER, a "
      "folder of class folders, or --config.data.name=NAME, a TFDS data set."
    )
  return data.open_source(split, **options)


def check_data(config: ml_collections.ConfigDict, source: data.Source) -> None:
  """Raises ValueError where the data cannot be trained on as configured."""
  num_labels, num_classes = len(source.class_names), config.model.num_classes
  if num_classes is not None and num_classes < num_labels:
    raise ValueError(
      f"the data set has {num_labels} classes and model.num_classes is "
      f"{num_classes}: set it to {num_labels} or more."
    )
  data.check_train_batches(source, **_train_options(config))


def check_same_classes(
  names: tuple[str, ...], of: str, others: tuple[str, ...], of_others: str
) -> None:
  """Raises ValueError, saying what the lists are of, unless they are equal."""
  if names != others:
    only = ", ".join(sorted(set(names) ^ set(others))[:5])
    raise ValueError(
      f"{of} has {len(names)} classes and {of_others} {len(others)}, and they "
      "must be the same, in the same order; in one of them only: "
      f"{only or 'none'}."
    )


def train_batches(
  config: ml_collections.ConfigDict, source: data.Source
) -> Callable[[int], data.BatchIterator]:
  """Opens this host's part of the training batches, from a number on."""
  transform = data.make_train_transform(
    experiment.image_size(config), **config.train_transform
  )
  options = _train_options(config)
  return lambda first: data.train_batches(
    source,
    transform,
    first_batch=first,
    num_workers=_num_workers(config),
    **options,
  )


def eval_transform(config: ml_collections.ConfigDict) -> EvalTransform:
  """How images are prepared for an evaluation."""
  size = experiment.image_size(config)
  return data.make_eval_transform(size, **config.eval_transform)


def eval_batches(
  config: ml_collections.ConfigDict, source: data.Source, batch_size: int
) -> EvalPasses:
  """This host's part of the batches of a split, in order, over and over.

  As many processes decode them as there are batches at most; a process for a
  single one would be slower than a thread.
  """
  batches = -(-len(source) // batch_size)
  workers = min(_num_workers(config), batches)
  return data.eval_batches(
    source,
    eval_transform(config),
    batch_size=batch_size,
    num_workers=workers if batches > 1 else 0,
    **_host_options(config),
  )


def eval_batch_size(
  config: ml_collections.ConfigDict, mesh: Mesh, most: int | None = None
) -> int:
  """As configured, rounded up to split over the mesh.

  The last batch is padded and masked anyway, so any size is made to fit.

  Args:
    config: Of the run.
    mesh: Of devices.
    most: Examples there are, where they may be fewer than a batch.

  Raises:
    ValueError: if it is negative.
  """
  batch_size = config.eval_batch_size or config.batch_size
  if batch_size < 1:
    raise ValueError(f"eval_batch_size={batch_size} must not be negative.")
  if most is not None:
    batch_size = min(batch_size, most)
  shards = sharding.batch_shards(mesh)
  return -(-batch_size // shards) * shards


def _train_options(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """What training batches are checked and opened with."""
  return dict(
    batch_size=config.batch_size, seed=config.seed, **_host_options(config)
  )


def _host_options(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """This host's part of any batches, and what to do where it has no image."""
  return dict(
    process_index=jax.process_index(),
    process_count=jax.process_count(),
    on_unreadable=config.loader.on_unreadable,
  )


def _num_workers(config: ml_collections.ConfigDict) -> int:
  """Decoding processes: as configured, or one a core unless images are tiny.

  Photographs in folders take work to decode however small they end up.
  """
  if config.loader.num_workers != -1:
    return config.loader.num_workers
  height, width = experiment.image_size(config)
  if not config.data.root and height * width <= _SMALL_IMAGE:
    return 0
  return min(_MOST_WORKERS, _num_cores())


def _num_cores() -> int:
  """Cores this process may use, which can be fewer than the machine has."""
  if hasattr(os, "sched_getaffinity"):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1
