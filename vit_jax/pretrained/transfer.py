"""Transfers a checkpoint's weights to a model for another task (Section 3.2).

By default the head is replaced by one of zeros, the representation layer is
dropped, and the positions are interpolated to the grid of the new image size.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from flax import traverse_util

from vit_jax.data.preprocessing import COLOURS, band_places
from vit_jax.models import Model, from_fields, to_fields
from vit_jax.models.channels import E_CHANNEL
from vit_jax.models.grid import Grid, grid_of, param_shapes
from vit_jax.models.loaded_first import takes_loaded
from vit_jax.models.parts import Parts
from vit_jax.models.variants import ADAPTED
from vit_jax.pretrained.interpolation import is_position_table, resized
from vit_jax.pretrained.loaded import Loaded
from vit_jax.runtime import hints
from vit_jax.runtime.checks import NOT_NEGATIVE, checked
from vit_jax.runtime.printable import counted, first_of, printable, say


def adapt_model(
  loaded: Loaded,
  class_names: tuple[str, ...],
  fields: Mapping[str, Any],
  *,
  keep_head: bool = False,
  keep_pre_logits: bool = False,
) -> Model:
  """The model to fine-tune: the checkpoint's, for the classes of new data.

  Raises ValueError if the head cannot be kept.

  Args:
    loaded: The checkpoint.
    class_names: Names of the classes of the data; () if it names none.
    fields: Fields of the model that replace the checkpoint's.
    keep_head: Whether to keep the head, and the representation layer with it;
      the classes must then be the same.
    keep_pre_logits: Whether to keep the representation layer under a new head.
  """
  old = to_fields(loaded.model)
  old.pop(ADAPTED, None)
  if loaded.model.block:
    old["block"] = loaded.model.block
  old_names = loaded.class_names
  num_classes = fields["num_classes"]
  names_differ = bool(old_names) and old_names != class_names
  if keep_head and (old["num_classes"] != num_classes or names_differ):
    raise ValueError(
      f"transfer.keep_head: the checkpoint has "
      f"{counted(old['num_classes'], 'class', 'classes')} "
      f"({first_names(old_names)}) and the data has {num_classes} "
      f"({first_names(class_names)}), and they must be the same: leave out "
      "keep_head for a new head."
    )
  if not keep_head:
    old["head_bias"] = 0.0  # The old value was for the checkpoint's head.
  if "representation_size" in old and not (keep_head or keep_pre_logits):
    old["representation_size"] = None
  return from_fields({**old, **fields})


def first_names(names: tuple[str, ...]) -> str:
  """The first of some class names, for a message."""
  return first_of([*map(printable, names)], 3) or "not named"


def with_head(loaded: Loaded, num_classes: int) -> Loaded:
  """A copy with a new head of zeros for another number of classes.

  The same number keeps the head, and 0 leaves it out. The representation layer
  stays. A line says that a head is new, and which head it replaces. Raises
  ValueError if the number is negative or not a whole number.
  """
  before = loaded.model.num_classes
  if num_classes == before:
    return loaded
  model, head = _with_classes(loaded.model, num_classes)
  own_task = Parts.of(loaded.model, loaded.shapes).own_task
  trunk_shapes = {k: v for k, v in loaded.shapes.items() if not own_task(k)}

  def read() -> Iterator[tuple[str, np.ndarray]]:
    for path, array in loaded.read():
      if path in trunk_shapes:
        yield path, array
    for path, shape in head.items():
      yield path, np.zeros(shape, np.float32)

  if num_classes:
    left_out = ""
    if before:
      old_head = f"its head of {counted(before, 'class', 'classes')}"
      left_out = f", and {old_head} is left out"
    say(
      f"{loaded.origin.source}: the head for "
      f"{counted(num_classes, 'class', 'classes')} is new, all zeros{left_out}."
    )
  return dataclasses.replace(
    loaded, model=model, shapes={**trunk_shapes, **head}, read=read
  )


@takes_loaded
@hints.accepts(
  "vit_jax.new_head(loaded, num_classes=2)",
  same={"n_classes": "num_classes"},
)
def new_head(
  model: Model, params: Mapping[str, Any], num_classes: int
) -> tuple[Model, dict[str, Any]]:
  """A model with a new head of zeros, and its parameters.

  The other parameters, the representation layer's among them, stay as given.
  `new_head(loaded, num_classes)` takes what `load_pretrained` returned. The
  result is a plain dictionary of arrays, which prints all its numbers;
  `jax.tree.map(numpy.shape, params)` prints their shapes.

  >>> import jax
  >>> import vit_jax
  >>> model = vit_jax.Vit(
  ...   num_classes=2,
  ...   patch_size=8,
  ...   hidden_size=16,
  ...   num_layers=1,
  ...   mlp_size=32,
  ...   num_heads=2,
  ... )
  >>> params = vit_jax.init_params(model, jax.random.key(0), image_size=16)
  >>> model, params = vit_jax.new_head(model, params, num_classes=5)
  >>> model.num_classes, params["head"]["kernel"].shape
  (5, (16, 5))

  Args:
    model: The model.
    params: The model's parameters, as plain arrays.
    num_classes: Classes of the new head; 0 leaves it out.

  Raises:
    ValueError: if the number of classes is negative or not a whole number.
  """
  changed, head = _with_classes(model, num_classes)
  flat = traverse_util.flatten_dict(params, sep="/")
  own_task = Parts.of(model, params).own_task
  flat = {k: v for k, v in flat.items() if not own_task(k)}
  flat |= {k: np.zeros(shape, np.float32) for k, shape in head.items()}
  return changed, traverse_util.unflatten_dict(flat, sep="/")


def _with_classes(
  model: Model, num_classes: int
) -> tuple[Model, dict[str, tuple[int, ...]]]:
  """The model with that many classes, and the shapes of its head.

  Raises ValueError if the number is negative or not a whole number.
  """
  num_classes = checked("num_classes", int, num_classes, NOT_NEGATIVE)
  origin = model.origin and dataclasses.replace(model.origin, class_names=())
  changed = model.clone(num_classes=num_classes, head_bias=0.0, origin=origin)
  shapes = param_shapes(changed, (1, 1))
  own_task = Parts.of(changed, shapes).own_task
  return changed, {k: v for k, v in shapes.items() if own_task(k)}


def leaves(
  loaded: Loaded,
  model: Model,
  image_size: tuple[int, int],
  interpolation: str | None = None,
  *,
  channels: int = 3,
  bands: Sequence[str] = (),
  keep_head: bool = False,
) -> Iterator[tuple[str, np.ndarray]]:
  """Yields (path, array) for all parameters that `model` takes from `loaded`.

  `image_size`, `channels` and `bands`, the names of the channels if they have
  any, are those of the new model's images. `interpolation` says how positions
  are fitted to them; None takes the checkpoint's own way. Without `keep_head`,
  what serves the old task alone is left out. A line says how the first kernel,
  or the vectors of channels, are adapted to other channels. Raises ValueError
  if a parameter does not fit or is missing.
  """
  old_grid, new_grid = _position_grids(loaded, model, image_size)
  missing = param_shapes(model, grid_of(model, image_size), channels)
  parts = Parts.of(model, missing)
  old_channels = loaded.preprocessing.channels
  old_bands = loaded.preprocessing.bands
  # The channels of pictures have names where those of the checkpoint have.
  are_pictures = bool(old_bands) and not bands and channels == 3
  names = COLOURS if are_pictures else bands
  differ = _channels_differ(old_channels, channels, names, old_bands)
  per_channel = model.channel_tokens, loaded.model.channel_tokens
  if not keep_head:
    missing = {k: v for k, v in missing.items() if not parts.own_task(k)}
  for path, array in loaded.read():
    if path not in missing:
      continue
    method = interpolation or loaded.interpolation
    array = resized(path, array, old_grid, new_grid, method)
    how = ""
    if parts.reads_pixels(path) and per_channel == (True, False):
      array, how = adapt_channels(array, old_channels, 1)
    elif parts.reads_pixels(path) and differ and not any(per_channel):
      array, how = adapt_channels(
        array, old_channels, channels, names, old_bands
      )
    elif path == E_CHANNEL and (channels, bands) != (old_channels, old_bands):
      array, how = _vectors_by_name(array, old_bands, bands)
    if how:
      say(f"{loaded.origin.source}: {how}.")
    shape = missing.pop(path)
    if array.shape != shape:
      raise ValueError(
        f"{path} of the checkpoint has the shape {array.shape} and the model "
        f"needs {shape}: do not set the fields of config.model that differ."
      )
    yield path, array
  if E_CHANNEL in missing and not loaded.model.channel_tokens:
    say(
      f"{loaded.origin.source} has no vectors of channels ({E_CHANNEL}): they "
      "begin at 0, and until they are trained all channels are alike."
    )
    yield E_CHANNEL, np.zeros(missing.pop(E_CHANNEL), np.float32)
  if missing:
    raise ValueError(
      f"{loaded.origin.source} has no {', '.join([*missing][:3])}, which the "
      "model needs: do not set the fields of config.model that differ."
    )


def resizes_positions(
  loaded: Loaded, model: Model, image_size: tuple[int, int]
) -> bool:
  """Whether `leaves` interpolates positions for images of this size.

  A model that has a `position_grid` keeps its table, and interpolates it
  itself for each image.
  """
  old, new = _position_grids(loaded, model, image_size)
  return old != new and any(map(is_position_table, loaded.shapes))


def _position_grids(
  loaded: Loaded, model: Model, image_size: tuple[int, int]
) -> tuple[Grid, Grid]:
  """The grids of the positions of the checkpoint and of the new model."""
  grid = grid_of(model, image_size)
  old_size = loaded.preprocessing.size
  old_image_grid = grid_of(loaded.model, old_size) if old_size else grid
  old_grid = loaded.model.position_grid or old_image_grid
  return old_grid, model.position_grid or grid


def _vectors_by_name(
  vectors: np.ndarray, old: Sequence[str], bands: Sequence[str]
) -> tuple[np.ndarray, str]:
  """The vectors of channels (C, D) for other bands, and a line on them.

  Bands keep the vector of the same name, and others begin at the mean of all.
  Raises ValueError unless both sides name their bands.
  """
  if not (old and bands):
    raise ValueError(
      f"the checkpoint has a vector for each of its {len(vectors)} channels, "
      "and nothing says which of the new images' channels these are: name the "
      "bands of both by data.bands."
    )
  places = {name.lower(): place for place, name in enumerate(old)}
  rows = [places.get(name.lower()) for name in bands]
  mean = vectors.mean(axis=0)
  new = [mean if row is None else vectors[row] for row in rows]
  others = [n for n, row in zip(bands, rows, strict=True) if row is None]
  how = "bands keep the vector of the same name"
  if others:
    how += f", and those of {', '.join(others)} begin at the mean of all"
  return np.stack(new), how


def _channels_differ(
  old: int, channels: int, bands: Sequence[str], old_bands: Sequence[str]
) -> bool:
  """Whether a kernel of `old` channels has to be adapted to new ones."""
  places = band_places(bands, old, old_bands)
  if places is not None:
    return places != [*range(old)]
  return channels != old or bool(bands and old_bands)


def adapt_channels(
  kernel: np.ndarray,
  old: int,
  channels: int,
  bands: Sequence[str] = (),
  old_bands: Sequence[str] = (),
) -> tuple[np.ndarray, str]:
  """A kernel for other channels of images, as timm makes it, and a line on it.

  Bands that the checkpoint knows, by `old_bands` or, if it is one of RGB
  pictures, as red, green and blue, keep their weights, and the others begin at
  0. So an image's first features are those of these bands alone. Where names
  tell nothing (see `band_places`), the weights of the `old` channels are added
  up for one channel; for several, they are repeated in turn and multiplied by
  old / channels. The kernel is (P^2 C, D) or (P, P, C, D), where C = `old`.
  """
  parts = kernel.reshape(-1, old, kernel.shape[-1])
  places = band_places(bands, old, old_bands)
  if places is not None:
    of_bands = np.zeros((len(parts), channels, kernel.shape[-1]), kernel.dtype)
    for channel, place in enumerate(places):
      if place is not None:
        of_bands[:, channel] = parts[:, place]
    parts = of_bands
    how = _bands_kept(places, bands, old_bands)
  elif channels == 1:
    parts = parts.sum(axis=1, keepdims=True)
    how = f"{old} channels of its first kernel are added up for grey images"
  elif channels == old:
    how = (
      f"its first kernel takes the bands {', '.join(bands)} in the places of "
      f"{', '.join(old_bands)}, as none has the same name"
    )
  else:
    parts = parts[:, np.arange(channels) % old] * (old / channels)
    how = (
      f"{old} channels of its first kernel are repeated for images of "
      f"{channels} channels, and multiplied by {old}/{channels}"
    )
  shape = (-1,) if kernel.ndim == 2 else (*kernel.shape[:2], channels)
  return parts.reshape(*shape, kernel.shape[-1]), how


def _bands_kept(
  places: Sequence[int | None], bands: Sequence[str], old_bands: Sequence[str]
) -> str:
  """A line on the bands that keep their weights, and on all others.

  `places` are those of the bands in the checkpoint, as from `band_places`.
  """
  kept = "red, green and blue"
  if old_bands:
    found = [
      name for name, at in zip(bands, places, strict=True) if at is not None
    ]
    kept = ", ".join(found)
  how = f"{kept} keep the weights of its first kernel"
  if new := [n for n, at in zip(bands, places, strict=True) if at is None]:
    how += f", and those of {', '.join(new)} begin at 0"
  left = [n for at, n in enumerate(old_bands) if at not in places]
  return how + (f"; those of {', '.join(left)} are left out" if left else "")
