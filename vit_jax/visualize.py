"""Draws what a model has learned and looks at, by any checkpoint.

python -m vit_jax.visualize CHECKPOINT [IMAGE...] --out=DIR [--top=5]
  [--head_fusion=mean] [--discard=0] [--layer=12] [--class_name=NAME]
  [--image_size=384]

CHECKPOINT and IMAGE are as of `predict`. DIR gets the model's embedding filters
and position similarities (Fig. 7); for each image its numbered patches, its
attention rollout (Fig. 6 and 14) with what speaks for a class, a layer's raw
attention by head and a sheet of predictions; for all of them the mean attention
distance of each head (Fig. 7); and every array drawn, in arrays.npz. The exit
code is 1 if an image could not be read; the others are done.
"""

import dataclasses
import os
import pathlib
import re
import sys
from collections.abc import Callable
from typing import IO, Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from vit_jax.data.image_files import check_found, find_images, printable_path
from vit_jax.inference.predictor import (
  class_name,
  decode_ahead,
  make_predict_step,
)
from vit_jax.inspection import attention_maps as maps
from vit_jax.inspection import embedding_maps
from vit_jax.models import Origin, Vit
from vit_jax.models.normalize import normalize
from vit_jax.pretrained.load import open_pretrained
from vit_jax.runtime import command, extras
from vit_jax.runtime.atomic_file import local_path, replacing

Arrays = dict[str, Any]

_IMAGES_AHEAD = 4  # Decoded while one is drawn.


@dataclasses.dataclass(frozen=True)
class Options:
  """What to draw of each image.

  Attributes:
    top: Likeliest classes on the sheet.
    head_fusion: How rollout fuses heads, one of `attention_maps.FUSIONS`.
    discard: Fraction of the lowest attentions that rollout leaves out.
    layer: Whose raw attention is drawn, from 1; by default the last.
    class_name: For which patches speak, or its number; by default the
      likeliest.
  """

  top: int = 5
  head_fusion: str = "mean"
  discard: float = 0.0
  layer: int | None = None
  class_name: str | None = None


def main(arguments: list[str]) -> int:
  values = flags.FLAGS
  names = [field.name for field in dataclasses.fields(Options)]
  options: dict[str, Any] = {name: values[name].value for name in names}
  return visualize_files(
    arguments[0],
    arguments[1:],
    out=values.out,
    options=Options(**options),
    **command.overrides(),
  )


def visualize_files(
  checkpoint: str,
  names: list[str],
  *,
  out: str,
  options: Options = Options(),
  **overrides: Any,
) -> int:
  """Writes figures and arrays, a line printed for each; returns the exit code.

  Args:
    checkpoint: Anything `load_pretrained` takes.
    names: Of images: files, folders and patterns; with none, only the model's
      parameters are drawn.
    out: The folder to write to.
    options: What to draw of each image.
    **overrides: As of `load_pretrained`.

  Raises:
    ValueError: if a name matches no image, the model cannot do this, or
      matplotlib is missing.
  """
  figures = extras.load("vit_jax.inspection.figures", "figures")
  maps.check_rollout(options.head_fusion, options.discard)
  folder = local_path(out)
  if folder.exists() and not folder.is_dir():
    raise ValueError(f"{out!r} is a file; name the folder to write to.")
  check_found(names)
  loaded = open_pretrained(checkpoint, **overrides)
  model, params = embedding_maps.check_vit(loaded.model), loaded.params()
  preprocessing = loaded.preprocessing
  size = preprocessing.image_size
  predict_step = make_predict_step(
    model,
    **preprocessing.normalization,
    loss=loaded.loss,
    top=options.top,
    features=False,
  )
  look = _make_look(model, params, options, jax.jit(predict_step))
  arrays = _draw_parameters(figures, folder, model, params, size)
  found: list[Arrays] = []
  unreadable = 0
  images = decode_ahead(
    find_images(names), preprocessing.transform(), _IMAGES_AHEAD
  )
  for number, (path, image) in enumerate(images, 1):
    name = printable_path(path)
    if isinstance(image, str):
      unreadable += 1
      print(f"{name}: {image}", file=sys.stderr, flush=True)
      continue
    seen = look(image)
    _draw_image(figures, folder / _stem(number, path), model, image, seen)
    found.append({"images": name, **seen})
  if found:
    seen = {key: np.stack([one[key] for one in found]) for key in found[0]}
    arrays |= seen | {"distance": seen["distance"].mean(axis=0)}
    _save(folder / "distance.png", figures.distance_figure(arrays["distance"]))
  _write(folder / "arrays.npz", lambda file: np.savez(file, **arrays))
  return 1 if unreadable else 0


def _draw_parameters(
  figures: Any,
  folder: pathlib.Path,
  model: Vit,
  params: Any,
  size: tuple[int, int],
) -> Arrays:
  """Figures of the model alone; the arrays of them."""
  components, similarity = embedding_maps.learned(model, params, size)
  _save(folder / "filters.png", figures.filters_figure(components))
  if similarity is None:
    return {"filters": components}
  _save(folder / "positions.png", figures.positions_figure(similarity))
  return {"filters": components, "position_similarity": similarity}


def _make_look(
  model: Vit, params: Any, options: Options, predict_step: Callable
) -> Callable[[np.ndarray], Arrays]:
  """A function from an image, (H, W, 3), to the arrays of it.

  Raises:
    ValueError: if the model has not the layer or the class asked for.
  """
  origin = model.origin
  assert origin is not None
  layer = _layer(model, options.layer)
  chosen = _class_index(model, origin, options.class_name)

  def look(image: np.ndarray) -> Arrays:
    x = normalize(jnp.asarray(image[None]), origin.mean, origin.std)
    found: Arrays = {}
    if model.num_classes:
      best = jax.device_get(predict_step(params, image[None]))
      found = {key: array[0] for key, array in best.items()}
      index = found["index"][0] if chosen is None else chosen
      A, dA = maps.attention_gradients(model, params, x, np.array([index]))
      relevance = maps.relevance(A, dA)[0]
      found |= {"relevance": relevance, "relevance_index": index}
    else:
      A = maps.attention_weights(model, params, x)
    found["rollout"] = maps.rollout(A, options.head_fusion, options.discard)[0]
    found["attention"] = maps.output_attention(A, layer - 1)[0]
    found["attention_layer"] = layer
    found["distance"] = maps.mean_attention_distance(A)[:, 0]
    if not all(np.isfinite(array).all() for array in found.values()):
      raise ValueError(
        "the model answers with NaN: its parameters are damaged, or its "
        "training has diverged."
      )
    return found

  return look


def _layer(model: Vit, layer: int | None) -> int:
  """The layer asked for, from 1; the last by default."""
  L = model.num_layers
  if layer is not None and not 1 <= layer <= L:
    raise ValueError(f"--layer={layer}: the model's layers are 1 to {L}.")
  return layer or L


def _class_index(model: Vit, origin: Origin, name: str | None) -> int | None:
  """The number of a class, of which that or its name is given."""
  if name is None:
    return None
  if name in origin.class_names:
    return origin.class_names.index(name)
  number = name.removeprefix("class ")
  if number.isdecimal() and int(number) < model.num_classes:
    return int(number)
  raise ValueError(
    f"--class_name={name!r} is none of the {model.num_classes} classes of the "
    "model: give a name as `predict` prints it, or a number from 0."
  )


def _draw_image(
  figures: Any, stem: pathlib.Path, model: Vit, image: np.ndarray, seen: Arrays
) -> None:
  """Figures of an image, their names beginning with `stem`."""
  assert model.origin is not None
  known = model.origin.class_names

  def save(kind: str, figure: Any) -> None:
    _save(stem.with_name(f"{stem.name}_{kind}.png"), figure)

  drawn = {"Attention rollout": seen["rollout"]}
  if model.num_classes:
    named = [class_name(known, index) for index in seen["index"]]
    save(
      "sheet",
      figures.sheet_figure(image, named, seen["probability"], seen["rollout"]),
    )
    what = class_name(known, seen["relevance_index"])
    drawn[f"Speaks for {what}"] = seen["relevance"]
  save("rollout", figures.overlay_figure(image, drawn))
  whose = "the class token's" if model.pooling == "token" else "mean"
  title = f"Layer {seen['attention_layer']}: {whose} attention"
  save("attention", figures.heads_figure(seen["attention"], title))
  save("patches", figures.patches_figure(image, seen["rollout"].shape))


def _stem(number: int, path: str) -> str:
  """What the names of an image's figures begin with; no two have the same."""
  stem = os.path.splitext(os.path.basename(path))[0]
  return f"{number:02}_{re.sub(r'[^A-Za-z0-9_.-]+', '_', stem)[:60]}"


def _save(path: pathlib.Path, figure: Any) -> None:
  _write(path, lambda file: figure.savefig(file, format="png"))


def _write(path: pathlib.Path, write: Callable[[IO[bytes]], None]) -> None:
  """Writes a file, whole or not at all, and says so."""
  with replacing(path) as file:
    write(file)
  print(printable_path(str(path)), flush=True)


def define_flags() -> None:
  flags.DEFINE_string("out", None, "The folder to write to.", required=True)
  flags.DEFINE_integer("top", 5, "Classes on the sheet.", lower_bound=1)
  flags.DEFINE_enum(
    "head_fusion", "mean", [*maps.FUSIONS], "How rollout fuses heads."
  )
  flags.DEFINE_float(
    "discard", 0.0, "Lowest attentions that rollout leaves out."
  )
  flags.DEFINE_integer("layer", None, "To draw by head, from 1; or the last.")
  flags.DEFINE_string("class_name", None, "Or number; or the likeliest class.")
  command.define_overrides()


if __name__ == "__main__":
  command.run(main, takes="CHECKPOINT [IMAGE...]", define=define_flags)
