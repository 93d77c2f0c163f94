"""Opens a checkpoint of one of our own runs as a `Loaded` model."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from flax import traverse_util

from vit_jax.data.preprocessing import Preprocessing
from vit_jax.models import Model, Origin, from_fields
from vit_jax.models.grid import check_depth, grid_of, param_shapes
from vit_jax.models.parts import Parts
from vit_jax.models.variants import ADAPTED, OwnBlockError, is_ours
from vit_jax.pretrained import pinned, transfer
from vit_jax.pretrained.formats.mapping import (
  Shapes,
  differences,
  differences_text,
)
from vit_jax.pretrained.loaded import Loaded
from vit_jax.pretrained.opened import with_inputs
from vit_jax.pretrained.text import Leaves
from vit_jax.runtime.printable import one_line
from vit_jax.tasks import choose
from vit_jax.tasks.task import Task
from vit_jax.training import lora
from vit_jax.training.state import make_params_init
from vit_jax.workdir import calibration
from vit_jax.workdir import description as descriptions
from vit_jax.workdir.checkpoint import Checkpoints, open_run


def open_run_checkpoint(
  workdir: str,
  step: int | None = None,
  best: bool = False,
  *,
  as_trained: bool = False,
  task: str | type[Task] | None = None,
  **fields: Any,
) -> tuple[Loaded, "Added | None"]:
  """Opens a run's checkpoint, with its Polyak average if the run keeps one.

  A run without labels gives its model without a head.

  Args:
    workdir: The run's folder.
    step: The checkpoint's step; by default the newest.
    best: Whether to take the checkpoint with the best score instead.
    as_trained: Whether to give the model as it was trained, with stacked layers
      and its task's own parts.
    task: The run's task, as "file.py:Class" or the class itself, if it is one
      of the user's own.
    **fields: Fields of the model to replace.

  Returns:
    The checkpoint, and for a run with LoRA what it trained, to be merged into
    its base; None for other runs.

  Raises:
    ValueError: if there is no such checkpoint, it is damaged, or its arrays are
      not those of a model with these fields.
  """
  with _open_checkpoints(workdir) as checkpoints:
    step = checkpoints.choose(step, best)
    description = checkpoints.describe(step)
  fitted, lines = calibration.find(workdir, description)
  saved = _Saved(workdir, step, description, fitted)
  notes = (*checkpoints.notes, *lines)
  with _blame_description(workdir, step):
    preprocessing = descriptions.preprocessing(description)
    inputs = {"image": preprocessing}
    names = descriptions.class_names(description)
    plain = Origin(workdir, "vit_jax", None, class_names=names)
    origin = with_inputs(plain, inputs)
    model_fields = _unstacked(description["model"])
    if "block" in fields:
      model_fields["block"] = fields.pop("block")
    make_model = saved.model_maker(task)
    trained = make_model(model_fields).clone(origin=origin)
    check_depth(trained)
    model = trained if as_trained else trained.trunk
    shapes = _shapes(model, preprocessing)
    trained_shapes = shapes
    if "base" in description or model is not trained:
      trained_shapes = _trained_shapes(trained, description)
  if fields:
    model = make_model({**model_fields, **fields}).clone(origin=origin).trunk
    stored = shapes
    shapes = _shapes(model, preprocessing)
    _check_fields(workdir, stored, shapes, fields)
  parts = Parts.of(trained, trained_shapes)
  read = functools.partial(saved.read, trained_shapes, parts)
  added, restore = None, None
  if "base" in description:
    added = Added(
      model=model,
      description=description,
      images=preprocessing,
      parts=parts,
      read=read,
    )
  elif as_trained:
    model = model.clone(scan=True) if saved.is_scanned else model
    restore = saved.restore
  loaded = Loaded(
    model=model,
    inputs=inputs,
    open_task=functools.partial(saved.open_task, task),
    shapes=shapes,
    read=lambda: (leaf for leaf in read() if leaf[0] in shapes),
    step=step,
    description=description,
    notes=notes,
    restore=restore,
  )
  return loaded, added


@dataclasses.dataclass(frozen=True)
class Added:
  """The changes that a run with LoRA trained, to be merged into its base.

  Attributes:
    model: The model whose parameters are the base's with LoRA's products.
    description: The checkpoint's description.
    images: How the run's images are prepared.
    parts: The parts of the model that was trained.
    read: Yields (path, array) of every parameter that was trained.
  """

  model: Model
  description: Mapping[str, Any]
  images: Preprocessing
  parts: Parts
  read: Callable[[], Leaves]

  @property
  def base(self) -> Mapping[str, Any]:
    """The record of the base."""
    return self.description["base"]

  @property
  def base_fields(self) -> dict[str, Any]:
    """The fields of the base's model that JSON cannot hold: a user's block."""
    block = self.model.block
    return {} if block is None or is_ours(block) else {"block": block}

  def merge_into(self, base: Loaded) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (path, array) of every parameter, with LoRA's products merged.

    Raises ValueError if the base is not the one that the run was trained on.
    """
    settings = descriptions.recorded_settings(self.description).lora
    digests: dict[str, str] = {}
    trained = dict(self.read())
    leaves = transfer.leaves(
      pinned.with_digests(base, digests),
      self.model,
      self.images.image_size,
      channels=self.images.channels,
      bands=self.images.bands,
    )
    for path, array in leaves:
      if not self.parts.is_trained_beside_lora(path):
        yield path, lora.with_product(settings, path, array, trained)
    pinned.check_base(self.base, digests)
    for path, array in trained.items():
      if self.parts.is_trained_beside_lora(path):
        yield path, array


class _DescriptionError(ValueError):
  """A description from which no model or task can be made."""


@dataclasses.dataclass(frozen=True)
class _Saved:
  """A checkpoint in the folder of its run."""

  workdir: str
  step: int
  description: Mapping[str, Any]
  fitted: Mapping[str, Any]  # Its calibration; empty if it has none.

  @property
  def is_scanned(self) -> bool:
    """Whether the saved layers are stacked."""
    return self.description["model"].get("scan", False)

  def open_task(self, user_task: str | type[Task] | None) -> Task:
    """The run's task; `user_task` is the user's own, if there is one."""
    loss = descriptions.recorded_settings(self.description).loss
    with _blame_description(self.workdir, self.step):
      described = {**self.description, "calibration": self.fitted}
      task = choose.saved(described, loss, user_task)
      names = descriptions.class_names(self.description)
      count = task.answers.temperatures(names) if task.answers else 0
    calibration.check_count(self.workdir, self.fitted, count)
    return task

  def model_maker(self, user_task: str | type[Task] | None) -> Any:
    """The function that makes the model from fields; the task's, if it has one.

    `user_task` is as in `open_task`, which raises the errors.
    """
    if not self.description["model"].get(ADAPTED):
      return from_fields
    return functools.partial(choose.model_of, self.open_task(user_task))

  def restore(self, shapes: Any) -> Any:
    """The parameters, or their average, laid out on the devices as `shapes`."""
    averaged = bool(descriptions.recorded_settings(self.description).ema_decay)
    with _open_checkpoints(self.workdir) as checkpoints:
      return checkpoints.restore_params(self.step, shapes, averaged=averaged)

  def read(self, shapes: Shapes, parts: Parts) -> Leaves:
    """The path and array of every parameter in `shapes`, layer by layer."""
    # These arrays take no memory, whatever size a damaged description claims.
    empty = {
      path: np.broadcast_to(np.float32(0), shape)
      for path, shape in shapes.items()
    }
    tree = traverse_util.unflatten_dict(empty, sep="/")
    if self.is_scanned:
      params = parts.unstack(self.restore(parts.stack(tree)))
    else:
      params = self.restore(tree)
    flat: dict[str, Any] = traverse_util.flatten_dict(params, sep="/")
    return flat.items()


def _shapes(model: Model, preprocessing: Preprocessing) -> Shapes:
  """The shapes of a model's parameters, by path, for a run's image size."""
  return param_shapes(model, grid_of(model, preprocessing.image_size))


def _unstacked(fields: Mapping[str, Any]) -> dict[str, Any]:
  """A model's fields without `scan`, as layers are stacked only in training."""
  return {name: value for name, value in fields.items() if name != "scan"}


def _trained_shapes(model: Model, description: Mapping[str, Any]) -> Shapes:
  """The shapes of the parameters that a run saves, by path.

  A run with LoRA saves only what it trains; other runs save all parameters of
  the model, with those of the task's own parts.
  """
  if "base" in description:
    return _lora_shapes(model, description)
  return _shapes(model, descriptions.preprocessing(description))


def _lora_shapes(model: Model, description: Mapping[str, Any]) -> Shapes:
  """The shapes of the parameters that a run with LoRA trains."""
  shape = descriptions.preprocessing(description).image_shape
  settings = descriptions.recorded_settings(description).lora
  params_init = make_params_init(model, shape)
  key = jax.random.key(0)
  parts = Parts.of(model, lambda: jax.eval_shape(params_init, key))
  init = lora.trained_init(params_init, settings, parts)
  shapes = nn.unbox(jax.eval_shape(init, key))
  flat: dict[str, Any] = traverse_util.flatten_dict(shapes, sep="/")
  return {path: leaf.shape for path, leaf in flat.items()}


def _open_checkpoints(
  workdir: str,
) -> contextlib.AbstractContextManager[Checkpoints]:
  """A context in which a run's checkpoints are open for reading."""
  return contextlib.closing(open_run(workdir, choose.score_key))


@contextlib.contextmanager
def _blame_description(workdir: str, step: int) -> Iterator[None]:
  """Turns errors about a damaged description into one line.

  These are a ValueError from a check of a value, and a LookupError for a
  missing key. Other errors are our own faults, and are not changed.
  """
  try:
    yield
  except _DescriptionError:  # Raised in an inner `_blame_description`.
    raise
  except (OwnBlockError, choose.OwnTaskError) as error:
    raise ValueError(f"{workdir}: {error}") from error
  except (ValueError, LookupError) as error:
    raise _DescriptionError(
      f"the description of checkpoint {step} of {workdir} is damaged "
      f"({type(error).__name__}: {one_line(error)}): choose another step, or "
      "delete the folder of this checkpoint."
    ) from error


def _check_fields(
  workdir: str, stored: Shapes, needed: Shapes, fields: Mapping[str, Any]
) -> None:
  """Raises ValueError unless the changed model has the run's arrays."""
  groups = differences(stored, needed)
  if any(groups.values()):
    changes = ", ".join(f"{name}={value!r}" for name, value in fields.items())
    raise ValueError(
      f"{workdir} was not trained with {changes}: {differences_text(groups)}. "
      "Leave out the fields that change its arrays."
    )
