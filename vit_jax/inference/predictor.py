"""Predictions for image files, in their order.

Nothing here grows with the number of images: a few batches are decoded ahead of
the device.
"""

import collections
import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt8

from vit_jax.data.decode import UnreadableImageError
from vit_jax.data.image_files import printable_path
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.transforms import EvalTransform
from vit_jax.models import ResNet, Vit
from vit_jax.models.normalize import normalize
from vit_jax.models.resnet import classifier
from vit_jax.training import losses, sharding

_BATCHES_AHEAD = 2  # Decoded, or being decoded, beyond the one asked for.
_BATCHES_RUNNING = 2  # Given to the device while the host reads an older one.
_MOST_THREADS = 16

# Images of a batch, each with the reason why it could not be read, if so.
Names = list[tuple[str, str | None]]


@dataclasses.dataclass(frozen=True)
class Prediction:
  """A model's answer for one image file.

  Attributes:
    image: Its name, fit to be printed.
    error: Why it could not be read; all else is empty then.
    index: Numbers of the likeliest classes, the likeliest first.
    probability: Their probabilities.
    features: The head's input, if it was asked for.
  """

  image: str
  error: str | None = None
  index: tuple[int, ...] = ()
  probability: tuple[float, ...] = ()
  features: np.ndarray | None = None


def predict(
  model: Vit | ResNet,
  params: Any,
  images: Iterable[str],
  *,
  preprocessing: Preprocessing,
  loss: str = "softmax",
  top: int = 3,
  batch_size: int = 32,
  features: bool = False,
) -> Iterator[list[Prediction]]:
  """Predictions for image files, a batch at a time, in their order.

  Args:
    model: Images to logits.
    params: Its parameters.
    images: Paths.
    preprocessing: What has to be done to a picture before the model sees it.
    loss: The loss the model was trained with, which decides its probabilities.
    top: How many of the likeliest classes to give for each image.
    batch_size: Images that the device gets at once; fewer if there are fewer.
    features: Whether to give the head's input as well.

  Raises:
    ValueError: if the image size is not known, or the model gives NaN.
  """
  size, transform = preprocessing.image_size, preprocessing.transform()
  predict_step = make_predict_step(
    model,
    **preprocessing.normalization,
    loss=loss,
    top=top,
    features=features,
  )
  mesh = sharding.make_mesh()
  whole, split = sharding.replicated(mesh), sharding.batch_sharding(mesh)
  step = jax.jit(predict_step, in_shardings=(whole, split), out_shardings=whole)
  params = jax.device_put(nn.unbox(params), whole)
  images = iter(images)
  first = list(itertools.islice(images, batch_size))
  shards = sharding.batch_shards(mesh)
  rows = -(-len(first) // shards) * shards
  running = collections.deque()
  every_image = itertools.chain(first, images)
  for names, pixels in _batches(every_image, transform, rows, size):
    running.append((names, step(params, jax.device_put(pixels, split))))
    if len(running) > _BATCHES_RUNNING:
      yield _predictions(*running.popleft())
  for names, found in running:
    yield _predictions(names, found)


def read_images(
  preprocessing: Preprocessing, paths: Iterable[str]
) -> UInt8[np.ndarray, "B H W 3"]:
  """Image files as the model takes them, except for the normalisation.

  Args:
    preprocessing: The model's.
    paths: A few images, as they are all held in memory.

  Raises:
    ValueError: if one cannot be read, or the image size is not known.
  """
  transform = preprocessing.transform()
  images = []
  for path in paths:
    image = read_image(path, transform)
    if isinstance(image, str):
      raise ValueError(f"{printable_path(path)}: {image}")
    images.append(image)
  return np.stack(images)


def class_name(class_names: tuple[str, ...], index: int) -> str:
  """The name of a class, or its number where the source has no name for it."""
  known = index < len(class_names)
  return class_names[index] if known else f"class {index}"


def make_predict_step(
  model: Vit | ResNet,
  *,
  mean: Sequence[float],
  std: Sequence[float],
  loss: str,
  top: int,
  features: bool,
) -> Callable[[Any, UInt8[Array, "B H W C"]], dict[str, Array]]:
  """A function from (params, images) to the answers.

  It gives `index` and `probability`, both (B, top), where the model has a head,
  and `features`, (B, D), if they are asked for.

  Args:
    model: Images to logits.
    mean: Subtracted from each channel, in units of full scale.
    std: Then divides each channel.
    loss: The loss it was trained with; under "sigmoid" each class has a
      probability of its own.
    top: How many of the likeliest classes to give; all where there are fewer.
    features: Whether to give the head's input.
  """
  headless = model.clone(num_classes=0)
  head = classifier(model.num_classes, 0.0, model.param_dtype)

  def predict_step(
    params: Any, images: UInt8[Array, "B H W C"]
  ) -> dict[str, Array]:
    y: Any = headless.apply({"params": params}, normalize(images, mean, std))
    found = {"features": y.astype(jnp.float32)} if features else {}
    if model.num_classes:
      logits: Any = head.apply({"params": params["head"]}, y)
      _, index = jax.lax.top_k(logits, min(top, model.num_classes))
      every = losses.probabilities(loss, logits)
      probability = jnp.take_along_axis(every, index, axis=1)
      found |= {"index": index, "probability": probability}
    return found

  return predict_step


def _predictions(names: Names, found: dict[str, Array]) -> list[Prediction]:
  """Fetches a batch from the device; unreadable images have empty rows."""
  arrays = jax.device_get(found)
  if not all(np.isfinite(array).all() for array in arrays.values()):
    raise ValueError(
      "the model answers with NaN: its parameters are damaged, or its training "
      "has diverged."
    )
  nothing = np.zeros((len(names), 0), np.int32)
  index = arrays.get("index", nothing).tolist()
  probability = arrays.get("probability", nothing).tolist()
  features = arrays.get("features")
  return [
    Prediction(name, error)
    if error is not None
    else Prediction(
      name,
      index=tuple(index[row]),
      probability=tuple(probability[row]),
      features=None if features is None else features[row],
    )
    for row, (name, error) in enumerate(names)
  ]


def _batches(
  images: Iterable[str], transform: EvalTransform, rows: int, size: tuple
) -> Iterator[tuple[Names, np.ndarray]]:
  """Names and pixels, (rows, H, W, 3); zeros for what is no image."""
  decoded = decode_ahead(images, transform, _BATCHES_AHEAD * rows)
  while group := list(itertools.islice(decoded, rows)):
    pixels = np.zeros((rows, *size, 3), np.uint8)
    names: Names = []
    for row, (path, image) in enumerate(group):
      error = image if isinstance(image, str) else None
      if error is None:
        pixels[row] = image
      names.append((printable_path(path), error))
    yield names, pixels


def decode_ahead(
  images: Iterable[str], transform: EvalTransform, ahead: int
) -> Iterator[tuple[str, np.ndarray | str]]:
  """Each path and its `read_image`; threads are `ahead` images before us."""
  waiting = collections.deque()
  pool = ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1))
  try:
    for path in images:
      waiting.append((path, pool.submit(read_image, path, transform)))
      if len(waiting) > ahead:
        path, image = waiting.popleft()
        yield path, image.result()
    for path, image in waiting:
      yield path, image.result()
  finally:
    pool.shutdown(cancel_futures=True)


def read_image(path: str, transform: EvalTransform) -> np.ndarray | str:
  """An image, uint8 (H, W, 3), or why it cannot be read."""
  try:
    with open(path, "rb") as file:
      return transform(file.read())
  except UnreadableImageError as error:
    return str(error)
  except OSError as error:
    return f"{error.strerror}."
