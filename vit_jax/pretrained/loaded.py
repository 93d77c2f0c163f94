"""A loaded model, with everything that is needed to use it."""

import collections
import importlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from vit_jax.inference import PLATFORMS
from vit_jax.inference.reading import Pictures
from vit_jax.pretrained.answering import Answering
from vit_jax.runtime import extras, hints, shown
from vit_jax.runtime.aliases import aliases
from vit_jax.runtime.display import Split, table_lines

if TYPE_CHECKING:
  from vit_jax.tasks.probes import few_shot
  from vit_jax.tasks.probes.segmentation import Segmentation
  from vit_jax.tasks.probes.whole_set import Score

# The attributes for users, which a shell completes.
_FOR_USERS = (
  "attention",
  "attention_maps",
  "class_names",
  "description",
  "embed_texts",
  "confusion_matrix",
  "evaluate",
  "export",
  "features",
  "fewshot",
  "find_similar",
  "labelled_features",
  "fit",
  "guessed",
  "image_size",
  "logits",
  "loss",
  "model",
  "notes",
  "num_classes",
  "num_params",
  "origin",
  "params",
  "patch_features",
  "predict",
  "predict_proba",
  "preprocess",
  "preprocessing",
  "save",
  "similarity",
  "step",
  "summary",
  "task",
  "threshold",
  "unread",
  "visualize",
)

_DEPTH = 2  # A block and its parts, but not the dense layers in these.


class Loaded(Answering):
  """A model of published weights or of a run; `Opened` has its attributes."""

  @hints.accepts('loaded.attention(image, layer=6, class_name="cat")')
  def attention(
    self,
    image: Pictures,
    *,
    layer: int | None = None,
    class_name: str | int | None = None,
  ) -> Image.Image:
    """Draws what the model attends to in an image, for a notebook to show.

    The photograph, the attention of a layer, attention rollout (Fig. 6), and
    the patches that support a class stand side by side, as `vit_jax visualize`
    draws them.

    Args:
      image: One path, Pillow image or array, uint8 (H, W, 3).
      layer: Layer whose attention is drawn, counted from 1, or from the last,
        which is -1 and the default.
      class_name: Name or number of the class that patches support; the
        likeliest by default.

    Returns:
      A Pillow image, whose size depends on the photograph's; `.save("a.png")`
      writes it. `attention_maps` has the numbers.

    Raises:
      ValueError: if `image` is not one image or cannot be read, the model has
        no attention or no such layer or class, or matplotlib is missing.
    """
    # `inspection` is on a floor above, so it is imported only when it is used.
    draw = extras.load("vit_jax.inspection.draw", "figures")
    return draw.attention_picture(
      self, image, layer=layer, class_name=class_name
    )

  @hints.accepts("loaded.attention_maps(images, layer=-1)")
  def attention_maps(
    self, images: Pictures, *, layer: int | None = None
  ) -> Any:
    """The attention maps of each head of a layer, arrays (B, k, h, w).

    If images keep their proportions, the result is a list with the maps of each
    image, (k, h, w). A map has a value for each patch: the class token's
    attention to it, or, in a model without a class token, the mean attention
    of all tokens to it.

    Args:
      images: As in `predict`; they should be few.
      layer: As in `attention`.

    Raises:
      ValueError: if an image cannot be read, or the model has no attention or
        no such layer.
    """
    # `inspection` is on a floor above, so it is imported only when it is used.
    views = importlib.import_module("vit_jax.inspection.attention_views")
    return views.attention_of(self, images, layer)

  @hints.accepts("loaded.visualize(images)")
  def visualize(
    self,
    images: Pictures,
    out: str | os.PathLike[str] = "figures",
    **options: Any,
  ) -> shown.Shown:
    """Draws attention, as `vit_jax.visualize(loaded, images)` does.

    Its arguments, result and errors are those of `vit_jax.visualize`.
    """
    # Commands are on a floor above, so this one is imported only when used.
    command = importlib.import_module("vit_jax.visualize")
    return command.visualize(self, images, out, **options)

  @hints.accepts(
    "loaded.save(folder)", same=dict.fromkeys(("format", "fmt"), "to")
  )
  def save(
    self,
    folder: str | os.PathLike[str],
    to: str = "hf",
    *,
    license: str | None = None,
  ) -> None:
    """Writes a folder that `load_pretrained` and another library read.

    `vit_jax.save(loaded, folder)` is the same; its arguments and errors are
    those of `vit_jax.save`.
    """
    convert = importlib.import_module("vit_jax.pretrained.convert")
    convert.convert(self, folder, to, license=license)

  @hints.accepts("loaded.evaluate(folder)")
  def evaluate(
    self, folder: str | os.PathLike[str] | None = None, **options: Any
  ) -> dict[str, Any]:
    """Evaluates a run's checkpoint, as `vit_jax.evaluate(run, folder)` does.

    The checkpoint is the one that was loaded, unless `step` or `best=True`
    names another. Keywords, metrics and errors are those of `vit_jax.evaluate`.
    Also raises ValueError if the model is not from a run, or was loaded with
    other settings than those of the run.
    """
    source = self.origin.source
    if self.step is None:
      raise ValueError(
        f"{source} is no run, and only a run has a task to be scored on: "
        f"vit_jax.train(folder, pretrained={source!r}) makes one, and "
        f"`vit_jax fewshot {source} FOLDER` scores its features."
      )
    load = importlib.import_module("vit_jax.pretrained.load")
    saved = load.open_checkpoint(source, step=self.step)
    if (saved.model, saved.inputs) != (self.model, self.inputs):
      raise ValueError(
        f"{source} was loaded with other settings than it was trained with: "
        f"vit_jax.evaluate({source!r}) evaluates it as it was trained."
      )
    # Commands are on a floor above, so this one is imported only when used.
    command = importlib.import_module("vit_jax.evaluate")
    if not options.get("best"):
      options = {"step": self.step} | options
    return command.evaluate(source, folder, **options)

  @hints.accepts("loaded.fewshot(folder, shots=5)")
  def fewshot(
    self, data: str | os.PathLike[str], **options: Any
  ) -> "few_shot.Outcome | Score | Segmentation":
    """Scores the model's features, as `vit_jax.fewshot(loaded, data)` does.

    Its keywords, result and errors are those of `vit_jax.fewshot`.
    """
    # Commands are on a floor above, so this one is imported only when used.
    command = importlib.import_module("vit_jax.fewshot")
    return command.fewshot(self, data, **options)

  def confusion_matrix(
    self, folder: str | os.PathLike[str] | None = None
  ) -> np.ndarray:
    """How often each class was answered for each label, (K, K), by `evaluate`.

    Rows are labels and columns answers, both in the order of `class_names`.
    Raises ValueError as `evaluate` does, or if the model does not answer with
    one class.
    """
    key = Split.EVAL.key("confusion")
    metrics: Mapping[str, Any] = {}
    if self.task.labels.are_classes:  # Others are refused before an evaluation.
      metrics = self.evaluate(folder, per_class=True)
    if key not in metrics:
      each = ", per_class=True" if self.task.answers else ""
      raise ValueError(
        f"{self.origin.source} does not answer with a single class for each "
        f"image: loaded.evaluate(data{each}) has its scores."
      )
    return metrics[key]

  def summary(self) -> str:
    """A table of the layers with their parameters, to print."""
    layers: dict[str, list[str]] = {}
    counts = collections.Counter[str]()
    for path, shape in self.shapes.items():
      names = path.split("/")
      layer = "/".join(names[:-1][:_DEPTH]) or path
      leaf = "/".join(names[min(_DEPTH, len(names) - 1) :])
      layers.setdefault(layer, []).append(f"{leaf} {shape}")
      counts[layer] += math.prod(shape)
    rows = [("layer", "parameters", "arrays")]
    rows += [
      (name, f"{counts[name]:,}", ", ".join(arrays))
      for name, arrays in sorted(layers.items(), key=_natural_key)
    ]
    rows.append(("all", f"{self.num_params:,}", ""))
    return shown.Text("\n".join(table_lines(rows)))

  @hints.accepts(
    'loaded.export("model.onnx")', same=dict.fromkeys(("format", "fmt"), "to")
  )
  def export(
    self,
    path: str | os.PathLike[str],
    *,
    to: str | None = None,
    platforms: Sequence[str] = PLATFORMS,
    param_dtype: str = "float32",
    tower: str = "image",
  ) -> None:
    """Writes one file that runs without vit_jax, and prints how to run it.

    `vit_jax export` does the same. The program in the file takes uint8 images
    (b, H, W, C) and returns their logits, (b, K), or their features if the
    model has no head.

    Args:
      path: The file: ONNX if it ends in .onnx, else StableHLO.
      to: "onnx" or "stablehlo", if the ending does not say it.
      platforms, param_dtype: As in `vit_jax.export_model`, for StableHLO.
      tower: "image", or "text" for the text tower of a model of images and
        text, whose program takes the ids of tokens.

    Raises:
      ValueError: if the file cannot hold the model, or an argument is wrong.
      OSError: if the file cannot be written.
    """
    # Commands are on a floor above, so this one is imported only when used.
    command = importlib.import_module("vit_jax.export")
    command.export_checkpoint(
      self,
      os.fspath(path),
      to=to,
      platforms=platforms,
      param_dtype=param_dtype,
      tower=tower,
    )

  def _repr_html_(self) -> str:
    """The model, its inputs and its licence as a table, for a notebook."""
    return shown.table(self.facts)

  def __getattr__(self, name: str) -> Any:
    """The attribute that answers to a name of another library.

    Raises AttributeError for any other name, with a hint at what may be meant.
    """
    if hasattr(type(self), name):  # Our property raised an AttributeError.
      return object.__getattribute__(self, name)
    if alias := aliases("loaded").get(name):
      return alias.resolve(self)
    hint = ""
    if not name.startswith("_"):
      hint = hints.hint_for_attribute(name, "loaded", _FOR_USERS)
    raise AttributeError(
      f"{type(self).__name__!r} object has no attribute {name!r}{hint}",
      name=name,
      obj=self,
    )

  def __dir__(self) -> list[str]:
    """The names for users, without those for our own code."""
    return [*_FOR_USERS]


def _natural_key(layer: tuple[str, Any]) -> str:
  """The key that sorts block_10 after block_9."""
  return re.sub(r"\d+", lambda number: number[0].zfill(6), layer[0])
