"""Opens weights that a run uses but does not train: LoRA's base, a teacher."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh

from vit_jax.data.preprocessing import HALF
from vit_jax.models import Model
from vit_jax.models.parts import Parts
from vit_jax.pretrained import pinned, transfer
from vit_jax.pretrained.load import open_base, open_checkpoint
from vit_jax.pretrained.loaded import Loaded
from vit_jax.run import any_size, build
from vit_jax.run.settings import Settings
from vit_jax.tasks.task import Task
from vit_jax.training import sharding
from vit_jax.training.distillation import Teacher
from vit_jax.training.lora import base_init
from vit_jax.training.state import Extras, make_params_init

Saved = Mapping[str, Any] | None  # A resumed run's description; else None.


def open_extras(
  settings: Settings,
  model: Model,
  mesh: Mesh,
  teacher: Loaded | None,
  start: Loaded | None,
  saved: Saved,
) -> Extras:
  """Reads the weights that the run uses but does not train.

  The settings are resolved. `start` is the checkpoint that a new run starts
  from, and `saved` the description of a resumed run. Raises ValueError if the
  base of a resumed run is gone or has changed, or the run began without LoRA
  and the settings ask for it.
  """
  shapes = shapes_of_extras(settings, model, teacher, mesh)
  (frozen_shapes,) = shapes.frozen_params
  params, sources = {}, {}
  if settings.lora.rank:
    params["base"], sources["base"] = _read_base(
      settings, model, frozen_shapes["base"], start, saved
    )
  if teacher is not None:
    teacher_shapes = frozen_shapes["teacher"]
    params["teacher"], sources["teacher"] = _read_teacher(
      teacher, teacher_shapes
    )
  return dataclasses.replace(shapes, frozen_params=(params,), sources=sources)


def shapes_of_extras(
  settings: Settings, model: Model, teacher: Loaded | None, mesh: Mesh
) -> Extras:
  """Makes the extras, with shapes and shardings in place of arrays."""
  shape = build.make_preprocessing(settings).image_shape
  init = make_params_init(model, shape)
  frozen_shapes: dict[str, Any] = {}
  parts = build.parts_of(model, shape)
  if settings.lora.rank:
    frozen_shapes["base"] = sharding.array_shapes(base_init(init, parts), mesh)
  teacher_model = None
  if teacher is not None:
    teacher_model = _teacher_of(teacher, settings, model.dtype)
    frozen_shapes["teacher"] = _shapes_of_teacher(teacher, mesh, model.dtype)
  param_shapes = sharding.array_shapes(init, mesh)
  return Extras(
    settings.lora,
    teacher_model,
    (frozen_shapes,),
    param_shapes=param_shapes,
    parts=parts,
  )


def open_teacher(
  settings: Settings, task: Task, saved: Saved = None
) -> tuple[Loaded | None, Task]:
  """Opens the teacher, if the settings name one; no array is read yet.

  Returns the teacher, or None, and the task with the teacher. Raises ValueError
  if there is no such checkpoint.
  """
  source = settings.distill.teacher
  if not source:
    return None, task
  step = ((saved or {}).get("teacher") or {}).get("step")
  teacher = open_checkpoint(source, **({} if step is None else {"step": step}))
  return teacher, task.with_teacher(
    _teacher_of(teacher, settings, teacher.model.dtype)
  )


def check_teacher(
  teacher: Loaded | None,
  settings: Settings,
  task: Task,
  model: Model,
  class_names: tuple[str, ...] = (),
) -> None:
  """Raises ValueError if a teacher does not fit student, images or loss.

  The settings are resolved. If the student learns the teacher's features, only
  the images have to fit. Without `class_names`, only the number of classes is
  compared.
  """
  source = settings.distill.teacher
  kind = settings.loss.kind
  if teacher is None:
    return
  channels = len(settings.normalization.mean or HALF)
  if teacher.preprocessing.channels != channels:
    raise ValueError(
      f"distill.teacher={source!r} takes images of "
      f"{teacher.preprocessing.channels} channel(s), and the student of "
      f"{channels}: they must be the same."
    )
  if settings.data.tokens is not None:
    any_size.check_teacher(settings, teacher.model, model)
  if task.answers is None:  # The teacher's features are learned.
    return
  names = teacher.class_names
  num_classes = teacher.model.num_classes
  names_differ = names and class_names and names != class_names
  if num_classes != model.num_classes or names_differ:
    raise ValueError(
      f"distill.teacher={source!r} has {num_classes} classes "
      f"({transfer.first_names(names)}) and the student {model.num_classes} "
      f"({transfer.first_names(class_names)}): they must be the same, in the "
      "same order."
    )
  if teacher.loss != kind:
    raise ValueError(
      f"distill.teacher={source!r} was trained with the {teacher.loss} loss: "
      f"set loss.kind={teacher.loss!r}, not {kind!r}."
    )
  fits = model.distilled and kind == "softmax"
  if settings.distill.form == "deit" and not fits:
    raise ValueError(
      "distill.form='deit' needs loss.kind='softmax' and a student with a "
      "distillation token: set model.block=deit, or leave distill.form out."
    )


def _teacher_of(loaded: Loaded, settings: Settings, dtype: Any) -> Teacher:
  """A teacher without its parameters, which computes in `dtype`."""
  images = loaded.preprocessing
  return Teacher(
    loaded.model.clone(dtype=dtype),
    images.image_size,
    images.mean,
    images.std,
    settings.distill,
  )


def with_teacher(
  task: Task, settings: Settings, saved: Mapping[str, Any], mesh: Mesh
) -> Task:
  """The task of a saved run, with the teacher whose features it learns.

  `saved` is the run's description. Raises ValueError if the teacher cannot be
  opened or has changed.
  """
  loaded, task = open_teacher(settings, task, saved)
  assert loaded is not None
  dtype = jnp.dtype(saved["model"]["dtype"])
  shapes = _shapes_of_teacher(loaded, mesh, dtype)
  params, record = _read_teacher(loaded, shapes)
  before = saved["teacher"]["digest"]
  if record["digest"] != before:
    raise ValueError(
      f"{record['source']} is not the teacher that this run learned from: the "
      f"digest of its arrays was {before} and is {record['digest']}. Put the "
      "old one back."
    )
  return task.with_teacher(_teacher_of(loaded, settings, dtype), params)


def _shapes_of_teacher(loaded: Loaded, mesh: Mesh, dtype: Any) -> Any:
  """Shapes and shardings of a teacher's parameters; it computes in `dtype`."""
  model = loaded.model.clone(dtype=dtype)
  init = make_params_init(model, loaded.preprocessing.image_shape)
  return sharding.array_shapes(init, mesh)


def _read_teacher(loaded: Loaded, shapes: Any) -> tuple[Any, dict[str, Any]]:
  """The teacher's arrays on the devices, and its record by `pinned.record`."""
  digests: dict[str, str] = {}
  leaves = pinned.with_digests(loaded, digests).read()
  params = _place_arrays(leaves, shapes, Parts.of(loaded.model, shapes))
  return params, pinned.record(loaded, digests)


def _read_base(
  settings: Settings,
  model: Model,
  shapes: Any,
  start: Loaded | None,
  saved: Saved,
) -> tuple[Any, dict[str, Any]]:
  """The base's arrays on the devices, and its record by `pinned.record`.

  Raises ValueError if a resumed run was begun without LoRA, if the base's
  arrays have changed since it began, or as `open_base` does.
  """
  fields = build.start_fields(settings)
  if start is None:
    began_with = (saved or {}).get("base")
    if began_with is None:
      raise ValueError(
        f"lora.rank={settings.lora.rank}: the run in this workdir was begun "
        "without LoRA: leave it out, or choose another workdir."
      )
    record = {**began_with, "fields": fields}
    start = open_base(record, settings.pretrained)
  digests: dict[str, str] = {}
  method = settings.transfer.interpolation or start.interpolation
  preprocessing = build.make_preprocessing(settings)
  leaves = build.start_leaves(
    pinned.with_digests(start, digests), model, preprocessing, method
  )
  parts = build.parts_of(model, preprocessing.image_shape)
  beside = parts.is_trained_beside_lora
  base_leaves = ((path, x) for path, x in leaves if not beside(path))
  base = _place_arrays(base_leaves, shapes, parts)
  if saved is not None:
    pinned.check_base(saved["base"], digests)
  fields = {k: v for k, v in fields.items() if k != "block"}
  options = {"fields": fields, "interpolation": method}
  return base, pinned.record(start, digests, **options)


def _place_arrays(
  leaves: Iterable[tuple[str, np.ndarray]], shapes: Any, parts: Parts
) -> Any:
  """Arrays, given by path, as a tree on the devices.

  `shapes` has their types and shardings; if its blocks are stacked, so are
  those of the result.
  """
  tree = unflatten_dict(dict(leaves), sep="/")
  if any(map(parts.stacked_axes, flatten_dict(shapes, sep="/"))):
    tree = parts.stack(tree)

  def place(array: np.ndarray, shape: Any) -> jax.Array:
    array = array.astype(shape.dtype, copy=False)
    return jax.make_array_from_callback(
      shape.shape, shape.sharding, lambda part: array[part]
    )

  return jax.tree.map(place, tree, shapes)
