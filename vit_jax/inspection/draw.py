"""Draws the figures of a checkpoint and of images.

They are written to a folder, or one is returned for a notebook.
"""

import os
import pathlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import IO, Any, NamedTuple

import numpy as np
from PIL import Image

from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading.named_images import find_images, say_missing
from vit_jax.inference.reading import (
  Picture,
  Pictures,
  decode_ahead,
  each_picture,
  make_reader,
  name_of,
  read_image,
)
from vit_jax.inspection import embedding_maps
from vit_jax.inspection.attention_views import (
  Arrays,
  Options,
  batch_size,
  make_look,
)
from vit_jax.inspection.photograph import seen_part
from vit_jax.models import BaseVit, Vit
from vit_jax.pretrained import trained_on
from vit_jax.pretrained.load import load_pretrained
from vit_jax.pretrained.loaded import Loaded
from vit_jax.runtime import extras, hints
from vit_jax.runtime.display import Display
from vit_jax.runtime.files import output_file, output_folder, replacing
from vit_jax.runtime.printable import printable_path, say
from vit_jax.tasks.answers import answers_of
from vit_jax.tasks.task import Task, class_name

PICTURE_FILES = {"png": (".png",), "jpeg": (".jpg", ".jpeg")}
"""The endings of files that `write_attention` writes."""
_IMAGES_AHEAD = 4  # Images decoded while another is drawn.


def visualize_files(
  checkpoint: str | Loaded,
  images: Pictures,
  *,
  out: str,
  options: Options = Options(),
  **overrides: Any,
) -> int:
  """Writes figures and arrays, as `draw_files` does; returns the exit code.

  The code is 1 if an image is missing or cannot be read.
  """
  return draw_files(
    checkpoint, images, out=out, options=options, **overrides
  ).exit_code


class Drawn(NamedTuple):
  """The figures that were drawn.

  Attributes:
    exit_code: 1 if an image is missing or cannot be read, else 0.
    pictures: The rollout of each image, or without images the figures of the
      model.
  """

  exit_code: int
  pictures: tuple[str, ...]


def draw_files(
  checkpoint: str | Loaded,
  images: Pictures,
  *,
  out: str,
  options: Options = Options(),
  **overrides: Any,
) -> Drawn:
  """Writes figures and arrays.

  A line for each image has the names of its figures. The arguments are those of
  the command; the checkpoint may be loaded already, and the images need not be
  files. Without images, only the model's parameters are drawn. Raises
  ValueError if no name matches an image, options are given without images, the
  model is a ResNet, which has no attention, matplotlib is missing, or
  `overrides` are given for a loaded model.
  """
  figures = extras.load("vit_jax.inspection.figures", "figures")
  folder = output_folder(out)
  missing, pictures = _pictures(images)
  if not pictures and (given := options.given):
    raise ValueError(
      f"--{given[0]} is for the figures of images, and none is given: name "
      f"images, or leave {given[0]} out."
    )
  loaded = open_to_draw(checkpoint, overrides)
  advice = trained_on.digits_advice(
    loaded.description, loaded.preprocessing, pictures
  )
  for note in filter(None, (*loaded.notes, advice)):
    say(note)
  model = embedding_maps.check_vit(loaded.model)
  params = loaded.params
  preprocessing = loaded.preprocessing
  task = loaded.task
  look = make_look(model, params, options, task)
  arrays, files = _draw_parameters(
    figures, folder, model, params, preprocessing.image_size
  )
  count = len(pictures)
  if count:
    files = []
  arrays_of_images: list[Arrays] = []
  drawn: list[tuple[pathlib.Path, np.ndarray]] = []
  read = _reader(preprocessing)
  at_once = batch_size(model, count, preprocessing)
  decoded = decode_ahead(pictures, read, max(_IMAGES_AHEAD, at_once))
  readable = _readable(Display().track(decoded, "drawing", count))
  while batch := list(islice(readable, at_once)):
    rows = [row for _, _, (row, _) in batch]
    # The last batch is filled up, so that nothing is compiled anew for it.
    rows += rows[:1] * (at_once - len(batch))
    stacked = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    pairs = zip(batch, look(stacked), strict=False)
    for (number, path, (_, photograph)), seen in pairs:
      stem = folder / _stem(number, path)
      kinds = _draw_image(figures, stem, model, photograph, seen, path, task)
      _say_written(printable_path(path), f"{stem}_", kinds)
      files.append(f"{stem}_rollout.png")
      arrays_of_images.append({"images": printable_path(path), **seen})
      if options.pca:
        drawn.append((stem, photograph))
  if arrays_of_images:
    arrays |= _draw_all(figures, folder, arrays_of_images, drawn, options)
  _write(folder / "arrays.npz", lambda file: np.savez(file, **arrays))
  _say_written("arrays", f"{folder}{os.sep}", ["arrays"], ".npz")
  exit_code = 1 if missing or len(arrays_of_images) < count else 0
  return Drawn(exit_code, tuple(files))


def _pictures(images: Pictures) -> tuple[bool, list[Picture]]:
  """Whether a name stands for no image, and the pictures one by one.

  Raises ValueError if no name stands for an image.
  """
  if isinstance(images, str | os.PathLike):
    images = [images]
  if isinstance(images, Iterator):
    images = [*images]
  if isinstance(images, list | tuple):
    names = [one for one in images if isinstance(one, str | os.PathLike)]
    if len(names) == len(images):
      return say_missing(names), [*find_images(names)]
  return False, [*each_picture(images)]


def attention_picture(
  loaded: Loaded,
  images: Pictures,
  *,
  layer: int | None = None,
  class_name: str | int | None = None,
) -> Image.Image:
  """Draws what a model attends to; see `Loaded.attention`.

  Raises ValueError if `images` are not one readable image, the model is a
  ResNet or has no such layer or class, or matplotlib is missing.
  """
  figures = extras.load("vit_jax.inspection.figures", "figures")
  options = Options(layer=layer, class_name=class_name)
  model = embedding_maps.check_vit(loaded.model)
  look = make_look(model, loaded.params, options, loaded.task)
  pictures = [*each_picture(images)]
  if len(pictures) != 1:
    raise ValueError(
      f"{len(pictures)} images were given, and a picture of attention shows "
      "one: give a single image in each call."
    )
  (picture,) = pictures
  read = read_image(picture, _reader(loaded.preprocessing))
  name = name_of(picture, 1)
  if isinstance(read, str):
    raise ValueError(f"{name}: {read}")
  row, photograph = read
  (seen,) = look({key: array[None] for key, array in row.items()})
  title = _title(name, model, seen, loaded.task)
  drawn = figures.overlay_figure(photograph, _overlaid(model, seen), title)
  drawn.image.__class__ = AttentionPicture
  return drawn.image


class AttentionPicture(Image.Image):
  """A Pillow image of attention; `loaded.attention_maps` has its numbers."""

  def __getattr__(self, name: str) -> Any:
    """Raises AttributeError, which says where the array is, if one is meant."""
    raise hints.attribute_error(
      self, name, "picture", "the picture of loaded.attention has"
    )

  def __getitem__(self, index: object) -> Any:
    """Raises TypeError, which says where the array is."""
    raise TypeError(
      "loaded.attention returns a picture, which has no items; did you mean "
      "loaded.attention_maps(image), an array (1, heads, h, w)?"
    )


def write_attention(
  checkpoint: str | Loaded,
  images: Pictures,
  path: str,
  *,
  layer: int | None = None,
  class_name: str | int | None = None,
  **overrides: Any,
) -> pathlib.Path:
  """Writes `attention_picture` of one image to a new file; returns its path.

  The checkpoint may be loaded already. Raises ValueError as `attention_picture`
  and `open_to_draw` do, and if the file is there, since it may be a photograph
  that was given in the place of `out`.
  """
  file, kind = output_file(path, PICTURE_FILES)
  if file.exists():
    raise ValueError(
      f"{path!r} exists and is not written over, as it may be a photograph: "
      "choose another name for out."
    )
  loaded = open_to_draw(checkpoint, overrides)
  picture = attention_picture(
    loaded, images, layer=layer, class_name=class_name
  )
  with replacing(file) as stream:
    picture.save(stream, format=kind)
  say(
    f"{printable_path(path)}: the photograph, the attention of a layer, "
    "attention rollout and the patches that support a class, as "
    'loaded.attention draws them; out="figures" writes all figures to a folder.'
  )
  return file


def open_to_draw(
  checkpoint: str | Loaded, overrides: Mapping[str, Any]
) -> Loaded:
  """The loaded model that is given, or that of a checkpoint.

  Raises ValueError if `overrides` are given for a loaded model.
  """
  if not isinstance(checkpoint, Loaded):
    return load_pretrained(checkpoint, reads_patches=True, **overrides)
  if overrides:
    raise ValueError(
      f"{', '.join(overrides)}: give these to vit_jax.load_pretrained, as this "
      "model is loaded already."
    )
  return checkpoint


def _reader(preprocessing: Preprocessing) -> Callable[[bytes], Any]:
  """Returns a function from an encoded image to two results.

  They are the arrays for the model, by name, and the photograph to draw on.
  """
  arrays_of = make_reader(preprocessing)

  def read(encoded: bytes) -> Any:
    return arrays_of(encoded), seen_part(encoded, preprocessing)

  return read


def _title(path: str, model: BaseVit, seen: Arrays, task: Task) -> str:
  """The file's name, its label if its folder is a class, and the answer."""
  assert model.origin is not None
  class_names = model.origin.class_names
  folder, name = os.path.split(path)
  label = os.path.basename(folder)
  parts = [name]
  if label in class_names:
    parts.append(f"in folder {label}")
  if "relevance" in seen:
    parts.append(f"answer {answers_of(task).text(seen, class_names)}")
  return "  |  ".join(parts)


def _overlaid(model: BaseVit, seen: Arrays) -> dict[str, np.ndarray]:
  """The maps that are drawn beside a photograph, by their captions."""
  assert model.origin is not None
  maps_by_name = {
    f"Attention of layer {seen['attention_layer']}": seen["attention"].mean(
      axis=0
    ),
    "Attention rollout": seen["rollout"],
  }
  if "relevance" in seen:
    names = model.origin.class_names
    supported = class_name(names, seen["relevance_index"])
    maps_by_name[f"Supports {supported}"] = seen["relevance"]
  return maps_by_name


def _draw_all(
  figures: Any,
  folder: pathlib.Path,
  arrays_of_images: list[Arrays],
  drawn: list[tuple[pathlib.Path, np.ndarray]],
  options: Options,
) -> Arrays:
  """Draws the figures of all images together; returns the arrays of all.

  `drawn` has the stem of the files and the photograph of each image whose
  principal components are to be drawn.
  """
  arrays: Arrays = {}
  for key in arrays_of_images[0]:
    arrays |= _together(key, [one[key] for one in arrays_of_images])
  arrays["distance"] = arrays["distance"].mean(axis=0)
  _save(folder / "distance.png", figures.distance_figure(arrays["distance"]))
  names = ["distance"]
  if options.pca:
    pca = embedding_maps.patch_colours(
      [one["patches"] for one in arrays_of_images], options.foreground
    )
    arrays |= _together("pca", pca)
    images = zip(drawn, pca, arrays_of_images, strict=True)
    for (stem, photograph), colours, seen in images:
      _draw_components(figures, stem, photograph, colours, seen)
    names.append("*_pca")
  _say_written("all images", f"{folder}{os.sep}", names)
  return arrays


def _together(key: str, of_images: list[Any]) -> Arrays:
  """The arrays of all images as one, by `key`.

  If their shapes differ, there is an array for each image instead, by `key` and
  the number of the image, from 1.
  """
  if len({np.shape(one) for one in of_images}) == 1:
    return {key: np.stack(of_images)}
  return {f"{key}_{n}": one for n, one in enumerate(of_images, 1)}


def _readable(
  images: Iterable[tuple[Picture, Any]],
) -> Iterator[tuple[int, str, Any]]:
  """Yields the number, the name and the content of each readable image.

  `images` has the path or the picture of each image, and its content or, as a
  text, the reason why it could not be read, which is printed.
  """
  for number, (picture, image) in enumerate(images, 1):
    is_file = isinstance(picture, str | os.PathLike)
    path = os.fspath(picture) if is_file else name_of(picture, number)
    if isinstance(image, str):
      say(f"{printable_path(path)}: {image}")
    else:
      yield number, path, image


def _draw_parameters(
  figures: Any,
  folder: pathlib.Path,
  model: Vit,
  params: Any,
  size: tuple[int, int],
) -> tuple[Arrays, list[str]]:
  """Draws the figures of the model alone; returns their arrays and files."""
  components, similarity = embedding_maps.filters_and_positions(
    model, params, size
  )
  _save(folder / "filters.png", figures.filters_figure(components))
  arrays = {"filters": components}
  if similarity is not None:
    _save(folder / "positions.png", figures.positions_figure(similarity))
    arrays["position_similarity"] = similarity
  names = ["filters", "positions"][: len(arrays)]
  _say_written("model", f"{folder}{os.sep}", names)
  return arrays, [str(folder / f"{name}.png") for name in names]


def _draw_image(
  figures: Any,
  stem: pathlib.Path,
  model: Vit,
  image: np.ndarray,
  seen: Arrays,
  path: str,
  task: Task,
) -> list[str]:
  """Draws the figures of an image, whose file names begin with `stem`.

  Their title is the file's name, its label if its folder is a class, and the
  answer. Returns the ends of the file names, such as "rollout".
  """
  assert model.origin is not None
  class_names = model.origin.class_names
  label = os.path.basename(os.path.dirname(printable_path(path)))
  title = _title(printable_path(path), model, seen, task)
  kinds = []

  def save(kind: str, figure: Any) -> None:
    kinds.append(kind)
    _save(stem.with_name(f"{stem.name}_{kind}.png"), figure)

  layer = seen["attention_layer"]
  heads = seen["attention"]
  if model.num_classes:
    sheet = figures.sheet_figure(
      image,
      [class_name(class_names, index) for index in seen.get("index", ())],
      seen.get("probability", ()),
      seen["rollout"],
      title,
      {label} if label in class_names else None,
    )
    save("sheet", sheet)
  save("rollout", figures.overlay_figure(image, _overlaid(model, seen), title))
  whose = "the class token's" if model.class_token else "mean"
  by_head = {f"head {k}": map_ for k, map_ in enumerate(heads, 1)}
  caption = f"{title}\nLayer {layer}: {whose} attention"
  save("attention", figures.grid_figure(image, by_head, caption))
  by_layer = {f"layer {n}": map_ for n, map_ in enumerate(seen["layers"], 1)}
  caption = f"{title}\nBy layer: {whose} attention, averaged over heads"
  save("layers", figures.grid_figure(image, by_layer, caption))
  save("patches", figures.patches_figure(image, seen["rollout"].shape))
  return kinds


def _draw_components(
  figures: Any,
  stem: pathlib.Path,
  photograph: np.ndarray,
  colours: np.ndarray,
  seen: Arrays,
) -> None:
  """Draws the principal components of an image's patches, and its attention."""
  name = f"Attention of layer {seen['attention_layer']}"
  attention = {name: seen["attention"].mean(axis=0)}
  figure = figures.colours_figure(photograph, colours, attention)
  _save(stem.with_name(f"{stem.name}_pca.png"), figure)


def _stem(number: int, path: str) -> str:
  """The unique beginning of the file names of an image's figures."""
  stem = os.path.splitext(os.path.basename(path))[0]
  return f"{number:02}_{re.sub(r'[^A-Za-z0-9_.-]+', '_', stem)[:60]}"


def _save(path: pathlib.Path, figure: Any) -> None:
  """Writes a figure as PNG, complete or not at all."""
  _write(path, lambda file: figure.savefig(file, format="png"))


def _write(path: pathlib.Path, write: Callable[[IO[bytes]], None]) -> None:
  """Writes a file, complete or not at all."""
  with replacing(path) as file:
    write(file)


def _say_written(
  what: str, start: str, names: list[str], end: str = ".png"
) -> None:
  """Prints the names of files in one line, in braces, which shells expand."""
  each = ",".join(names)
  each = f"{{{each}}}" if len(names) > 1 else each
  say(f"{what}: {printable_path(start)}{each}{end}", sys.stdout)
