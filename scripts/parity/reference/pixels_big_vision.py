"""Makes pixels and boxes by google-research/big_vision and TensorFlow."""

from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
import tensorflow_addons as tfa
from cases import answer

from big_vision.pp import builder, ops_image  # isort: skip
from big_vision.pp.archive import autoaugment, randaug  # noqa: F401

# As it is within a step of the data's graph; eager mode has other conversions.
_LENGTHS = autoaugment.HParams(cutout_const=40, translate_const=100)


class Draws:
  """Stands for its `random_uniform`: the layers' operations and their draws."""

  def __init__(self, layers: list):
    self.layers, self.at, self.place = layers, -1, 0

  def __call__(
    self, shape: Any, minval: Any = 0, maxval: Any = None, dtype: Any = None
  ) -> Any:
    del shape
    if isinstance(maxval, int):  # Which operation a layer has.
      self.at, self.place = self.at + 1, 0
      return tf.constant(self.layers[self.at][0])
    _, sign, centre = self.layers[max(self.at, 0)]
    if dtype == tf.int32:
      self.place += 1
      return tf.constant(centre[(self.place - 1) % 2])
    return tf.constant(0.75 if sign > 0 else 0.25)


def graph(function: Any, image: Any) -> Any:
  return tf.function(function)(tf.constant(image)).numpy()


def operation(image: Any, name: str, magnitude: float, layer: list, **_) -> Any:
  """One operation of RandAugment."""

  def op(image: Any) -> Any:
    function, _, args = autoaugment._parse_policy_info(
      name, 0.5, float(magnitude), [128] * 3, _LENGTHS
    )
    return function(image, *args)

  with mock.patch.object(autoaugment.tf, "random_uniform", Draws([layer])):
    return graph(op, image)


def train(
  image: Any,
  program: str,
  box: Any = None,
  flip: Any = 0,
  layers: Any = (),
  **_,
) -> Any:
  """All of a preprocessing string, with its draws."""
  top, left, h, w = box or (0, 0, 0, 0)

  def sampled(*_: Any, **__: Any) -> Any:
    return tf.constant([top, left, 0]), tf.constant([h, w, -1]), None

  def flipped(x: Any) -> Any:
    return tf.image.flip_left_right(x) if flip else x

  with (
    mock.patch.object(autoaugment.tf, "random_uniform", Draws([*layers])),
    mock.patch.object(tf.image, "sample_distorted_bounding_box", sampled),
    mock.patch.object(tf.image, "random_flip_left_right", flipped),
  ):
    function = builder.get_preprocess_fn(program, log_data=False)
    return graph(lambda x: function({"image": x})["image"], image)


def decode(image: Any, precise: bool, **_: Any) -> Any:
  function = ops_image.get_decode(precise=precise)
  return graph(lambda x: function({"image": x})["image"], image)


def resized_shapes(sizes: Any, short: int, **_: Any) -> Any:
  """The shapes to which images would be resized before a central crop."""
  function, found = ops_image.get_resize_small(short), []

  def kept(image: Any, size: Any, **_: Any) -> Any:
    found.append([int(side) for side in size])
    return image

  with mock.patch.object(tf.image, "resize", kept):
    for h, w in sizes:
      function({"image": np.zeros((h, w, 1), np.uint8)})
  return found


def boxes(size: list, count: int, **_: Any) -> Any:
  """Boxes of `decode_jpeg_and_inception_crop`, (count, 4)."""
  found: list[Any] = []
  sample = tf.image.sample_distorted_bounding_box

  def kept(*args: Any, **options: Any) -> Any:
    found.append((args, options))
    return sample(*args, **options)

  file = tf.io.encode_jpeg(np.zeros((*size, 3), np.uint8))
  with mock.patch.object(tf.image, "sample_distorted_bounding_box", kept):
    ops_image.get_decode_jpeg_and_inception_crop()({"image": file})
  (args, options) = found[0]

  def draw(_: Any) -> Any:
    begin, size, _ = sample(*args, **options)
    return tf.concat([begin[:2], size[:2]], 0)

  drawn = tf.data.Dataset.range(count).map(draw).batch(count)
  return next(iter(drawn)).numpy().astype(np.int16)


def layers(count: int, magnitude: float, **_: Any) -> Any:
  """The operation of each of many layers, and what it is told, (count, 2)."""

  def op(i: int) -> Any:
    return lambda image, *args: tf.stack(
      [float(i), tf.cast(args[0], tf.float32) if args else 0.0]
    )

  known = ("AutoContrast", "Equalize", "Invert", "Rotate", "Posterize")
  known += ("Solarize", "Color", "Contrast", "Brightness", "Sharpness")
  known += ("ShearX", "ShearY", "TranslateX", "TranslateY", "Cutout")
  known += ("SolarizeAdd",)
  own = {name: op(i) for i, name in enumerate(known)}

  def draw(_: Any) -> Any:
    return autoaugment.distort_image_with_randaugment(tf.zeros(2), 1, magnitude)

  with mock.patch.dict(autoaugment.NAME_TO_FUNC, own):
    drawn = tf.data.Dataset.range(count).map(draw).batch(count)
    return next(iter(drawn)).numpy()


def centres(count: int, size: list, **_: Any) -> Any:
  """The last row and column of a cutout of 2 by 2 pixels, (count, 2)."""
  image = np.full((*size, 3), 7, np.uint8)

  def draw(_: Any) -> Any:
    cut = autoaugment.cutout(tf.constant(image), 1, 128)[..., 0] == 128
    places = tf.where(cut)
    return tf.reduce_max(places, 0)

  drawn = tf.data.Dataset.range(count).map(draw).batch(count)
  return next(iter(drawn)).numpy().astype(np.int16)


if __name__ == "__main__":
  tf.random.set_seed(0)
  answer(
    dict(
      operation=operation,
      train=train,
      decode=decode,
      resized_shapes=resized_shapes,
      boxes=boxes,
      layers=layers,
      centres=centres,
    ),
    {"tensorflow": tf.__version__, "tensorflow-addons": tfa.__version__},
  )
