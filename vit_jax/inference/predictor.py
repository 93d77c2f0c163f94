"""Predictions for images, in the order of the images.

Memory does not grow with the number of images, as only a few batches are
decoded ahead of the device.
"""

import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from vit_jax.data.batch import BANDS, SIZE, Batch, allocate, batch_spec, put
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.inference import reading
from vit_jax.inference.features import features as features_of
from vit_jax.inference.features import layer_numbers
from vit_jax.inference.text_head import TextHead
from vit_jax.models import Model
from vit_jax.models.loaded_first import (
  KnowsItsInputs,
  check_is_open,
  images_alone,
)
from vit_jax.runtime import hints, shown
from vit_jax.runtime.aliases import aliases
from vit_jax.runtime.checks import COUNT, checked
from vit_jax.runtime.display import table_lines
from vit_jax.runtime.printable import say_once
from vit_jax.tasks.answers import answers_of
from vit_jax.tasks.choose import answering
from vit_jax.tasks.finite import check_finite
from vit_jax.tasks.task import Task, class_name
from vit_jax.training import sharding
from vit_jax.training.inputs import ImageInputs

_SHOWN = 20  # Answers that the text of a list shows.
_BATCHES_AHEAD = 2  # Batches decoded ahead of the one in use.

# Names of a batch's images, each with the reason it is unreadable, or None.
Names = list[tuple[str, str | None]]


@dataclasses.dataclass(frozen=True, repr=False)
class Prediction:
  """A model's answer for one image file.

  Attributes:
    image: The file's name, with unprintable characters escaped; "image 3" if
      the third of the images is no file.
    error: Why the image could not be read; all other fields are then empty.
    index: Indices of the likeliest classes, the likeliest first.
    probability: The probabilities of these classes.
    values: The numbers that a regression predicts, in their unit. Such an
      answer has no classes; others have no values.
    features: The head's input (D,), or the tokens after several layers, (L, h,
      w, D) or (L, S, D), if they were asked for.
    names: The names of these classes, or of the targets of a regression, if the
      model's source has them.
    threshold: The least probability of a label that is given, with several
      labels of an image; None for other answers.
  """

  image: str
  error: str | None = None
  index: tuple[int, ...] = ()
  probability: tuple[float, ...] = ()
  values: tuple[float, ...] = ()
  features: np.ndarray | None = None
  names: tuple[str, ...] = ()
  threshold: float | None = None

  @property
  def label(self) -> str | None:
    """The likeliest class; None if there is none, as for a regression.

    With several labels of an image, it may lie below the threshold; `labels`
    are those that are given.
    """
    return next(iter(self))[0] if self.index else None

  @property
  def labels(self) -> tuple[str, ...]:
    """The names of the labels that are given, the likeliest first.

    With several labels of an image they are those from `threshold` on, possibly
    none; else the likeliest class, or none for a regression.
    """
    if self.threshold is None:
      return () if self.label is None else (self.label,)
    return tuple(name for name, p in self if p >= self.threshold)

  def with_threshold(self, threshold: float, top: int) -> "Prediction":
    """A copy with the `top` labels and all others from a threshold on.

    The prediction that is copied has the probabilities of all labels.
    """
    count = max(top, sum(p >= threshold for p in self.probability))
    return dataclasses.replace(
      self,
      index=self.index[:count],
      probability=self.probability[:count],
      names=self.names[:count],
      threshold=threshold,
    )

  @property
  def score(self) -> float | None:
    """The probability of `label`, or None."""
    return self.probability[0] if self.index else None

  @property
  def text(self) -> str:
    """The answer in a few words, such as "cat 98.2%, dog 1.1%".

    With several labels, those that are given stand before the others.
    """
    if self.error is not None:
      return self.error
    form = ".4g" if self.values else ".1%"
    parts = [f"{name} {number:{form}}" for name, number in self]
    if self.threshold is None:
      return ", ".join(parts)
    count = len(self.labels)
    given = ", ".join(parts[:count]) or "no label"
    others = ", ".join(parts[count:])
    return f"{given}; not given: {others}" if others else given

  def __iter__(self) -> Iterator[tuple[str, float]]:
    """Pairs of a class and its probability, or of a target and its value."""
    numbers = self.values or self.probability
    kind = "class" if self.index else "target"
    places = self.index or range(len(numbers))
    names = self.names or [f"{kind} {place}" for place in places]
    return zip(names, numbers, strict=True)

  def __getattr__(self, name: str) -> Any:
    """The attribute that answers to a name of another library.

    Raises AttributeError for any other name, with a hint at what may be meant.
    """
    if alias := aliases("answer").get(name):
      return alias.resolve(self)
    hint = hints.hint_instead(name, "answer")
    if not name.startswith("_"):
      field_names = [field.name for field in dataclasses.fields(self)]
      hint = hints.hint_for_attribute(name, "answer", field_names)
    raise AttributeError(
      f"{type(self).__name__!r} object has no attribute {name!r}{hint}",
      name=name,
      obj=self,
    )

  def __getitem__(self, name: Any) -> Any:
    """An attribute by its name, as in answer["label"].

    Raises TypeError for anything else, as an answer is no list.
    """
    if isinstance(name, str):
      with contextlib.suppress(AttributeError):
        return getattr(self, name)
    raise TypeError(
      f"an answer is neither a dictionary nor a list ({name!r}): give "
      "answer.label and answer.score, or dict(answer) for all of its classes."
    )

  def __repr__(self) -> str:
    """The fields that are not empty."""
    parts = [
      f"{field.name}={getattr(self, field.name)!r}"
      for field in dataclasses.fields(self)
      if getattr(self, field.name) is not field.default
    ]
    return f"Prediction({', '.join(parts)})"


class Predictions(list[Prediction]):
  """The answers for images, in their order."""

  def __repr__(self) -> str:
    """A line for each of the first answers: its image and its text."""
    rows = [(one.image, one.text) for one in self[:_SHOWN]]
    lines = table_lines(rows) if rows else ["no answers"]
    if more := len(self) - len(rows):
      lines.append(f"... and {more:,} more")
    return "\n".join(lines)

  def _repr_html_(self) -> str:
    """The same lines beside small pictures of the files, for a notebook."""
    rows = [(one.image, f"{one.image}: {one.text}") for one in self[:_SHOWN]]
    if more := len(self) - len(rows):
      rows.append(("", f"... and {more:,} more"))
    return shown.pictures(rows)

  def __getattr__(self, name: str) -> Any:
    """The attribute of the answer, if there is only one.

    Otherwise it raises AttributeError, with a line that each answer has
    attributes.
    """
    if len(self) == 1 and not name.startswith("_"):
      with contextlib.suppress(AttributeError):
        return getattr(self[0], name)
    hint = ""
    if not name.startswith("_"):
      general = "; there is an answer for each image: answers[0].names[0]"
      hint = hints.hint_instead(name, "answers") or general
    raise AttributeError(
      f"answers have no attribute {name!r}{hint}", name=name, obj=self
    )


def predict(
  model: Model,
  params: Any,
  images: reading.Pictures,
  *,
  preprocessing: Preprocessing,
  batch_size: int = 32,
  class_names: Sequence[str] = (),
  **options: Any,
) -> Iterator[list[Prediction]]:
  """Yields predictions for images, a batch at a time, in their order.

  Args:
    model: The model.
    params: Its parameters.
    images: Paths, Pillow images or arrays, see `reading.Picture`, or a single
      one.
    preprocessing: How the model needs its images.
    batch_size: Images per step; fewer if there are fewer images.
    class_names: Names of the classes or targets, for the predictions' `names`.
    **options: What to predict: keywords of `make_predict_step`.

  Raises:
    ValueError: if the image size is unknown, the model's outputs are NaN, or
      `batch_size` or `top` is not a number from 1 on.
  """
  checked("batch_size", int, batch_size, COUNT)
  if "top" in options:
    checked("top", int, options["top"], COUNT)
  own_tokens = None
  if preprocessing.patches is not None:
    N, as_maps = preprocessing.patches.tokens, not options.get("tokens")
    own_tokens = functools.partial(_own_tokens, N=N, as_maps=as_maps)
  mesh = sharding.make_mesh()
  replicated = sharding.replicated_sharding(mesh)
  split = sharding.batch_sharding(mesh)
  options |= preprocessing.normalization
  hashable: Any = model
  step = _compile_step(hashable, (replicated, split), **options)
  params = jax.device_put(nn.unbox(params), replicated)
  pictures = iter(reading.each_picture(images))
  first_batch = list(itertools.islice(pictures, batch_size))
  rows = sharding.padded_batch_size(len(first_batch), mesh)
  all_pictures = itertools.chain(first_batch, pictures)
  steps = (
    (names, step(params, jax.device_put(batch, split)))
    for names, batch in _batches(all_pictures, preprocessing, rows)
  )
  for names, answers in sharding.start_ahead(steps, sharding.steps_ahead()):
    yield _predictions(names, answers, class_names, own_tokens)


@functools.lru_cache(8)
def _compile_step(
  model: Model, shardings: tuple[Any, Any], **options: Any
) -> Any:
  """The predict step, compiled once for all calls with the same options."""
  step = make_predict_step(model, **options)
  return jax.jit(step, in_shardings=shardings, out_shardings=shardings[0])


def predict_images(
  model: Model | KnowsItsInputs,
  params: Any = None,
  images: reading.Pictures | None = None,
  *,
  preprocessing: Preprocessing | None = None,
  loss: str | None = None,
  top: int = 3,
  batch_size: int = 32,
) -> list[Prediction]:
  """Predicts the classes of images, given as files, Pillow images or arrays.

  >>> import jax
  >>> import numpy as np
  >>> import vit_jax
  >>> from vit_jax.data import Preprocessing
  >>> vit = vit_jax.make_vit("Ti/16", num_classes=3, num_layers=1)
  >>> params = vit_jax.init_params(vit, jax.random.key(0), image_size=32)
  >>> grey = np.full((40, 50, 3), 128, np.uint8)
  >>> (answer,) = vit_jax.predict_images(
  ...   vit, params, grey, preprocessing=Preprocessing((32, 32)), top=2
  ... )
  >>> len(answer.index)
  2

  `predict_images(loaded, images)`, with what `load_pretrained` returned, is
  `loaded.predict(images)`; all else follows from the checkpoint::

    loaded = vit_jax.load_pretrained("b16_augreg_i1k_224")
    vit_jax.predict_images(loaded, "cat.jpg")

  Args:
    model: The model, or what `load_pretrained` returned.
    params: The model's parameters.
    images: Paths, Pillow images of any mode, or arrays, uint8 (H, W, C) or
      (H, W), before any preprocessing. A single one need not be in a list. An
      array (B, H, W, C) stands for B images, and a folder for all in it.
    preprocessing: How the model needs its images, such as
      `loaded.preprocessing`.
    loss: The loss the model was trained with; it decides between "softmax",
      which is the default, "sigmoid", and numbers ("mse").
    top: Number of the likeliest classes to return for each image.
    batch_size: Images per step.

  Returns:
    A prediction for each image, in their order; a list of one for a single one.

  Raises:
    ValueError: if the preprocessing or the image size is unknown, the model's
      outputs are NaN, or an array is not uint8 or not of such a shape; or if
      `params`, `preprocessing` or `loss` is given with what `load_pretrained`
      returned, which has its own.
  """
  check_is_open(model, "predict_images")
  if isinstance(model, KnowsItsInputs):
    pictures = images_alone(
      "predict_images",
      params,
      images,
      ", preprocessing=...",
      preprocessing=preprocessing,
      loss=loss,
    )
    return model.predict(pictures, top=top, batch_size=batch_size)
  if images is None or preprocessing is None:
    missing = "images are" if images is None else "preprocessing is"
    raise ValueError(
      f"{missing} missing: give predict_images(model, params, images, "
      "preprocessing=vit_jax.data.Preprocessing((64, 64))) for a model of "
      "images of 64 x 64, or loaded.predict(images)."
    )
  batches = predict(
    model,
    params,
    images,
    preprocessing=preprocessing,
    task=answering("softmax" if loss is None else loss),
    top=top,
    batch_size=batch_size,
    class_names=model.origin.class_names if model.origin else (),
  )
  return [prediction for batch in batches for prediction in batch]


def image_features(
  model: Model,
  params: Any,
  images: reading.Pictures,
  *,
  preprocessing: Preprocessing,
  layers: int | Sequence[int] | None = None,
  as_maps: bool = False,
  batch_size: int = 32,
) -> Any:
  """The features of images, given as files, Pillow images or arrays.

  `features` gives the same for images that are prepared already.

  Args:
    model: The model.
    params: Its parameters.
    images: As in `predict_images`.
    preprocessing: As in `predict_images`.
    layers, as_maps: As in `features`.
    batch_size: Images per step.

  Returns:
    An array of the head's inputs, (B, D). With `layers`, a list with an array
    for each layer: its tokens, (B, S, D), or their maps, (B, h, w, D). If
    images keep their proportions, each layer has a list with an array for each
    image instead: (S, D) or (h, w, D), whose S, h and w differ by image.

  Raises:
    ValueError: as `predict_images` and `features` do, or if an image cannot be
      read.
  """
  layers = layer_numbers(model, layers, as_maps)
  batches = predict(
    model,
    params,
    images,
    preprocessing=preprocessing,
    task=answering("softmax"),
    top=1,
    batch_size=batch_size,
    features=True,
    layers=layers or (),
    tokens=not as_maps,
  )
  rows = []
  for prediction in itertools.chain.from_iterable(batches):
    if prediction.features is None:
      raise unreadable(prediction)
    rows.append(prediction.features)
  if not rows:
    raise ValueError("there are no images: give at least one.")
  if layers is not None and preprocessing.patches is not None:
    return [[*of_layer] for of_layer in zip(*rows, strict=True)]
  stacked = np.stack(rows)
  return stacked if layers is None else [*np.moveaxis(stacked, 1, 0)]


def image_logits(
  model: Model,
  params: Any,
  images: reading.Pictures,
  *,
  preprocessing: Preprocessing,
  batch_size: int = 32,
) -> np.ndarray:
  """The outputs of the head, (N, K), for images as in `predict_images`.

  Raises ValueError as `predict_images` does, or if the model has no head, an
  image cannot be read, or no image is given.
  """
  if not model.num_classes:
    raise ValueError(
      "the model has no head, and no logits: loaded.features(images) gives the "
      "features of images."
    )
  batches = predict(
    model,
    params,
    images,
    preprocessing=preprocessing,
    task=answering("mse"),  # This task answers with the outputs as they are.
    batch_size=batch_size,
  )
  rows = []
  for prediction in itertools.chain.from_iterable(batches):
    if prediction.error is not None:
      raise unreadable(prediction)
    rows.append(prediction.values)
  if not rows:
    raise ValueError("there are no images: give at least one.")
  return np.asarray(rows, np.float32)


def unreadable(prediction: Prediction) -> ValueError:
  """The error for an image that could not be read, with a hint at its name."""
  name = prediction.image
  reason = prediction.error or ""
  if not os.path.exists(name) and (hint := hints.hint_for_path(name)):
    reason = f"{reason.rstrip('.')}; {hint}"
  return ValueError(f"{name}: {reason}")


def make_predict_step(
  model: Model,
  *,
  mean: Sequence[float],
  std: Sequence[float],
  task: Task,
  top: int = 3,
  features: bool = False,
  layers: Sequence[int] = (),
  tokens: bool = False,
  text_head: TextHead | None = None,
) -> Callable[[Any, Mapping[str, Array]], dict[str, Array]]:
  """Returns a function from (params, batch) to a dictionary of answers.

  The batch has the arrays of `Preprocessing.transform`, such as `image`, uint8
  (B, H, W, C). The dictionary has the `outputs` of the task if the model has a
  head, and `features` if they are asked for: the head's input, (B, D), or the
  tokens after `layers` and the final layer norm, (B, L, h, w, D), or (B, L, S,
  D) with `tokens`. If images keep their proportions, `features` has those of
  all patches of a row, (B, L, N, D) or (B, L, S, D), and `size` how many of
  them an image has along height and width, (B, 1, 2).

  Args:
    model: The model.
    mean: Mean subtracted from each channel, in units of full scale.
    std: Standard deviation that then divides each channel.
    task: The task of the model, which says what its outputs mean.
    top: Number of the likeliest classes to return, or all if there are fewer.
    features: Whether to return the head's input.
    layers: Return the patches' tokens after these layers instead.
    tokens: Whether to return all tokens of these layers, not only the patches'.
    text_head: Replaces the model's head and `task`.
  """
  if text_head is not None:
    task = answering(text_head.loss)
  image_inputs = ImageInputs(mean, std)

  def features_and_logits(bound: Any, x: Array) -> tuple[Any, Any]:
    """The representation and the logits by a model bound to parameters."""
    pooled = bound.pooled(x)
    return bound.representation(pooled), bound.head(pooled)

  def predict_step(params: Any, batch: Mapping[str, Array]) -> dict[str, Array]:
    """The answers and the features of a batch, by name."""
    y, logits = image_inputs.model_outputs(
      model, params, batch, features_and_logits
    )
    answers = {}
    if layers:
      x = image_inputs.inputs(batch)
      by_layer = features_of(
        model, params, x, layers=layers, as_maps=not tokens
      )
      answers["features"] = jnp.stack(by_layer, axis=1).astype(jnp.float32)
      if SIZE in batch:
        answers[SIZE] = batch[SIZE]
    elif features:
      answers["features"] = y.astype(jnp.float32)
    if text_head is not None:
      logits = text_head.logits(y)
    if text_head is not None or model.num_classes:
      answers |= answers_of(task).outputs(logits, top)
    return answers

  return predict_step


def _own_tokens(
  features: np.ndarray, size: np.ndarray, N: int, as_maps: bool
) -> np.ndarray:
  """The tokens of an image, from those of its row of N patches, (L, S, D).

  The patches may be the only tokens, or come last. `size`, (1, 2), has the
  numbers of the image's patches along height and width. With `as_maps`, the
  result is (L, h, w, D).
  """
  h, w = size.reshape(2).tolist()
  own = features[:, : features.shape[1] - N + h * w]
  return own.reshape(len(own), h, w, own.shape[-1]) if as_maps else own


def _predictions(
  names: Names,
  answers: dict[str, Array],
  class_names: Sequence[str],
  own_tokens: Callable[[np.ndarray, np.ndarray], np.ndarray] | None,
) -> list[Prediction]:
  """The predictions of a batch, from the answers on the device.

  An unreadable image has an error instead of an answer. Raises ValueError if
  the model's outputs are NaN.
  """
  arrays = jax.device_get(answers)
  check_finite(arrays)

  def column(key: str) -> list[Any]:
    return arrays[key].tolist() if key in arrays else [()] * len(names)

  index = column("index")
  probability = column("probability")
  values = column("values")
  features = arrays.get("features", [None] * len(names))
  if own_tokens and SIZE in arrays:
    features = [*map(own_tokens, features, arrays[SIZE])]

  def prediction(row: int, name: str, error: str | None) -> Prediction:
    """The prediction of the image in a row, or its error."""
    if error is not None:
      return Prediction(name, error)
    return Prediction(
      image=name,
      index=tuple(index[row]),
      probability=tuple(probability[row]),
      values=tuple(values[row]),
      features=features[row],
      names=_names_of(class_names, index[row], values[row]),
    )

  # Padding rows have no name, and so no prediction.
  return [prediction(row, *named) for row, named in enumerate(names)]


def _names_of(
  class_names: Sequence[str], index: Sequence[int], values: Sequence[float]
) -> tuple[str, ...]:
  """Names of an answer's classes or targets; () if no names are known."""
  if not class_names:
    return ()
  places = index or range(len(values))
  return tuple(class_name(class_names, place) for place in places)


def _batches(
  images: Iterable[reading.Picture],
  preprocessing: Preprocessing,
  rows: int,
) -> Iterator[tuple[Names, Batch]]:
  """Yields the names and the arrays of the images, `rows` images at a time.

  Rows without an image, or with an unreadable one, are 0. A line says if any
  image lacks bands of the model.
  """
  read = reading.make_reader(preprocessing)
  decoded = enumerate(
    reading.decode_ahead(images, read, _BATCHES_AHEAD * rows), start=1
  )
  spec = batch_spec(preprocessing.transform().spec, rows)
  while group := list(itertools.islice(decoded, rows)):
    batch = allocate(spec)
    names: Names = []
    for row, (number, (picture, arrays)) in enumerate(group):
      error = arrays if isinstance(arrays, str) else None
      if not isinstance(arrays, str):
        put(batch, row, arrays)
        if not np.all(arrays.get(BANDS, True)):
          say_once(reading.LACKS_BANDS)
      names.append((reading.name_of(picture, number), error))
    yield names, batch
