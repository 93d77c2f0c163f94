"""Predictions for image files, in their order.

Memory does not grow with the number of images, as only a few batches are
decoded ahead of the device.
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

_BATCHES_AHEAD = 2  # Batches decoded ahead of the one in use.
_BATCHES_RUNNING = 2  # Batches on the device while the host reads an older one.
_MOST_THREADS = 16

# Names of a batch's images, each with the reason it is unreadable, or None.
Names = list[tuple[str, str | None]]


@dataclasses.dataclass(frozen=True)
class Prediction:
  """A model's answer for one image file.

  Attributes:
    image: The file's name, with unprintable characters escaped.
    error: Why the image could not be read, or None; if it could not be, all
      other fields are empty.
    index: Indices of the likeliest classes, the likeliest first.
    probability: Probabilities of these classes.
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
  """Yields predictions for image files, a batch at a time, in their order.

  Args:
    model: The model, from images to logits.
    params: The model's parameters.
    images: Paths of the images.
    preprocessing: The model's preprocessing.
    loss: The loss the model was trained with; it decides between softmax and
      sigmoid.
    top: Number of the likeliest classes to return for each image.
    batch_size: Images per step, or fewer if there are not as many.
    features: Whether to return the head's input as well.

  Raises:
    ValueError: if the image size is unknown, or the model's outputs are NaN.
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
  """Reads image files and preprocesses them, except for the normalisation.

  Args:
    preprocessing: The model's preprocessing.
    paths: Paths of a few images; all are held in memory.

  Raises:
    ValueError: if an image cannot be read, or the image size is unknown.
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
  """The name of a class, or its index if there is no name for it."""
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
  """Returns a function from (params, images) to a dictionary of answers.

  It contains `index` and `probability`, both (B, top), if the model has a head,
  and `features`, (B, D), if they are asked for.

  Args:
    model: The model, from images to logits.
    mean: Mean subtracted from each channel, in units of full scale.
    std: Standard deviation that then divides each channel.
    loss: The loss the model was trained with; under "sigmoid" the
      probabilities of the classes are independent.
    top: Number of the likeliest classes to return, or all if there are fewer.
    features: Whether to return the head's input.
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
  """Fetches the answers to a batch; those of unreadable images are left out."""
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
  """Yields names and pixels (rows, H, W, 3), which are 0 without an image."""
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
  """Yields each path with its image, read `ahead` in advance by threads."""
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
  """Returns an image, uint8 (H, W, 3), or the reason it cannot be read."""
  try:
    with open(path, "rb") as file:
      return transform(file.read())
  except UnreadableImageError as error:
    return str(error)
  except OSError as error:
    return f"{error.strerror}."
