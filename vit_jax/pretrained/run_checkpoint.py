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

  A run without labels gives its model without a head. Of a run with LoRA, the
  second result merges into its base what it trained; it is None for others.
  Raises ValueError if there is no such checkpoint, it is damaged, or its arrays
  are not those of a model with these fields.

  Args:
    step: The checkpoint's step; by default the newest.
    best: Whether to take the checkpoint with the best score instead.
    as_trained: Gives the model with stacked layers and its task's own parts.
    task: The run's task, as "file.py:Class", if it is one of the user's own.
    **fields: Fields of the model to replace.
  """
  with _open_checkpoints(workdir) as checkpoints:
    step = checkpoints.choose(step, best)
    description = checkpoints.describe(step)
  fitted, lines = calibration.find(workdir, description)
  saved = _Saved(workdir, step, description, fitted)
  notes = (*checkpoints.notes, *lines)
  with _describing(workdir, step):
    preprocessing = descriptions.preprocessing(description)
    inputs = {"image": preprocessing}
    names = descriptions.class_names(description)
    plain = Origin(workdir, "vit_jax", None, class_names=names)
    origin = with_inputs(plain, inputs)
    model_fields = _unstacked(description["model"])
    if "block" in fields:
      model_fields["block"] = fields.pop("block")
    adapted = model_fields.get(ADAPTED)
    make_model: Any = from_fields
    if adapted:
      own = saved.open_task(task)
      make_model = functools.partial(choose.model_of, own)
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
    added = Added(model, description, preprocessing, parts, read)
  elif as_trained:
    model = model.clone(scan=True) if saved.scanned else model
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
    model: The model, which the base with LoRA's products is.
    description: The checkpoint's description.
    images: How the run's images are prepared.
    parts: Those of the model that was trained.
    read: Yields (path, array) of what was trained.
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
    """The fields of the base's model that JSON cannot hold."""
    block = self.model.block
    return {} if block is None or is_ours(block) else {"block": block}

  def merged(self, base: Loaded) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (path, array) of every parameter, with LoRA's products merged.

    Raises ValueError if the base is not the one that the run was trained on.
    """
    settings = descriptions.recorded(self.description).lora
    digests: dict[str, str] = {}
    trained = dict(self.read())
    leaves = transfer.leaves(
      pinned.digesting(base, digests),
      self.model,
      self.images.image_size,
      channels=self.images.channels,
      bands=self.images.bands,
    )
    for path, array in leaves:
      if not self.parts.is_head(path):
        yield path, lora.with_product(settings, path, array, trained)
    pinned.check_base(self.base, digests)
    yield from (leaf for leaf in trained.items() if self.parts.is_head(leaf[0]))


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
  def scanned(self) -> bool:
    """Whether its layers are stacked."""
    return self.description["model"].get("scan", False)

  def open_task(self, user_task: str | type[Task] | None) -> Task:
    """The run's task; `user_task` is the user's own, if there is one."""
    loss = descriptions.recorded(self.description).loss
    with _describing(self.workdir, self.step):
      described = {**self.description, "calibration": self.fitted}
      task = choose.saved(described, loss, user_task)
      names = descriptions.class_names(self.description)
      takes = task.answers.temperatures(names) if task.answers else 0
    calibration.check_count(self.workdir, self.fitted, takes)
    return task

  def restore(self, shapes: Any) -> Any:
    """The parameters, or their average, laid out on the devices as `shapes`."""
    averaged = bool(descriptions.recorded(self.description).ema_decay)
    with _open_checkpoints(self.workdir) as checkpoints:
      return checkpoints.restore_params(self.step, shapes, averaged=averaged)

  def read(self, shapes: Shapes, parts: Parts) -> Leaves:
    """The path and array of every parameter in `shapes`, layer by layer."""
    hollow = traverse_util.unflatten_dict(
      # These take no memory, whatever size a damaged description claims.
      {k: np.broadcast_to(np.float32(0), s) for k, s in shapes.items()},
      sep="/",
    )
    params: Any = self.restore(parts.stack(hollow) if self.scanned else hollow)
    params = parts.unstack(params) if self.scanned else params
    flat: dict[str, Any] = traverse_util.flatten_dict(params, sep="/")
    return flat.items()


def _shapes(model: Model, preprocessing: Preprocessing) -> Shapes:
  return param_shapes(model, grid_of(model, preprocessing.image_size))


def _unstacked(fields: Mapping[str, Any]) -> dict[str, Any]:
  """A model's fields but stacked layers, which are of use only in training."""
  return {name: value for name, value in fields.items() if name != "scan"}


def _trained_shapes(model: Model, description: Mapping[str, Any]) -> Shapes:
  """The shapes that a run trains: LoRA's alone, or its task's own as well."""
  if "base" in description:
    return _lora_shapes(model, description)
  return _shapes(model, descriptions.preprocessing(description))


def _lora_shapes(model: Model, description: Mapping[str, Any]) -> Shapes:
  shape = descriptions.preprocessing(description).image_shape
  settings = descriptions.recorded(description).lora
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
  """The checkpoints of a run, to be read only."""
  return contextlib.closing(open_run(workdir, choose.score_key))


@contextlib.contextmanager
def _describing(workdir: str, step: int) -> Iterator[None]:
  """Turns errors about a damaged description into one line.

  They are a ValueError, as values are checked, or that a key is not there. A
  fault of ours is neither, and comes out as it is.
  """
  try:
    yield
  except _DescriptionError:  # A part of the description.
    raise
  except (OwnBlockError, choose.OwnTaskError) as error:
    raise ValueError(f"{workdir}: {error}") from error
  except (ValueError, LookupError) as error:
    raise _DescriptionError(
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
    changes = ", ".join(f"{name}={value!r}" for name, value in fields.items())
    raise ValueError(
      f"{workdir} was not trained with {changes}: {differences_text(groups)}. "
      "Leave out the fields that change its arrays."
    )
