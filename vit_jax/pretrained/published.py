"""Opens a published file of weights, or its folder, as a `Loaded` model."""

import contextlib
import dataclasses
import functools
import json
import pathlib
import sys
from collections.abc import Container, Iterator, Mapping
from typing import Any

import numpy as np

from vit_jax.data.preprocessing import Preprocessing
from vit_jax.models import BaseVit, from_fields
from vit_jax.models.grid import Grid, param_shapes
from vit_jax.pretrained import known
from vit_jax.pretrained.arrays import Arrays, UnreadableFileError, open_arrays
from vit_jax.pretrained.formats import architecture as architectures
from vit_jax.pretrained.formats import (
  google,
  hf_encoders,
  huggingface,
  processor,
  timm_encoders,
  torchvision,
)
from vit_jax.pretrained.formats.architecture import Architecture
from vit_jax.pretrained.formats.mapping import Shapes, check, read_all
from vit_jax.pretrained.loaded import Loaded, origin_of
from vit_jax.pretrained.locate import drop_download
from vit_jax.runtime.printable import printable
from vit_jax.tasks.choose import answering

# In the order in which they are tried; each recognises its own names.
FORMATS = (google, hf_encoders, timm_encoders, torchvision)
# Names of files of weights, as other libraries and `convert` write them.
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "model.npz")
_MOST_TEXT_BYTES = 16 << 20


def open_published(
  source: str,
  path: pathlib.Path,
  fields: Mapping[str, Any],
  given: Mapping[str, Any],
) -> tuple[Loaded, Grid]:
  """Opens a file of weights, or a folder that holds one, which is `source`.

  Returns the model, and the grid of patches that its stored positions are for.
  `fields` of the model replace those of the format, as do `mean`, `std` and
  `grid` in `given`.
  """
  path, config, preprocessor = _weights_and_configs(path)
  architectures.check_supported(config)
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
  architecture = _named(layout.infer(found, config, given.get("grid")), path)
  if preprocessor:
    pictures = processor.read(preprocessor)
    architecture = dataclasses.replace(architecture, preprocessing=pictures)
  model, grid, preprocessing = _build(source, architecture, fields, given)
  shapes, rules = param_shapes(model, grid), layout.rules(model, found)
  sizes = "patch_size", "hidden_size", "num_layers", "mlp_size", "num_heads"
  made = ", ".join(f"{name}={getattr(model, name)}" for name in sizes)
  what = f"{source} is not a {architecture.format} checkpoint of a Vit ({made})"
  check(rules, found, shapes, model, what)

  def read() -> Iterator[tuple[str, np.ndarray]]:
    with _arrays(path) as arrays:
      for leaf, array in read_all(rules, arrays.renamed(names), model):
        yield leaf, array.astype(np.float32, copy=False)

  told = {*fields, "preprocessing"} if preprocessor else fields
  _say(source, model, architecture, unused, told)
  return Loaded(
    model,
    preprocessing,
    functools.partial(answering, architecture.loss),
    shapes,
    read,
    architecture.interpolation,
  ), grid


def _say(
  source: str,
  model: BaseVit,
  architecture: Architecture,
  unused: list[str],
  told: Container[str],
) -> None:
  """Prints what is guessed or left out of the model or its preprocessing."""
  lines = [v for k, v in architecture.guesses.items() if k not in told]
  pictures, positions = architecture.preprocessing.size, architecture.image_size
  if unused:
    names = ", ".join(unused[:2] + ["..."] * bool(unused[2:]))
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
  raise ValueError(
    f"its {len(shapes)} arrays ({', '.join([*shapes][:3])}, ...) are not named "
    "as in any supported format (vision_transformer, big_vision, Hugging Face "
    "ViT, timm, torchvision): it may be another architecture."
  )


def _build(
  source: str,
  architecture: Architecture,
  fields: Mapping[str, Any],
  given: Mapping[str, Any],
) -> tuple[Any, Grid, Preprocessing]:
  """The model, its preprocessing and the grid its stored positions are for."""
  fields = {"kind": "Vit", **architecture.fields, **fields}
  if fields["num_heads"] is None:
    raise ValueError(
      f"the number of heads cannot be inferred from a hidden size of "
      f"{fields['hidden_size']}: give num_heads=..."
    )
  model: Any = from_fields(fields)
  stride, pictures = model.stride, architecture.preprocessing
  size, tokens = architecture.image_size, architecture.tokens
  grid = given.get("grid")
  if grid is None and size is not None:
    grid = size[0] // stride, size[1] // stride
  if grid is None and tokens is not None:
    grid = architectures.square(tokens)
    if grid is None:
      raise ValueError(
        f"its {tokens} positions do not form a square grid: give grid=(h, w), "
        "the number of patches along height and width."
      )
  if grid is not None:
    size = grid[0] * stride, grid[1] * stride
  if model.resizes_positions:  # They fit pictures of any size.
    size = pictures.size or size
    if tokens is not None:
      model = model.clone(position_grid=grid)
  colours = {k: given[k] for k in ("mean", "std") if k in given}
  pictures = dataclasses.replace(
    pictures, size=size or pictures.size, **colours
  )
  names = tuple(printable(str(name)) for name in architecture.class_names)
  names = names or known.class_names(source, fields["num_classes"])
  origin = origin_of(source, architecture.format, pictures, names)
  return model.clone(origin=origin), grid or (1, 1), pictures


def _weights_and_configs(
  path: pathlib.Path,
) -> tuple[pathlib.Path, dict[str, Any], dict[str, Any]]:
  """A checkpoint's file of weights, and its two configurations, {} for none."""
  folder = path if path.is_dir() else path.parent
  if path.is_dir():
    present = [path / name for name in _WEIGHTS if (path / name).exists()]
    if not present:
      raise ValueError(
        f"{path} is a folder without checkpoints/, which a workdir has, and "
        f"without {_WEIGHTS[0]} or {_WEIGHTS[-1]}: name a file of weights in "
        "it, or another folder."
      )
    path = present[0]
  torch = path.name.endswith((".safetensors", ".json"))
  config = _read_json(folder / "config.json") if torch else {}
  own = config or path.name in _WEIGHTS
  return path, config, _read_json(folder / processor.FILE) if own else {}


def _named(architecture: Architecture, path: pathlib.Path) -> Architecture:
  """Adds the class names that `labels.txt` beside the weights may hold."""
  labels = path.parent / "labels.txt"
  num_classes = architecture.fields["num_classes"]
  named = architecture.class_names or path.name not in _WEIGHTS
  if named or not num_classes or not labels.exists():
    return architecture
  names = _read_text(labels).removesuffix("\n").split("\n")
  while len(names) > num_classes and not names[-1]:  # Empty lines at the end.
    names.pop()
  if len(names) > num_classes:
    raise ValueError(
      f"{labels} names {len(names)} classes and the model has {num_classes}: "
      "correct the file or remove it."
    )
  return dataclasses.replace(architecture, class_names=tuple(names))


def _read_text(path: pathlib.Path) -> str:
  """The text of a file, which must be of reasonable size."""
  if path.stat().st_size > _MOST_TEXT_BYTES:
    raise ValueError(f"{path} is too large for a configuration file.")
  try:
    return path.read_text("utf-8")
  except UnicodeDecodeError as error:
    raise ValueError(f"{path} is not UTF-8 text: {error}.") from error


def _read_json(path: pathlib.Path) -> dict[str, Any]:
  """The JSON object in a file; {} if there is no such file."""
  if not path.exists():
    return {}
  text = _read_text(path)
  try:
    found = json.loads(text)
  except (ValueError, RecursionError) as error:
    raise ValueError(f"{path} is not JSON: {error}.") from error
  if not isinstance(found, dict):
    raise ValueError(f"{path} does not hold a JSON object.")
  return found
