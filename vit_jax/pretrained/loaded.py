"""A loaded model, with everything that is needed to use it."""

import dataclasses
import functools
import importlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jax.sharding import Mesh
from PIL import Image

from vit_jax.data.preprocessing import Preprocessing
from vit_jax.inference import PLATFORMS
from vit_jax.inference.predictor import (
  Prediction,
  Predictions,
  image_features,
  image_logits,
  predict,
  unreadable,
)
from vit_jax.inference.reading import Pictures, read_batch
from vit_jax.models import Model, Origin, variant_of
from vit_jax.models.parts import Parts
from vit_jax.pretrained import trained_on
from vit_jax.pretrained.text import Leaves, LoadedText
from vit_jax.runtime import extras, hints
from vit_jax.runtime.printable import say
from vit_jax.tasks.task import Task
from vit_jax.training import sharding
from vit_jax.training.inputs import ImageInputs
from vit_jax.training.state import make_params_init

# The attributes for users, which a shell completes.
_FOR_USERS = (
  *("attention", "class_names", "description", "export", "features"),
  *("guessed", "logits", "loss"),
  *(
    "model",
    "notes",
    "num_classes",
    "origin",
    "params",
    "patch_features",
    "predict",
    "preprocess",
    "preprocessing",
  ),
  *("step", "task", "threshold"),
)
# Attributes in other libraries, and the way to do the same here.
_ELSEWHERE = {
  **dict.fromkeys(
    ("save", "save_pretrained", "push_to_hub"),
    'vit_jax.save(loaded, folder, to="hf")',
  ),
  "to_onnx": 'loaded.export("model.onnx")',
  "patch_tokens": "loaded.patch_features(images)",
  "get_intermediate_layers": "loaded.features(images, layers=[6, 12])",
  **dict.fromkeys(
    ("apply", "forward", "eval", "classify", "top_k"), "loaded.predict(images)"
  ),
  **dict.fromkeys(
    ("predict_proba", "probabilities"),
    "loaded.predict(images)[0].probability",
  ),
  **dict.fromkeys(
    ("evaluate", "score", "test", "metrics", "validate"),
    "vit_jax.evaluate(run, folder)",
  ),
  **dict.fromkeys(
    ("embed", "encode", "forward_features", "get_features", "encode_image"),
    "loaded.features(images)",
  ),
  **dict.fromkeys(("encode_text", "text"), "loaded.embed_texts(texts)"),
  **dict.fromkeys(("transform", "processor"), "loaded.preprocess(images)"),
  **dict.fromkeys(
    ("attention_map", "attention_maps", "attention_rollout", "plot", "show"),
    "loaded.attention(image)",
  ),
  "visualize": "loaded.attention(image), or vit_jax.visualize(name, image)",
  **dict.fromkeys(
    ("fit", "train", "finetune", "fine_tune"),
    "vit_jax.train(folder, pretrained=NAME)",
  ),
  **dict.fromkeys(("labels", "classes", "names"), "loaded.class_names"),
  **dict.fromkeys(("to", "cuda", "cpu", "device"), "jax.device_put(params)"),
  **dict.fromkeys(
    ("config", "default_cfg", "cfg"), "loaded.model or loaded.preprocessing"
  ),
  **dict.fromkeys(
    ("image_size", "img_size", "input_size", "size"),
    "loaded.preprocessing.size",
  ),
  **{name: f"loaded.preprocessing.{name}" for name in ("mean", "std")},
  **dict.fromkeys(
    ("num_params", "num_parameters", "count_params", "parameters"),
    "print(loaded), which counts them, or loaded.params",
  ),
  "summary": "loaded.model.tabulate(jax.random.key(0), images)",
}


@dataclasses.dataclass(frozen=True, repr=False)
class Loaded:
  """A model whose parameters are read on demand.

  Published weights and our own workdirs both become one. It iterates as
  (model, params), so `model, params = load_pretrained(...)` reads them.

  Attributes:
    model: The model that the checkpoint holds. The size and the normalisation
      of the images in its `origin` are those of `inputs`, whatever it came
      with.
    inputs: The object that prepares each input of the model, by the input's
      name in a batch. That of "image" is a `Preprocessing`; a tokenizer may
      prepare another.
    open_task: Gives the task that it was trained on, which says what its
      outputs mean; a task of the user's own may be missing.
    shapes: Shapes of the parameters by path, such as
      "block_0/mlp/expand/kernel".
    read: Yields (path, array), with one array at a time in memory.
    interpolation: How positions are fitted to another size by default.
    step: The checkpoint's step; None for published weights.
    description: The checkpoint's own description; None for published weights.
    notes: Lines on what was damaged in a workdir and skipped.
    restore: Reads the parameters straight onto the devices, laid out as a tree
      of shapes says, where nothing has to be done to them on the way.
    held: The parameters, if they have been read already.
    guessed: Names of the facts that no file states and that were guessed:
      num_heads, gelu, layer_norm_epsilon, mean, std, or crop, which is how
      images are resized.
    open_text: Opens the text tower beside it, `text_tower`; None where nobody
      can know of one.
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
    values = sum(map(math.prod, self.shapes.values()))
    step = "" if self.step is None else f", step {self.step:,}"
    inputs = [
      f"images {value}" if key == "image" else key
      for key, value in self.inputs.items()
    ]
    return (
      f"Loaded {name}: {values:,} parameters, {model.num_classes:,} classes\n"
      f"  from {origin.source} ({origin.format}{step})\n"
      f"  for {' and '.join(inputs)}"
    )

  @property
  def preprocessing(self) -> Preprocessing:
    """The preprocessing of its images, `inputs["image"]`.

    Raises ValueError if it takes no images.
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
    """The number of classes, 0 if it has no head."""
    return self.model.num_classes

  @property
  def class_names(self) -> tuple[str, ...]:
    """Names of the classes, or () if the source does not give them."""
    return self.origin.class_names

  @functools.cached_property
  def task(self) -> Task:
    """The task that it was trained on, with its facts.

    Raises ValueError if it is one of the user's own, and was not given.
    """
    return self.open_task()

  @property
  def loss(self) -> str:
    """The loss it was trained with, one of `training.settings.LOSSES`."""
    return self.task.loss.kind

  @property
  def threshold(self) -> float | None:
    """Probability from which on a label is given; None if labels are classes.

    It is 0.5 in a checkpoint at whose step the run was not evaluated.
    """
    answers = self.task.answers
    return answers and answers.given_from

  @functools.cached_property
  def params(self) -> dict[str, Any]:
    """The parameters, for `model.apply({"params": loaded.params}, images)`.

    They are on the default device, and read when they are first asked for.
    """
    return self.read_params()

  @hints.accepts(
    "loaded.predict(images, top=3)",
    same=dict.fromkeys(("top_k", "topk", "k", "n"), "top"),
    elsewhere={
      "texts": "`vit_jax predict RUN IMAGES --texts`, or loaded.embed_texts",
      "candidate_labels": "`vit_jax predict RUN IMAGES --texts`",
    },
  )
  def predict(
    self, images: Pictures, *, top: int = 3, batch_size: int = 32
  ) -> list[Prediction]:
    """Predicts the classes of images, which are prepared as the model needs.

    Each prediction has `names` and `probability` of the likeliest classes, or
    the `values` of a regression.

    Args:
      images: A path, a Pillow image, an array, uint8 (H, W, 3), a list of
        these, an array (B, H, W, 3), or a folder, for all images in it.
      top: Number of the likeliest classes to return for each image.
      batch_size: Images per step.

    Returns:
      A prediction for each image, in their order; a list of one for a single
      one. If some cannot be read, theirs have an `error`.

    Raises:
      ValueError: if the model has no classes, no image can be read, the model's
        outputs are NaN, or an array is not uint8 or not of such a shape.
    """
    if not self.model.num_classes:
      raise ValueError(
        f"{self.origin.source} has no classes to choose from: "
        "loaded.features(images) gives the features of images."
      )
    batches = predict(
      self.model,
      self.params,
      images,
      preprocessing=self.preprocessing,
      task=self.task,
      top=top,
      batch_size=batch_size,
      class_names=self.class_names,
    )
    predictions = Predictions(one for batch in batches for one in batch)
    if line := trained_on.line_on(self.description, self.task.labels, images):
      say(line)
    if predictions and all(one.error is not None for one in predictions):
      raise unreadable(predictions[0])
    return predictions

  def __call__(self, images: Pictures, **options: Any) -> list[Prediction]:
    """The same as `predict`."""
    return self.predict(images, **options)

  def preprocess(self, images: Pictures) -> jax.Array:
    """Reads images, brings them to size and normalises them, for the model.

    As in `loaded.model.apply({"params": loaded.params}, loaded.preprocess(x))`.

    Args:
      images: As in `predict`. They should be few, as all are held in memory.

    Returns:
      Floats (B, H, W, C); a single image is a batch of one.

    Raises:
      ValueError: if an image cannot be read, there is none, or the size of the
        images is not known.
    """
    preprocessing = self.preprocessing
    batch = jax.tree.map(jnp.asarray, read_batch(preprocessing, images))
    return ImageInputs(**preprocessing.normalization).inputs(batch)

  @hints.accepts("loaded.features(images)", elsewhere={"layer": "layers=[6]"})
  def features(
    self,
    images: Pictures,
    *,
    layers: Sequence[int] | None = None,
    as_maps: bool = False,
    batch_size: int = 32,
  ) -> Any:
    """The features of images, which are prepared as the model needs.

    Args:
      images: As in `predict`.
      layers: Layers to take the tokens of, counted from 1, or from the last,
        which is -1. By default the result is the head's input.
      as_maps: Whether to give the tokens of the patches alone, as a map.
      batch_size: Images per step.

    Returns:
      An array of the head's inputs, (B, D); with `layers` a list with the
      tokens of each, (B, S, D), or their maps, (B, h, w, D).

    Raises:
      ValueError: if an image cannot be read, or the model has no such layer.
    """
    return image_features(
      self.model,
      self.params,
      images,
      preprocessing=self.preprocessing,
      layers=layers,
      as_maps=as_maps,
      batch_size=batch_size,
    )

  @hints.accepts("loaded.patch_features(images)")
  def patch_features(
    self, images: Pictures, *, batch_size: int = 32
  ) -> np.ndarray:
    """The features of patches after the last layer, as maps, (B, h, w, D).

    Raises ValueError as `features`, which gives those of other layers.
    """
    (maps,) = self.features(
      images, layers=[-1], as_maps=True, batch_size=batch_size
    )
    return maps

  @hints.accepts("loaded.logits(images)")
  def logits(self, images: Pictures, *, batch_size: int = 32) -> np.ndarray:
    """The outputs of the head, (B, K), before a softmax or sigmoid.

    Those of a regression are not in the unit of its targets yet, and no
    temperature that `evaluate --calibrate` fitted divides them. Raises
    ValueError if the model has no head or an image cannot be read.
    """
    return image_logits(
      self.model,
      self.params,
      images,
      preprocessing=self.preprocessing,
      batch_size=batch_size,
    )

  def embed_texts(
    self, texts: str | Sequence[str], *, batch_size: int = 64
  ) -> Any:
    """The vectors of texts, which are compared with `features` of images.

    Both are scaled to length 1 before, as in `docs/howto/image_and_text.md`.

    Args:
      texts: The texts; a single one need not be in a list.
      batch_size: Texts per step.

    Returns:
      An array (N, R), where features of images are (B, R).

    Raises:
      ValueError: if the model has no text tower or tokenizer beside it, a text
        is empty, or there is none.
    """
    texts = [texts] if isinstance(texts, str) else [*texts]
    return self.text_tower.embed(texts, batch_size=batch_size)

  @functools.cached_property
  def text_tower(self) -> LoadedText:
    """The text tower beside it, with its tokenizer.

    Raises ValueError if there is none, or its tokenizer is missing.
    """
    if self.open_text is None:
      raise ValueError(
        f"{self.origin.source} has no text tower: load a run on pairs, or "
        "published weights of images and text."
      )
    return self.open_text()

  @hints.accepts('loaded.attention(image, layer=6, class_name="cat")')
  def attention(
    self,
    image: Pictures,
    *,
    layer: int | None = None,
    class_name: str | None = None,
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
      A Pillow image, (height, width) as the photograph asks: `.save("a.png")`.

    Raises:
      ValueError: if it is not one image, it cannot be read, the model has no
        attention or no such layer or class, or matplotlib is missing.
    """
    # On a floor above, and not imported by a model that is only asked.
    draw = extras.load("vit_jax.inspection.draw", "figures")
    return draw.attention_picture(
      self, image, layer=layer, class_name=class_name
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

    As `vit_jax export` does. It takes uint8 images (b, H, W, C) and gives their
    logits, (b, K).

    Args:
      path: The file: ONNX if it ends in .onnx, else StableHLO.
      to: "onnx" or "stablehlo", if the ending does not say it.
      platforms, param_dtype: As in `vit_jax.export_model`, for StableHLO.
      tower: "text" for the text tower beside it, from ids of tokens.

    Raises:
      ValueError: if the file cannot hold the model, or an argument is wrong.
      OSError: if it cannot be written.
    """
    # On the floor of commands, and not imported by a model that is only asked.
    command = importlib.import_module("vit_jax.export")
    command.export_checkpoint(
      self,
      os.fspath(path),
      to=to,
      platforms=platforms,
      param_dtype=param_dtype,
      tower=tower,
    )

  def read_params(self, shapes: Any = None) -> dict[str, Any]:
    """Reads the parameters, and places them on devices.

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

  def params_on(self, mesh: Mesh) -> dict[str, Any]:
    """Reads the parameters onto a mesh, laid out as training lays them out."""
    init = make_params_init(self.model, self.preprocessing.image_shape)
    return self.read_params(sharding.array_shapes(init, mesh))

  def read_from(self, params: Any) -> "Loaded":
    """A copy whose arrays are read from a tree of parameters in memory."""
    flat: dict[str, Any] = traverse_util.flatten_dict(nn.unbox(params), sep="/")
    return dataclasses.replace(
      self,
      shapes={path: tuple(array.shape) for path, array in flat.items()},
      read=lambda: ((k, np.asarray(v, np.float32)) for k, v in flat.items()),
      restore=None,
      held=params,
    )

  def holding(self, read: Callable[["Loaded"], Any]) -> "Loaded":
    """A copy that holds the parameters, which `read` reads now."""
    return dataclasses.replace(self, held=read(self))

  def mapped(
    self, change: Callable[[str, np.ndarray], np.ndarray], **fields: Any
  ) -> "Loaded":
    """A copy whose arrays are `change(path, array)`, and with other fields."""

    def read() -> Leaves:
      return ((path, change(path, array)) for path, array in self.read())

    changed = {"read": read, "restore": None, "held": None, **fields}
    return dataclasses.replace(self, **changed)

  def in_unit(self) -> "Loaded":
    """A copy whose outputs mean the answer by themselves, for others' code.

    The head of a regression then gives its targets in their unit.
    """
    parts = Parts.of(self.model, self.shapes)
    answers = self.task.answers
    if answers is None:
      return self

    def change(path: str, array: np.ndarray) -> np.ndarray:
      is_output = parts.gives_outputs(path)
      return answers.leaf_in_unit(path, array) if is_output else array

    return self.mapped(change, open_task=self.task.in_unit)

  def __getattr__(self, name: str) -> Any:
    """Raises AttributeError, with what may be meant by the name."""
    if hasattr(type(self), name):  # A property of ours has raised its own.
      return object.__getattribute__(self, name)
    hint = ""
    if not name.startswith("_"):
      hint = hints.of_attribute(name, "loaded", _FOR_USERS, _ELSEWHERE)
    raise AttributeError(
      f"{type(self).__name__!r} object has no attribute {name!r}{hint}",
      name=name,
      obj=self,
    )

  def __iter__(self) -> Iterator[Any]:
    yield self.model
    yield self.params

  def __dir__(self) -> list[str]:
    """The names that are meant to be used, without those for our own code."""
    return [*_FOR_USERS]


def with_inputs(origin: Origin, inputs: Mapping[str, Any]) -> Origin:
  """The record of a source, with the size and normalisation of its images.

  Without images among the inputs it stays as it is.
  """
  if "image" not in inputs:
    return origin
  images = inputs["image"]
  return dataclasses.replace(
    origin, image_size=images.size, mean=images.mean, std=images.std
  )


def with_preprocessing(loaded: Loaded, **changes: Any) -> Loaded:
  """A copy whose images have another `size`, `mean` or `std`."""
  if "size" in changes:
    changes["cut_from"] = None
  images = dataclasses.replace(loaded.preprocessing, **changes)
  return dataclasses.replace(loaded, inputs={**loaded.inputs, "image": images})
