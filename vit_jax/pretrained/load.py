"""Loads published checkpoints of all supported formats, and our workdirs."""

import contextlib
import dataclasses
import functools
import pathlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from vit_jax.models import BaseVit, Origin, from_fields
from vit_jax.models.grid import (
  Grid,
  grid_of,
  param_shapes,
)
from vit_jax.pretrained import interpolation, known
from vit_jax.pretrained.arrays import Arrays, UnreadableFileError, open_arrays
from vit_jax.pretrained.fetch import without_secrets
from vit_jax.pretrained.folder import named, weights_and_configs
from vit_jax.pretrained.formats import (
  google,
  hf_encoders,
  huggingface,
  processor,
  timm_encoders,
  torchvision,
)
from vit_jax.pretrained.formats.architecture import (
  Architecture,
  check_supported,
  square,
)
from vit_jax.pretrained.formats.mapping import Shapes, check, read_all
from vit_jax.pretrained.loaded import Loaded, with_preprocessing
from vit_jax.pretrained.locate import drop_download, locate
from vit_jax.pretrained.run_checkpoint import open_run_checkpoint
from vit_jax.pretrained.settings import INTERPOLATIONS
from vit_jax.pretrained.transfer import with_head
from vit_jax.runtime.checks import IMAGE_VALUES, checked
from vit_jax.runtime.printable import printable
from vit_jax.tasks.choose import answering
from vit_jax.workdir.checkpoint import is_run

# In the order in which they are tried; each recognises its own names.
FORMATS = (google, hf_encoders, timm_encoders, torchvision)
# Keywords that are not fields of the model: type, condition and choices.
_PREPROCESSING: dict[str, tuple] = {
  **{name: (*values, ()) for name, values in IMAGE_VALUES.items()},
  "interpolation": (str, None, INTERPOLATIONS),
}
_OF_RUNS = {"step", "best", "as_trained", "task"}  # Keywords for workdirs.


def load_pretrained(source: str, **overrides: Any) -> Loaded:
  """Loads a published model and its parameters, as `model, params`.

  The format is recognised from the content; the architecture, the activation,
  the epsilon, the pooling and the preprocessing follow from it.
  `model.origin` records the format and how images have to be normalised.

  Args:
    source: One of the following: an .npz file of Google's vision_transformer or
      of big_vision; a .safetensors file of timm, torchvision or Hugging Face; a
      folder that holds such a file and its config.json, or that `convert`
      wrote; a workdir of ours; an https://, gs:// or hf://owner/name address of
      one of these; or a name that `python -m vit_jax.convert --list` shows.
    **overrides: Values that replace those of the format: any field of `Vit`
      (`num_heads=3`, `gelu="exact"`), where another `num_classes` gives a new
      head of zeros, and 0 none; `mean` and `std`; `grid`, the number of
      patches along height and width that the stored positions are for;
      `image_size`, the height and width to use the model at, for which
      positions are resized by `interpolation`, "linear" or "bicubic". For a
      workdir, `step` chooses the checkpoint.

  Returns:
    A `Loaded`, with everything that is known about the model. It unpacks into
    the model and its parameters, for `model.apply({"params": params}, images)`.

  Raises:
    ValueError: if there is no such checkpoint, it is damaged, its format is
      unknown, or its arrays are not those of the model; the message lists the
      differences.
  """
  loaded = open_checkpoint(source, **overrides).in_unit()
  return dataclasses.replace(loaded, held=loaded.params())


def open_checkpoint(source: str, **overrides: Any) -> Loaded:
  """Does what `load_pretrained` does, but reads no array until it is needed."""
  if "num_classes" in overrides:
    num_classes = overrides.pop("num_classes")
    return with_head(open_checkpoint(source, **overrides), num_classes)
  source = str(source)
  for name, (kind, *rules) in _PREPROCESSING.items():
    value = overrides.pop(name, None)
    if value is not None:
      overrides[name] = checked(name, kind, value, *rules)
  if overrides.pop("scan", False):
    raise ValueError(
      "scan=True is a setting for training; weights are always read layer by "
      "layer. Leave it out, and train with --config.model.scan=True."
    )
  try:
    if is_run(source):
      return _open_run(source, overrides)
    path = locate(source)
    source = without_secrets(source)
    for name in _OF_RUNS & overrides.keys():
      raise ValueError(
        f"{name} is for a workdir's checkpoints, and {source} is not a "
        "workdir: leave it out."
      )
    with _naming(source):
      return _open_file(source, *weights_and_configs(path), **overrides)
  except ValueError as error:
    text = str(error)
    if text.isprintable():
      raise
    # It may quote names of arrays or folders, which may hold any character.
    raise ValueError(printable(text)) from error


@contextlib.contextmanager
def _naming(source: str) -> Iterator[None]:
  """Puts the source in front of an error's message."""
  try:
    yield
  except ValueError as error:
    text = str(error)
    raise ValueError(
      text if text.startswith((source, repr(source))) else f"{source}: {text}"
    ) from error


def _open_run(source: str, overrides: Mapping[str, Any]) -> Loaded:
  fields = {k: v for k, v in overrides.items() if k not in _PREPROCESSING}
  loaded = open_run_checkpoint(source, open_checkpoint, **fields)
  given = {k: overrides[k] for k in ("mean", "std") if k in overrides}
  loaded = with_preprocessing(loaded, **given)
  size = loaded.preprocessing.image_size
  return _at_size(loaded, grid_of(loaded.model, size), overrides)


def _open_file(
  source: str,
  path: pathlib.Path,
  config: dict[str, Any],
  preprocessor: dict[str, Any],
  **overrides: Any,
) -> Loaded:
  check_supported(config)
  with _arrays(path) as arrays:
    stored = arrays.shapes
  saved = {huggingface.saved_name(name): name for name in stored}
  layout, prefix = _recognise({k: stored[name] for k, name in saved.items()})
  names = {
    short.removeprefix(prefix): name
    for short, name in saved.items()
    if short.startswith(prefix)
  }
  found = {short: stored[name] for short, name in names.items()}
  if layout is torchvision:  # It has no configuration, but names its files.
    config = {torchvision.FILE: path.name}
  unused = getattr(layout, "unused", lambda found: [])(found)
  found = {k: v for k, v in found.items() if k not in unused}
  architecture = named(layout.infer(found, config), path)
  if preprocessor:
    architecture = architecture.prepared(processor.read(preprocessor))
  model, grid = _build(source, architecture, overrides)
  shapes = param_shapes(model, grid)
  rules = layout.rules(model, found)
  what = f"{source} is not a {model.origin.format} checkpoint of {_text(model)}"
  check(rules, found, shapes, model, what)

  def read() -> Iterator[tuple[str, np.ndarray]]:
    with _arrays(path) as arrays:
      for leaf, array in read_all(rules, arrays.renamed(names), model):
        yield leaf, array.astype(np.float32, copy=False)

  preprocessing = dataclasses.replace(
    architecture.preprocessing,
    size=model.origin.image_size,
    mean=model.origin.mean,
    std=model.origin.std,
  )
  _say(source, model, architecture, unused, overrides)
  loaded = Loaded(
    model,
    preprocessing,
    functools.partial(answering, architecture.loss),
    shapes,
    read,
    architecture.interpolation,
  )
  return _at_size(loaded, grid, overrides)


def _say(
  source: str,
  model: Any,
  architecture: Architecture,
  unused: list[str],
  overrides: Mapping[str, Any],
) -> None:
  """Prints what is guessed or left out of the model or its preprocessing."""
  lines = [v for k, v in architecture.guesses.items() if k not in overrides]
  pictures, positions = architecture.preprocessing.size, architecture.image_size
  if unused:
    names = ", ".join([*unused[:2], *["..."][: len(unused[2:])]])
    lines.append(
      f"{len(unused)} array(s) are left out, as only pre-training or a text "
      f"tower needs them ({names})"
    )
  fixed = not model.resizes_positions
  if fixed and pictures and positions and pictures != positions:
    lines.append(
      "its preprocessor makes pictures of {} x {}, and its positions are for "
      "{} x {}, which is used".format(*pictures, *positions)
    )
  for line in lines:
    print(f"{source}: {printable(line)}.", file=sys.stderr)


@contextlib.contextmanager
def _arrays(path: pathlib.Path) -> Iterator[Arrays]:
  """Opens the arrays of a file; a download that cannot be read is deleted."""
  try:
    with open_arrays(path) as arrays:
      yield arrays
  except UnreadableFileError as error:
    if not drop_download(path):
      raise
    raise UnreadableFileError(
      f"{error} The download was removed; the same command fetches it anew."
    ) from error


def _recognise(shapes: Shapes) -> tuple[Any, str]:
  """The format that these names belong to, and their common prefix."""
  for layout in FORMATS:
    prefix = layout.prefix(shapes)
    if prefix is not None:
      return layout, prefix
  formats = (
    "vision_transformer, big_vision, Hugging Face ViT, timm, torchvision"
  )
  raise ValueError(
    f"its {len(shapes)} arrays ({', '.join([*shapes][:3])}, ...) are not named "
    f"as in any supported format ({formats}): it may be another architecture."
  )


def _build(
  source: str, architecture: Architecture, overrides: Mapping[str, Any]
) -> tuple[Any, Grid]:
  """Makes the model and the grid of patches its stored positions are for."""
  fields = {**architecture.fields}
  fields |= {k: v for k, v in overrides.items() if k not in _PREPROCESSING}
  if fields["num_heads"] is None:
    raise ValueError(
      f"the number of heads cannot be inferred from a hidden size of "
      f"{fields['hidden_size']}: give num_heads=..."
    )
  model: Any = from_fields({"kind": "Vit", **fields})
  stride, pictures = model.stride, architecture.preprocessing
  size = architecture.image_size
  grid = overrides.get("grid")
  if grid is None and size is not None:
    grid = size[0] // stride, size[1] // stride
  if grid is None and architecture.tokens is not None:
    grid = square(architecture.tokens)
    if grid is None:
      raise ValueError(
        f"its {architecture.tokens} positions do not form a square grid: give "
        "grid=(h, w), the number of patches along height and width."
      )
  if grid is not None:
    size = grid[0] * stride, grid[1] * stride
  if model.resizes_positions:  # They fit pictures of any size.
    size = pictures.size or size
    if architecture.tokens is not None:
      model = model.clone(position_grid=grid)
  origin = Origin(
    source=source,
    format=architecture.format,
    image_size=size or pictures.size,
    mean=overrides.get("mean", pictures.mean),
    std=overrides.get("std", pictures.std),
    class_names=_names(architecture.class_names)
    or known.class_names(source, fields["num_classes"]),
  )
  return model.clone(origin=origin), grid or (1, 1)


def _at_size(
  loaded: Loaded, grid: Grid, overrides: Mapping[str, Any]
) -> Loaded:
  """Resizes the positions to the requested image size, if there is one."""
  if "image_size" not in overrides:
    return loaded
  size = overrides["image_size"]
  method = overrides.get("interpolation", loaded.interpolation)
  new = grid_of(loaded.model, size)
  if (loaded.model.position_grid or new) != new:
    if "interpolation" in overrides:
      raise ValueError(
        f"interpolation={method!r}: this model interpolates its positions for "
        "every image by itself, bicubically: leave it out."
      )
    return with_preprocessing(loaded, size=size)

  def read() -> Iterator[tuple[str, np.ndarray]]:
    for path, array in loaded.read():
      yield path, interpolation.resized(path, array, grid, new, method)

  return dataclasses.replace(
    with_preprocessing(loaded, size=size),
    shapes=param_shapes(loaded.model, new),
    read=read,
  )


def _text(model: BaseVit) -> str:
  return (
    f"a Vit (patch_size={model.patch_size}, hidden_size={model.hidden_size}, "
    f"num_layers={model.num_layers}, mlp_size={model.mlp_size}, "
    f"num_heads={model.num_heads})"
  )


def _names(class_names: Iterable[Any]) -> tuple[str, ...]:
  """The class names without characters that break a line or a terminal."""
  return tuple(printable(str(name)) for name in class_names)
