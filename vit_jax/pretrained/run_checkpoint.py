"""Opens a checkpoint of one of our own runs as a `Loaded` model."""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from flax import traverse_util

from vit_jax.models import Origin, from_fields, scan
from vit_jax.models.grid import grid_of, param_shapes
from vit_jax.models.masked_vit import trunk
from vit_jax.models.variants import OwnBlockError
from vit_jax.pretrained.formats.mapping import Shapes, differences, listed
from vit_jax.pretrained.loaded import Loaded
from vit_jax.runtime.printable import one_line
from vit_jax.workdir import description as descriptions
from vit_jax.workdir.checkpoint import Checkpoints, open_run


def open_run_checkpoint(
  workdir: str, step: int | None = None, **fields: Any
) -> Loaded:
  """Opens a run's checkpoint, with its Polyak average if the run keeps one.

  Args:
    step: The checkpoint's step; by default the newest.
    **fields: Fields of the model to replace.

  A run on masked patches gives its model without a head.

  Raises:
    ValueError: if there is no such checkpoint, it is damaged, or its arrays are
      not those of a model with these fields.
  """
  with _opened(workdir) as checkpoints:
    step = checkpoints.choose(step)
    description = checkpoints.describe(step)
  with _describing(workdir, step):
    preprocessing = descriptions.preprocessing(description)
    origin = Origin(
      source=workdir,
      format="vit_jax",
      image_size=preprocessing.size,
      mean=preprocessing.mean,
      std=preprocessing.std,
      class_names=descriptions.class_names(description),
    )
    loss = descriptions.loss(description)
    averaged = descriptions.averages(description)
    # Stacked layers are of use only in training.
    saved = {k: v for k, v in description["model"].items() if k != "scan"}
    if "block" in fields:
      saved["block"] = fields.pop("block")
    scanned = description["model"].get("scan", False)
    trained = from_fields(saved)
    model, grid = trunk(trained), grid_of(trained, preprocessing.image_size)
    shapes = held = param_shapes(model, grid)
    if model is not trained:  # It predicts masked patches besides.
      held = param_shapes(trained, grid)
  if fields:
    stored, model = shapes, trunk(from_fields({**saved, **fields}))
    shapes = param_shapes(model, grid_of(model, preprocessing.image_size))
    _check_fields(workdir, stored, shapes, fields)

  return Loaded(
    model=model.clone(origin=origin),
    preprocessing=preprocessing,
    loss=loss,
    shapes=shapes,
    read=functools.partial(
      _read, workdir, step, held, shapes, scanned=scanned, averaged=averaged
    ),
    step=step,
    description=description,
  )


def _read(
  workdir: str,
  step: int,
  held: Shapes,
  wanted: Shapes,
  *,
  scanned: bool,
  averaged: bool,
) -> Iterator[tuple[str, np.ndarray]]:
  """Yields (path, array) of every parameter wanted, layer by layer."""
  hollow = traverse_util.unflatten_dict(
    # These take no memory, whatever size a damaged description claims.
    {k: np.broadcast_to(np.float32(0), s) for k, s in held.items()},
    sep="/",
  )
  if scanned:
    hollow = scan.stack(hollow)
  with _opened(workdir) as checkpoints:
    params = checkpoints.restore_params(step, hollow, averaged=averaged)
  if scanned:
    params = scan.unstack(params)
  flat: dict[str, Any] = traverse_util.flatten_dict(params, sep="/")
  yield from ((path, array) for path, array in flat.items() if path in wanted)


@contextlib.contextmanager
def _opened(workdir: str) -> Iterator[Checkpoints]:
  """Opens a run's checkpoints, and turns any error of Orbax into one line."""
  opened = False
  try:
    with contextlib.closing(open_run(workdir)) as checkpoints:
      opened = True
      yield checkpoints
  except OSError:
    raise
  except Exception as error:
    if opened and isinstance(error, ValueError):  # Raised by our own checks.
      raise
    raise ValueError(
      f"{workdir} has a damaged checkpoint ({type(error).__name__}: "
      f"{one_line(error)}): delete its folder, or choose another step."
    ) from error


@contextlib.contextmanager
def _describing(workdir: str, step: int) -> Iterator[None]:
  """Turns errors about a damaged description into one line.

  Building a model from arbitrary values may raise any kind of error.
  """
  try:
    yield
  except OwnBlockError as error:
    raise ValueError(f"{workdir}: {error}") from error
  except Exception as error:
    raise ValueError(
      f"the description of checkpoint {step} of {workdir} is damaged "
      f"({type(error).__name__}: {one_line(error)}): choose another step, or "
      "delete its folder."
    ) from error


def _check_fields(
  workdir: str, stored: Shapes, needed: Shapes, fields: Mapping[str, Any]
) -> None:
  """Raises ValueError unless the changed model has the run's arrays."""
  groups = differences(stored, needed)
  if any(groups.values()):
    given = ", ".join(f"{name}={value!r}" for name, value in fields.items())
    raise ValueError(
      f"{workdir} was not trained with {given}: {listed(groups)}. Leave out "
      "the fields that change its arrays."
    )
