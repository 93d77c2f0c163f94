"""A checkpoint that was opened: the model, its arrays on demand, its inputs."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self, TypeVar

import flax.linen as nn
import jax
import numpy as np
from flax import traverse_util
from jax.sharding import Mesh

from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading.labels import SINGLE, Labels
from vit_jax.models import Model, Origin, variant_of
from vit_jax.models.parts import Parts
from vit_jax.pretrained import known
from vit_jax.pretrained.formats.texts import NoTextTowerError
from vit_jax.pretrained.text import Leaves, LoadedText
from vit_jax.runtime.printable import first_of
from vit_jax.tasks.task import Task
from vit_jax.training import sharding
from vit_jax.training.state import make_params_init

_SOME = 10  # Classes whose names are shown.
Record = TypeVar("Record", bound="Opened")


@dataclasses.dataclass(frozen=True, repr=False)
class Opened:
  """A model whose parameters are read on demand, unless it holds them.

  It stands for published weights as well as for a run. `load.open_checkpoint`
  reads no parameters, and `params` does; `load.load_pretrained` reads them at
  once, and its result holds them. It iterates as (model, params).

  Attributes:
    model: The model that the checkpoint holds. The size and the normalisation
      of the images in its `origin` are replaced by those of `inputs`.
    inputs: The object that prepares each input of the model, by the input's
      name in a batch. That of "image" is a `Preprocessing`; a tokenizer may
      prepare another.
    open_task: Gives the task that it was trained on, which says what its
      outputs mean. It raises ValueError if that is a user's class and missing.
    shapes: Shapes of the parameters by path, such as
      "block_0/mlp/expand/kernel".
    read: Yields (path, array), with one array at a time in memory.
    interpolation: How positions are fitted to another size by default, see
      `interpolation.resized`.
    step: The checkpoint's step; None for published weights.
    description: The checkpoint's own description; None for published weights.
    notes: Lines for its users, as on what was damaged in a workdir and skipped.
    restore: Reads the parameters straight onto the devices, laid out as a tree
      of shapes says; None if they have to be changed while they are read.
    held: The parameters, if they are in memory already; else None.
    guessed: Names of the facts that no file states and that were guessed:
      num_heads, gelu, layer_norm_epsilon, mean, std, or crop, which is how
      images are resized.
    unread: Names of the arrays in its file that its format knows and this model
      does not use, such as a mask token.
    open_text: Opens the text tower that lies beside the model's file; None for
      a model that has no file.
  """

  model: Model
  inputs: Mapping[str, Any]
  open_task: Callable[[], Task]
  shapes: Mapping[str, tuple[int, ...]]
  read: Callable[[], Leaves]
  interpolation: str = "linear"
  step: int | None = None
  description: Mapping[str, Any] | None = None
  notes: tuple[str, ...] = ()
  restore: Callable[[Any], Any] | None = None
  held: dict[str, Any] | None = None
  guessed: tuple[str, ...] = ()
  unread: tuple[str, ...] = ()
  open_text: Callable[[], LoadedText] | None = None

  def __post_init__(self):
    if self.model.origin is None:
      return
    origin = with_inputs(self.model.origin, self.inputs)
    if origin != self.model.origin:
      object.__setattr__(self, "model", self.model.clone(origin=origin))

  def __repr__(self) -> str:
    """The model, its source and the inputs it takes, in three lines."""
    model, origin = self.model, self.origin
    name = variant_of(model) or type(model).__name__
    step = "" if self.step is None else f", step {self.step:,}"
    inputs = [
      f"images {value}" if key == "image" else key
      for key, value in self.inputs.items()
    ]
    return (
      f"Loaded {name}: {self.num_params:,} parameters, "
      f"{self._labels.counted(self.num_classes)}\n"
      f"  from {origin.source} ({origin.format}{step})\n"
      f"  for {' and '.join(inputs)}"
    )

  @property
  def preprocessing(self) -> Preprocessing:
    """The preprocessing of the model's images, `inputs["image"]`.

    Raises ValueError if the model takes no images.
    """
    if "image" not in self.inputs:
      raise ValueError(
        f"{self.origin.source} takes no images, which are needed here: its "
        f"inputs are {', '.join(self.inputs) or 'not named'}."
      )
    return self.inputs["image"]

  @property
  def origin(self) -> Origin:
    """The source of the weights."""
    assert self.model.origin is not None
    return self.model.origin

  @property
  def num_classes(self) -> int:
    """The number of classes, 0 if the model has no head."""
    return self.model.num_classes

  @property
  def class_names(self) -> tuple[str, ...]:
    """Names of the classes, or () if the source does not give them."""
    return self.origin.class_names

  @property
  def num_params(self) -> int:
    """The number of the model's parameters."""
    return sum(map(math.prod, self.shapes.values()))

  @property
  def image_size(self) -> tuple[int, int]:
    """Height and width in pixels of the images that the model sees.

    Raises ValueError if the model takes no images, or their size is not known.
    """
    return self.preprocessing.image_size

  @property
  def facts(self) -> dict[str, str]:
    """A table of the model for people to read: names and values."""
    source, names = self.origin.source, self.class_names
    step = "" if self.step is None else f", step {self.step:,}"
    some_names = first_of(names, _SOME)
    start = str((self.description or {}).get("config", {}).get("pretrained"))
    license = known.license_of(source)
    if license is None and (start_license := known.license_of(start)):
      license = f"{start_license}, that of {start}, from which it was trained"
    return {
      "model": variant_of(self.model) or type(self.model).__name__,
      "source": f"{source} ({self.origin.format}{step})",
      "parameters": f"{self.num_params:,}",
      **{
        "images" if key == "image" else key: str(value)
        for key, value in self.inputs.items()
      },
      self._labels.plural: f"{self.num_classes:,}"
      + (f": {some_names}" if some_names else ""),
      "licence": license or "not known",
    }

  @functools.cached_property
  def task(self) -> Task:
    """The task that the model was trained on; it says what outputs mean.

    Raises ValueError if the task is a user's own class, and was not given.
    """
    return self.open_task()

  @property
  def _labels(self) -> Labels:
    """The kind of labels that the model's outputs stand for.

    They are classes if the model has no outputs, or its task is a user's own
    class that was not given.
    """
    try:
      return self.task.labels if self.num_classes else SINGLE
    except ValueError:
      return SINGLE

  @property
  def loss(self) -> str:
    """The loss of the model's training, one of `training.settings.LOSSES`."""
    return self.task.loss.kind

  @property
  def threshold(self) -> float | None:
    """The probability from which a label is given to an image.

    It is None for a model that does not give several labels, and 0.5 in a
    checkpoint at whose step the run was not evaluated.
    """
    answers = self.task.answers
    return None if answers is None else answers.given_from

  @functools.cached_property
  def params(self) -> dict[str, Any]:
    """The parameters, for `model.apply({"params": loaded.params}, images)`.

    They are on the default device. They are `held`, or are read here when they
    are first asked for.
    """
    return self.read_params()

  @functools.cached_property
  def text_tower(self) -> LoadedText:
    """The text tower of the same pair, with its tokenizer.

    Raises NoTextTowerError if there is none, and ValueError if its tokenizer is
    missing.
    """
    if self.open_text is None:
      raise NoTextTowerError(self.origin.source)
    return self.open_text()

  def read_params(self, shapes: Any = None) -> dict[str, Any]:
    """Reads the tree of parameters, and places them on devices.

    Args:
      shapes: A tree of shapes with shardings, which says where each parameter
        goes; by default all go to the default device.
    """
    if self.held is not None:
      if shapes is None:
        return self.held
      return jax.device_put(self.held, sharding.shardings_of(shapes))
    if shapes is not None and self.restore is not None:
      return self.restore(shapes)
    placements: dict[str, Any] = traverse_util.flatten_dict(
      shapes or {}, sep="/"
    )
    flat = {
      path: jax.device_put(
        array, placements[path].sharding if placements else None
      )
      for path, array in self.read()
    }
    return traverse_util.unflatten_dict(flat, sep="/")

  def params_on(self, mesh: Mesh | None = None) -> dict[str, Any]:
    """Reads the parameters onto a mesh, laid out as training lays them out.

    The default is the mesh of all devices.
    """
    mesh = mesh or sharding.make_mesh()
    init = make_params_init(self.model, self.preprocessing.image_shape)
    return self.read_params(sharding.array_shapes(init, mesh))

  def read_from(self, params: Any) -> Self:
    """A copy whose arrays are read from a tree of parameters in memory."""
    flat: dict[str, Any] = traverse_util.flatten_dict(nn.unbox(params), sep="/")
    return dataclasses.replace(
      self,
      shapes={path: tuple(array.shape) for path, array in flat.items()},
      read=lambda: ((k, np.asarray(v, np.float32)) for k, v in flat.items()),
      restore=None,
      held=params,
    )

  def read_and_hold(self, read: Callable[[Self], Any]) -> Self:
    """A copy that holds the parameters, which `read` reads at once."""
    return dataclasses.replace(self, held=read(self))

  def map_arrays(
    self, change: Callable[[str, np.ndarray], np.ndarray], **fields: Any
  ) -> Self:
    """A copy whose arrays are `change(path, array)`; `fields` are replaced."""

    def read() -> Leaves:
      return ((path, change(path, array)) for path, array in self.read())

    changed = {"read": read, "restore": None, "held": None, **fields}
    return dataclasses.replace(self, **changed)

  def with_scaled_head(self) -> Self:
    """A copy whose outputs need no further scaling, for other libraries.

    The scale is multiplied into the head: a regression then gives its targets
    in their unit, and a calibrated classifier gives logits that are already
    divided by its temperature. Other models, among them all published ones,
    keep their values. `Answers.leaf_in_unit` of the task scales an array.
    """
    parts = Parts.of(self.model, self.shapes)
    answers = self.task.answers
    if answers is None:
      return self

    def change(path: str, array: np.ndarray) -> np.ndarray:
      is_output = parts.gives_outputs(path)
      return answers.leaf_in_unit(path, array) if is_output else array

    return self.map_arrays(change, open_task=self.task.in_unit)

  def __iter__(self) -> Iterator[Any]:
    yield self.model
    yield self.params


def with_inputs(origin: Origin, inputs: Mapping[str, Any]) -> Origin:
  """The record of a source, with the size and normalisation of its images.

  If there are no images among the inputs, it stays as it is.
  """
  if "image" not in inputs:
    return origin
  images = inputs["image"]
  return dataclasses.replace(
    origin, image_size=images.size, mean=images.mean, std=images.std
  )


def with_preprocessing(loaded: Record, **changes: Any) -> Record:
  """A copy with other fields of `preprocessing`, such as `size` or `mean`.

  With a new `size`, images are no longer cut from a larger one (`cut_from`).
  """
  if "size" in changes:
    changes["cut_from"] = None
  images = dataclasses.replace(loaded.preprocessing, **changes)
  return dataclasses.replace(loaded, inputs={**loaded.inputs, "image": images})
