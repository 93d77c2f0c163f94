"""The parameters that a run uses but does not train: LoRA's base, a teacher's.

They are arguments of the train step, and in no checkpoint. The run's
description records where they came from.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Optional

import jax
import numpy as np
from flax.traverse_util import unflatten_dict
from jax.sharding import Mesh

from vit_jax.data.preprocessing import HALF
from vit_jax.models import ResNet, Vit, scan
from vit_jax.run import build
from vit_jax.run.settings import Settings
from vit_jax.training import sharding
from vit_jax.training.distillation import Teacher
from vit_jax.training.lora import base_init, merged
from vit_jax.training.optimizer import HEADS
from vit_jax.training.settings import LoraSettings
from vit_jax.training.state import make_params_init

# Imported only by the runs that need it.
if TYPE_CHECKING:
  from vit_jax.pretrained.loaded import Loaded

Saved = Mapping[str, Any] | None  # A description.


@dataclasses.dataclass(frozen=True)
class Adaptation:
  """The parameters that are not in a run's state.

  Attributes:
    lora: Which of the model's parameters the state has.
    param_shapes: Shapes and shardings of all parameters of the model.
    teacher: The teacher to learn from, if any.
    fixed: The train step's arguments after state and batch: a dictionary with
      the trees `base` and `teacher`, as far as the run has them, or none.
    sources: A record of where each of them came from, for the description.
  """

  lora: LoraSettings
  param_shapes: Any
  teacher: Teacher | None
  fixed: tuple[dict[str, Any], ...]
  sources: dict[str, Any]

  def whole(self, params: Any) -> Any:
    """The model's parameters, from those of a state: with LoRA, merged."""
    return self._merge(params) if self.lora.rank else params

  @functools.cached_property
  def _merge(self) -> Callable[[Any], Any]:
    merge = jax.jit(
      functools.partial(merged, self.lora),
      out_shardings=sharding.shardings_of(self.param_shapes),
    )
    return functools.partial(merge, self.fixed[0]["base"])


def check_adapted(settings: Settings) -> None:
  """Raises ValueError for keys of LoRA that do not fit the others."""
  rank, frozen = settings.lora.rank, settings.optimizer.freeze_layers
  if rank and not settings.pretrained:
    raise ValueError(
      f"lora.rank={rank} adapts a checkpoint: set pretrained, as in "
      "--config.pretrained=b16_augreg, or leave it out."
    )
  if rank and frozen:
    raise ValueError(
      f"lora.rank={rank} trains nothing that optimizer.freeze_layers={frozen} "
      "could freeze: leave one out, and choose layers with lora.kernels."
    )


def make_adaptation(
  settings: Settings,
  model: Vit | ResNet,
  mesh: Mesh,
  class_names: tuple[str, ...],
  start: Optional["Loaded"],
  saved: Saved,
) -> Adaptation:
  """Opens and reads what the run uses but does not train.

  Args:
    settings: The run's settings, which are resolved.
    model: The model to train.
    mesh: The mesh of devices.
    class_names: The names of the data's classes.
    start: The checkpoint that a fresh run starts from.
    saved: The description of the checkpoint that is resumed, if any.

  Raises:
    ValueError: if the base of a resumed run is gone or has changed, or the
      teacher does not fit the student.
  """
  loaded = open_teacher(settings, model, class_names, saved)
  teacher = make_teacher(settings, model, loaded)
  shapes = fixed_shapes(settings, model, teacher, mesh)
  fixed, sources = {}, {}
  if settings.lora.rank:
    found = _read_base(settings, model, shapes[0]["base"], start, saved)
    fixed["base"], sources["base"] = found
  if loaded is not None:
    from vit_jax.pretrained import pinned

    digests: dict[str, str] = {}
    leaves = pinned.digesting(loaded, digests).read()
    fixed["teacher"] = _placed(leaves, shapes[0]["teacher"])
    sources["teacher"] = pinned.record(loaded, digests)
  return Adaptation(
    lora=settings.lora,
    param_shapes=param_shapes(settings, model, mesh),
    teacher=teacher,
    fixed=(fixed,) if fixed else (),
    sources=sources,
  )


def open_teacher(
  settings: Settings,
  model: Vit | ResNet,
  class_names: tuple[str, ...] = (),
  saved: Saved = None,
) -> Optional["Loaded"]:
  """Opens the teacher, if the settings name one; no array is read yet.

  Raises:
    ValueError: if there is no such checkpoint, or its classes or its loss are
      not the student's.
  """
  source, kind = settings.distill.teacher, settings.loss.kind
  if not source:
    return None
  from vit_jax.pretrained.load import open_pretrained
  from vit_jax.pretrained.transfer import few

  step = ((saved or {}).get("teacher") or {}).get("step")
  teacher = open_pretrained(source, **({} if step is None else {"step": step}))
  names, known = teacher.class_names, teacher.model.num_classes
  other = names and class_names and names != class_names
  if known != model.num_classes or other:
    raise ValueError(
      f"distill.teacher={source!r} has {known} classes ({few(names)}) and the "
      f"student {model.num_classes} ({few(class_names)}): they must be the "
      "same, in the same order."
    )
  channels = len(settings.normalization.mean or HALF)
  if teacher.preprocessing.channels != channels:
    raise ValueError(
      f"distill.teacher={source!r} takes images of "
      f"{teacher.preprocessing.channels} channel(s), and the student of "
      f"{channels}: they must be the same."
    )
  if teacher.loss != kind:
    raise ValueError(
      f"distill.teacher={source!r} was trained with the {teacher.loss} loss: "
      f"set loss.kind={teacher.loss!r}, not {kind!r}."
    )
  return teacher


def make_teacher(
  settings: Settings, model: Vit | ResNet, loaded: Optional["Loaded"]
) -> Teacher | None:
  """The teacher of a student, which computes in the student's type."""
  if loaded is None:
    return None
  images = loaded.preprocessing
  return Teacher(
    loaded.model.clone(dtype=model.dtype),
    images.image_size,
    images.mean,
    images.std,
    settings.distill,
  )


def param_shapes(settings: Settings, model: Vit | ResNet, mesh: Mesh) -> Any:
  """Shapes and shardings of all parameters of the model."""
  shape = build.make_preprocessing(settings).image_shape
  return sharding.array_shapes(make_params_init(model, shape), mesh)


def fixed_shapes(
  settings: Settings, model: Vit | ResNet, teacher: Teacher | None, mesh: Mesh
) -> tuple[dict[str, Any], ...]:
  """Shapes and shardings of `Adaptation.fixed`."""
  found = {}
  if settings.lora.rank:
    shape = build.make_preprocessing(settings).image_shape
    init = base_init(make_params_init(model, shape))
    found["base"] = sharding.array_shapes(init, mesh)
  if teacher is not None:
    init = make_params_init(
      teacher.model, (*teacher.image_size, len(teacher.mean))
    )
    found["teacher"] = sharding.array_shapes(init, mesh)
  return (found,) if found else ()


def _read_base(
  settings: Settings,
  model: Vit | ResNet,
  shapes: Any,
  start: Optional["Loaded"],
  saved: Saved,
) -> tuple[Any, dict[str, Any]]:
  """The base's arrays on the devices, and its record."""
  from vit_jax.pretrained import load, pinned, transfer

  fields = build.start_fields(settings)
  if start is None:
    began_with = (saved or {}).get("base")
    if began_with is None:
      raise ValueError(
        f"lora.rank={settings.lora.rank}: the run in this workdir was begun "
        "without LoRA: leave it out, or choose another --workdir."
      )
    record = {**began_with, "source": settings.pretrained, "fields": fields}
    start = pinned.open_base(load.open_pretrained, record)
  digests: dict[str, str] = {}
  method = settings.transfer.interpolation
  leaves = transfer.leaves(
    pinned.digesting(start, digests),
    model.clone(scan=False) if isinstance(model, Vit) else model,
    build.make_preprocessing(settings).image_size,
    method,
    channels=build.make_preprocessing(settings).channels,
  )
  own = ((path, x) for path, x in leaves if not path.startswith(HEADS))
  base = _placed(own, shapes)
  if saved is not None:
    pinned.check_base(saved["base"], digests)
  fields = {k: v for k, v in fields.items() if k != "block"}
  options = {"fields": fields, "interpolation": method}
  return base, pinned.record(start, digests, **options)


def _placed(leaves: Iterable[tuple[str, np.ndarray]], shapes: Any) -> Any:
  """The arrays as a tree on the devices, stacked if `shapes` is."""
  tree = unflatten_dict(dict(leaves), sep="/")
  if scan.STACKED in shapes:
    tree = scan.stack(tree)

  def place(array: np.ndarray, shape: Any) -> jax.Array:
    array = array.astype(shape.dtype, copy=False)
    return jax.make_array_from_callback(
      shape.shape, shape.sharding, lambda part: array[part]
    )

  return jax.tree.map(place, tree, shapes)
