"""Opens a published file of weights, or its folder, as a `Loaded` model."""

import contextlib
import dataclasses
import functools
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.transforming.sizes import AnySize
from vit_jax.models import Origin, from_fields
from vit_jax.models.grid import Grid, param_shapes
from vit_jax.models.parts import Parts
from vit_jax.models.patches import why_one_size
from vit_jax.pretrained import known, quantised
from vit_jax.pretrained.arrays import Arrays, UnreadableFileError, open_arrays
from vit_jax.pretrained.folder import Files, open_folder
from vit_jax.pretrained.formats import architecture as architectures
from vit_jax.pretrained.formats import guesses, hf_dpt, processor, torchvision
from vit_jax.pretrained.formats.architecture import Architecture
from vit_jax.pretrained.formats.mapping import (
  Rule,
  Shapes,
  axis_sizes,
  check,
  read_all,
)
from vit_jax.pretrained.loaded import Loaded
from vit_jax.pretrained.locate import drop_download
from vit_jax.pretrained.naming import Naming, recognise, say_left_out
from vit_jax.pretrained.opened import with_inputs
from vit_jax.runtime import usage
from vit_jax.runtime.printable import printable, say
from vit_jax.tasks.choose import answering

# Says in words what a model's features are, for each choice of --pooling.
FEATURES = {
  "token": "the class token",
  "gap": "the mean of the patches",
  "token_gap": "the class token and the mean of the patches",
  "map": "an attention pooling of the patches (a MAP head)",
  "query": "an attention pooling of the patches by a query of its own",
  "prefix": "the mean of the tokens before the patches",
}
# The poolings that a user may choose for an encoder.
_POOLING_CHOICES = ("token", "gap", "token_gap")


def open_published(
  source: str,
  path: pathlib.Path,
  fields: Mapping[str, Any],
  image_options: Mapping[str, Any],
  others: tuple[str, ...] = (),
  says_features: bool = True,
) -> tuple[Loaded, Grid]:
  """Opens a file of weights, or a folder that holds one.

  Args:
    source: The user's name for it, for messages and the model's origin.
    path: The file or the folder.
    fields: Fields of the model that replace those of the format.
    image_options: `mean`, `std` and `grid` that replace those of the format,
      and `image_size`.
    others: Beginnings of the names of arrays that the caller reads, so that no
      line lists them as left out.
    says_features: Whether to print a line on which vector an encoder gives for
      an image.

  Returns:
    The model, and the grid of patches that its stored positions are for.

  Raises:
    ValueError: if the file is of no known format, or its arrays are not those
      of such a model.
  """
  files = open_folder(path)
  with quantised.explain_quantisation(files.config):
    loaded, grid = _open(source, files, fields, image_options, others)
  model = loaded.model
  if says_features and not model.num_classes and "pooling" not in fields:
    say(f"{source}: {_features(model)}.")
  return loaded, grid


def _open(
  source: str,
  files: Files,
  fields: Mapping[str, Any],
  image_options: Mapping[str, Any],
  others: tuple[str, ...],
) -> tuple[Loaded, Grid]:
  """Opens the arrays of a file as the parameters of a model.

  The names of the arrays tell the format. Its module, such as `formats.timm`,
  reads the sizes off their shapes and config.json (`infer`), and says which
  array is which parameter (`rules`); `_fit` builds the model, and checks these
  rules against its parameters. No array is read before the model's parameters
  are asked for, and then one at a time (`read`). Arguments, results and errors
  are those of `open_published`.
  """
  config = hf_dpt.of_encoder(files.config)
  path = files.weights
  architectures.check_supported(config)
  with _open_or_drop(path) as arrays:
    stored = arrays.shapes
  naming = recognise(stored)
  names = naming.names
  array_shapes, unused = _needed_and_unused(naming, stored)
  unused = [name for name in unused if not name.startswith(others)]
  outside = [name for name in naming.outside if not name.startswith(others)]
  grid = image_options.get("grid")
  architecture = _architecture(naming, array_shapes, config, files, grid)
  check_floats = functools.partial(
    quantised.check_floats, arrays, [names[short] for short in array_shapes]
  )
  fit = functools.partial(
    _fit,
    source=source,
    architecture=architecture,
    reader=naming.reader,
    stored=array_shapes,
    image_options=image_options,
    check_floats=check_floats,
  )
  fitted = _fit_or_explain(source, fit, fields)
  model, preprocessing = fitted.model, fitted.preprocessing

  def read() -> Iterator[tuple[str, np.ndarray]]:
    with _open_or_drop(path) as arrays:
      for leaf, array in read_all(fitted.rules, arrays.renamed(names), model):
        yield leaf, array.astype(np.float32, copy=False)

  of_file = guesses.PICTURES if files.pictures else ()
  explicit = {*fields, *image_options, *of_file}
  guessed = guesses.facts(architecture.guessed, explicit, model)
  # Commands that train or convert list the unused arrays themselves.
  say_left_out(source, outside)
  lines = [*naming.notes, *architecture.notes]
  lines += _image_lines(model, preprocessing, architecture, image_options)
  if line := guesses.line(guessed, model, preprocessing):
    lines.append(line)
  for line in lines:
    say(f"{source}: {line}.")
  return Loaded(
    model=model,
    inputs={"image": preprocessing},
    open_task=functools.partial(answering, architecture.loss),
    shapes=fitted.shapes,
    read=read,
    interpolation=architecture.interpolation,
    guessed=guessed,
    unread=tuple(unused),
  ), fitted.grid


def _needed_and_unused(
  naming: Naming, stored: Shapes
) -> tuple[Shapes, list[str]]:
  """The shapes of the arrays that a model needs, and the names of the others.

  The names are the format's.
  """
  shapes = {short: stored[name] for short, name in naming.names.items()}
  unused = getattr(naming.reader, "unused", lambda _: [])(shapes)
  return {k: v for k, v in shapes.items() if k not in unused}, unused


def _architecture(
  naming: Naming,
  shapes: Shapes,
  config: Mapping[str, Any],
  files: Files,
  grid: Grid | None,
) -> Architecture:
  """The architecture that arrays of these shapes and the other files tell.

  Raises ValueError as the format's `infer` does.
  """
  reader = naming.reader
  if reader is torchvision:  # It has no configuration, but names its files.
    config = {torchvision.FILE: files.weights.name}
  architecture = reader.infer(shapes, config, grid)
  if architecture.normalizes:
    with _open_or_drop(files.weights) as arrays:
      renamed = arrays.renamed(naming.names)
      architecture = reader.with_colours(architecture, renamed)
  return _with_folder(architecture, files)


def _image_lines(
  model: Any,
  preprocessing: Preprocessing,
  architecture: Architecture,
  image_options: Mapping[str, Any],
) -> Iterator[str]:
  """Lines on images that are prepared otherwise than the files say."""
  yield from _other_sizes(model, architecture)
  yield from _other_channels(preprocessing, architecture, image_options)
  if architecture.preprocessing.patches and _takes_one_size(model):
    yield (
      "its preprocessor keeps the proportions of pictures, and this model "
      f"takes images of one size: they are {preprocessing}"
    )


class _Fitted(NamedTuple):
  """A model whose parameters are the arrays of a file.

  Attributes:
    grid: The patches that its stored positions are for.
    shapes: The shapes of its parameters, by path.
    rules: Which array of the file holds which of them.
  """

  model: Any
  grid: Grid
  preprocessing: Preprocessing
  shapes: Shapes
  rules: list[Rule]


def _fit(
  fields: Mapping[str, Any],
  *,
  source: str,
  architecture: Architecture,
  reader: Any,
  stored: Shapes,
  image_options: Mapping[str, Any],
  check_floats: Callable[[], None],
) -> _Fitted:
  """The model of an architecture, in which `fields` replace some of its own.

  Raises ValueError if the stored arrays are not its parameters, or hold no
  floats.
  """
  model, grid, pictures = _build(source, architecture, fields, image_options)
  shapes = param_shapes(model, grid)
  rules = reader.rules(model, stored)
  channels = _channels(model, rules, stored, shapes)
  if channels != pictures.channels:
    architecture = _adapt_channels(architecture, channels, image_options)
    model, grid, pictures = _build(source, architecture, fields, image_options)
    shapes = param_shapes(model, grid)
  check_floats()  # First, as quantised arrays often have other shapes as well.
  what = f"{source} is not a {architecture.format} {_size_text(model)}"
  check(rules, stored, shapes, model, what)
  return _Fitted(model, grid, pictures, shapes, rules)


def _channels(
  model: Any, rules: list[Rule], stored: Shapes, shapes: Shapes
) -> int:
  """The number of channels of the images, by the size of the first kernel.

  If the size does not fit any number, or there is no such kernel, it is the
  model's own number, and `check` reports what differs.
  """
  channels = architectures.channels_of(model)
  sizes = axis_sizes(model)
  parts = Parts.of(model, shapes)
  for rule in rules:
    if any(map(parts.reads_pixels, rule.ours)) and rule.theirs in stored:
      per_channel = math.prod(rule.needs(shapes, sizes)) // channels
      quotient, remainder = divmod(math.prod(stored[rule.theirs]), per_channel)
      return channels if remainder or not quotient else quotient
  return channels


def _adapt_channels(
  architecture: Architecture, channels: int, image_options: Mapping[str, Any]
) -> Architecture:
  """The architecture for images of so many channels.

  Each channel gets the average mean and deviation of the architecture's own.
  Raises ValueError if the user gave another number of means or deviations.
  """
  pictures = architecture.preprocessing
  for name in ("mean", "std"):
    if name in image_options:
      raise ValueError(
        f"{name} has {len(image_options[name])} numbers, and the checkpoint's "
        f"images have {channels} channels: give one for each."
      )
  averaged = {
    name: (sum(values) / len(values),) * channels
    for name, values in (("mean", pictures.mean), ("std", pictures.std))
  }
  pictures = dataclasses.replace(pictures, **averaged)
  return dataclasses.replace(architecture, preprocessing=pictures)


def _other_channels(
  pictures: Preprocessing,
  architecture: Architecture,
  image_options: Mapping[str, Any],
) -> Iterator[str]:
  """A line if the mean and the deviation are known for other channels."""
  known_for = architecture.preprocessing.channels
  user_gave = {"mean", "std"} & {*image_options}
  if pictures.channels != known_for and not user_gave:
    yield (
      f"its images have {pictures.channels} channel(s), and a mean and a "
      f"deviation are known for {known_for}: their average is taken for each, "
      "as timm does; --mean and --std set others"
    )


def _fit_or_explain(
  source: str,
  fit: Callable[[Mapping[str, Any]], _Fitted],
  fields: Mapping[str, Any],
) -> _Fitted:
  """The result of `fit` for these fields.

  Raises ValueError as `fit` does. If it succeeds once the pooling is left out,
  the message says that this checkpoint has no such pooling.
  """
  try:
    return fit(fields)
  except ValueError as error:
    if "pooling" not in fields:
      raise
    others = {k: v for k, v in fields.items() if k != "pooling"}
    model = fit(others).model
    if model.pooling == fields["pooling"]:
      raise
    raise ValueError(
      f"{source} has no {_pooling(fields['pooling'])}: "
      f"{_features(model)}. Leave out this pooling."
    ) from error


def _size_text(model: Any) -> str:
  """The model's sizes in words that follow the name of a format."""
  names = "patch_size", "hidden_size", "num_layers", "mlp_size", "num_heads"
  sizes = ", ".join(f"{name}={getattr(model, name)}" for name in names)
  return f"checkpoint of a Vit ({sizes})"


def _with_folder(architecture: Architecture, files: Files) -> Architecture:
  """The architecture, completed from the folder's other files."""
  if files.pictures:
    config, file = files.pictures, files.pictures_file
    built_in = architecture.preprocessing
    notes = processor.assumptions(config, file)
    if architecture.normalizes and built_in.size:
      config, lines = processor.resizing(config, built_in.size, file)
      notes += lines
    pictures = processor.read(config, file)
    if architecture.normalizes:
      pictures = processor.compose(pictures, built_in)
    notes = (*architecture.notes, *notes)
    changes: dict[str, Any] = dict(preprocessing=pictures, notes=notes)
    architecture = dataclasses.replace(architecture, **changes)
  if not architecture.class_names:
    labels = files.class_names(architecture.fields["num_classes"])
    architecture = dataclasses.replace(architecture, class_names=labels)
  return architecture


def _pooling(name: str) -> str:
  """The flag, or the keyword in Python, that chooses this pooling."""
  return usage.option("pooling", name, "model.pooling")


def _features(model: Any) -> str:
  """A line on what an encoder gives for an image, and how to change it."""
  outputs = FEATURES.get(model.pooling, model.pooling)
  if model.distilled:
    outputs = "the class token and the distillation token"
  is_projected = model.representation_size is not None
  projected = ", projected" if is_projected else ""
  text = f"its features are {outputs}{projected}, as its library gives them"
  if not model.extended or not getattr(model, "class_token", False):
    return text
  fixed = ("norm_pooled", "pool_unnormed", "distilled")  # They fix the pooling.
  is_fixed = any(getattr(model, field) for field in fixed)
  if model.pooling not in _POOLING_CHOICES or is_fixed:
    return text
  choices = _POOLING_CHOICES
  if is_projected:  # The projection does not fit "token_gap", twice as wide.
    choices = ("token", "gap")
  others = [_pooling(name) for name in choices if name != model.pooling]
  return f"{text}; {' or '.join(others)} takes others"


def _other_sizes(model: Any, architecture: Architecture) -> Iterator[str]:
  """A line if the preprocessor's pictures do not fit the positions."""
  pictures, positions = architecture.preprocessing.size, architecture.image_size
  if model.resizes_positions or not pictures or not positions:
    return
  if _grid(pictures, model) != _grid(positions, model):
    yield (
      "its preprocessor makes pictures of {} x {}, and its positions are for "
      "{} x {}, which is used".format(*pictures, *positions)
    )


@contextlib.contextmanager
def _open_or_drop(path: pathlib.Path) -> Iterator[Arrays]:
  """Opens the arrays of a file; a download that cannot be read is deleted.

  Raises UnreadableFileError or OSError as `open_arrays` does.
  """
  try:
    with open_arrays(path) as arrays:
      yield arrays
  except UnreadableFileError as error:
    if not drop_download(path):
      raise
    raise UnreadableFileError(
      f"{error} The download was removed; the same command fetches it anew."
    ) from error


class _Built(NamedTuple):
  """A model, the grid of its stored positions, and its preprocessing.

  The grid is (1, 1) if nothing tells it.
  """

  model: Any
  grid: Grid
  preprocessing: Preprocessing


def _build(
  source: str,
  architecture: Architecture,
  fields: Mapping[str, Any],
  image_options: Mapping[str, Any],
) -> _Built:
  """Builds the model of an architecture; see `_fit`.

  Raises ValueError if the number of heads or the grid cannot be inferred, or
  the fields make no valid model.
  """
  fields = {"kind": "Vit", **architecture.fields, **fields}
  if fields["num_heads"] is None:
    raise ValueError(
      f"the number of heads cannot be inferred from a hidden size of "
      f"{fields['hidden_size']}: give num_heads=..."
    )
  model: Any = from_fields(fields)
  pictures, size = architecture.preprocessing, architecture.image_size
  grid = image_options.get("grid") or (size and _grid(size, model))
  if grid is None and architecture.tokens is not None:
    grid = architectures.square(architecture.tokens)
    if grid is None:
      raise ValueError(
        f"its {architecture.tokens} positions do not form a square grid: give "
        "grid=(h, w), the number of patches along height and width."
      )
  if model.resizes_positions and architecture.tokens is not None:
    model = model.clone(position_grid=grid)
  colours = {k: image_options[k] for k in ("mean", "std") if k in image_options}
  patches = _patches_of_any_size(model, pictures, image_options)
  pictures = dataclasses.replace(
    pictures, **_sizes(model, architecture, grid), **colours, patches=patches
  )
  names = tuple(printable(str(name)) for name in architecture.class_names)
  names = names or known.class_names(source, fields["num_classes"])
  origin = Origin(source, architecture.format, None, class_names=names)
  origin = with_inputs(origin, {"image": pictures})
  return _Built(model.clone(origin=origin), grid or (1, 1), pictures)


def _sizes(
  model: Any, architecture: Architecture, grid: Grid | None
) -> dict[str, Any]:
  """The fields `size` and `cut_from` of the model's preprocessing.

  If patches do not fill an image, libraries leave out its last pixels; `size`
  is then without these, and `cut_from` with them.
  """
  sizes = architecture.preprocessing.size, architecture.image_size
  stride = model.stride
  for whole in filter(None, sizes):  # The first that fits the positions.
    patches = _grid(whole, model)
    fits = model.resizes_positions or grid in (None, patches)
    if fits and min(patches):
      size = patches[0] * stride, patches[1] * stride
      return dict(size=size, cut_from=None if size == whole else whole)
  if grid is not None:
    return dict(size=(grid[0] * stride, grid[1] * stride))
  return dict(size=sizes[0])


def _takes_one_size(model: Any) -> bool:
  """Whether a model takes images of one size alone."""
  return not model.any_size or why_one_size(model) is not None


def _patches_of_any_size(
  model: Any, pictures: Preprocessing, image_options: Mapping[str, Any]
) -> AnySize | None:
  """The field `patches` of the preprocessing, for pictures of any size.

  It is None if the model takes pictures of one size. Raises ValueError if the
  preprocessor's patches are of another size than the model's.
  """
  patches = pictures.patches
  if patches is None or "image_size" in image_options or _takes_one_size(model):
    return None
  if patches.patch_size != model.stride:
    P, stride = patches.patch_size, model.stride
    raise ValueError(
      f"its preprocessor cuts patches of {P} x {P}, and its model has patches "
      f"of {stride} x {stride}: set patch_size to {stride} in its "
      "preprocessor, or give --image_size for pictures of one size."
    )
  return patches


def _grid(size: tuple[int, int], model: Any) -> Grid:
  """The number of whole patches along the height and the width of an image."""
  return size[0] // model.stride, size[1] // model.stride
