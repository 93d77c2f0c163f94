"""Writes models in memory, such as those of a user's own loop, to files."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import flax.linen as nn

from vit_jax.data.preprocessing import Preprocessing
from vit_jax.models import Model, Origin
from vit_jax.models.grid import grid_of, param_shapes
from vit_jax.models.loaded_first import check_given_alone
from vit_jax.models.parts import unstack
from vit_jax.pretrained.convert import convert
from vit_jax.pretrained.formats.mapping import differences, differences_text
from vit_jax.pretrained.loaded import Loaded
from vit_jax.runtime import hints
from vit_jax.runtime.checks import IMAGE_VALUES, checked
from vit_jax.runtime.printable import printable_path, say
from vit_jax.tasks.choose import answering

Folder = str | os.PathLike[str]


@hints.accepts(
  'vit_jax.save(model, params, "my_model")',
  same=dict.fromkeys(("format", "fmt"), "to"),
)
def save(
  model: Model | Loaded,
  params: Any = None,
  folder: Folder | None = None,
  to: str = "hf",
  *,
  image_size: int | tuple[int, int] | None = None,
  preprocessing: Preprocessing | None = None,
  class_names: Sequence[str] | None = None,
  loss: str | None = None,
  license: str | None = None,
) -> None:
  """Writes a model in another library's format, with a model card.

  It prints how to load the folder. `save(loaded, folder)` writes what
  `load_pretrained` returned, as `convert` does. If you have trained such a
  model further, give `preprocessing=loaded.preprocessing` as well::

    loaded = vit_jax.load_pretrained("b16_augreg")
    model, params = vit_jax.new_head(*loaded, num_classes=2)
    ...
    images = loaded.preprocessing
    vit_jax.save(model, params, "cats", class_names=["cat", "dog"],
                 preprocessing=images)

  >>> import tempfile
  >>> import jax
  >>> import vit_jax
  >>> vit = vit_jax.make_vit("Ti/16", num_classes=3, num_layers=1)
  >>> params = vit_jax.init_params(vit, jax.random.key(0), image_size=32)
  >>> folder = tempfile.mkdtemp()
  >>> vit_jax.save(vit, params, folder, to="timm", image_size=32)
  Wrote a model in memory as timm to ...

  Args:
    model: The model, or what `load_pretrained` returned.
    params: The parameters, as arrays, of any type and on any devices. What
      `load_pretrained` returned has them; the folder then comes second.
    folder: The folder to write, which has to be new or empty.
    to: The format: hf, timm, google, big_vision, tips or torchvision.
    image_size: Height and width of the images, or one number for both; by
      default that of `model.origin`.
    preprocessing: How images are prepared. By default they are resized to
      `image_size`, and normalised as `model.origin` says, or to [-1, 1].
    class_names: The name of every class; by default those of `model.origin`.
    loss: The loss that the model was trained with; it tells whether its outputs
      are "softmax" logits, which is the default, or "sigmoid" ones, or numbers
      ("mse").
    license: Licence that the card names, such as "apache-2.0".

  Raises:
    ValueError: if the format cannot express the model, the parameters are not
      the model's, the image size is unknown, the folder is not empty, or what
      `load_pretrained` returned is given with more than the folder, `to` and
      `license`.
    OSError: if the folder cannot be written.
  """
  if isinstance(model, Loaded):
    loaded = model
    if isinstance(params, str | os.PathLike):
      # After a loaded model, the format may come third, as `convert` has it.
      to = to if folder is None else os.fspath(folder)
      params, folder = None, params
    check_given_alone(
      "vit_jax.save(loaded, folder)",
      "vit_jax.save(loaded.model, params, folder, "
      "preprocessing=loaded.preprocessing)",
      params=params,
      image_size=image_size,
      preprocessing=preprocessing,
      class_names=class_names,
      loss=loss,
    )
  elif not isinstance(model, Model):
    raise ValueError(
      f"model is of type {type(model).__name__}: give the model before its "
      'parameters, as in vit_jax.save(model, params, "my_model"), or '
      'vit_jax.save(run.load(), "my_model") for a run.'
    )
  else:
    loaded = loaded_from(
      model,
      params,
      image_size=image_size,
      preprocessing=preprocessing,
      class_names=class_names,
      loss="softmax" if loss is None else loss,
    )
  if not isinstance(folder, str | os.PathLike):
    raise ValueError(
      "give a folder to write, as in "
      'vit_jax.save(model, params, "my_model", to="hf").'
    )
  convert(loaded, folder, to, license=license)


def loaded_from(
  model: Model,
  params: Any,
  *,
  image_size: int | tuple[int, int] | None = None,
  preprocessing: Preprocessing | None = None,
  class_names: Sequence[str] | None = None,
  loss: str = "softmax",
) -> Loaded:
  """A loaded model of parameters in memory; the arguments are those of `save`.

  Raises ValueError if the parameters are not those of the model, its image size
  is unknown or given beside the preprocessing, the names are not one for each
  class, or the loss is unknown.
  """
  task = answering(loss)
  if isinstance(class_names, str):
    raise ValueError(
      f"class_names={class_names!r} is one text: give a list with a name for "
      "each class."
    )
  origin = model.origin or Origin("a model in memory", "vit_jax", None)
  names = origin.class_names if class_names is None else tuple(class_names)
  if len(names) != model.num_classes:
    if class_names is not None:
      raise ValueError(
        f"class_names has {len(names)} names, and the model has "
        f"{model.num_classes} classes: give a name for each."
      )
    names = ()  # These names belong to a head that the model had before.
  if preprocessing is None:
    preprocessing = Preprocessing(
      _size(image_size, origin), mean=origin.mean, std=origin.std
    )
    if model.origin is not None:
      say(
        f"The files say that images are {preprocessing}: the crop and the "
        f"filter of {printable_path(origin.source)} are left out unless you "
        "give preprocessing=loaded.preprocessing."
      )
  elif image_size is not None:
    raise ValueError("image_size is a part of preprocessing: drop one.")
  if model.scan:  # A file has its layers one by one.
    model = model.clone(scan=False)
    params = unstack(nn.unbox(params))
  model = model.clone(origin=dataclasses.replace(origin, class_names=names))
  grid = grid_of(model, preprocessing.image_size)
  needed = param_shapes(model, grid, preprocessing.channels)
  loaded = Loaded(
    model=model,
    inputs={"image": preprocessing},
    open_task=lambda: task,
    shapes=needed,
    read=lambda: (),
  ).read_from(params)
  if wrong := differences_text(differences(loaded.shapes, needed)):
    height, width = preprocessing.image_size
    raise ValueError(
      f"the parameters are not those of the model for images of {height} x "
      f"{width}: {wrong}."
    )
  return loaded


def _size(
  image_size: int | tuple[int, int] | None, origin: Origin
) -> tuple[int, int]:
  """Height and width; raises ValueError if they are unknown."""
  if image_size is None and origin.image_size is None:
    raise ValueError(
      "the size of the model's images is not known: give image_size, such as "
      "image_size=224."
    )
  size = origin.image_size if image_size is None else image_size
  kind, must = IMAGE_VALUES["image_size"]
  return checked("image_size", kind, size, must)
